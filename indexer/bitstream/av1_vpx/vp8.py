"""VP8 (RFC 6386): start points and hidden frames from the frame tags."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.base.pictures import (
    CLOSED_START,
    NO_START,
    BitstreamError,
    Pictures,
    pictures_of,
    segments,
)

TAG_BYTES, KEY_HEADER_BYTES = 3, 10  # 9.1: the frame tag alone, and in key frames with start code and size
START_CODE = b"\x9d\x01\x2a"
FIRST_PARTITION_SHIFT = 5
YUV420 = 1  # chroma_format_idc; VP8 has no other

INTER, SHOWN = 1, 16  # bits of the tag's first byte
DAMAGED = 2  # marks a packet that is no frame, in a bit of the version, which is not needed


def parse_key_frame(data: bytes) -> tuple[int, ...]:
    """Return (width, height, color_space, clamping_type) of a key frame (9.1, 9.2). Raises ValueError.

    The last two are at the beginning of the first partition, coded as booleans of even probability (7.3).
    """
    if len(data) < KEY_HEADER_BYTES + 2 or data[TAG_BYTES:6] != START_CODE:
        raise ValueError("the key frame has no start code")
    width = int.from_bytes(data[6:8], "little") & 0x3FFF
    height = int.from_bytes(data[8:10], "little") & 0x3FFF
    if not width or not height:
        raise ValueError(f"the key frame states {width}x{height} pixels")
    return width, height, *_two_booleans(data[KEY_HEADER_BYTES], data[KEY_HEADER_BYTES + 1])


def _two_booleans(first: int, second: int) -> tuple[int, int]:
    """Decode two booleans of probability 128 from the beginning of a partition (7.3)."""
    if first < 128:  # range 255 has its split at 128; the remaining range 128 has its split at 64
        return 0, int(first >= 64)
    return 1, int((first - 128) << 9 | second << 1 >= 127 << 8)  # range 127, doubled, has its split at 127


class Vp8Scanner:
    """Collects frame tags. See `pictures.Scanner`; VP8 has no configuration.

    Every frame is needed: even a frame that is no reference passes on probabilities, segments and filter levels (19.2).
    """

    def __init__(self, configuration: bytes) -> None:
        self._tags = bytearray()
        self._shapes: set[tuple[int, ...]] = set()

    def feed(self, data: bytes) -> None:
        if not data:
            raise BitstreamError("zero_size", f"packet {len(self._tags)} is empty")
        tag = data[0] & (INTER | SHOWN)
        partition = int.from_bytes(data[:TAG_BYTES], "little") >> FIRST_PARTITION_SHIFT
        if len(data) < TAG_BYTES or partition > len(data) - (TAG_BYTES if tag & INTER else KEY_HEADER_BYTES):
            tag |= DAMAGED
        elif not tag & INTER:
            try:
                self._shapes.add(parse_key_frame(data))
            except ValueError:
                tag |= DAMAGED
        self._tags.append(tag)

    def finish(self) -> Pictures:
        tags = np.frombuffer(bytes(self._tags), np.uint8)
        damaged = tags & DAMAGED != 0
        start = np.where((tags & INTER == 0) & ~damaged, CLOSED_START, NO_START).astype(np.uint8)
        orphan = segments(start) < 0  # packets before the first key frame give no picture
        return pictures_of(
            start,
            skipped=((tags & SHOWN == 0) & ~damaged) | orphan,
            damaged=damaged | orphan,
            varying_shape=len(self._shapes) > 1,
            doubtful=True,  # headers do not show the effects of a lost packet
            chroma_format=YUV420,
        )
