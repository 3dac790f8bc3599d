"""A decoded picture's native planes, and a fingerprint of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import av
import numpy as np
from av.video.plane import VideoPlane
from numpy.typing import NDArray


def native_planes(picture: av.VideoFrame) -> Iterator[NDArray[np.uint8]]:
    """Yield each plane as uint8 [rows, bytes], cropped to the visible part. A palette is one row of 1024 bytes."""
    palette = picture.format.name == "pal8"
    for number, plane in enumerate(picture.planes):
        if palette and number == 1:
            yield plane_rows(plane, 1)[:, :1024]
        else:
            yield plane_rows(plane, plane.height)[:, : _row_bytes(picture, number)]


def plane_rows(plane: VideoPlane, height: int) -> NDArray[np.uint8]:
    """Return uint8 [height, line size]: a view of a plane's memory, including the padding at the end of its rows."""
    # Only some numpy versions need the "type: ignore".
    pixels: NDArray[np.uint8] = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload, unused-ignore]
    row = plane.line_size if height > 1 else len(pixels)
    return pixels[: row * height].reshape(height, row)


def _row_bytes(picture: av.VideoFrame, plane: int) -> int:
    """Return the number of visible bytes in a row of a plane, for all components stored in that plane."""
    layout, width = picture.format, picture.planes[plane].width
    if layout.name == "pal8":
        return width
    if not layout.is_planar and len(picture.planes) == 1:
        bits = layout.padded_bits_per_pixel
        return width * ((bits + 7) // 8) if bits >= 8 else (width * bits + 7) // 8
    here = [component for component in layout.components if component.plane == plane]
    return width * len(here) * ((max(component.bits for component in here) + 7) // 8)


def picture_md5(picture: av.VideoFrame) -> str:
    """Return the md5, in hexadecimal, of the native planes followed by '{pixel format}{width}x{height}'."""
    digest = hashlib.md5(usedforsecurity=False)
    for plane in native_planes(picture):
        digest.update(plane.tobytes())
    digest.update(f"{picture.format.name}{picture.width}x{picture.height}".encode())
    return digest.hexdigest()
