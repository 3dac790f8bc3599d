"""The reference for decoded pictures: native planes and their hash, written without the code that the tests check."""

from __future__ import annotations

import hashlib

import av
import numpy as np
from numpy.typing import NDArray

PALETTE_BYTES = 1024  # 256 entries of 4 bytes


def native_planes(picture: av.VideoFrame) -> list[NDArray[np.uint8]]:
    """Return each plane as uint8 [rows, bytes] without the padding behind its rows. A palette is a single row."""
    found = []
    for number, plane in enumerate(picture.planes):
        memory = np.frombuffer(bytes(plane), np.uint8)
        if picture.format.name == "pal8" and number == 1:
            found.append(memory[None, :PALETTE_BYTES])
            continue
        wide = -(-plane.width * _pixel_bits(picture.format, number) // 8)
        # The last row may end before its padding does.
        found.append(
            np.stack([memory[at : at + wide] for at in range(0, plane.height * plane.line_size, plane.line_size)])
        )
    return found


def picture_md5(picture: av.VideoFrame) -> str:
    """Return the MD5 of all native planes in order, followed by '{pixel format}{width}x{height}'."""
    planes = b"".join(plane.tobytes() for plane in native_planes(picture))
    return hashlib.md5(planes + f"{picture.format.name}{picture.width}x{picture.height}".encode()).hexdigest()


def _pixel_bits(layout: av.VideoFormat, plane: int) -> int:
    """Return how many bits a pixel takes in a plane. Samples of planar formats take whole bytes."""
    if layout.name == "pal8":
        return 8
    if not layout.is_planar:
        bits = int(layout.padded_bits_per_pixel)
        return bits if bits < 8 else -(-bits // 8) * 8
    samples = [component.bits for component in layout.components if component.plane == plane]
    return sum(-(-max(samples) // 8) * 8 for _ in samples)
