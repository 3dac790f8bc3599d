"""Frames of files with a rotation in the track header are turned upright as the ffmpeg command turns them."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex.loader.batches.frames import quarter_turns, stored_size, upright
from tests.support.ffmpeg import ffmpeg
from tests.support.media import damage

MATRIX_AT = 44  # from the type of a version 0 tkhd box (ISO/IEC 14496-12 8.3.2)
ONE = 1 << 16
# The entries a, b, c, d of the matrix in a track header.
MATRICES = {
    "none": (1, 0, 0, 1),
    "quarter": (0, 1, -1, 0),
    "half": (-1, 0, 0, -1),
    "three quarters": (0, -1, 1, 0),
}


def _turned(source: Path, target: Path, turn: str) -> Path:
    a, b, c, d = (ONE * value for value in MATRICES[turn])

    def change(content: bytearray) -> bytearray:
        at = content.index(b"tkhd") + MATRIX_AT
        content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
        return content

    return damage(source, target, change)


def _by_command(path: Path, *before: str) -> NDArray[np.uint8]:
    """Return the first picture as the ffmpeg command writes it: uint8 [bytes]."""
    command = [ffmpeg(), "-v", "error", *before, "-i", str(path), "-frames:v", "1", "-f", "rawvideo"]
    written = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    return np.frombuffer(written, np.uint8)


@pytest.mark.parametrize("turn", MATRICES)
def test_upright_is_what_ffmpeg_shows(turn: str, medium: Callable[[str], Path], tmp_path: Path) -> None:
    path = _turned(medium("h264_default.mp4"), tmp_path / "turned.mp4", turn)
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    stored = _by_command(path, "-noautorotate").reshape(1, frame.height, frame.width, 3)
    shown = upright(stored, frame.rotation)
    assert shown.flags.c_contiguous
    assert shown.shape[1:3] == stored_size((frame.height, frame.width), frame.rotation)
    height, width = shown.shape[1:3]
    expected = _by_command(path).reshape(height, width, 3).astype(np.int64)
    # ffmpeg rotates before it converts to RGB, so chroma at odd positions may be interpolated differently.
    assert np.abs(shown[0] - expected).mean() < 3
    others = [
        np.abs(upright(stored, 90 * k)[0] - expected).mean()
        for k in range(4)
        if k != quarter_turns(frame.rotation) and upright(stored, 90 * k).shape == shown.shape
    ]
    assert min(others) > 20


def test_angles_go_to_the_nearest_quarter_turn() -> None:
    assert [quarter_turns(degrees) for degrees in (0, 90, -90, 180, -180, 270, 44, 46, -44, 360)] == [
        0, 1, 3, 2, 2, 3, 0, 1, 0, 0,
    ]  # fmt: skip


def test_four_turns_are_none_and_a_size_is_of_the_upright_picture() -> None:
    frames = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    assert upright(frames, 90).shape == (2, 6, 4, 3)
    assert np.array_equal(upright(upright(upright(upright(frames, 90), 90), 90), 90), frames)
    assert upright(frames[:, :4, :6], 90)[0, 0, 0].tolist() == frames[0, 0, 5].tolist()  # counterclockwise
    assert stored_size((224, 128), 90) == (128, 224)
    assert stored_size((224, 128), 180) == (224, 128)
