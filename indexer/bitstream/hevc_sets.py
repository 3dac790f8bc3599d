"""Parsers of HEVC parameter sets (ITU-T H.265 7.3.2) and of the references of pictures (7.3.7, 7.4.8).

Clips leave out reference pictures that the wanted frames do not need. A decoder drops a picture whose references are
missing, and all later frame numbers would then be off by one. Therefore, this module also checks that the references of
each picture exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from framedex.indexer.bitstream.base import NO_COLOUR, REFERENCE_SLOTS, SLOTS_KNOWN, BitReader, parse_usability
from framedex.indexer.bitstream.nal import unescape

# For each reference: (its picture order count minus the count of the current picture, whether the current picture uses
# the reference).
Deltas = tuple[tuple[int, bool], ...]

MAX_LONG_TERM = 32  # maximum of num_long_term_ref_pics_sps (7.4.3.2.1)
MAX_SETS, MAX_ENTRIES = 64, 16  # maxima of num_short_term_ref_pic_sets and of the pictures in a DPB (7.4.3.2.1)
MAX_LENGTHS = 64  # maximum number of different code lengths in the cache; more would be slower than parsing
MAX_ANCHORS = 64  # number of anchors (see `ReferringPicture`) that are kept; nearly always, the last two suffice


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSets:
    """The reference picture sets in a sequence parameter set.

    Attributes:
        order_count_bits: the number of low bits of the picture order count in slice headers.
        short_term: the candidates for short-term reference picture sets, from which slice headers choose.
        long_term_present: whether slice headers may contain long-term references.
        long_term: (low bits of the picture order count, whether the current picture uses the reference) for each
            candidate for a long-term reference.
    """

    order_count_bits: int
    short_term: tuple[ShortTermSet, ...]
    long_term_present: bool
    long_term: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortTermSet:
    """A short-term reference picture set.

    Attributes:
        before: the references that precede the current picture in output order, nearest first.
        after: the references that follow the current picture in output order, nearest first.
    """

    before: Deltas
    after: Deltas


def parse_reference_sets(bits: BitReader, order_count_bits: int) -> ReferenceSets:
    """Parse the reference picture sets of an SPS from num_short_term_ref_pic_sets on (7.3.2.2.1). Raises ValueError."""
    count = bits.ue()
    if count > MAX_SETS:
        raise ValueError(f"the SPS has {count} short-term reference picture sets, the maximum is {MAX_SETS}")
    sets: list[ShortTermSet] = []
    for _ in range(count):
        sets.append(parse_short_term_set(bits, sets, in_slice=False))
    present = bits.flag()
    count = bits.ue() if present else 0
    if count > MAX_LONG_TERM:
        raise ValueError(f"the SPS has {count} long-term reference pictures, the maximum is {MAX_LONG_TERM}")
    long_term = [(bits.u(order_count_bits), bits.flag()) for _ in range(count)]
    return ReferenceSets(
        order_count_bits=order_count_bits,
        short_term=tuple(sets),
        long_term_present=present,
        long_term=tuple(long_term),
    )


def parse_short_term_set(bits: BitReader, earlier: list[ShortTermSet], *, in_slice: bool) -> ShortTermSet:
    """Parse st_ref_pic_set() (7.3.7), which may be predicted from one of the `earlier` sets. Raises ValueError."""
    if earlier and bits.flag():
        back = bits.ue() + 1 if in_slice else 1
        if back > len(earlier):
            raise ValueError("a reference picture set is predicted from a set that does not exist")
        return _predicted_set(bits, earlier[-back])
    negative, positive = bits.ue(), bits.ue()
    if negative + positive > MAX_ENTRIES:
        raise ValueError(f"a reference picture set has {negative + positive} pictures, the maximum is {MAX_ENTRIES}")
    return ShortTermSet(before=_listed(bits, negative, -1), after=_listed(bits, positive, 1))


def _listed(bits: BitReader, count: int, sign: int) -> Deltas:
    deltas, delta = [], 0
    for _ in range(count):
        delta += sign * (bits.ue() + 1)
        deltas.append((delta, bits.flag()))
    return tuple(deltas)


def _predicted_set(bits: BitReader, source: ShortTermSet) -> ShortTermSet:
    """Parse a set that is predicted by shifting the picture order counts of another set (7-61, 7-62)."""
    shift = (-1 if bits.flag() else 1) * (bits.ue() + 1)
    candidates = [delta for delta, _ in (*source.before, *source.after)] + [0]
    kept: list[tuple[int, bool]] = []
    for delta in candidates:
        used = bits.flag()
        if used or bits.flag():  # used_by_curr_pic_flag, use_delta_flag
            kept.append((delta + shift, used))
    return ShortTermSet(
        before=tuple(sorted((entry for entry in kept if entry[0] < 0), reverse=True)),
        after=tuple(sorted(entry for entry in kept if entry[0] > 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The references of one picture.

    Attributes:
        short_term: the short-term references, identified by their picture order count minus the count of the
            picture.
        long_term: (picture order count or its low bits, whether the count is complete, whether the picture uses the
            reference) for each long-term reference.
    """

    short_term: Deltas
    long_term: tuple[tuple[int, bool, bool], ...]


