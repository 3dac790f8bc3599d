"""The parts that the scanners of all codecs share: readers of bit fields, and facts about pictures.

`BitReader` reads one byte string (a parameter set), `BitColumns` reads the same fields of many strings at once (slice
headers). Every scanner returns `Pictures`, with one row per packet.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Every slice header field that is read here lies within so many bytes, up to the reference picture sets.
HEADER_BYTES = 64
_WORDS = HEADER_BYTES // 8


class BitReader:
    """A reader of an RBSP (without emulation prevention), bit by bit. Reading past its end raises ValueError.

    Attributes:
        left: number of bits that follow.
    """

    def __init__(self, rbsp: bytes) -> None:
        self._value = int.from_bytes(rbsp, "big")
        self.left = 8 * len(rbsp)

    def u(self, bits: int) -> int:
        """Read an unsigned integer of `bits` bits."""
        if bits > self.left:
            raise ValueError("the parameter set ends too early")
        self.left -= bits
        return (self._value >> self.left) & ((1 << bits) - 1)

    def flag(self) -> bool:
        """Read one bit."""
        return bool(self.u(1))

    def ue(self) -> int:
        """Read an unsigned Exp-Golomb code (H.264 9.1)."""
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > 32:
                raise ValueError("an Exp-Golomb code longer than 32 bits")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """Read a signed Exp-Golomb code (H.264 9.1.1)."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)


