"""CONTRACT: a decoded picture's native planes, and a fingerprint of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import av
import numpy as np
from av.video.plane import VideoPlane
from numpy.typing import NDArray


def native_planes(picture: av.VideoFrame) -> Iterator[NDArray[np.uint8]]:
    """Yield each plane as uint8 [rows, bytes], cropped to what is visible. Palettes come as one row of 1024 bytes."""
    palette = picture.format.name == "pal8"
    for number, plane in enumerate(picture.planes):
        if palette and number == 1:
            yield plane_rows(plane, 1)[:, :1024]
        else:
            yield plane_rows(plane, plane.height)[:, : plane.width * _bytes_a_sample(picture, number)]


def plane_rows(plane: VideoPlane, height: int) -> NDArray[np.uint8]:
    """Return uint8 [height, line size]: a view of a plane's memory, the padding at the end of its rows included."""
    pixels: NDArray[np.uint8] = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload]
    row = plane.line_size if height > 1 else len(pixels)
    return pixels[: row * height].reshape(height, row)


def _bytes_a_sample(picture: av.VideoFrame, plane: int) -> int:
    """Return how many bytes one sample position takes in a plane, over all the components stored there."""
    layout = picture.format
    if layout.name == "pal8":
        return 1
    if not layout.is_planar and len(picture.planes) == 1:
        return (layout.padded_bits_per_pixel + 7) // 8
    here = [component for component in layout.components if component.plane == plane]
    return len(here) * ((max(component.bits for component in here) + 7) // 8)


def picture_md5(picture: av.VideoFrame) -> str:
    """Return the md5 over the native planes, followed by '{pixel format}{width}x{height}'."""
    digest = hashlib.md5(usedforsecurity=False)
    for plane in native_planes(picture):
        digest.update(plane.tobytes())
    digest.update(f"{picture.format.name}{picture.width}x{picture.height}".encode())
    return digest.hexdigest()
