"""Scanner for codecs that are not parsed here: decoding starts at packet 0, and no packet may be left out."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.base.pictures import CLOSED_START, NO_START, Pictures, pictures_of


class SequentialScanner:
    """Reports packet 0 as the only start. This is right if each packet gives one picture, in order."""

    def __init__(self, configuration: bytes) -> None:
        self._skipped: list[bool] = []

    def feed(self, data: bytes) -> None:
        """Count the packet. An empty packet gives no picture."""
        self._skipped.append(not data)

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        start = np.full(len(self._skipped), NO_START, np.uint8)
        start[:1] = CLOSED_START
        return pictures_of(start, skipped=np.array(self._skipped, np.bool_))