class BitColumns:
    """A reader of the same fields of n bit strings: every method returns int64 [n].

    Rows may be at different bit positions, because Exp-Golomb codes differ in length.

    Args:
        heads: the leading bytes of slice NAL units, without NAL header and emulation prevention. Strings are padded
            here with zeros to `HEADER_BYTES`. An array, uint8 [n, HEADER_BYTES], is padded already.

    Attributes:
        position: int64 [n], position of each row, in bits from its beginning.
    """

    def __init__(self, heads: list[bytes] | NDArray[np.uint8]) -> None:
        if isinstance(heads, list):
            padded = b"".join(head[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0") for head in heads)
            heads = np.frombuffer(padded, np.uint8).reshape(len(heads), HEADER_BYTES)
        self._rows = np.arange(len(heads))
        self.position = np.zeros(len(heads), np.int64)
        # One row per word, so that the bits of all strings at one position are neighbours. The last row is padding.
        self._words = np.zeros((_WORDS + 1, len(heads)), np.uint64)
        self._words[:-1] = np.ascontiguousarray(heads).view(">u8").T

    def _peek(self) -> NDArray[np.uint64]:
        """Return the next 64 bits of each row, left-aligned in uint64 [n], with zeros after the end."""
        word = self.position >> 6
        shift = (self.position & 63).astype(np.uint64)
        first = int(word.min(initial=_WORDS))
        if first < _WORDS and first == int(
            word.max(initial=0)
        ):  # all rows are in the same word, so no gather is needed
            near, far = self._words[first], self._words[first + 1]
        else:
            words = self._words.reshape(-1)
            near = words[np.minimum(word, _WORDS) * len(self._rows) + self._rows]
            far = words[np.minimum(word + 1, _WORDS) * len(self._rows) + self._rows]
        # `far` is shifted in two steps, because a shift by 64 bits is undefined.
        window: NDArray[np.uint64] = near << shift | far >> np.uint64(1) >> np.uint64(63) - shift
        return window

    def u(self, bits: int | NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read `bits` bits (0 to 32, may differ by row) from the rows in `where`; others read nothing and give 0."""
        count = np.broadcast_to(np.asarray(bits, np.int64), self.position.shape)
        if where is not None:
            count = np.where(where, count, 0)
        shift = (64 - np.maximum(count, 1)).astype(np.uint64)
        values = np.where(count > 0, (self._peek() >> shift).astype(np.int64), 0)
        self.position = self.position + count
        return values

    def ue(self, where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read an unsigned Exp-Golomb code of up to 28 leading zeros from the rows in `where`; other rows give 0."""
        window = self._peek()
        top = (window >> np.uint64(32)).astype(np.float64)
        zeros = np.minimum(np.where(top > 0, 32 - np.frexp(top)[1], 28), 28).astype(np.int64)
        values = (window >> (63 - 2 * zeros).astype(np.uint64)).astype(np.int64) - 1
        length = 2 * zeros + 1
        if where is not None:
            values, length = np.where(where, values, 0), np.where(where, length, 0)
        self.position = self.position + length
        return values

    def se(self, where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read a signed Exp-Golomb code from the rows in `where`; other rows give 0."""
        code = self.ue(where)
        return np.where(code % 2, (code + 1) // 2, -(code // 2))


NO_START, CLOSED_START, OPEN_START = 0, 1, 2
REFERENCE_SLOTS = 8  # AV1 has 8
SLOTS_KNOWN = 1 << 2 * REFERENCE_SLOTS  # bit of `Pictures.slots` above the bits of used and refreshed slots


class BitstreamError(ValueError):
    """The bitstream is damaged, or uses a feature that framedex does not reproduce yet.

    Attributes:
        kind: a short stable word for the reason.
        damaged: whether the reason is damage. Otherwise it is a feature that is not covered.
    """

    def __init__(self, kind: str, message: str, *, damaged: bool = False) -> None:
        self.kind, self.damaged = kind, damaged
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Facts of n packets in decode order. A packet is one picture, or the rest of the picture before it.

    Attributes:
        start: uint8 [n], NO_START, CLOSED_START (no packet after it needs one before it) or OPEN_START (its leading
            pictures need packets before it).
        non_reference: bool [n], packets that no other packet needs.
        leading: bool [n], pictures that can be decoded only from the random access point before their own.
        skipped: bool [n], packets for which a decoder that starts at packet 0 outputs nothing.
        field_coded: bool [n], packets with fields of a picture.
        continues: bool [n], packets that belong to the picture of the packet before (second fields).
        damaged: bool [n], packets from which decoding cannot give the encoder's picture, as the bitstream shows.
        changes_sets: bool [n], packets whose parameter sets differ from those in force, so that they must not be left
            out.
        forgets: bool [n], closed starts at which decoders drop pictures that they have not output yet, so that no
            session may run across them.
        period: int64 [n]. Pictures are output by period, then by order within it.
        order: int64 [n], output order within the period.
        states: the units that a decoder must be given before it starts. states[0] is empty, and correct at packet 0.
        state: int32 [n], index in `states` for each packet. It is defined at random access points only.
        inband_sets: whether some packets carry parameter sets that differ from the configuration record's.
        inner_start_codes: whether some length-prefixed units hold several NAL units between start codes.
        varying_shape: whether pictures differ in size or format.
        may_hide: whether headers may state that a picture is not output (HEVC pic_output_flag).
        drops_leading: whether a random access point in the middle drops its leading pictures (HEVC BLA).
        begins_amid: whether the sequence parameter set in use changes at a picture that does not begin a coded video
            sequence (HEVC).
        may_hold_fields: whether some sequence parameter set of an H.264 stream allows fields (frame_mbs_only_flag 0).
        chroma_format: chroma_format_idc: 0 monochrome, 1 4:2:0, 2 4:2:2, 3 4:4:4. If None, it is unknown or varies.
        max_ref_frames: max_num_ref_frames of an H.264 stream. For other codecs, it is None.
        carries_over: whether decoders keep something over random access points that `states` lacks: film grain, or
            parameter sets of other layers.
        doubtful: whether the data of some picture may end too early without an error of its decoder.
        slots: int32 [n], the reference slots that a packet uses and refreshes, in the bits of `frames.slots`. None for
            codecs whose references are not read.
    """

    start: NDArray[np.uint8]
    non_reference: NDArray[np.bool_]
    leading: NDArray[np.bool_]
    skipped: NDArray[np.bool_]
    field_coded: NDArray[np.bool_]
    continues: NDArray[np.bool_]
    damaged: NDArray[np.bool_]
    changes_sets: NDArray[np.bool_]
    forgets: NDArray[np.bool_]
    period: NDArray[np.int64]
    order: NDArray[np.int64]
    states: tuple[bytes, ...]
    state: NDArray[np.int32]
    inband_sets: bool = False
    inner_start_codes: bool = False
    varying_shape: bool = False
    may_hide: bool = False
    drops_leading: bool = False
    begins_amid: bool = False
    may_hold_fields: bool = False
    chroma_format: int | None = None
    max_ref_frames: int | None = None
    carries_over: bool = False
    doubtful: bool = False
    slots: NDArray[np.int32] | None = None


def pictures_of(start: NDArray[np.uint8], **columns: Any) -> Pictures:
    """Return Pictures with this start column and defaults for the columns that are not given.

    By default, pictures are output in decode order, every packet is needed, and no flag is set.
    """
    n = len(start)
    flags = ("non_reference", "leading", "skipped", "field_coded", "continues", "damaged", "changes_sets", "forgets")
    plain: dict[str, Any] = {name: np.zeros(n, np.bool_) for name in flags}
    plain |= {"period": np.zeros(n, np.int64), "order": np.arange(n, dtype=np.int64)}
    plain |= {"states": (b"",), "state": np.zeros(n, np.int32)}
    return Pictures(start=start, **(plain | columns))


def only(pictures: Pictures, chosen: NDArray[np.bool_]) -> Pictures:
    """Return the facts of some of the packets.

    Args:
        pictures: facts of n packets.
        chosen: bool [n], the packets to keep.
    """
    columns = {name: getattr(pictures, name) for name in Pictures.__slots__}
    kept: dict[str, Any] = {name: column[chosen] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return replace(pictures, **kept)


class Scanner(Protocol):
    """A reader of a codec's packets, which collects facts of each and returns the facts of all packets at once."""

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order. Raises BitstreamError."""

    def finish(self) -> Pictures:
        """Return the facts of all packets fed. Raises BitstreamError."""


def segments(start: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [n]: for each packet, the random access point at or before it, -1 before the first one."""
    numbers = np.where(start != NO_START, np.arange(len(start)), -1)
    return np.maximum.accumulate(numbers) if len(start) else numbers


def unwrap_order_counts(
    lsb: NDArray[np.int64], bits: int, resets: NDArray[np.bool_], anchors: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the full picture order counts of pictures whose headers carry the low `bits` bits of them.

    Args:
        lsb: int64 [n], the low bits.
        bits: number of low bits.
        resets: bool [n], pictures that start a new period, where the high bits are zero (packet 0 counts as one).
        anchors: bool [n], pictures against which the next ones are unwrapped (H.264 8.2.1.1: reference pictures;
            HEVC 8.3.1: pictures of temporal layer 0 that are neither leading nor sub-layer non-reference).
    """
    n = len(lsb)
    if n == 0:
        return np.zeros(0, np.int64)
    resets, anchors = resets.copy(), anchors | resets
    resets[0] = anchors[0] = True
    cycle = 1 << bits
    at = np.flatnonzero(anchors)
    steps = _nearest(np.diff(lsb[at], prepend=lsb[at[0]]), cycle)
    total = np.cumsum(steps)
    begin = np.maximum.accumulate(np.where(resets[at], np.arange(len(at)), 0))
    counts = total - total[begin] + lsb[at][begin]
    previous = np.searchsorted(at, np.arange(n), side="right") - 1
    return counts[previous] + _nearest(lsb - lsb[at][previous], cycle)


def _nearest(steps: NDArray[np.int64], cycle: int) -> NDArray[np.int64]:
    """Return the steps modulo `cycle`, in (-cycle/2, cycle/2], as the inequalities of the standards define."""
    half = cycle // 2
    return (steps + half - 1) % cycle - half + 1


def check_shown(shown: NDArray[np.int64], damaged: NDArray[np.bool_]) -> None:
    """Raise BitstreamError if an undamaged packet shows several frames.

    Args:
        shown: int64 [packets], number of shown frames.
        damaged: bool [packets].
    """
    crowded = (shown > 1) & ~damaged
    if crowded.any():
        number = int(np.argmax(crowded))
        raise BitstreamError("packing", f"packet {number} holds {shown[number]} shown frames")


EXTENDED_SAR = 255
NO_ASPECT = (0, 1)  # a sample aspect ratio that is not stated
# Sample aspect ratios by aspect_ratio_idc (H.264 table E-1, HEVC table E-1).
SAMPLE_ASPECTS = (
    NO_ASPECT, (1, 1), (12, 11), (10, 11), (16, 11), (40, 33), (24, 11), (20, 11), (32, 11),
    (80, 33), (18, 11), (15, 11), (64, 33), (160, 99), (4, 3), (3, 2), (2, 1),
)  # fmt: skip
NOT_STATED = -1  # stands for a full range flag that is not stated
UNSPECIFIED = 2  # code point of primaries, transfer characteristics and matrix that are not stated
NO_COLOUR = [NOT_STATED, UNSPECIFIED, UNSPECIFIED, UNSPECIFIED]


def parse_usability(bits: BitReader) -> tuple[tuple[int, int], list[int]]:
    """Read vui_parameters() up to the colour description, which H.264 (E.1.1) and HEVC (E.2.1) have in common.

    Returns:
        The sample aspect ratio, and [full range or NOT_STATED, primaries, transfer characteristics, matrix].
    """
    aspect = NO_ASPECT
    if bits.flag():
        number = bits.u(8)
        if number == EXTENDED_SAR:
            aspect = bits.u(16), bits.u(16)
        elif number < len(SAMPLE_ASPECTS):
            aspect = SAMPLE_ASPECTS[number]
    if bits.flag():
        bits.flag()
    if not bits.flag():
        return aspect, NO_COLOUR
    bits.u(3)
    full_range = bits.u(1)
    return aspect, [full_range, *((bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else NO_COLOUR[1:])]


def check_colours(shapes: Iterable[tuple[int, ...]]) -> None:
    """Raise BitstreamError if sequences state different colours.

    FFmpeg's decoders keep a colour until another one is stated, so a picture's colour depends on where decoding began.

    Args:
        shapes: shapes of the sequences. The last numbers of each are its colour.
    """
    if len({shape[-len(NO_COLOUR) :] for shape in shapes}) > 1:
        raise BitstreamError("colour_change", "the colour that the stream states changes")
