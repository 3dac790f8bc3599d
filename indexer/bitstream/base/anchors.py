"""Output order of MPEG-1, 2 and 4: B pictures are output at once, anchors (I, P) when the next anchor comes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Places = NDArray[np.int64]


def last_where(condition: Flags) -> Places:
    """Return int64 [n]: for each place, the last place at or before it where the condition holds, -1 for none."""
    places = np.where(condition, np.arange(len(condition)), -1)
    return np.maximum.accumulate(places) if len(places) else places


def output_order(delayed: Flags, continues: Flags) -> Places:
    """Return the output keys of packets in decode order.

    Args:
        delayed: bool [n], pictures that are output when the next such picture is decoded, before anything else.
        continues: bool [n], packets that belong to the picture before them and get its key.

    Returns:
        int64 [n], packets are output in ascending order of their keys.
    """
    n = len(delayed)
    order = 2 * np.arange(n, dtype=np.int64) + 1
    at = np.flatnonzero(delayed)
    order[at] = 2 * np.append(at[1:], n)[: len(at)]
    return order[last_where(~continues)]