# Placeholders, which are compared by identity.
UNREADABLE = References(short_term=(), long_term=())  # the references if the slice header is truncated or invalid
SKIPPED = References(short_term=(), long_term=())  # the references if decoders skip the picture


def parse_slice_references(bits: BitReader, sets: ReferenceSets, order_count: int) -> References:
    """Parse the references in a slice header, from short_term_ref_pic_set_sps_flag on (7.3.6.1).

    Args:
        bits: a reader of the header, positioned at short_term_ref_pic_set_sps_flag.
        sets: the reference picture sets of the SPS.
        order_count: the picture order count of the picture.

    Raises:
        ValueError: if the header is truncated or invalid.
    """
    if not bits.flag():
        chosen = parse_short_term_set(bits, list(sets.short_term), in_slice=True)
    else:
        number = bits.u((len(sets.short_term) - 1).bit_length()) if len(sets.short_term) > 1 else 0
        if number >= len(sets.short_term):
            raise ValueError("a slice header refers to a reference picture set that does not exist")
        chosen = sets.short_term[number]
    long_term = _slice_long_term(bits, sets, order_count) if sets.long_term_present else ()
    return References(short_term=(*chosen.before, *chosen.after), long_term=long_term)


def _slice_long_term(bits: BitReader, sets: ReferenceSets, order_count: int) -> tuple[tuple[int, bool, bool], ...]:
    from_sps = bits.ue() if sets.long_term else 0
    total = from_sps + bits.ue()
    if total > MAX_ENTRIES + len(sets.long_term):
        raise ValueError(
            f"a slice header has {total} long-term references, the maximum is {MAX_ENTRIES + len(sets.long_term)}"
        )
    found: list[tuple[int, bool, bool]] = []
    cycles = 0
    for number in range(total):
        if number < from_sps:
            index = bits.u((len(sets.long_term) - 1).bit_length()) if len(sets.long_term) > 1 else 0
            low, used = sets.long_term[min(index, len(sets.long_term) - 1)]
        else:
            low, used = bits.u(sets.order_count_bits), bits.flag()
        if number in (0, from_sps):
            cycles = 0
        whole = bits.flag()
        if whole:  # values of delta_poc_msb_cycle_lt are summed up (7-52)
            cycles += bits.ue()
            cycle = 1 << sets.order_count_bits
            found.append((order_count - cycles * cycle - (order_count % cycle - low), True, used))
        else:
            found.append((low, False, used))
    return tuple(found)


