"""Batches of like clips, and joined datasets, on both decoders: some clips on NVDEC, others on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framedex import BucketSampler, ClipDataset, ClipLoader, ConcatClips, MixtureSampler
from tests.contract.test_decoders import DEVICES
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.media import read_barcode

NAMES = ("h264_default.mp4", "hevc_closed.mp4")


@pytest.fixture
def parts(medium: Callable[[str], Path], tmp_path: Path) -> list[ClipDataset]:
    """Two datasets of two videos, whose clips have two or three frames."""
    (tmp_path / "media").mkdir()
    for name in NAMES:
        shutil.copy(medium(name), tmp_path / "media" / name)
    run("index", tmp_path / "media", "--out", tmp_path / "INDEX")
    found = []
    for part in range(2):
        clips = [
            {"uri": NAMES[number % 2], "frames": [number, part, 9][: 2 + number // 2 % 2], "part": part}
            for number in range(10)
        ]
        found.append(ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / f"D{part}", clips)))
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_batches_of_like_clips_stack_and_show_their_frames(parts: list[ClipDataset], device: str) -> None:
    joined = ConcatClips(parts)
    sampler = BucketSampler(joined, by="shape", max_batch=3, shuffle=True, seed=1)
    loader = ClipLoader(joined, batch_sampler=sampler, device=device, cpu_share=0, num_workers=1)
    shapes, seen = set(), 0
    for batch in some(loader):
        shapes.add(tuple(batch["frames"].shape[:2]))
        for frames, numbers in zip(batch["frames"].cpu().numpy(), batch["frame_index"].tolist(), strict=True):
            assert [read_barcode(frame) for frame in frames] == numbers
            seen += 1
    assert seen == 20
    assert {count for count, _ in shapes} >= {3}
    assert {frames for _, frames in shapes} == {2, 3}
    loader.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_mixture_shows_the_frames_of_its_datasets(parts: list[ClipDataset], device: str) -> None:
    joined = ConcatClips(parts)
    sampler = MixtureSampler(joined, rates=[2, 1], shuffle=True)
    loader = ClipLoader(
        joined, batch_size=5, sampler=sampler, device=device, cpu_share=0, num_workers=1, collate="list"
    )
    counts = np.zeros(2, np.int64)
    for batch in some(loader):
        assert batch["dataset_number"].tolist() == batch["part"].tolist()
        for frames, numbers in zip(batch["frames"], batch["frame_index"], strict=True):
            assert [read_barcode(frame) for frame in frames.cpu().numpy()] == numbers.tolist()
        counts += np.bincount(batch["dataset_number"].numpy(), minlength=2)
    assert counts.tolist() == sampler.counts == [10, 5]
    loader.close()
