"""Output order where B pictures are shown at once and anchors (I, P) when the next anchor comes: MPEG-1, 2 and 4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Places = NDArray[np.int64]


def last_where(condition: Flags) -> Places:
    """Return int64 [n]: the last place at or before each where the condition holds, -1 for none."""
    places = np.where(condition, np.arange(len(condition)), -1)
    return np.maximum.accumulate(places) if len(places) else places


def output_order(delayed: Flags, continues: Flags) -> Places:
    """Return int64 [n] output keys of packets in decode order.

    delayed: bool [n], pictures that are output when the next such picture is decoded, ahead of anything else.
    continues: bool [n], packets that belong to the picture before them, and get its key.
    """
    n = len(delayed)
    order = 2 * np.arange(n, dtype=np.int64) + 1
    at = np.flatnonzero(delayed)
    order[at] = 2 * np.append(at[1:], n)[: len(at)]
    return order[last_where(~continues)]