class ReferencesReader:
    """A parser of the references in slice headers that use one SPS. It caches results by the bits that were parsed."""

    def __init__(self, sets: ReferenceSets) -> None:
        self._sets = sets
        self._known: dict[int, dict[int, References]] = {}  # number of bits → value of these bits → result

    def read(self, head: bytes, position: int, order_count: int) -> References:
        """Return the references in a slice header, or UNREADABLE if the header is truncated or invalid.

        Args:
            head: the first bytes of the slice header.
            position: the position in bits of short_term_ref_pic_set_sps_flag in the header.
            order_count: the picture order count of the picture.
        """
        left = 8 * len(head) - position
        if left < 0:
            return UNREADABLE
        bits = int.from_bytes(head[position >> 3 :], "big") & (1 << left) - 1
        # At most one cached bit string matches, because none of them is a prefix of another one.
        for length, known in self._known.items():
            if length <= left and (found := known.get(bits >> (left - length))) is not None:
                return found
        reader = BitReader(head)
        try:
            reader.u(position)
            found = parse_slice_references(reader, self._sets, order_count)
        except ValueError:
            return UNREADABLE
        # Long-term references depend on the order count, so they are not cached.
        if not self._sets.long_term_present and len(self._known) < MAX_LENGTHS:
            length = left - reader.left
            self._known.setdefault(length, {})[bits >> (left - length)] = found
        return found


class ReferringPicture(NamedTuple):
    """The references of a picture, and the properties that determine how decoders use them.

    Attributes:
        order_count: the picture order count.
        begins_anew: whether the picture empties the buffer of references, as IDR and BLA pictures do.
        references: the references of the picture, or `UNREADABLE` or `SKIPPED`.
        cycle: the number of different values that the low bits of picture order counts can have.
        is_anchor: whether picture order counts of later pictures are derived from the count of this picture
            (prevTid0Pic, 8.3.1).
        is_start: whether the picture is a random access point. Clips never leave out random access points.
        is_leading: whether the picture is a RASL picture. It may refer to pictures before its random access point, and
            only other RASL pictures refer to it.
    """

    order_count: int
    begins_anew: bool
    references: References
    cycle: int
    is_anchor: bool = False
    is_start: bool = False
    is_leading: bool = False


class PictureSlots:
    """Numbered slots for the pictures that a decoder holds from a random access point on.

    `reach.needed_packets` uses these slots in the same way as AV1's reference slots. HEVC does not number the pictures
    in the DPB, so each picture gets the lowest free slot, and keeps it until the picture is released. Slots do not
    depend on pictures before the random access point. So scans that begin at different packets give the same slots.
    Leading pictures do not get slots, and their references count as unknown. The references of a random access point
    that does not empty the DPB (CRA) also count as unknown, because its picture order count is derived from earlier
    pictures.
    """

    def __init__(self) -> None:
        self._slots: dict[int, int | None] = {}  # picture order count → slot, or None if all slots were in use
        # (picture order count, whether the picture is a random access point) of the last anchors
        self._anchors: deque[tuple[int, bool]] = deque(maxlen=MAX_ANCHORS)

    def next(self, picture: ReferringPicture) -> int:
        """Process the next picture in decode order.

        Returns:
            The value of `frames.slots` for the picture, or 0 if its references are unknown.
        """
        if picture.is_leading:
            return 0
        if picture.references is SKIPPED:
            return SLOTS_KNOWN
        if picture.is_start:
            self._slots.clear()
            self._anchors.clear()
        named, used, complete = _named(picture, self._slots.keys())
        self._slots = {count: slot for count, slot in self._slots.items() if count in named}
        free = (slot for slot in range(REFERENCE_SLOTS) if slot not in self._slots.values())
        slots = [*(self._slots[count] for count in used), own := next(free, None)]
        known = picture.begins_anew or (
            complete and None not in slots and not picture.is_start and self._counts_right(picture, used)
        )
        self._slots[picture.order_count] = own
        if picture.is_anchor:
            self._anchors.append((picture.order_count, picture.is_start))
        if not known:
            return 0
        bits = [1 << slot for slot in slots if slot is not None]
        return sum(bits[:-1]) | bits[-1] << REFERENCE_SLOTS | SLOTS_KNOWN

    def _counts_right(self, picture: ReferringPicture, used: set[int]) -> bool:
        """Return whether decoders derive the right picture order count even if unneeded pictures are left out.

        A decoder derives the high bits from the last anchor that it has decoded (8.3.1). The result is right if the
        picture order count of that anchor differs by less than half a cycle. Clips never leave out random access points
        and references of the picture. So the decoder uses the last anchor among these pictures, or a later anchor. All
        of these anchors have to differ by less than half a cycle.

        Args:
            picture: the picture.
            used: the picture order counts of the references that the picture uses.
        """
        for count, is_start in reversed(self._anchors):
            if abs(picture.order_count - count) >= picture.cycle // 2:
                return False
            if is_start or count in used:
                return True
        return False


