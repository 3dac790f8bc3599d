"""What replaces missing frames of a clip: DALI's pad modes, as pure functions over masks.

A clip ABC that needs six frames: `none` ABC, `constant` ABC···, `edge` ABCCCC, `reflect_1001` ABCCBA, `reflect_101`
ABCBAB (numpy.pad calls the last two `symmetric` and `reflect`). A clip is continued from its own frames, not from those
that the video has between or before them. Only `ends` takes frames of the video: its first one for what lies before it,
its last one for what lies after it, or those of the range.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from framedex.records.clip import PAD

PadMode = Literal["none", "constant", "edge", "ends", "reflect_101", "reflect_1001"]


def reflected(index: NDArray[np.int64], length: NDArray[np.int64], mode: PadMode) -> NDArray[np.int64]:
    """Return int64, shaped as `index`: which of the elements 0 … length - 1 to use for an index outside them.

    Args:
        mode: `edge`, `reflect_101` (the border once) or `reflect_1001` (the border twice). A single element is
            repeated.
    """
    last = length - 1
    if mode == "edge":
        return np.asarray(np.clip(index, 0, last), np.int64)
    if mode == "reflect_101":
        period = np.maximum(2 * last, 1)
        around = index % period
        return np.asarray(np.minimum(np.minimum(around, period - around), last), np.int64)
    around = index % (2 * length)
    return np.asarray(np.minimum(around, 2 * length - 1 - around), np.int64)


def padded(frames: NDArray[np.int64], real: NDArray[np.bool_], mode: PadMode) -> NDArray[np.int64]:
    """Return int64 [clips, wanted]: frames, with those that are not real replaced according to the mode.

    A gap is filled from the real frames before it, as if the clip ended there. A gap before all real frames is filled
    from those after it.

    Args:
        real: bool [clips, wanted]; every clip has a real frame.
        mode: Any mode but `none` and `ends`.
    """
    if mode == "constant":
        return np.where(real, frames, PAD)
    places = np.broadcast_to(np.arange(frames.shape[1]), frames.shape)
    order = np.argsort(~real, axis=1, kind="stable")  # where each clip's real frames are, in order
    before = np.cumsum(real, axis=1)
    last_real = np.maximum.accumulate(np.where(real, places, -1), axis=1)
    first_real = np.argmax(real, axis=1)[:, None]
    leading = before == 0
    index = np.where(leading, places - first_real, before - 1 + places - last_real)
    length = np.where(leading, before[:, -1:], before)
    source = np.take_along_axis(order, reflected(index, length, mode), axis=1)
    return np.where(real, frames, np.take_along_axis(frames, source, axis=1))
