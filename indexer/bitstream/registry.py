"""The scanners of codecs whose packets are parsed, by FFmpeg's codec names, and one for intra codecs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from framedex.indexer.bitstream.av1_vpx.av1 import Av1Scanner
from framedex.indexer.bitstream.av1_vpx.vp8 import Vp8Scanner
from framedex.indexer.bitstream.av1_vpx.vp9 import Vp9Scanner
from framedex.indexer.bitstream.base.pictures import CLOSED_START, Pictures, Scanner, pictures_of
from framedex.indexer.bitstream.h26x.h264 import H264Scanner
from framedex.indexer.bitstream.h26x.hevc import HevcScanner

SCANNERS: dict[str, Callable[[bytes], Scanner]] = {
    "h264": H264Scanner,
    "hevc": HevcScanner,
    "av1": Av1Scanner,
    "vp9": Vp9Scanner,
    "vp8": Vp8Scanner,
}


class IntraScanner:
    """Marks every packet as a start point that no other packet needs (the rest of `schema.SCANNED`)."""

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0

    def feed(self, data: bytes) -> None:
        """Count the packet."""
        self._packets += 1

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        start = np.full(self._packets, CLOSED_START, np.uint8)
        return pictures_of(start, non_reference=np.ones(self._packets, np.bool_))
