"""Codecs whose every packet is a whole picture that needs no other."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.pictures import CLOSED_START, Pictures, pictures_of

# Intra-only by FFmpeg's codec descriptors, and yet decoders carry something from packet to packet.
NOT_INTRA: frozenset[str] = frozenset()


class IntraScanner:
    """Says of every packet that decoding may start there and that no other packet needs it."""

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0

    def feed(self, data: bytes) -> None:
        """Count the packet."""
        self._packets += 1

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        start = np.full(self._packets, CLOSED_START, np.uint8)
        return pictures_of(start, non_reference=np.ones(self._packets, np.bool_))
