"""Turning pictures upright: what a container's display matrix asks a player to do, as numpy on either decoder's frames."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rotation = Literal["report", "apply"]
Size = tuple[int, int]  # height, width


def quarter_turns(degrees: int) -> int:
    """Return how many quarter turns counterclockwise, 0 to 3, are nearest to `rotation_degrees` of a medium."""
    return round(degrees / 90) % 4


def upright(frames: NDArray[np.uint8], degrees: int) -> NDArray[np.uint8]:
    """Return uint8 [F, H, W, 3] turned counterclockwise by `degrees`, contiguous; by 90 or 270, H and W change places.

    Angles between the quarter turns go to the nearest one; ffmpeg would draw black corners. Where a clip is scaled as well,
    its size is that of the upright picture: decode to `stored_size`, then turn.
    """
    return np.ascontiguousarray(np.rot90(frames, quarter_turns(degrees), axes=(1, 2)))


def stored_size(size: Size, degrees: int) -> Size:
    """Return (height, width) to scale a decoded picture to, so that turned upright it has this size."""
    height, width = size
    return (width, height) if quarter_turns(degrees) % 2 else (height, width)
