"""The shapes of clips, from tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.arrays import as_numpy

SIZE_COLUMNS = ("height", "width", "rotation_degrees")  # of `media`, none of them null in usable media


def shapes_of(frames: NDArray[Any], media: pa.Table, rows: NDArray[np.int64], *, upright: bool) -> NDArray[np.int64]:
    """Return int64 [clips, 3]: frames, height and width of each clip.

    Args:
        frames: [clips], how many frames each has.
        media: SIZE_COLUMNS of each medium.
        rows: int64 [clips], the medium of each clip.
        upright: whether pictures are turned as their medium says, to the nearest quarter turn.
    """
    height, width, degrees = (as_numpy(media[name].combine_chunks()).astype(np.int64) for name in SIZE_COLUMNS)
    turned = np.rint(degrees / 90).astype(np.int64) % 2 == 1
    if not upright:
        turned[:] = False
    shapes = np.empty((len(rows), 3), np.int64)
    shapes[:, 0] = frames
    shapes[:, 1] = np.where(turned, width, height)[rows]
    shapes[:, 2] = np.where(turned, height, width)[rows]
    return shapes
