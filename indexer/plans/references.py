"""Which packets a frame needs, from the reference slots that packets use and refresh."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.timeline import CHANGES_SETS, LEADING, REFERENCES_KNOWN, REFRESHED_SHIFT, START, USED_SHIFT

SLOT_COUNT = REFRESHED_SHIFT - USED_SHIFT


def needed_packets(flags: NDArray[np.int32], targets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: the packets that a decoder needs for the targets.

    These are the targets, start points, packets whose parameter sets differ from those in force, and every packet that
    one of these refers to, directly or not.

    A packet whose references are not known may need every packet before it, and may refresh every slot, unless it is a
    leading picture: only leading pictures refer to those.

    Args:
        flags: int32 [packets] of a run in decode order, from a start point on, with the bits of `frames.slots`.
        targets: bool [packets], the packets that are wanted.
    """
    if not (flags & REFERENCES_KNOWN).any():
        return np.ones(len(flags), np.bool_)
    known = ((flags & REFERENCES_KNOWN) != 0).tolist()
    used, refreshed = (flags >> USED_SHIFT).tolist(), (flags >> REFRESHED_SHIFT).tolist()  # their low bits count
    opaque = ((flags & (REFERENCES_KNOWN | LEADING)) == 0).tolist()
    holds: list[int] = [0] * SLOT_COUNT  # the packet whose frame each slot holds; of the run's first packet, to begin
    refers_to: list[list[int]] = []
    for packet in range(len(flags)):
        refers_to.append([holds[slot] for slot in range(SLOT_COUNT) if used[packet] >> slot & 1])
        for slot in range(SLOT_COUNT):
            if refreshed[packet] >> slot & 1 or opaque[packet]:
                holds[slot] = packet
    needed = (targets | ((flags & (START | CHANGES_SETS)) != 0)).tolist()
    for packet in range(len(flags) - 1, -1, -1):
        if needed[packet]:
            if not known[packet]:
                needed[:packet] = [True] * packet
                break
            for reference in refers_to[packet]:
                needed[reference] = True
    return np.array(needed, np.bool_)
