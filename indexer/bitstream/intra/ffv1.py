"""FFV1 (RFC 9043): key frames, at which all coder states are reset."""

from __future__ import annotations

from dataclasses import replace

from framedex.indexer.bitstream.base.groups import KeyFrameScanner
from framedex.indexer.bitstream.base.pictures import NO_START, Pictures

_EVEN_SPLIT = 0x7F80  # the range coder's first decision at state 128: half of its initial range 0xFF00 (3.8.1)


class Ffv1Scanner(KeyFrameScanner):
    """Reads the keyframe bit, the first bit that the range coder codes (4.4)."""

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is a key frame."""
        if len(data) < 2:
            raise ValueError(f"an FFV1 frame of {len(data)} bytes")
        return int.from_bytes(data[:2], "big") >= _EVEN_SPLIT

    def finish(self) -> Pictures:
        """Return the facts of all packets fed.

        They are doubtful where coder states continue from packet to packet: no header shows that a packet is lost.
        """
        pictures = super().finish()
        return replace(pictures, doubtful=bool((pictures.start == NO_START).any()))
