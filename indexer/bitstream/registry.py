"""The scanner of each codec, by FFmpeg's codec names."""

from __future__ import annotations

from collections.abc import Callable

from framedex.indexer.bitstream.av1_vpx.av1 import Av1Scanner
from framedex.indexer.bitstream.av1_vpx.theora import TheoraScanner
from framedex.indexer.bitstream.av1_vpx.vp8 import Vp8Scanner
from framedex.indexer.bitstream.av1_vpx.vp9 import Vp9Scanner
from framedex.indexer.bitstream.base.pictures import Scanner
from framedex.indexer.bitstream.base.sequential import SequentialScanner
from framedex.indexer.bitstream.h26x.h264 import H264Scanner
from framedex.indexer.bitstream.h26x.hevc import HevcScanner
from framedex.indexer.bitstream.intra.ffv1 import Ffv1Scanner
from framedex.indexer.bitstream.intra.intra_codecs import INTRA, CfhdScanner, IntraScanner, SpeedHqScanner
from framedex.indexer.bitstream.intra.mjpeg import JpegLsScanner, MjpegScanner
from framedex.indexer.bitstream.intra.png import PngScanner
from framedex.indexer.bitstream.mpeg.h263 import Flv1Scanner, H263Scanner
from framedex.indexer.bitstream.mpeg.mpeg4 import Mpeg4Scanner
from framedex.indexer.bitstream.mpeg.mpeg12 import Mpeg12Scanner
from framedex.indexer.bitstream.mpeg.msmpeg4 import Msmpeg4Scanner, Wmv2Scanner

SCANNERS: dict[str, Callable[[bytes], Scanner]] = {
    "h264": H264Scanner,
    "hevc": HevcScanner,
    "av1": Av1Scanner,
    "vp9": Vp9Scanner,
    "vp8": Vp8Scanner,
    "mpeg1video": Mpeg12Scanner,
    "mpeg2video": Mpeg12Scanner,
    "mpeg4": Mpeg4Scanner,
    "h263": H263Scanner,
    "h263p": H263Scanner,
    "flv1": Flv1Scanner,
    "ffv1": Ffv1Scanner,
    "theora": TheoraScanner,
    "mjpeg": MjpegScanner,
    "jpegls": JpegLsScanner,
    "png": PngScanner,
    "cfhd": CfhdScanner,
    "speedhq": SpeedHqScanner,
    "msmpeg4v2": Msmpeg4Scanner,
    "msmpeg4v3": Msmpeg4Scanner,
    "wmv1": Msmpeg4Scanner,
    "wmv2": Wmv2Scanner,
}


def scanner_for(codec: str, intra_only: bool) -> Callable[[bytes], Scanner]:
    """Return the callable that makes a codec's scanner from a stream's extradata.

    Args:
        codec: the name in FFmpeg's codec descriptor (`av.codec.Codec.canonical_name`), not a decoder's name.
        intra_only: whether the descriptor has the property AV_CODEC_PROP_INTRA_ONLY.
    """
    known = SCANNERS.get(codec)
    if known is not None:
        return known
    return IntraScanner if codec in INTRA and intra_only else SequentialScanner
