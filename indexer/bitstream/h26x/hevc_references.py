"""HEVC reference picture sets (ITU-T H.265 7.3.7, 7.4.8): whether the pictures that a picture refers to are present.

A decoder drops a picture whose references are missing, and from then on every frame number would be off by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from framedex.indexer.bitstream.base.bits import BitReader

Deltas = tuple[tuple[int, bool], ...]  # (picture order count relative to the current one, used by the current picture)

MOST_LONG_TERM = 32  # 7.4.3.2.1
MOST_SETS, MOST_ENTRIES = 64, 16  # 7.4.3.2.1: at most 64 sets; sps_max_dec_pic_buffering is at most 16
MOST_LENGTHS = 64  # of codes that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSets:
    """The references that a sequence parameter set states.

    Attributes:
        order_count_bits: number of low bits of the picture order count.
        short_term: its candidate sets.
        long_term_present: whether slice headers may refer to long-term references.
        long_term: (low bits, used) of each.
    """

    order_count_bits: int
    short_term: tuple[ShortTermSet, ...]
    long_term_present: bool
    long_term: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortTermSet:
    """A short-term reference picture set.

    Attributes:
        before: pictures before the current one in output order, nearest first.
        after: pictures after it, nearest first.
    """

    before: Deltas
    after: Deltas


def parse_reference_sets(bits: BitReader, order_count_bits: int) -> ReferenceSets:
    """Return the reference sets of an SPS, from num_short_term_ref_pic_sets on (7.3.2.2.1). Raises ValueError."""
    count = bits.ue()
    if count > MOST_SETS:
        raise ValueError(f"{count} short-term reference picture sets")
    sets: list[ShortTermSet] = []
    for _ in range(count):
        sets.append(parse_short_term_set(bits, sets, in_slice=False))
    present = bits.flag()
    count = bits.ue() if present else 0
    if count > MOST_LONG_TERM:
        raise ValueError(f"{count} long-term reference pictures")
    long_term = [(bits.u(order_count_bits), bits.flag()) for _ in range(count)]
    return ReferenceSets(
        order_count_bits=order_count_bits,
        short_term=tuple(sets),
        long_term_present=present,
        long_term=tuple(long_term),
    )


def parse_short_term_set(bits: BitReader, earlier: list[ShortTermSet], *, in_slice: bool) -> ShortTermSet:
    """Return st_ref_pic_set() (7.3.7), which may be predicted from one of the `earlier` sets. Raises ValueError."""
    if earlier and bits.flag():
        back = bits.ue() + 1 if in_slice else 1
        if back > len(earlier):
            raise ValueError("a reference picture set predicted from none")
        return _predicted_set(bits, earlier[-back])
    negative, positive = bits.ue(), bits.ue()
    if negative + positive > MOST_ENTRIES:
        raise ValueError(f"a reference picture set of {negative + positive} pictures")
    return ShortTermSet(before=_listed(bits, negative, -1), after=_listed(bits, positive, 1))


def _listed(bits: BitReader, count: int, sign: int) -> Deltas:
    deltas, delta = [], 0
    for _ in range(count):
        delta += sign * (bits.ue() + 1)
        deltas.append((delta, bits.flag()))
    return tuple(deltas)


def _predicted_set(bits: BitReader, source: ShortTermSet) -> ShortTermSet:
    """Return a set that is predicted by shifting another one (7-61, 7-62)."""
    sign = -1 if bits.flag() else 1
    shift = sign * (bits.ue() + 1)
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
        short_term: by difference of order counts.
        long_term: (low bits or whole count, is whole, used).
    """

    short_term: Deltas
    long_term: tuple[tuple[int, bool, bool], ...]


UNREADABLE = References(short_term=(), long_term=())  # told apart by identity: a slice header that ends too early


