"""Turns pictures upright with numpy, as a container's display matrix asks a player to do, whatever decoded them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Rotation = Literal["report", "apply"]
Size = tuple[int, int]  # height, width


def quarter_turns(degrees: int) -> int:
    """Return the number of quarter turns counterclockwise, 0 to 3, that is nearest to a medium's `rotation_degrees`."""
    return round(degrees / 90) % 4


def upright(frames: NDArray[Any], degrees: int) -> NDArray[Any]:
    """Return frames, [F, H, W, C], turned counterclockwise by `degrees`, contiguous. 90 and 270 exchange H and W.

    Angles between quarter turns are rounded to the nearest one, where ffmpeg would draw black corners. If a clip is
    scaled as well, the size is that of the upright picture: decode to `stored_size`, then turn.
    """
    return np.ascontiguousarray(np.rot90(frames, quarter_turns(degrees), axes=(1, 2)))


def stored_size(size: Size, degrees: int) -> Size:
    """Return the (height, width) to scale a decoded picture to, so that it has this size when turned upright."""
    height, width = size
    return (width, height) if quarter_turns(degrees) % 2 else (height, width)
