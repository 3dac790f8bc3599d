"""Facts about VP8 pictures (RFC 6386) from frame tags, and VP9 pictures (version 0.6) from uncompressed headers.

Random access points are key frames. Both codecs have frames that are decoded and not shown.
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

TAG_BYTES, KEY_HEADER_BYTES = 3, 10  # 9.1: the frame tag; in key frames, with the start code and the size
START_CODE = b"\x9d\x01\x2a"
FIRST_PARTITION_SHIFT = 5
YUV420 = 1  # chroma_format_idc; VP8 has no other

INTER, SHOWN = 1, 16  # bits of the tag's first byte
DAMAGED = 2  # marks a packet that is no frame; the bit is one of the version, which is not used


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
    first, second = data[KEY_HEADER_BYTES], data[KEY_HEADER_BYTES + 1]
    if first < 128:  # the range 255 is split at 128, the remaining range 128 is split at 64
        return width, height, 0, int(first >= 64)
    # The remaining range 127 is doubled, and split at 127.
    return width, height, 1, int((first - 128) << 9 | second << 1 >= 127 << 8)


class Vp8Scanner:
    """A collector of frame tags. See `base.Scanner`; VP8 has no configuration.

    Every frame is needed: even a frame that is not a reference passes probabilities, segments and filter levels to
    later frames (19.2).
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


FRAME_MARKER, SYNC_CODE = 2, 0x498342  # 7.2
CS_RGB = 7  # color_space, 7.2.2
HEAD_BYTES = 16  # enough for the longest header up to the frame's size: 14 bytes


def split_superframe(data: bytes) -> list[tuple[int, int]]:
    """Return the (start, end) of each frame in a packet (Annex B).

    Bytes between the last frame and the index are ignored, as libavcodec does when it splits packets.

    Raises:
        ValueError: if the index is wrong.
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
            raise ValueError(f"the superframe's index claims {end - at} bytes for a frame, {index - at} are left")
        spans.append((at, end))
        at = end
    return spans


class Vp9Scanner:
    """A collector of the heads of uncompressed headers. See `base.Scanner`; VP9 needs no configuration.

    Every frame is needed: even a frame that refreshes no reference passes probabilities (refresh_probs(), 6.1.2),
    motion vectors and segments to later frames.
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
        # Before the first random access point, decoders output nothing until an intra frame comes. Frames behind that
        # may lack references.
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
            # The low bits are the subsampling. 4:4:0 has no chroma_format_idc.
            chroma_format={3: 1, 2: 2, 0: 3}.get(int(formats[0]) & 3) if len(formats) else None,
        )


class FrameHeaders:
    """The fields of uncompressed_header() (6.2) up to the frame's size, of n frames.

    Attributes:
        key: bool [n], key frames, including hidden ones.
        intra_only: bool [n], frames that refer to no other frame and are not key frames.
        shown: bool [n], frames that are output.
        damaged: bool [n], frames with invalid or incomplete headers.
        has_format: bool [n], frames whose header states its own color_config().
        has_size: bool [n], frames whose header states its own frame_size(). A size that is taken from a reference is
            listed for that reference.
        formats: int64, one for each frame in has_format, equal where the headers' are.
        sizes: int64, one for each frame in has_size, equal where the headers' are.
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
        self.has_format = key | (intra_only & (profile > 0))  # other frames are 4:2:0 of 8 bits, as is all of profile 0
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
    """Read color_config() (6.2.2) of the frames in `where` and return (format, reserved bit), int64 [n].

    A format is bit depth class, color_space, color_range, subsampling_x and subsampling_y, as one number.
    """
    depth = bits.u(1, where=where & (profile >= 2)) + (profile >= 2)
    space = bits.u(3, where=where)
    rgb = where & (space == CS_RGB)
    full_range = bits.u(1, where=where & ~rgb) + rgb
    odd = where & ((profile == 1) | (profile == 3))
    subsampling = np.where(odd, bits.u(2, where=odd & ~rgb), 3)
    reserved = bits.u(1, where=odd)
    return depth << 6 | space << 3 | full_range << 2 | subsampling, reserved
