"""Scanners of VP8 (RFC 6386) and VP9 (bitstream specification 0.6).

They find the properties of pictures in VP8 frame tags and in VP9 uncompressed headers. Random access points are key
frames. Both codecs have frames that are decoded but not output.
"""

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import (
    CLOSED_START,
    NO_START,
    BitColumns,
    BitstreamError,
    Pictures,
    check_shown,
    pictures_of,
    segments,
)

# Sizes in bytes of a frame tag, and of the header of a key frame: frame tag, start code and picture size (9.1).
TAG_BYTES, KEY_HEADER_BYTES = 3, 10
START_CODE = b"\x9d\x01\x2a"
FIRST_PARTITION_SHIFT = 5  # the bit of the frame tag where the size of the first partition begins
YUV420 = 1  # chroma_format_idc of 4:2:0, the only chroma format of VP8

INTER, SHOWN = 1, 16  # bits of a frame tag's first byte: the frame is not a key frame, the frame is output
DAMAGED = 2  # bit that this module sets for an invalid frame; in files, it belongs to the version, which is ignored


def parse_key_frame(data: bytes) -> tuple[int, ...]:
    """Return (width, height, color_space, clamping_type) of a key frame (9.1, 9.2). Raises ValueError.

    color_space and clamping_type are the first two values of the first partition. Both are coded arithmetically, as
    booleans of probability 1/2 (7.3).
    """
    if len(data) < KEY_HEADER_BYTES + 2 or data[TAG_BYTES:6] != START_CODE:
        raise ValueError("the key frame has no start code")
    width = int.from_bytes(data[6:8], "little") & 0x3FFF
    height = int.from_bytes(data[8:10], "little") & 0x3FFF
    if not width or not height:
        raise ValueError(f"the key frame has an invalid size, {width}x{height} pixels")
    first, second = data[KEY_HEADER_BYTES], data[KEY_HEADER_BYTES + 1]
    # The boolean decoder splits its initial range of 255 at 128 for color_space.
    if first < 128:  # the new range is 128, which is split at 64 for clamping_type
        return width, height, 0, int(first >= 64)
    # The new range is 127. The decoder doubles it to 254, and splits it at 127 for clamping_type.
    return width, height, 1, int((first - 128) << 9 | second << 1 >= 127 << 8)


