"""`framedex verify --decode gpu`: a picture passes if it is closer to its own frame than to any neighbour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import ClipDataset, Index
from framedex.errors import FramedexError
from framedex.loader.routing import driver
from framedex.loader.verification import verify_gpu
from tests.contract.test_decoders import DEVICES
from tests.support.datasets import run, shard_clips

GPU = [device for device in DEVICES if device != "cpu"]
NAMES = ("h264_default.mp4", "h264_open_gop.mp4", "h264_vfr.mkv", "hevc_closed.mp4", "h264_high10.mkv")
WANTED = [9, 2, 2, -1, 25]


@pytest.fixture(scope="module")
def clips(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = [{"uri": name, "clip_id": name, "frames": WANTED} for name in NAMES]
    return shard_clips(index.path, tmp_path_factory.mktemp("verify_on_gpu") / "D", wanted)


def grey(level: int) -> NDArray[np.uint8]:
    return np.full((4, 6, 3), level, np.uint8)


def test_a_picture_is_its_own_where_no_neighbour_is_as_near() -> None:
    assert verify_gpu.likeness(grey(104), grey(100), [grey(90), grey(110)]).is_own is True
    assert verify_gpu.likeness(grey(106), grey(100), [grey(90), grey(110)]).is_own is False
    assert verify_gpu.likeness(grey(105), grey(100), [grey(110)]).is_own is False, "as near is not nearer"
    assert verify_gpu.likeness(grey(102), grey(100), []).psnr == pytest.approx(10 * np.log10(255**2 / 4))


def test_neighbours_that_are_the_same_picture_decide_nothing() -> None:
    assert verify_gpu.likeness(grey(0), grey(100), [grey(100), grey(100)]).is_own is None
    assert verify_gpu.likeness(grey(101), grey(100), [grey(100), grey(120)]).is_own is True


def test_neighbours_are_those_in_presentation_order_or_those_that_a_clip_has() -> None:
    truth = {2: grey(2), 3: grey(3), 9: grey(9)}
    assert [int(found[0, 0, 0]) for found in verify_gpu.neighbours_of(3, truth, by_place=False)] == [2]
    assert [int(found[0, 0, 0]) for found in verify_gpu.neighbours_of(3, truth, by_place=True)] == [2, 9]


def test_the_cpus_own_frames_are_nearest_and_those_of_a_neighbour_differ(clips: Path) -> None:
    dataset = ClipDataset(clips)
    for number in range(len(dataset)):
        clip, frames = dataset.clip(number), dataset[number]["frames"]
        truth = verify_gpu.source_pictures(clip.medium, [clip])
        right = verify_gpu.compare(clip, frames, truth, decoder="nvdec", by_place=False)
        assert (right.verdict, right.undecided) == ("nearest", 0), right
        assert right.worst_psnr is not None
        assert right.worst_psnr > 100
        frames[0] = truth[WANTED[0] + 1]
        wrong = verify_gpu.compare(clip, frames, truth, decoder="nvdec", by_place=False)
        assert wrong.verdict == "differs"
        assert wrong.reason is not None
        assert "frame 9 (place 0) is nearer to a neighbour" in wrong.reason


def test_without_a_gpu_it_says_so(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARIES", ("libcuda-that-is-not-there.so", "libnvcuvid-that-is-not-there.so"))
    monkeypatch.setattr(verify_gpu, "driver_support", driver.driver_support.__wrapped__)
    with pytest.raises(FramedexError, match="needs an NVIDIA GPU"):
        next(verify_gpu.verify_on_gpu(clips))
    assert "needs an NVIDIA GPU" in run("verify", clips, "--decode", "gpu", code=1).output


@pytest.mark.parametrize("device", GPU)
def test_every_clip_is_nearest_on_the_gpu_or_exact_on_the_cpu(clips: Path, device: str) -> None:
    assert device == "gpu"
    rows = [json.loads(line) for line in run("verify", clips, "--decode", "gpu", "--json").output.splitlines()]
    assert {row["clip_id"] for row in rows} == set(NAMES)
    for row in rows:
        assert (row["decoder"], row["verdict"]) in {("nvdec", "nearest"), ("cpu", "exact")}, row
        assert row["decoder"] == "cpu" or row["worst_psnr"] > 20
    assert {row["decoder"] for row in rows} == {"nvdec", "cpu"}
    assert "clips by decoder: cpu" in run("verify", clips, "--decode", "gpu").output
