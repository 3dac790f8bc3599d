"""A decoded picture's native planes, and a fingerprint of them."""

from __future__ import annotations

import functools
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
            yield plane_rows(plane, plane.height)[:, : _row_bytes(picture.format.name, plane.width, number)]


def plane_rows(plane: VideoPlane, height: int) -> NDArray[np.uint8]:
    """Return uint8 [height, line size]: a view of a plane's memory, including the padding at the end of its rows."""
    # Only some numpy versions need the "type: ignore".
    pixels: NDArray[np.uint8] = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload, unused-ignore]
    row = plane.line_size if height > 1 else len(pixels)
    return pixels[: row * height].reshape(height, row)


@functools.lru_cache(1024)
def _row_bytes(pixel_format: str, width: int, plane: int) -> int:
    """Return the number of visible bytes in a row of a plane, for all components stored in that plane.

    Args:
        pixel_format: FFmpeg's name of it.
        width: width of the plane, in pixels.
        plane: number of the plane.
    """
    layout = av.VideoFormat(pixel_format)
    if layout.name == "pal8":
        return width
    if not layout.is_planar and all(component.plane == 0 for component in layout.components):
        bits = layout.padded_bits_per_pixel
        return width * ((bits + 7) // 8) if bits >= 8 else (width * bits + 7) // 8
    here = [component for component in layout.components if component.plane == plane]
    return width * len(here) * ((max(component.bits for component in here) + 7) // 8)


def picture_print(picture: av.VideoFrame) -> int:
    """Return a hash of 64 bits of a picture's format, size, stated colours and visible pixels.

    Equal pictures have equal hashes in one process. (Python's own hash of bytes is six times as fast as md5.)
    """
    planes = tuple(hash(plane.tobytes()) for plane in native_planes(picture))
    colours = int(picture.color_range), int(picture.colorspace)
    return hash((planes, picture.format.name, picture.width, picture.height, colours))


def picture_md5(picture: av.VideoFrame) -> str:
    """Return the md5, in hexadecimal, of the native planes followed by '{pixel format}{width}x{height}'."""
    digest = hashlib.md5(usedforsecurity=False)
    for plane in native_planes(picture):
        digest.update(plane.tobytes())
    digest.update(f"{picture.format.name}{picture.width}x{picture.height}".encode())
    return digest.hexdigest()
