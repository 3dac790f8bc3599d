"""Theora (Theora I Specification): intra frames. Codebooks and sizes are in the extradata."""

from __future__ import annotations

from framedex.indexer.bitstream.base.groups import KeyFrameScanner
from framedex.indexer.bitstream.base.pictures import BitstreamError


class TheoraScanner(KeyFrameScanner):
    """Reads the frame header (7.1).

    Raises BitstreamError for header packets between frames, which chained files have.
    """

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is an intra frame."""
        if data[0] & 0x80:
            raise BitstreamError(
                "chained", "a header packet stands between frames: several streams one after the other"
            )
        return not data[0] & 0x40
