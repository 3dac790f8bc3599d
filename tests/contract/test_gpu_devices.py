"""GPU devices: all names of a GPU, a GPU that does not exist, and a GPU whose memory is full."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from framedex import ClipDataset, ClipLoader, Index
from framedex.errors import FramedexError
from tests.contract.test_decoders import DEVICES
from tests.support.datasets import run, shard_clips

ON_GPU = DEVICES[1:]  # skipped without a GPU


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of eight clips of an H.264 video."""
    out = tmp_path_factory.mktemp("devices") / "D"
    clips = [{"uri": "h264_default.mp4", "frames": list(range(first, first + 8))} for first in range(0, 40, 5)]
    return shard_clips(index.path, out, clips)


@pytest.mark.parametrize("device", ON_GPU)
def test_a_gpu_has_several_names(dataset: Path, device: str) -> None:
    batches = {}
    for name in (device, "cuda", "cuda:0", torch.device("cuda:0")):
        loader = ClipLoader(ClipDataset(dataset), batch_size=8, device=name, decode="gpu")
        (batch,) = loader
        loader.close()
        assert batch["frames"].device == torch.device("cuda:0")
        batches[str(name)] = batch["frames"].cpu()
    first, *others = batches.values()
    assert all(torch.equal(first, other) for other in others)
    result = run("bench", dataset, "--device", "cuda:0", "--workers", 0, "--batch-size", 4)
    assert "clips a second" in result.stdout


@pytest.mark.parametrize("device", ON_GPU)
def test_a_gpu_that_is_not_there_is_named_beside_those_that_are(dataset: Path, device: str) -> None:
    with pytest.raises(FramedexError, match="there is no such GPU") as raised:
        ClipLoader(ClipDataset(dataset), device="cuda:99" if device == "gpu" else device)
    assert (raised.value.found, str(raised.value.allowed)[:6]) == ("cuda:99", "cuda:0")


@pytest.mark.parametrize("device", ON_GPU)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_full_memory_says_what_was_asked_and_how_to_ask_for_less(dataset: Path, device: str, on_error: str) -> None:
    loader = ClipLoader(ClipDataset(dataset, size=(4000, 8000)), batch_size=8, device=device, on_error=on_error)  # type: ignore[arg-type]
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(0)
    taken = torch.empty(max(0, free - (3 << 29)), dtype=torch.uint8, device="cuda:0")  # leaves 1.5 GiB free
    try:
        with pytest.raises(FramedexError, match="the GPU's memory is full") as raised:
            list(loader)
    finally:
        loader.close()
        del taken
        torch.cuda.empty_cache()
    assert raised.value.where == "a batch of 8 clips, 64 frames of 8000×4000, 2 batches ahead"
    assert "GiB free on cuda:0" in str(raised.value.found)
    assert "a smaller batch_size" in str(raised.value.remedy)