def _named(picture: ReferringPicture, held: Collection[int]) -> tuple[set[int], set[int], bool]:
    """Find the references of a picture among the pictures that a decoder holds.

    Args:
        picture: the picture.
        held: the picture order counts of the pictures that the decoder holds.

    Returns:
        The held pictures in the picture's reference picture sets, the held pictures that the picture uses, and whether
        all pictures that it uses are held. Pictures are given by their picture order counts.
    """
    named: set[int] = set()
    uses: set[int] = set()
    complete = picture.references is not UNREADABLE
    for delta, used in picture.references.short_term:
        wanted = picture.order_count + delta
        if wanted in held:
            named.add(wanted)
            if used:
                uses.add(wanted)
        elif used:
            complete = False
    for value, whole, used in picture.references.long_term:
        matches = {count for count in held if (count if whole else count % picture.cycle) == value}
        named |= matches
        if used:
            uses |= matches
            complete &= bool(matches)
    return named, uses, complete


def buffered_references(pictures: Iterable[ReferringPicture]) -> tuple[list[int], list[int]]:
    """Return the indices of the pictures that refer to missing pictures, and the value of `frames.slots` per picture.

    Args:
        pictures: the pictures in decode order.
    """
    slots = PictureSlots()
    held: set[int] = set()  # picture order counts of the pictures that a decoder holds as references (8.3.2)
    missing: list[int] = []
    bits: list[int] = []
    for number, picture in enumerate(pictures):
        bits.append(slots.next(picture))
        if picture.begins_anew:
            held = set()
        if picture.references is SKIPPED:
            continue
        named, _, complete = _named(picture, held)
        if len(named) > MAX_ENTRIES:  # the maximum number of pictures in a DPB is exceeded
            named, complete = set(), False
        held = named | {picture.order_count}
        if not complete:
            missing.append(number)
            bits[-1] = 0
    return missing, bits


