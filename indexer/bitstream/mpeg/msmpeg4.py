"""Microsoft's MPEG-4 variants and Windows Media Video 7 and 8: I pictures, which need nothing before them.

There is no public specification. The layout is the one that FFmpeg's decoders read.
"""

from __future__ import annotations

from dataclasses import replace

from framedex.indexer.bitstream.base.groups import KeyFrameScanner
from framedex.indexer.bitstream.base.pictures import Pictures


class Msmpeg4Scanner(KeyFrameScanner):
    """Scans MS MPEG-4 version 2 and 3, and WMV1.

    A packet begins with two bits of picture type and five of the quantiser. In I pictures, five bits say how many
    slices there are. Encoders do not change that: I pictures that differ in it are doubtful.
    """

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._slices: set[int] = set()

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is an I picture."""
        kind = data[0] >> 6
        if kind > 1:
            raise ValueError(f"picture type {kind}")
        return kind == 0

    def feed(self, data: bytes) -> None:
        super().feed(data)
        if self._start[-1]:
            self._slices.add(int.from_bytes(data[:2], "big") >> 4 & 31)

    def finish(self) -> Pictures:
        return replace(super().finish(), doubtful=len(self._slices) > 1)


class Wmv2Scanner(KeyFrameScanner):
    """Scans WMV2. A packet begins with one bit of picture type."""

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is an I picture."""
        return not data[0] & 0x80
