"""Codecs in which every packet is a whole picture that needs no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framedex.indexer.bitstream.base.pictures import CLOSED_START, NO_START, Pictures, pictures_of

# Shown to be exact, each packet decoded alone. Others that FFmpeg calls intra-only are decoded in sequence: some of
# their decoders do keep pictures (mss2), or give several for one packet (smvjpeg).
INTRA = frozenset(
    ("asv1", "asv2", "avui", "cljr", "dnxhd", "dpx", "dvvideo", "exr", "ffvhuff", "hap", "huffyuv", "jpeg2000",
     "magicyuv", "prores", "r210", "rawvideo", "sgi", "targa", "tiff", "utvideo", "v210", "y41p", "yuv4", "zlib")
)  # fmt: skip

KEY_FLAGGED = frozenset({"png"})  # FFmpeg draws a frame of these that is not a key frame over the picture before


class IntraScanner:
    """Marks every packet as a start point that no other packet needs."""

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0

    def feed(self, data: bytes) -> None:
        """Count the packet."""
        self._packets += 1

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        start = np.full(self._packets, CLOSED_START, np.uint8)
        return pictures_of(start, non_reference=np.ones(self._packets, np.bool_))


class SpeedHqScanner(IntraScanner):
    """SpeedHQ: like other intra codecs, but FFmpeg's decoder keeps old memory content in a damaged picture."""

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        return replace(super().finish(), doubtful=True)


class CfhdScanner(IntraScanner):
    """CineForm HD: like other intra codecs if every sample is an intra frame; else packet 0 is the only start."""

    _INTRA_SAMPLE = b"\0\1\0\x09"  # tag 1, the sample's type, is 9

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._intra = True

    def feed(self, data: bytes) -> None:
        """Count the packet and read its first tag."""
        super().feed(data)
        self._intra &= data[:4] == self._INTRA_SAMPLE

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        if self._intra:
            return super().finish()
        start = np.full(self._packets, NO_START, np.uint8)
        start[:1] = CLOSED_START
        return pictures_of(start)
