"""Microsoft's MPEG-4 variants and Windows Media Video 7 and 8: I pictures, after which nothing before is needed.

There is no public specification; the layout is that of FFmpeg's decoders.
"""

from __future__ import annotations

from framedex.indexer.bitstream.base.groups import KeyFrameScanner


class Msmpeg4Scanner(KeyFrameScanner):
    """MS MPEG-4 version 2 and 3, and WMV1: two bits of picture type come first."""

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is an I picture."""
        kind = data[0] >> 6
        if kind > 1:
            raise ValueError(f"picture type {kind}")
        return kind == 0


class Wmv2Scanner(KeyFrameScanner):
    """WMV2: one bit of picture type comes first."""

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is an I picture."""
        return not data[0] & 0x80
