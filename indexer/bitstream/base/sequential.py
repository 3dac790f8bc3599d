"""Codecs of which nothing is known here: decoding starts at packet 0, and no packet may be left out."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.base.pictures import CLOSED_START, NO_START, Pictures, pictures_of


class SequentialScanner:
    """Says that packet 0 is the only start. Right wherever each packet gives one picture, in order."""

    def __init__(self, configuration: bytes) -> None:
        self._skipped: list[bool] = []

    def feed(self, data: bytes) -> None:
        """Count the packet; an empty one gives no picture."""
        self._skipped.append(not data)

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        start = np.full(len(self._skipped), NO_START, np.uint8)
        start[:1] = CLOSED_START
        return pictures_of(start, skipped=np.array(self._skipped, np.bool_))
