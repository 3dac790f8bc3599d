"""Byte ranges of recipes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def coalesce(
    offset: NDArray[np.int64], size: NDArray[np.int64], first_of: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join byte ranges that follow each other without a gap; return (offset, length), int64 [ranges].

    Args:
        first_of: Numbers of the input ranges that always begin a new range.
    """
    first = np.ones(len(offset), np.bool_)
    first[1:] = offset[1:] != offset[:-1] + size[:-1]
    if first_of is not None:
        first[first_of] = True
    return offset[first], np.add.reduceat(size, np.flatnonzero(first)).astype(np.int64)