def parse_slice_references(bits: BitReader, sets: ReferenceSets, order_count: int) -> References:
    """Return a slice header's references, from short_term_ref_pic_set_sps_flag on (7.3.6.1). Raises ValueError."""
    if not bits.flag():
        chosen = parse_short_term_set(bits, list(sets.short_term), in_slice=True)
    else:
        number = bits.u((len(sets.short_term) - 1).bit_length()) if len(sets.short_term) > 1 else 0
        if number >= len(sets.short_term):
            raise ValueError("a slice refers to a reference picture set that is not there")
        chosen = sets.short_term[number]
    long_term = _slice_long_term(bits, sets, order_count) if sets.long_term_present else ()
    return References(short_term=(*chosen.before, *chosen.after), long_term=long_term)


def _slice_long_term(bits: BitReader, sets: ReferenceSets, order_count: int) -> tuple[tuple[int, bool, bool], ...]:
    from_sps = bits.ue() if sets.long_term else 0
    total = from_sps + bits.ue()
    if total > MOST_ENTRIES + len(sets.long_term):
        raise ValueError(f"a slice with {total} long-term references")
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
        if whole:  # delta_poc_msb_cycle_lt accumulates (7-52)
            cycles += bits.ue()
            cycle = 1 << sets.order_count_bits
            found.append((order_count - cycles * cycle - (order_count % cycle - low), True, used))
        else:
            found.append((low, False, used))
    return tuple(found)


class ReferencesReader:
    """Reads the references of slice headers of one sequence, and caches them by their bits."""

    def __init__(self, sets: ReferenceSets) -> None:
        self._sets = sets
        self._known: dict[int, dict[int, References]] = {}  # by how many bits they take, then by those bits

    def read(self, head: bytes, position: int, order_count: int) -> References:
        """Return the references that begin `position` bits into a slice header, or UNREADABLE if it ends too early."""
        left = 8 * len(head) - position
        if left < 0:
            return UNREADABLE
        bits = int.from_bytes(head[position >> 3 :], "big") & (1 << left) - 1
        for length, known in self._known.items():  # no code is the beginning of another one
            if length <= left and (found := known.get(bits >> (left - length))) is not None:
                return found
        reader = BitReader(head)
        try:
            reader.u(position)
            found = parse_slice_references(reader, self._sets, order_count)
        except ValueError:
            return UNREADABLE
        if not self._sets.long_term_present and len(self._known) < MOST_LENGTHS:  # those depend on the order count
            length = left - reader.left
            self._known.setdefault(length, {})[bits >> (left - length)] = found
        return found


class ReferringPicture(NamedTuple):
    """A picture in decode order.

    Attributes:
        begins_anew: whether the picture empties the buffer (IDR, BLA).
        references: None for a picture that decoders skip.
        cycle: how far order counts go before their low bits repeat.
    """

    order_count: int
    begins_anew: bool
    references: References | None
    cycle: int


def missing_references(pictures: Iterable[ReferringPicture]) -> list[int]:
    """Return the numbers of the pictures that refer to a missing picture."""
    missing: list[int] = []
    held: set[int] = set()
    for number, picture in enumerate(pictures):
        if picture.begins_anew:
            held = set()
        if picture.references is None:
            continue
        keep, whole = _kept(picture, held)
        if not whole:
            missing.append(number)
        held = keep | {picture.order_count}
    return missing


def _kept(picture: ReferringPicture, held: set[int]) -> tuple[set[int], bool]:
    """Return the pictures that stay in the buffer (8.3.2), and whether every reference that is used is present."""
    assert picture.references is not None
    keep: set[int] = set()
    complete = picture.references is not UNREADABLE
    for delta, used in picture.references.short_term:
        wanted = picture.order_count + delta
        if wanted in held:
            keep.add(wanted)
        elif used:
            complete = False
    for value, whole, used in picture.references.long_term:
        matches = {count for count in held if (count if whole else count % picture.cycle) == value}
        keep |= matches
        if used and not matches:
            complete = False
    if len(keep) > MOST_ENTRIES:  # more than any picture buffer holds
        return set(), False
    return keep, complete
