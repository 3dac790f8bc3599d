"""The scanners of codecs that predict pictures from others, by FFmpeg's codec names."""

from __future__ import annotations

from collections.abc import Callable

from framedex.indexer.bitstream.av1_vpx.av1 import Av1Scanner
from framedex.indexer.bitstream.av1_vpx.vp8 import Vp8Scanner
from framedex.indexer.bitstream.av1_vpx.vp9 import Vp9Scanner
from framedex.indexer.bitstream.base.pictures import Scanner
from framedex.indexer.bitstream.h26x.h264 import H264Scanner
from framedex.indexer.bitstream.h26x.hevc import HevcScanner

SCANNERS: dict[str, Callable[[bytes], Scanner]] = {
    "h264": H264Scanner,
    "hevc": HevcScanner,
    "av1": Av1Scanner,
    "vp9": Vp9Scanner,
    "vp8": Vp8Scanner,
}