class Vp8Scanner:
    """A scanner of VP8 packets, as `base.Scanner` describes. It collects frame tags.

    Every frame is needed, because even a frame that is not used as a reference passes probabilities, segments and
    filter levels on to later frames (19.2).

    Args:
        configuration: the decoder configuration. It is ignored, because VP8 does not need one.
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
        orphan = segments(start) < 0  # packets before the first key frame, for which decoders output no picture
        return pictures_of(
            start,
            skipped=((tags & SHOWN == 0) & ~damaged) | orphan,
            damaged=damaged | orphan,
            varying_shape=len(self._shapes) > 1,
            doubtful=True,  # headers do not show whether a packet is missing
            chroma_format=YUV420,
        )


FRAME_MARKER, SYNC_CODE = 2, 0x498342  # required values of frame_marker and frame_sync_code (7.2)
CS_RGB = 7  # value of color_space for RGB (7.2.2)
HEAD_BYTES = 16  # number of bytes that are kept of each header; the fields up to the frame size need at most 14


def split_superframe(data: bytes) -> list[tuple[int, int]]:
    """Return the (start, end) of each frame in a packet, which is one frame or a superframe (Annex B).

    Bytes between the last frame and the superframe index are ignored, as libavcodec ignores them.

    Raises:
        ValueError: if a frame size in the superframe index is 0 or exceeds the packet.
    """
    marker = data[-1]
    if marker & 0xE0 != 0xC0:
        return [(0, len(data))]
    size_bytes, frames = (marker >> 3 & 3) + 1, (marker & 7) + 1
    index = len(data) - 2 - size_bytes * frames
    if index < 0 or data[index] != marker:
        return [(0, len(data))]
    spans, at = [], 0
    for entry in range(index + 1, len(data) - 1, size_bytes):
        end = at + int.from_bytes(data[entry : entry + size_bytes], "little")
        if end == at or end > index:
            raise ValueError(f"the superframe index claims {end - at} bytes for a frame, but {index - at} are left")
        spans.append((at, end))
        at = end
    return spans


class Vp9Scanner:
    """A scanner of VP9 packets, as `base.Scanner` describes. It collects the first bytes of uncompressed headers.

    Every frame is needed, because even a frame that refreshes no reference slot passes probabilities (refresh_probs(),
    6.1.2), motion vectors and segments on to later frames.

    Args:
        configuration: the decoder configuration. It is ignored, because VP9 does not need one.
    """

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0
        self._frame_packet: list[int] = []
        self._frame_head: list[bytes] = []
        self._damaged: set[int] = set()

    def feed(self, data: bytes) -> None:
        number = self._packets
        self._packets += 1
        if not data:
            raise BitstreamError("zero_size", f"packet {number} is empty")
        try:
            spans = split_superframe(data)
        except ValueError:
            self._damaged.add(number)
            return
        for start, end in spans:
            self._frame_packet.append(number)
            self._frame_head.append(data[start : min(end, start + HEAD_BYTES)])

    def finish(self) -> Pictures:
        n = self._packets
        packet = np.array(self._frame_packet, np.int64)
        headers = FrameHeaders(self._frame_head)
        damaged = np.isin(np.arange(n), list(self._damaged))
        damaged |= np.bincount(packet[headers.damaged], minlength=n) > 0
        shown = np.bincount(packet[headers.shown], minlength=n)
        check_shown(shown, damaged)
        first = np.diff(packet, prepend=-1) != 0
        begins = (np.bincount(packet[headers.key & first], minlength=n) > 0) & ~damaged
        start = np.where(begins, CLOSED_START, NO_START).astype(np.uint8)
        # Before the first random access point, decoders output nothing up to the first intra frame. Frames after it, up
        # to the random access point, may refer to missing frames, so they count as damaged.
        orphan = segments(start) < 0
        intra = np.bincount(packet[headers.key | headers.intra_only], minlength=n) > 0
        waiting = ~np.logical_or.accumulate(intra | begins)
        formats = np.unique(headers.formats[~damaged[packet[headers.has_format]]])
        sizes = np.unique(headers.sizes[~damaged[packet[headers.has_size]]])
        return pictures_of(
            start,
            skipped=((shown == 0) & ~damaged) | waiting,
            damaged=damaged | orphan,
            varying_shape=len(formats) > 1 or len(sizes) > 1,
            # The lowest two bits of a format are subsampling_x and subsampling_y. 4:4:0 has no chroma_format_idc.
            chroma_format={3: 1, 2: 2, 0: 3}.get(int(formats[0]) & 3) if len(formats) else None,
        )


class FrameHeaders:
    """The fields of the uncompressed_header() (6.2) of n frames, up to the frame size.

    Args:
        heads: the first `HEAD_BYTES` bytes of each frame, or the whole frame if it is shorter.

    Attributes:
        key: bool [n], whether the frame is a key frame. Key frames need not be output.
        intra_only: bool [n], whether the frame is an intra-only frame, which is not a key frame.
        shown: bool [n], whether the frame is output.
        damaged: bool [n], whether the header is invalid or incomplete.
        has_format: bool [n], whether the format of the frame is in `formats`. Other frames inherit their format.
        has_size: bool [n], whether the header contains a frame size. Other frames inherit the size of a reference.
        formats: int64 [frames in `has_format`], the pixel format as one number.
        sizes: int64 [frames in `has_size`], the frame size as one number.
    """

    def __init__(self, heads: list[bytes]) -> None:
        bits = BitColumns(heads)
        marker = bits.u(2)
        profile = bits.u(1) + 2 * bits.u(1)
        reserved = bits.u(1, where=profile == 3)
        existing = bits.u(1) != 0
        key = ~existing & (bits.u(1, where=~existing) == 0)
        shown = existing | (bits.u(1, where=~existing) != 0)
        resilient = bits.u(1, where=~existing) != 0
        intra_only = bits.u(1, where=~existing & ~key & ~shown) != 0
        bits.u(2, where=~existing & ~key & ~resilient)
        synced = bits.u(24, where=key | intra_only)
        # Intra-only frames of profile 0 contain no color_config(), because all of profile 0 is 4:2:0 with 8 bits.
        self.has_format = key | (intra_only & (profile > 0))
        formats, format_reserved = _color_config(bits, profile, self.has_format)
        inter = ~existing & ~key & ~intra_only
        bits.u(8, where=intra_only | inter)
        bits.u(12, where=inter)
        found = ~inter
        for _ in range(3):  # frame_size_with_refs()
            found = found | (bits.u(1, where=~found) != 0)
        self.has_size = key | intra_only | ~found
        size = bits.u(32, where=self.has_size)
        self.damaged = (marker != FRAME_MARKER) | (reserved != 0) | (format_reserved != 0)
        self.damaged |= (key | intra_only) & (synced != SYNC_CODE)
        self.damaged |= bits.position > 8 * np.array([len(head) for head in heads], np.int64)
        self.key, self.shown = key & ~self.damaged, shown & ~self.damaged
        self.intra_only = intra_only & ~self.damaged
        self.formats, self.sizes = formats[self.has_format], size[self.has_size]


def _color_config(
    bits: BitColumns, profile: NDArray[np.int64], where: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the color_config() (6.2.2) of the frames in `where`, and return (format, reserved bit), each int64 [n].

    A format is one number whose bits are the bit depth class, color_space, color_range, subsampling_x and
    subsampling_y.
    """
    depth = bits.u(1, where=where & (profile >= 2)) + (profile >= 2)
    space = bits.u(3, where=where)
    rgb = where & (space == CS_RGB)
    full_range = bits.u(1, where=where & ~rgb) + rgb
    odd = where & ((profile == 1) | (profile == 3))
    subsampling = np.where(odd, bits.u(2, where=odd & ~rgb), 3)
    return depth << 6 | space << 3 | full_range << 2 | subsampling, bits.u(1, where=odd)
