"""A dataset's transform: what it gets, its random numbers, workers, errors, and what is refused."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, ClipStream, Framing, Index, MultiViewDataset
from framedex.errors import FramedexError, TransformError
from tests.support.datasets import run, shard_clips
from tests.support.running import environment
from tests.support.scenes import write_scenes

NAMES = ("h264_default.mp4", "hevc_closed.mp4", "h264_vfr.mkv")


def described(frames: torch.Tensor) -> list[Any]:
    """Return what the transform got."""
    return [type(frames).__name__, str(frames.dtype), list(frames.shape)]


def jittered(frames: torch.Tensor) -> torch.Tensor:
    """Brighten, crop and weaken by random numbers of torch, numpy and Python: one set for all frames."""
    top = int(torch.randint(0, 40, ()))
    brighter = frames[..., top : top + 64, 20:116].float() * (0.5 + torch.rand(()))
    return brighter + np.random.random() + random.random()


def failing(frames: torch.Tensor) -> torch.Tensor:
    """Fail on clips whose first picture is bright in a corner, by chance or not."""
    raise ValueError(f"no {frames.ndim} axes wanted")


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number, 2 * number + 1, 30]}
        for number in range(4)
        for name in NAMES
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("transforms") / "D", clips)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, [3, 3, 144, 176]),
        ({"layout": "FHWC"}, [3, 144, 176, 3]),
        ({"layout": "CFHW"}, [3, 3, 144, 176]),
        ({"framing": Framing(crop=(64, 32), position="three")}, [3, 3, 3, 64, 32]),
    ],
)
def test_a_transform_gets_a_tensor_with_channels_first_or_as_the_layout_says(
    stored: Path, options: dict[str, Any], shape: list[int]
) -> None:
    assert ClipDataset(stored, transform=described, **options)[0]["frames"] == ["Tensor", "torch.uint8", shape]


def test_channels_first_are_those_of_the_plain_frames(stored: Path) -> None:
    plain = ClipDataset(stored)[5]["frames"]
    assert np.array_equal(ClipDataset(stored, transform=torch.Tensor.numpy)[5]["frames"], plain.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_items_batches_and_dataloaders_draw_the_same_numbers(stored: Path, workers: int) -> None:
    own = ClipDataset(stored, transform=jittered, seed=3)
    for epoch in (0, 1):
        own.set_epoch(epoch)
        items = [own[number]["frames"] for number in range(len(own))]
        sampler = ClipSampler(own)
        sampler.set_epoch(epoch)
        loader = ClipLoader(own, batch_size=4, sampler=sampler, num_workers=workers)
        batches = torch.cat([batch["frames"] for batch in loader])
        loader.close()
        assert torch.equal(batches, torch.stack(items))
        assert batches.dtype == torch.float32
        assert len({float(item.mean()) for item in items}) == len(items)
        own.set_epoch(epoch)  # a ClipLoader ends with the next epoch
        plain = DataLoader(own, batch_size=5, num_workers=workers, multiprocessing_context="fork" if workers else None)
        assert torch.equal(torch.cat([batch["frames"] for batch in plain]), batches)
    other = ClipDataset(stored, transform=jittered, seed=4)
    other.set_epoch(1)
    assert not any(torch.equal(other[number]["frames"], items[number]) for number in range(len(other)))


def test_the_numbers_of_the_caller_are_left_alone(stored: Path) -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(())), float(np.random.random()), random.random()]

    dataset = ClipDataset(stored, transform=jittered)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = drawn()
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])
    random.setstate(before[2])
    assert dataset[0]["frames"].shape == (3, 3, 64, 96)
    assert drawn() == expected


def test_streams_and_views_are_transformed(index: Index, stored: Path, tmp_path: Path) -> None:
    policy = {"policy": "uniform", "frames": 3, "filter": "codec == 'vp9' or container == 'mp4' and codec == 'h264'"}
    framedex.shard(index.path, tmp_path / "D", policy=policy, pack="clips", workers=0, progress=False)
    packed = ClipDataset(tmp_path / "D", transform=jittered, seed=6)
    own = {item["clip_id"]: item["frames"] for item in (packed[number] for number in range(len(packed)))}
    stream = {item["clip_id"]: item["frames"] for item in ClipStream(tmp_path / "D", transform=jittered, seed=6)}
    assert stream.keys() == own.keys()
    assert all(torch.equal(stream[name], frames) for name, frames in own.items())

    run("index", write_scenes(tmp_path / "MEDIA"), "--out", tmp_path / "INDEX")
    views = {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}
    policy = {"policy": "fps", "fps": 5, "frames": 3, "views": views}
    clips = ClipDataset.from_index(tmp_path / "INDEX", policy, transform=jittered, framing=Framing(size=(120, 160)))
    dataset = MultiViewDataset(clips, stack=True)
    (batch,) = ClipLoader(dataset, batch_size=len(dataset))
    items = [dataset[number]["frames"] for number in range(len(dataset))]
    assert items[0].shape == (len(dataset.views), 3, 3, 64, 96)
    assert torch.equal(batch["frames"], torch.stack(items))


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_failing_transform_ends_the_run_and_names_the_clip(stored: Path, on_error: Any) -> None:
    with pytest.raises(TransformError, match=r"the transform fails on clip h264_default\.mp4-0") as raised:
        ClipDataset(stored, transform=failing)[0]
    assert "ValueError: no 4 axes wanted" in str(raised.value.found)
    assert "test_transforms.py, line" in str(raised.value.found)
    assert isinstance(raised.value.__cause__, ValueError)
    for workers in (0, 1):
        loader = ClipLoader(ClipDataset(stored, transform=failing), on_error=on_error, num_workers=workers)
        with pytest.raises(TransformError, match="ValueError: no 4 axes wanted"):
            list(loader)
        loader.close()


def test_results_that_are_no_arrays_are_lists_in_a_batch(stored: Path) -> None:
    (batch,) = ClipLoader(ClipDataset(stored, transform=described), batch_size=2, sampler=[0, 1], num_workers=1)
    assert batch["frames"] == [["Tensor", "torch.uint8", [3, 3, 144, 176]]] * 2
    halves = ClipDataset(stored, transform=torch.Tensor.half)
    assert next(iter(ClipLoader(halves)))["frames"].dtype == torch.float16
    with pytest.raises(TransformError, match="cannot have this type"):
        next(iter(ClipLoader(ClipDataset(stored, transform=torch.Tensor.bfloat16))))


def test_what_a_transform_cannot_be_or_be_beside_is_refused(stored: Path) -> None:
    with pytest.raises(FramedexError, match="transform must be a function"):
        ClipDataset(stored, transform="flip")  # type: ignore[arg-type]
    dataset = ClipDataset(stored, transform=jittered)
    with pytest.raises(FramedexError, match="a GPU would have nothing to decode") as raised:
        ClipLoader(dataset, device="cuda")
    assert "device='cpu'" in str(raised.value.remedy)
    for wrong in ({"layout": "FCHW"}, {"normalize": ((0.5,) * 3, (0.5,) * 3)}, {"transform": jittered}):
        with pytest.raises(FramedexError, match="as the dataset's transform returns them"):
            ClipLoader(dataset, **wrong)  # type: ignore[arg-type]
    with pytest.raises(FramedexError, match="cannot be sent to worker processes") as raised:
        ClipLoader(ClipDataset(stored, transform=lambda frames: frames), num_workers=1)
    assert "num_workers=0" in str(raised.value.remedy)
    with pytest.raises(FramedexError, match="decode='movie'"):
        ClipDataset(stored, decode="movie", transform=jittered)
    assert next(iter(ClipLoader(ClipDataset(stored, transform=lambda frames: frames[:, :1]))))["frames"].shape[2] == 1


def test_partial_functions_reach_workers(stored: Path) -> None:
    dataset = ClipDataset(stored, transform=functools.partial(torch.flip, dims=(-1,)))
    batch = next(iter(ClipLoader(dataset, batch_size=3, num_workers=1)))
    plain = next(iter(ClipLoader(ClipDataset(stored, layout="FCHW"), batch_size=3)))
    assert torch.equal(batch["frames"], plain["frames"].flip(-1))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from framedex import ClipDataset
frames = ClipDataset(sys.argv[1], transform=lambda frames: frames + 1, layout="FHWC")[0]["frames"]
print(type(frames).__name__, frames.shape)
"""


def test_without_torch_a_transform_gets_an_array(stored: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(stored)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.stdout == "ndarray (3, 144, 176, 3)\n", done.stderr
