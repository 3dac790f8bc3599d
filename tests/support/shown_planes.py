"""MD5 sums of the visible part of decoded pictures."""

from __future__ import annotations

import hashlib
from typing import Any

import av
import numpy as np


def planes_md5(frame: av.VideoFrame, shown: Any) -> str:
    """Return the MD5 of the planes of a 4:2:0 picture, or only of the visible part that `shown` describes."""
    if shown is not None:
        assert (frame.width, frame.height) == (shown.width, shown.height)
    left, top = (0, 0) if shown is None else (shown.left, shown.top)
    width = frame.width if shown is None else shown.shown_width
    height = frame.height if shown is None else shown.shown_height
    digest = hashlib.md5()
    for number, plane in enumerate(frame.planes):
        half = 2 if number else 1
        samples = np.frombuffer(plane, np.uint8 if plane.line_size < 2 * plane.width else np.uint16)
        rows = samples.reshape(plane.height, -1)[
            top // half : -(-(top + height) // half), left // half : -(-(left + width) // half)
        ]
        digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()
