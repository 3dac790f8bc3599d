"""Base class of scanners for codecs without reordering whose key frames stand alone."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.base.pictures import CLOSED_START, NO_START, BitstreamError, Pictures, pictures_of


class KeyFrameScanner:
    """Base class of scanners that only need to know whether a packet is a key frame.

    Packets before the first key frame need a key frame that is missing; a decoder gives no picture for them.
    """

    def __init__(self, configuration: bytes) -> None:
        self._start: list[bool] = []
        self._damaged: list[bool] = []

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is a key frame. Raises ValueError if that cannot be read."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order. Raises BitstreamError if it has no data."""
        if not data:
            raise BitstreamError("zero_size", f"packet {len(self._start)} has no data")
        try:
            key, damaged = self.is_key(data), False
        except BitstreamError:
            raise
        except ValueError:
            key, damaged = False, True
        self._start.append(key)
        self._damaged.append(damaged)

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        key = np.array(self._start, np.bool_)
        orphan = ~np.logical_or.accumulate(key) if len(key) else key
        start = np.where(key, CLOSED_START, NO_START).astype(np.uint8)
        return pictures_of(start, skipped=orphan, damaged=orphan | np.array(self._damaged, np.bool_))
