"""Errors for a missing GPU or too little GPU memory state what was found and a remedy. None is a bare RuntimeError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from framedex import ClipDataset, ClipLoader, Index
from framedex.errors import FramedexError
from framedex.loader.arguments import placed
from framedex.loader.dali import gpu
from tests.support.datasets import run, shard_clips
from tests.support.outcomes import A_GPU


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one clip."""
    out = tmp_path_factory.mktemp("no_gpu") / "D"
    return shard_clips(index.path, out, [{"uri": "h264_default.mp4", "frames": [0, 1]}])


@pytest.fixture
def no_gpu() -> None:
    """Skip the test if there is a GPU."""
    if torch.cuda.is_available():
        pytest.skip(A_GPU)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("cpu", 0), ("cpu", 0)),
        (("gpu", 0), ("gpu", 0)),
        (("gpu", 1), ("gpu", 1)),
        (("cuda", 0), ("gpu", 0)),
        (("cuda", 2), ("gpu", 2)),
        (("cuda:1", 0), ("gpu", 1)),
        (("cuda:1", 1), ("gpu", 1)),
        ((torch.device("cuda:3"), 0), ("gpu", 3)),
        ((torch.device("cpu"), 0), ("cpu", 0)),
    ],
)
def test_devices_are_named_as_torch_names_them_too(given: tuple[object, int], expected: tuple[str, int]) -> None:
    assert placed(*given) == expected


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "gpu:1", "cpu:0", "CUDA", "cuda:-1", None])
def test_other_devices_are_errors_that_name_those_allowed(device: object) -> None:
    with pytest.raises(FramedexError, match="unknown device") as raised:
        placed(device, 0)
    assert "'cuda:1'" in str(raised.value)


def test_two_names_of_two_gpus_are_an_error() -> None:
    with pytest.raises(FramedexError, match="different GPUs"):
        placed("cuda:1", 2)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:1"])
def test_a_loader_for_a_gpu_that_is_not_there_says_what_was_found(dataset: Path, device: str) -> None:
    with pytest.raises(FramedexError, match="needs an NVIDIA GPU that torch can use") as raised:
        ClipLoader(ClipDataset(dataset), device=device)
    assert raised.value.found
    assert "device='cpu'" in str(raised.value.remedy)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "options", [("bench", "--device", "cuda"), ("bench", "--device", "gpu"), ("verify", "--decode", "gpu")]
)
def test_commands_for_a_gpu_that_is_not_there_end_with_the_remedy(dataset: Path, options: tuple[str, ...]) -> None:
    command, *rest = options
    result = run(command, dataset, *rest, code=1)
    assert "needs an NVIDIA GPU" in result.stderr
    assert "found:" in result.stderr
    assert "remedy:" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_device_that_no_command_knows_is_a_usage_error(dataset: Path) -> None:
    assert "'tpu'" in run("bench", dataset, "--device", "tpu", code=2).stderr
    assert "not by both" in run("bench", dataset, "--device", "cuda:1", "--gpu", 2, code=2).stderr


@pytest.fixture
def of_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes torch report a given CUDA version and number of GPUs."""

    def say(*, version: str | None = "13.0", count: int = 0) -> None:
        monkeypatch.setattr(torch.version, "cuda", version)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return say


def test_what_is_found_of_cuda_is_said(of_cuda: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    of_cuda(version=None)
    with pytest.raises(FramedexError, match="a build without CUDA"):
        gpu.check_cuda(0)
    of_cuda(count=2)
    gpu.check_cuda(1)
    with pytest.raises(FramedexError, match="there is no such GPU") as raised:
        gpu.check_cuda(2)
    assert (raised.value.found, raised.value.allowed) == ("cuda:2", "cuda:0 to cuda:1")


def test_every_librarys_word_for_a_full_memory_is_known() -> None:
    for text in (
        "CUDA out of memory. Tried to allocate 20.00 GiB.",
        "CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory",
        "Error in thread 0: CUDA_ERROR_OUT_OF_MEMORY",
        "std::bad_alloc",
    ):
        assert gpu.is_out_of_memory(RuntimeError(text)), text
    assert gpu.is_out_of_memory(torch.OutOfMemoryError("…"))
    assert not gpu.is_out_of_memory(RuntimeError("the decoder failed"))
