"""Theora (Theora I Specification): intra frames. Codebooks and sizes stand in the extradata."""

from __future__ import annotations

from framedex.indexer.bitstream.groups import KeyFrameScanner


class TheoraScanner(KeyFrameScanner):
    """Reads the frame header (7.1). Header packets between frames count as damage."""

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is an intra frame."""
        if data[0] & 0x80:
            raise ValueError("a Theora header packet between frames")
        return not data[0] & 0x40
