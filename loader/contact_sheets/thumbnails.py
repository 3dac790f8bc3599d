"""Thumbnails of frames: their size, and their JPEG files."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framedex.sharder.clips.medium import Medium
from framedex.sharder.decoding.video import Size


def thumbnail_size(medium: Medium, longest_side: int) -> Size:
    """Return the (height, width) of a thumbnail, in the proportions of the stored picture and never enlarged.

    Args:
        medium: the medium of the frame.
        longest_side: in pixels, of the square into which thumbnails fit.
    """
    scale = min(1.0, longest_side / max(medium.width, medium.height))
    return max(1, round(medium.height * scale)), max(1, round(medium.width * scale))


def jpeg(picture: NDArray[np.uint8], quality: int) -> bytes:
    """Return a picture as a JPEG file.

    Args:
        picture: uint8 [h, w, 3].
        quality: 1 to 100.
    """
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(file, "JPEG", quality=quality)
    return file.getvalue()


def png(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture, uint8 [h, w, 3], as a PNG file, which holds each pixel as it is."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(file, "PNG", compress_level=1)  # fast, and a little larger
    return file.getvalue()


def reduced(picture: NDArray[np.uint8], longest_side: int) -> NDArray[np.uint8]:
    """Return a picture, uint8 [h, w, 3], whose longer side has at most this many pixels."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((longest_side, longest_side))
    return np.asarray(image)
