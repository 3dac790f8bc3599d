"""One suite for both decoders: what ClipLoader promises holds on the CPU and on NVDEC."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import ClipDataset, ClipLoader, ClipSampler, Index
from tests.support.counted import some
from tests.support.datasets import shard_clips
from tests.support.gpu import gpu_obstacles
from tests.support.media import RECIPES, read_barcode
from tests.support.outcomes import NO_GPU
from tests.support.pictures import rgb_of

FRAMES_A_CLIP = 7
# Streams that must not be sent to NVDEC, with the reasons. Every other recipe is decoded there.
ON_CPU = {
    "h264_open_gop.mp4": "open start",
    "h264_open_gop.mkv": "open start",
    "h264_all_intra.mp4": "no reference frames",
    "h264_high10.mkv": "10 bit",
    "h264_yuv444.mp4": "4:4:4",
    "h264_lossless.mp4": "4:4:4",
}


def _has_gpu() -> bool:
    """Return whether a GPU is present or required."""
    if os.environ.get("FRAMEDEX_REQUIRE_GPU") == "1":
        return True
    found = shutil.which("nvidia-smi")
    return found is not None and subprocess.run([found], capture_output=True, check=False).returncode == 0


DEVICES = [
    "cpu",
    pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(not _has_gpu(), reason=NO_GPU)]),
]


@pytest.fixture(scope="session")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of every recipe: frames in random order, repeated frames, and one clip with padding at both ends."""
    rng = np.random.default_rng(3)
    clips = []
    for name, recipe in RECIPES.items():
        for number in range(5):
            frames = rng.integers(0, recipe.frames, FRAMES_A_CLIP).tolist()
            frames[3] = frames[1]
            clips.append({"uri": name, "clip_id": f"{name}-{number}", "frames": frames, "recipe": name})
        clips.append({"uri": name, "clip_id": f"{name}-padded", "frames": [-1, 0, 0, 0, 0, 0, -1], "recipe": name})
    return shard_clips(index.path, tmp_path_factory.mktemp("contract") / "DATASET", clips)


def _items(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a batch into clips."""
    return [{name: values[number] for name, values in batch.items()} for number in range(len(batch["clip_id"]))]


@pytest.mark.parametrize("device", DEVICES)
def test_every_frame_is_the_one_asked_for_in_shuffled_mixed_batches(dataset: Path, device: str) -> None:
    clips = ClipDataset(dataset)
    sampler = ClipSampler(clips, shuffle=True, seed=1)
    seen = 0
    for batch in ClipLoader(clips, batch_size=8, sampler=sampler, device=device, collate="list"):
        for item in _items(batch):
            frames = item["frames"].cpu().numpy()
            numbers = item["frame_index"].tolist()
            shown = [read_barcode(frame) if number >= 0 else -1 for frame, number in zip(frames, numbers, strict=True)]
            assert shown == numbers, item["clip_id"]
            assert not frames[~item["mask"].numpy()].any(), "padding is zeros"
            seen += 1
    assert seen == len(clips)


@pytest.mark.parametrize("device", DEVICES)
def test_pictures_agree_with_a_plain_conversion_of_the_full_decode(
    dataset: Path, device: str, medium: Callable[[str], Path]
) -> None:
    from tests.support.media import full_decode

    clips = ClipDataset(dataset)
    loader = ClipLoader(clips, batch_size=6, sampler=ClipSampler(clips), device=device, collate="list")
    for batch in some(loader):
        for item in some(_items(batch)):
            truth = [rgb_of(frame) for frame in full_decode(medium(item["recipe"]))]
            for frame, number in some(zip(item["frames"].cpu().numpy(), item["frame_index"].tolist(), strict=True)):
                if number >= 0:
                    away = np.abs(frame.astype(np.int16) - truth[number]).mean()
                    limit = 0.001 if device == "cpu" else 2 if RECIPES[item["recipe"]].bt709 else 9
                    assert away < limit, (item["clip_id"], number, away)


@pytest.mark.parametrize("device", DEVICES)
def test_size_transform_layout_and_normalize_shape_the_batch(dataset: Path, device: str) -> None:
    from nvidia.dali import fn

    clips = ClipDataset(dataset)
    loader = ClipLoader(
        clips,
        batch_size=4,
        sampler=ClipSampler(clips, shuffle=True),
        device=device,
        size=(64, 96),
        transform=lambda frames: fn.crop(frames, crop=(48, 80)),
        normalize=((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        layout="FCHW",
        last="drop",
    )
    for batch in some(loader):
        assert batch["frames"].shape == (4, FRAMES_A_CLIP, 3, 48, 80)
        assert batch["frames"].device.type == ("cuda" if device == "gpu" else "cpu")
        assert batch["frames"].dtype.is_floating_point
        assert batch["frames"].min() >= -2.001
        assert batch["frames"].max() <= 2.001


def test_only_streams_proven_on_nvdec_are_routed_there(dataset: Path) -> None:
    clips = ClipDataset(dataset)
    obstacles: dict[str, set[bool]] = {}
    for number, obstacle in enumerate(gpu_obstacles(clips)):
        obstacles.setdefault(clips.clip(number).medium.uri, set()).add(obstacle is not None)
    always = {uri for uri, blocked in obstacles.items() if blocked == {True}}
    assert always <= ON_CPU.keys()
    assert always >= {uri for uri, why in ON_CPU.items() if why != "open start"}
