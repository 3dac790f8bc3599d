"""Code that the bitstream scanners of all codecs share: readers of bit fields, and properties of pictures.

`BitReader` reads the fields of one byte string, such as a parameter set. `BitColumns` reads the same fields of many
byte strings at once, such as slice headers. Every scanner returns a `Pictures` with one row per packet.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Number of bytes that scanners keep of each slice or frame header. These bytes contain all fields that the scanners
# read, including the reference picture sets of HEVC.
HEADER_BYTES = 64
_WORDS = HEADER_BYTES // 8


class BitReader:
    """A reader of the bit fields of a byte string that has no emulation prevention bytes.

    All methods raise ValueError if the byte string has fewer bits than they have to read.

    Attributes:
        left: the number of bits that remain to be read.
    """

    def __init__(self, rbsp: bytes) -> None:
        self._value = int.from_bytes(rbsp, "big")
        self.left = 8 * len(rbsp)

    def u(self, bits: int) -> int:
        """Read an unsigned integer of `bits` bits."""
        if bits > self.left:
            raise ValueError("the data ends within a field of the header")
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
                raise ValueError("an Exp-Golomb code has more than 32 leading zeros")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """Read a signed Exp-Golomb code (H.264 9.1.1)."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)


class BitColumns:
    """A reader of n byte strings that reads one bit field of all of them at once. Every method returns int64 [n].

    The byte strings are called rows. Each row has a separate read position, because Exp-Golomb codes differ in length.

    Args:
        heads: the first bytes of each slice or frame header, without NAL unit headers and emulation prevention bytes.
            This is either a list of byte strings of any length, or an array, uint8 [n, HEADER_BYTES], in which shorter
            headers are padded with zeros.

    Attributes:
        position: int64 [n], the read position in each row, in bits from the beginning of the row.
    """

    def __init__(self, heads: list[bytes] | NDArray[np.uint8]) -> None:
        if isinstance(heads, list):
            padded = b"".join(head[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0") for head in heads)
            heads = np.frombuffer(padded, np.uint8).reshape(len(heads), HEADER_BYTES)
        self._rows = np.arange(len(heads))
        self.position = np.zeros(len(heads), np.int64)
        # Words of 64 bits, [words, n]: word 0 of all byte strings, then word 1 of all byte strings, and so on. The
        # words in the last row are 0, so that bits past the end are read as 0.
        self._words = np.zeros((_WORDS + 1, len(heads)), np.uint64)
        self._words[:-1] = np.ascontiguousarray(heads).view(">u8").T

    def _peek(self) -> NDArray[np.uint64]:
        """Return the next 64 bits of each row as uint64 [n]. Bits after the end of a row are 0."""
        word = self.position >> 6
        shift = (self.position & 63).astype(np.uint64)
        first = int(word.min(initial=_WORDS))
        # If all read positions are in the same word, indexing by row is not needed.
        if first < _WORDS and first == int(word.max(initial=0)):
            near, far = self._words[first], self._words[first + 1]
        else:
            words = self._words.reshape(-1)
            near = words[np.minimum(word, _WORDS) * len(self._rows) + self._rows]
            far = words[np.minimum(word + 1, _WORDS) * len(self._rows) + self._rows]
        # `far` is shifted in two steps, because a shift by 64 bits is undefined.
        window: NDArray[np.uint64] = near << shift | far >> np.uint64(1) >> np.uint64(63) - shift
        return window

    def u(self, bits: int | NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read an unsigned integer of `bits` bits, 0 to 32, from each row that the mask `where` selects.

        The number of bits may differ between rows. Rows that are not selected are not read, and their result is 0. If
        `where` is None, all rows are selected.
        """
        count = np.broadcast_to(np.asarray(bits, np.int64), self.position.shape)
        if where is not None:
            count = np.where(where, count, 0)
        shift = (64 - np.maximum(count, 1)).astype(np.uint64)
        values = np.where(count > 0, (self._peek() >> shift).astype(np.int64), 0)
        self.position = self.position + count
        return values

    def ue(self, where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read an unsigned Exp-Golomb code of up to 28 leading zeros from each row that the mask `where` selects.

        Rows that are not selected are not read, and their result is 0. If `where` is None, all rows are selected.
        """
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
        """Read a signed Exp-Golomb code from each row that the mask `where` selects, as `ue` does."""
        code = self.ue(where)
        return np.where(code % 2, (code + 1) // 2, -(code // 2))


NO_START, CLOSED_START, OPEN_START = 0, 1, 2  # values of `Pictures.start`
REFERENCE_SLOTS = 8  # number of reference slots, as in AV1
# Bit of `Pictures.slots` that is set if the slots of the packet are known. Bits 0 to 7 are then set for the slots that
# the packet uses, bits 8 to 15 for the slots that it refreshes.
SLOTS_KNOWN = 1 << 2 * REFERENCE_SLOTS


class BitstreamError(ValueError):
    """The bitstream is damaged, or uses a feature that framedex does not support yet.

    Attributes:
        kind: a short identifier of the reason, which does not change between versions.
        damaged: whether the bitstream is damaged. If false, it uses an unsupported feature.
    """

    def __init__(self, kind: str, message: str, *, damaged: bool = False) -> None:
        self.kind, self.damaged = kind, damaged
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Properties of n packets in decode order. A packet contains one picture, or one of the two fields of a picture.

    Attributes:
        start: uint8 [n], the kind of random access point. CLOSED_START: no packet after this one needs a packet before
            it. OPEN_START: leading pictures after this packet need packets before it. NO_START: the packet is not a
            random access point.
        non_reference: bool [n], whether all other packets can be decoded without the packet.
        leading: bool [n], whether the packet is a leading picture. It is decoded after an open random access point, but
            output before it. To decode it, a decoder has to start at the random access point before that one.
        skipped: bool [n], whether a decoder that starts at packet 0 outputs no picture for the packet.
        field_coded: bool [n], whether the packet holds one or two fields instead of a frame.
        continues: bool [n], whether the packet is the second field of the picture that the preceding packet begins.
        damaged: bool [n], whether an error in the bitstream prevents decoders from outputting the picture that was
            encoded.
        changes_sets: bool [n], whether the packet carries new or changed parameter sets, or other information that
            decoders keep for later packets. Clips never leave out such a packet.
        forgets: bool [n], whether the packet is a closed random access point at which decoders drop pictures that they
            have not output yet. A decoder session must end before such a packet, so that all pictures are output.
        period: int64 [n], the number of the output period. Decoders output all pictures of a period before those of the
            next period.
        order: int64 [n], a number that increases in output order within a period, such as the picture order count.
        states: the decoder states of the stream. A decoder state is a byte string of parameter sets and other headers
            that a decoder must be given before it starts in the middle of the stream. states[0] is empty, because a
            decoder that starts at packet 0 needs no state.
        state: int32 [n], the index in `states` of the state for a decoder that starts at the packet. The value has no
            meaning for packets that are not random access points.
        inband_sets: whether some packets carry parameter sets that differ from those of the configuration record.
        inner_start_codes: whether some length-prefixed units consist of several NAL units, separated by start codes.
        varying_shape: whether pictures differ in size or pixel format.
        may_hide: whether headers may state that a picture is not output (HEVC pic_output_flag).
        drops_leading: whether the stream has BLA pictures (HEVC). Decoders drop the leading pictures that follow a BLA
            picture.
        begins_amid: whether another sequence parameter set becomes active at a picture that is not a random access
            point, which the standard does not allow (HEVC).
        may_hold_fields: whether some sequence parameter set of an H.264 stream allows fields (frame_mbs_only_flag 0).
        chroma_format: the chroma_format_idc: 0 for monochrome, 1 for 4:2:0, 2 for 4:2:2, 3 for 4:4:4. None if it is
            unknown or varies.
        max_ref_frames: the smallest max_num_ref_frames of an H.264 stream's sequence parameter sets. None for other
            codecs.
        carries_over: whether packets contain information that `states` does not contain, although decoders keep it
            across random access points. Examples are film grain and parameter sets of other layers.
        doubtful: whether decoders may output an incomplete picture without reporting an error.
        slots: int32 [n], the reference slots that the packet uses and refreshes, as bits (see `SLOTS_KNOWN`). None for
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
    """Return a `Pictures` with the given fields, and with defaults for the other fields.

    By default, pictures are output in decode order, every packet is needed, and all flags are false.

    Args:
        start: uint8 [n], as in `Pictures`.
        columns: other fields of `Pictures`.
    """
    n = len(start)
    flags = ("non_reference", "leading", "skipped", "field_coded", "continues", "damaged", "changes_sets", "forgets")
    plain: dict[str, Any] = {name: np.zeros(n, np.bool_) for name in flags}
    plain |= {"period": np.zeros(n, np.int64), "order": np.arange(n, dtype=np.int64)}
    plain |= {"states": (b"",), "state": np.zeros(n, np.int32)}
    return Pictures(start=start, **(plain | columns))


def only(pictures: Pictures, chosen: NDArray[np.bool_]) -> Pictures:
    """Return the properties of a selection of the packets.

    Args:
        pictures: the properties of n packets.
        chosen: bool [n], whether the packet is part of the selection.
    """
    columns = {name: getattr(pictures, name) for name in Pictures.__slots__}
    kept: dict[str, Any] = {name: column[chosen] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return replace(pictures, **kept)


class Scanner(Protocol):
    """A parser of the packets of one codec. Packets are fed one by one; `finish` returns their properties."""

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order. Raises BitstreamError."""

    def finish(self) -> Pictures:
        """Return the properties of all packets that were fed. Raises BitstreamError."""


def segments(start: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [n]: the packet number of the last random access point at or before each packet, or -1.

    Args:
        start: uint8 [n], as in `Pictures`.
    """
    numbers = np.where(start != NO_START, np.arange(len(start)), -1)
    return np.maximum.accumulate(numbers) if len(start) else numbers


def unwrap_order_counts(
    lsb: NDArray[np.int64], bits: int, resets: NDArray[np.bool_], anchors: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return full picture order counts, int64 [n], of pictures whose headers carry only the low bits of these counts.

    Args:
        lsb: int64 [n], the low bits of the picture order counts.
        bits: the number of low bits.
        resets: bool [n], whether the picture begins a new output period. The high bits of its count are then 0. Picture
            0 begins a period even if its element is false.
        anchors: bool [n], whether the high bits of later pictures are derived from the count of this picture. In H.264,
            anchors are the reference pictures (8.2.1.1). In HEVC, anchors are the pictures of temporal layer 0 that are
            neither leading pictures nor sub-layer non-reference pictures (8.3.1).
    """
    n = len(lsb)
    if n == 0:
        return np.zeros(0, np.int64)
    resets, anchors = resets.copy(), anchors | resets
    resets[0] = anchors[0] = True
    cycle = 1 << bits
    at = np.flatnonzero(anchors)
    total = np.cumsum(_nearest(np.diff(lsb[at], prepend=lsb[at[0]]), cycle))
    begin = np.maximum.accumulate(np.where(resets[at], np.arange(len(at)), 0))
    counts = total - total[begin] + lsb[at][begin]
    previous = np.searchsorted(at, np.arange(n), side="right") - 1
    return counts[previous] + _nearest(lsb - lsb[at][previous], cycle)


def _nearest(steps: NDArray[np.int64], cycle: int) -> NDArray[np.int64]:
    """Return the steps modulo `cycle`, in the range (-cycle/2, cycle/2] that H.264 and HEVC define."""
    half = cycle // 2
    return (steps + half - 1) % cycle - half + 1


def check_shown(shown: NDArray[np.int64], damaged: NDArray[np.bool_]) -> None:
    """Raise BitstreamError if an undamaged packet holds several frames that are output.

    Args:
        shown: int64 [packets], the number of frames of the packet that are output.
        damaged: bool [packets], whether the packet is damaged.
    """
    crowded = (shown > 1) & ~damaged
    if crowded.any():
        number = int(np.argmax(crowded))
        raise BitstreamError(
            "packing", f"packet {number} holds {shown[number]} frames that are output, at most 1 is allowed"
        )


EXTENDED_SAR = 255  # aspect_ratio_idc that is followed by the width and height of the sample aspect ratio
NO_ASPECT = (0, 1)  # placeholder for a sample aspect ratio that the stream does not state
# Sample aspect ratios by aspect_ratio_idc (H.264 table E-1, HEVC table E-1).
SAMPLE_ASPECTS = (
    NO_ASPECT, (1, 1), (12, 11), (10, 11), (16, 11), (40, 33), (24, 11), (20, 11), (32, 11),
    (80, 33), (18, 11), (15, 11), (64, 33), (160, 99), (4, 3), (3, 2), (2, 1),
)  # fmt: skip
NOT_STATED = -1  # placeholder for a full range flag that the stream does not state
UNSPECIFIED = 2  # code point for unspecified colour primaries, transfer characteristics or matrix
# The colour of a stream without colour description: full range flag, primaries, transfer characteristics, matrix.
NO_COLOUR = [NOT_STATED, UNSPECIFIED, UNSPECIFIED, UNSPECIFIED]


def parse_usability(bits: BitReader) -> tuple[tuple[int, int], list[int]]:
    """Read vui_parameters() up to the colour description. This part is the same in H.264 (E.1.1) and HEVC (E.2.1).

    Returns:
        The sample aspect ratio (width, height), and the colour: the full range flag or NOT_STATED, the primaries, the
        transfer characteristics, and the matrix.
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
    return aspect, [bits.u(1), *((bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else NO_COLOUR[1:])]


def shape_facts(shapes: set[tuple[int, ...]]) -> dict[str, Any]:
    """Return the fields of `Pictures` that follow from the shapes of a stream's coded video sequences.

    Different colour descriptions are an error. FFmpeg's decoders keep a colour description until the stream states
    another one, so the colour of a picture would depend on the packet at which decoding began.

    Args:
        shapes: the field `shape` of each sequence parameter set. Its first number is chroma_format_idc. Its last four
            numbers are the colour description.

    Raises:
        BitstreamError: if the sequences have different colour descriptions.
    """
    if len({shape[-len(NO_COLOUR) :] for shape in shapes}) > 1:
        raise BitstreamError("colour_change", "the colour description changes within the stream")
    chroma = {shape[0] for shape in shapes}
    return {"varying_shape": len(shapes) > 1, "chroma_format": chroma.pop() if len(chroma) == 1 else None}
