"""Which scanner reads which codec."""

from __future__ import annotations

from collections.abc import Callable

from framedex.indexer.bitstream.av1 import Av1Scanner
from framedex.indexer.bitstream.h264 import H264Scanner
from framedex.indexer.bitstream.hevc import HevcScanner
from framedex.indexer.bitstream.pictures import BitstreamError, Scanner
from framedex.indexer.bitstream.vp8 import Vp8Scanner
from framedex.indexer.bitstream.vp9 import Vp9Scanner


def scanner_for(codec: str, intra_only: bool) -> Callable[[bytes], Scanner]:
    """Return the scanner of a codec, by FFmpeg's canonical name. Raises BitstreamError for one that has none."""
    scanners: dict[str, Callable[[bytes], Scanner]] = {
        "h264": H264Scanner,
        "hevc": HevcScanner,
        "av1": Av1Scanner,
        "vp9": Vp9Scanner,
        "vp8": Vp8Scanner,
    }
    if codec not in scanners:
        raise BitstreamError("codec", f"codec {codec!r} is not covered yet")
    return scanners[codec]
