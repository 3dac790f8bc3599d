"""Videos that players turn or widen, and the frames that they show: references that share no code with the product."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from numpy.typing import NDArray

from framedex.sharder.decoding.cutout import Cutout
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
MIRRORING = {"across": (-1, 0, 0, 1), "transposed": (0, 1, 1, 0), "transverse": (0, -1, -1, 0)}


def turned_video(source: Path, target: Path, turn: str) -> Path:
    """Write a copy of an MP4 with another matrix in its track header."""
    a, b, c, d = (ONE * value for value in (MATRICES | MIRRORING)[turn])

    def change(content: bytearray) -> bytearray:
        at = content.index(b"tkhd") + MATRIX_AT
        content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
        return content

    return damage(source, target, change)


def widened_video(source: Path, target: Path, aspect: str) -> Path:
    """Write a copy of an H.264 video whose samples have a shape, such as "2/1" for twice as wide as high."""
    with av.open(str(source)) as given, av.open(str(target), "w") as made:
        stream = given.streams.video[0]
        written = made.add_stream_from_template(stream)
        change = BitStreamFilterContext(f"h264_metadata=sample_aspect_ratio={aspect}", stream, written)
        for packet in given.demux(stream):
            for changed in change.filter(packet if packet.size else None):  # an empty packet comes last
                changed.stream = written
                made.mux(changed)
    return target


def cut(frames: NDArray[Any], cutout: Cutout) -> NDArray[Any]:
    """Return the windows of frames that are scaled and turned already: [F, h, w, C] or [windows, F, h, w, C]."""
    height, width = cutout.size
    out = 64 + max(cutout.size)  # further than windows reach
    around = np.pad(frames, ((0, 0), (out, out), (out, out), (0, 0)))
    windows = [
        around[:, out + top : out + top + height, out + left : out + left + width, :] for top, left, _ in cutout.windows
    ]
    flipped = [
        window[:, :, ::-1] if is_flipped else window
        for window, (_, _, is_flipped) in zip(windows, cutout.windows, strict=True)
    ]
    return np.stack(flipped) if cutout.is_stacked else flipped[0]