VPS, SPS, PPS = 32, 33, 34  # values of nal_unit_type (table 7-1)
MAX_SPS, MAX_PPS = 16, 64  # exclusive upper limits of the IDs of parameter sets (7.4.3.2.1, 7.4.3.3.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.2) that slice headers and the shape of pictures depend on.

    Attributes:
        shape: the chroma format, the size, the conformance window, the bit depths and the colour. The chroma format is
            the first number. The colour is the last four numbers.
        width: the width of the coded picture in pixels.
        height: the height of the coded picture in pixels.
        window: the numbers of pixels that are cropped at the left, right, top and bottom.
        highest_layer: the highest TemporalId that the set allows (sps_max_sub_layers_minus1).
    """

    separate_colour_planes: bool
    order_count_bits: int
    references: ReferenceSets
    shape: tuple[int, ...]
    width: int
    height: int
    window: tuple[int, int, int, int]
    highest_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pps:
    """The fields of a picture parameter set (7.3.2.3) that slice headers depend on."""

    sps_id: int
    output_flag_present: bool
    extra_bits: int


def parse_sps(nal: bytes) -> tuple[int, Sps]:
    """Return (sps_seq_parameter_set_id, fields) of an SPS NAL unit, given with its header. Raises ValueError."""
    bits = BitReader(unescape(nal[2:]))
    bits.u(4)
    sub_layers = bits.u(3)
    bits.u(1 + 96)  # fixed part of profile_tier_level() (7.3.3); the rest depends on the number of sub-layers
    present = [(bits.flag(), bits.flag()) for _ in range(sub_layers)]
    if sub_layers:
        bits.u(2 * (8 - sub_layers))
    for profile, level in present:
        bits.u(88 * profile + 8 * level)
    sps_id, chroma = bits.ue(), bits.ue()
    if sps_id >= MAX_SPS:
        raise ValueError(f"sps_seq_parameter_set_id is {sps_id}, the maximum is {MAX_SPS - 1}")
    separate_planes = chroma == 3 and bits.flag()
    width, height = bits.ue(), bits.ue()
    cut = [bits.ue() for _ in range(4)] if bits.flag() else []
    shape = [chroma, width, height, *cut, bits.ue(), bits.ue()]
    across, down = 2 if chroma in (1, 2) else 1, 2 if chroma == 1 else 1  # SubWidthC, SubHeightC (table 6-1)
    left, right, top, bottom = cut or (0, 0, 0, 0)
    order_count_bits = bits.ue() + 4
    if order_count_bits > 16:
        raise ValueError(f"log2_max_pic_order_cnt_lsb is {order_count_bits}, the maximum is 16")
    _skip_coding_tools(bits, sub_layers)
    references = parse_reference_sets(bits, order_count_bits)
    bits.u(2)
    shape += parse_usability(bits)[1] if bits.flag() else NO_COLOUR
    return sps_id, Sps(
        separate_colour_planes=separate_planes,
        order_count_bits=order_count_bits,
        references=references,
        shape=tuple(shape),
        width=width,
        height=height,
        window=(left * across, right * across, top * down, bottom * down),
        highest_layer=sub_layers,
    )


def _skip_coding_tools(bits: BitReader, sub_layers: int) -> None:
    """Skip the fields of an SPS between the picture order count and the reference picture sets."""
    for _ in range(sub_layers + 1 if bits.flag() else 1):
        bits.ue(), bits.ue(), bits.ue()
    for _ in range(6):
        bits.ue()
    if bits.flag() and bits.flag():
        _skip_scaling_lists(bits)
    bits.u(2)
    if bits.flag():
        bits.u(8)
        bits.ue(), bits.ue()
        bits.u(1)


def _skip_scaling_lists(bits: BitReader) -> None:
    """Skip scaling_list_data() (7.3.4)."""
    for size in range(4):
        for _ in range(0, 6, 3 if size == 3 else 1):
            if not bits.flag():
                bits.ue()
                continue
            for _ in range(min(64, 1 << (4 + 2 * size)) + (size > 1)):
                bits.se()


def parse_pps(nal: bytes) -> tuple[int, Pps]:
    """Return (pps_pic_parameter_set_id, fields) of a PPS NAL unit, given with its header. Raises ValueError."""
    bits = BitReader(unescape(nal[2:]))
    pps_id, sps_id = bits.ue(), bits.ue()
    if pps_id >= MAX_PPS or sps_id >= MAX_SPS:
        raise ValueError(
            f"pps_pic_parameter_set_id is {pps_id} (maximum {MAX_PPS - 1}), "
            f"pps_seq_parameter_set_id {sps_id} (maximum {MAX_SPS - 1})"
        )
    bits.flag()
    return pps_id, Pps(sps_id=sps_id, output_flag_present=bits.flag(), extra_bits=bits.u(3))


def parse_vps(nal: bytes) -> tuple[int, None]:
    """Return (vps_video_parameter_set_id, None) of a VPS NAL unit (7.3.2.1). Raises ValueError."""
    return BitReader(unescape(nal[2:])).u(4), None


def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
    """Return (number of bytes of a length field, parameter sets) of an HEVCDecoderConfigurationRecord.

    The record is defined in ISO/IEC 14496-15 8.3.3.1.

    Raises:
        ValueError: if the data is not such a record, or the record is truncated.
    """
    if len(record) < 23 or record[:3] in (b"\0\0\1", b"\0\0\0"):
        raise ValueError("the data is not an HEVC decoder configuration record")
    nals, at = [], 23
    for _ in range(record[22]):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        at += 3
        for _ in range(count):
            end = at + 2 + int.from_bytes(record[at : at + 2], "big")
            if end > len(record):
                raise ValueError("the HEVC decoder configuration record is truncated")
            nals.append(record[at + 2 : end])
            at = end
    return (record[21] & 3) + 1, [nal for nal in nals if len(nal) > 2]
