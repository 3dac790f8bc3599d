"""Frames of files with a rotation in the track header are turned upright as the ffmpeg command turns them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import ClipDataset, Index
from framedex.sharder.decoding.cutout import Cutout, Window, cut_into
from tests.support.datasets import run, shard_clips
from tests.support.ffmpeg import ffmpeg
from tests.support.turned import MATRICES, MIRRORING, cut, turned_video


def _by_command(path: Path) -> NDArray[np.uint8]:
    """Return the first picture as the ffmpeg command shows it: uint8 [bytes]."""
    command = [ffmpeg(), "-v", "error", "-i", str(path), "-frames:v", "1", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8)


@pytest.mark.parametrize("turn", MATRICES)
def test_upright_is_what_ffmpeg_shows(turn: str, medium: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    path = turned_video(medium("h264_default.mp4"), tmp_path / "media" / "turned.mp4", turn)
    run("index", tmp_path / "media", "--out", tmp_path / "INDEX")
    clips = [{"uri": "turned.mp4", "frames": [0]}]
    dataset = ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", clips))
    shown = dataset[0]["frames"]
    assert shown.flags.c_contiguous
    assert dataset.shapes().tolist() == [list(shown.shape[:3])]
    expected = _by_command(path).reshape(shown.shape[1:]).astype(np.int64)
    # ffmpeg turns before it converts to RGB, and interpolates chroma in another way.
    assert np.abs(shown[0] - expected).mean() < 6
    turned = [np.rot90(shown[0], number) for number in (1, 2, 3)]
    assert min(np.abs(other - expected).mean() for other in turned if other.shape == expected.shape) > 20


@pytest.mark.parametrize("depth", ["tables", "packets"])
@pytest.mark.parametrize("turn", MIRRORING)
def test_pictures_that_players_mirror_stay_as_stored_and_say_so(
    turn: str, depth: str, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "media").mkdir()
    path = turned_video(medium("h264_default.mp4"), tmp_path / "media" / "mirrored.mp4", turn)
    output = run("index", tmp_path / "media", "--out", tmp_path / "INDEX", "--depth", depth)
    assert "note: mirrored.mp4: the display matrix mirrors pictures, so they stay as they are stored" in output.output
    (row,) = Index(tmp_path / "INDEX").videos.to_pylist()
    assert (row["status"], row["error_kind"], row["rotation_degrees"]) == ("ok", None, 0)
    clips = [{"uri": "mirrored.mp4", "frames": [3]}]
    shown = ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", clips))[0]["frames"]
    with av.open(str(path)) as container:
        stored = next(frame for number, frame in enumerate(container.decode(video=0)) if number == 3)
    assert np.abs(shown[0].astype(np.int64) - stored.to_ndarray(format="rgb24")).mean() < 6


@pytest.mark.parametrize("turn", MATRICES)
def test_upright_is_what_torchcodec_shows(
    turn: str, medium: Callable[[str], Path], tmp_path: Path, torchcodec: ModuleType
) -> None:
    (tmp_path / "media").mkdir()
    path = turned_video(medium("h264_default.mp4"), tmp_path / "media" / "turned.mp4", turn)
    run("index", tmp_path / "media", "--out", tmp_path / "INDEX")
    wanted = [31, 2, 17, 2]
    clips = [{"uri": "turned.mp4", "frames": wanted}]
    shown = ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", clips))[0]["frames"].astype(np.int64)
    decoder = torchcodec.VideoDecoder(path, dimension_order="NHWC")
    expected = decoder.get_frames_at(wanted).data.numpy()
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).mean() < 6
    for number in (1, 2, 3):
        other = np.rot90(shown, number, (1, 2))
        assert other.shape != expected.shape or np.abs(other - expected).mean() > 20


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("turns", range(4))
def test_windows_of_turned_pictures(turns: int, library: str) -> None:
    generator = np.random.default_rng(turns)
    pictures = generator.integers(1, 255, (2, 40, 64, 3)).astype(np.uint8)
    upright = np.rot90(pictures, turns, (1, 2))
    windows = (Window(3, 5), Window(-4, 20, True), Window(upright.shape[1] - 9, -2, True))
    cutout = Cutout(scaled=upright.shape[1:3], size=(16, 12), windows=windows, is_stacked=True, turns=turns)
    assert cutout.scaled_picture == (40, 64)
    expected = cut(upright, cutout)
    module = pytest.importorskip(library)
    target, given = np.zeros(expected.shape, np.uint8), pictures
    if library == "torch":
        target, given = module.from_numpy(target), module.from_numpy(pictures)
    cut_into(target, given, cutout, module)
    assert np.array_equal(np.asarray(target), expected)
    assert not cutout.is_whole
    # The part of the picture that shows all windows gives the same windows.
    inner = Cutout(scaled=upright.shape[1:3], size=(9, 7), windows=(Window(11, 13), Window(8, 20, True)), turns=turns)
    rows, columns = inner.box()
    part = pictures[:, rows, columns]
    shown = inner.within((rows, columns))
    assert shown.scaled_picture == part.shape[1:3]
    found = np.zeros((2, 2, 9, 7, 3), np.uint8)
    cut_into(found, part, shown, np)
    for window, place in zip(inner.windows, found, strict=True):
        expected = upright[:, window.top : window.top + 9, window.left : window.left + 7]
        assert np.array_equal(place, expected[:, :, ::-1] if window.is_flipped else expected)


def test_angles_go_to_the_nearest_quarter_turn(index: Index, tmp_path: Path) -> None:
    angles = (0, 90, -90, 180, -180, 270, 44, 46, -44, 360)
    stored = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [0]}])
    medium = ClipDataset(stored).clip(0).medium
    turns = [replace(medium, rotation_degrees=degrees).turns for degrees in angles]
    assert turns == [0, 1, 3, 2, 2, 3, 0, 1, 0, 0]
