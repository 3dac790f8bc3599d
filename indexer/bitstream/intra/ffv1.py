"""FFV1 (RFC 9043): key frames, at which all coder states are reset, and the checksums of slices."""

from __future__ import annotations

import zlib
from dataclasses import replace

from framedex.indexer.bitstream.base.groups import KeyFrameScanner
from framedex.indexer.bitstream.base.pictures import NO_START, Pictures

_EVEN_SPLIT = 0x7F80  # the range coder's first decision at state 128: half of its initial range 0xFF00 (3.8.1)
_FOOTER = 8  # bytes behind a slice: 3 of its size, 1 of its errors, 4 of its checksum (4.9)
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL_ONES = 0xFFFFFFFF


class Ffv1Scanner(KeyFrameScanner):
    """Reads the keyframe bit, the first bit that the range coder codes (4.4), and the checksums of slices."""

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._unproven = False

    @staticmethod
    def is_key(data: bytes) -> bool:
        """Return whether the packet is a key frame."""
        if len(data) < 2:
            raise ValueError(f"an FFV1 frame of {len(data)} bytes")
        return int.from_bytes(data[:2], "big") >= _EVEN_SPLIT

    def feed(self, data: bytes) -> None:
        super().feed(data)
        self._unproven = self._unproven or not has_right_checksums(data)

    def finish(self) -> Pictures:
        """Return the facts of all packets fed.

        They are doubtful where coder states continue from packet to packet, because no header shows that a packet is
        lost; and where checksums are wrong or absent. A decoder repairs slices with those of the picture before.
        """
        pictures = super().finish()
        return replace(pictures, doubtful=self._unproven or bool((pictures.start == NO_START).any()))


def has_right_checksums(data: bytes) -> bool:
    """Return whether a packet consists of slices with right checksums.

    The CRC is that of zlib with bits in the other order and without inversions; over a slice and its CRC, it is 0.
    """
    end, content = len(data), data.translate(_REVERSED)
    while end > 0:
        size = int.from_bytes(data[max(0, end - _FOOTER) : end - _FOOTER + 3], "big") + _FOOTER
        if size > end or zlib.crc32(content[end - size : end], _ALL_ONES) != _ALL_ONES:
            return False
        end -= size
    return True
