"""Clips that are decoded together have the frames that the same decoder gives for each of them alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, Framing
from tests.contract.test_decoders import DEVICES
from tests.support.counted import some
from tests.support.media import read_barcode

NAMES = ("h264_default.mp4", "hevc_closed.mp4", "hevc_open_gop.mp4", "h264_vfr.mp4")
POLICY = {"policy": "windows", "frames": 6, "stride": 2, "step": 2}
HOW: dict[str, dict[str, Any]] = {
    "native": {},
    "scaled": {"size": (96, 128)},
    "random windows": {"framing": Framing(short_side=120, crop=(96, 96), position="random", flip=0.5)},
    "random areas": {"framing": Framing(size=(96, 96), scale=(0.3, 1.0))},
    "normalized": {"size": (96, 128), "normalize": ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), "layout": "CFHW"},
}


@pytest.fixture(scope="module")
def index(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shared") / "INDEX"
    framedex.index([medium(name) for name in NAMES], place, workers=0, progress=False)
    return place


def delivered(dataset: ClipDataset, **how: Any) -> tuple[dict[str, Any], ClipLoader]:
    """Return the frames of each clip of an epoch, by name, and the loader."""
    loader = ClipLoader(dataset, batch_size=4, **how)
    found: dict[str, Any] = {}
    for batch in some(loader):
        for name, frames, numbers in zip(batch["clip_id"], batch["frames"], batch["frame_index"], strict=True):
            assert name not in found
            found[name] = (frames.cpu().numpy().copy(), numbers.tolist())
    loader.close()
    return found, loader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("device", DEVICES)
def test_frames_decoded_together_equal_frames_decoded_alone(index: Path, device: str, how: str, workers: int) -> None:
    dataset = ClipDataset.from_index(index, POLICY, where=f"uri != {NAMES[2]!r}")
    options = {**HOW[how], "device": device, "decode": device, "num_workers": workers, "collate": "list"}
    alone, plain = delivered(dataset, sampler=ClipSampler(dataset, shuffle=True), **options)
    shared, loader = delivered(dataset, sampler=ClipSampler(dataset, shuffle=True, share=5, window=2), **options)
    assert shared.keys() == alone.keys()
    assert loader.report.decoded == plain.report.decoded
    if device == "gpu":
        assert loader.report.decoded["nvdec"] > 0.7 * len(dataset)
    for name, (frames, numbers) in some(shared.items()):
        assert numbers == alone[name][1]
        np.testing.assert_array_equal(frames, alone[name][0], name)
    if not (device == "gpu" and how == "random areas"):  # NVDEC cannot scale one decoded picture in several ways
        assert loader.report.packets < 0.7 * plain.report.packets


@pytest.mark.parametrize("device", DEVICES)
def test_both_decoders_share_groups(index: Path, device: str) -> None:
    dataset = ClipDataset.from_index(index, POLICY)
    sampler = ClipSampler(dataset, shuffle=True, share=4, window=3)
    options: list[dict[str, Any]] = [{}, {"share_memory": "2MB"}, {"cpu_share": 0.5}]
    for more in some(options, 3):
        shared, _ = delivered(dataset, sampler=sampler, device=device, num_workers=2, collate="list", **more)
        assert len(shared) == len(dataset)
        for frames, numbers in some(shared.values()):
            assert [read_barcode(frame) for frame, number in zip(frames, numbers, strict=True) if number >= 0] == [
                number for number in numbers if number >= 0
            ]
