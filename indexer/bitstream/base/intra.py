"""Codecs in which every packet is a whole picture that needs no other (`schema.INTRA`)."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.base.pictures import CLOSED_START, Pictures, pictures_of


class IntraScanner:
    """Marks every packet as a start point that no other packet needs."""

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0

    def feed(self, data: bytes) -> None:
        """Count the packet."""
        self._packets += 1

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        start = np.full(self._packets, CLOSED_START, np.uint8)
        return pictures_of(start, non_reference=np.ones(self._packets, np.bool_))
