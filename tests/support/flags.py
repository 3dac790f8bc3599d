"""What docs/format.md says of `frames.flags`, and the order of frames by it, written without framedex's own code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLOSED, OPEN = 1, 2  # start points
NON_REFERENCE, LEADING, HIDDEN, SKIPPED = 4, 8, 16, 32
CONTINUES, DAMAGED, RESET, NOT_REPRODUCIBLE = 128, 256, 512, 4096
START = CLOSED | OPEN
# How docs/format.md begins to describe each bit.
SAID = {
    CLOSED: "closed random access point",
    OPEN: "open random access point",
    NON_REFERENCE: "non-reference",
    LEADING: "leading",
    HIDDEN: "hidden",
    SKIPPED: "skipped",
    CONTINUES: "second field",
    DAMAGED: "in a damaged GOP",
    RESET: "reset",
    NOT_REPRODUCIBLE: "not reproducible",
}


def shown_packets(flags: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return int64 [frames]: the packets that present a frame, in decode order."""
    return np.array([n for n, bits in enumerate(flags.tolist()) if not bits & (HIDDEN | SKIPPED | CONTINUES)], np.int64)


def presentation_order(pts: NDArray[np.int64], flags: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return int64 [frames]: the packet of each presented frame, in presentation order."""
    return np.array(sorted(shown_packets(flags).tolist(), key=pts.tolist().__getitem__), np.int64)
