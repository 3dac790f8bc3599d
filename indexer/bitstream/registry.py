"""Which scanner reads which codec."""

from __future__ import annotations

from collections.abc import Callable

from framedex.indexer.bitstream.h264 import H264Scanner
from framedex.indexer.bitstream.hevc import HevcScanner
from framedex.indexer.bitstream.pictures import BitstreamError, Scanner


def scanner_for(codec: str, intra_only: bool) -> Callable[[bytes], Scanner]:
    """Return the scanner of a codec, by FFmpeg's canonical name. Raises BitstreamError for one that has none."""
    scanners: dict[str, Callable[[bytes], Scanner]] = {"h264": H264Scanner, "hevc": HevcScanner}
    if codec not in scanners:
        raise BitstreamError("codec", f"codec {codec!r} is not covered yet")
    return scanners[codec]
