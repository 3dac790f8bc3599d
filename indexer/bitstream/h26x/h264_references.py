"""Which pictures an H.264 slice may refer to (ITU-T H.264 7.3.3.1 to 7.3.3.3, 8.2.4, 8.2.5): to find recovery points that lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from framedex.indexer.bitstream.base.bits import BitReader

FRAME, TOP, BOTTOM = 0, 1, 2  # parity of a slice
BOTH_FIELDS = 3
P, B, SP = 0, 1, 3  # slice_type modulo 5, table 7-6
MOST_OPERATIONS = 66  # of one list, or of marking: twice 32 fields, and the end
NOT_LONG = -1
MISSING = -1  # a picture from before the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pps:
    """The fields of a picture parameter set (7.3.2.2) that slice headers depend on. default_active: entries of list 0 and 1.

    weighted: whether P slices bring weights; weighted_b: whether B slices do. plain: no slice groups, so that all of it was read.
    outlived: its sequence parameter set changed since it came.
    """

    sps_id: int
    plain: bool = False
    bottom_order: bool = False
    default_active: tuple[int, int] = (0, 0)
    weighted: bool = False
    weighted_b: bool = False
    redundant: bool = False
    outlived: bool = False


def parse_pps_fields(bits: BitReader, sps_id: int) -> Pps:
    """Return what follows the two ids of a PPS. Raises ValueError."""
    bits.u(1)
    bottom_order = bits.flag()
    if bits.ue():
        return Pps(sps_id=sps_id)
    active = bits.ue() + 1, bits.ue() + 1
    weighted, bipred = bits.flag(), bits.u(2)
    bits.se(), bits.se(), bits.se()
    bits.u(2)
    return Pps(
        sps_id=sps_id,
        plain=True,
        bottom_order=bottom_order,
        default_active=active,
        weighted=weighted,
        weighted_b=bipred == 1,
        redundant=bits.flag(),
    )


class Slice(NamedTuple):
    """What a slice header says of references. lists: (active entries, [(operation, value)]) of list 0 and 1.

    marking: [(operation, first value, second value)] of adaptive marking (table 7-9); None: the sliding window. long_idr: an
    IDR picture that stays for long.
    """

    kind: int
    lists: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    marking: tuple[tuple[int, int, int], ...] | None
    long_idr: bool


def parse_slice(
    bits: BitReader,
    pps: Pps,
    *,
    kind: int,
    idr: bool,
    referenced: bool,
    is_field: bool,
    order_type: int,
    deltas: bool,
    chroma: bool,
) -> Slice:
    """Return the rest of a slice header, from behind pic_order_cnt_lsb or delta_pic_order_cnt[0]. Raises ValueError.

    kind: slice_type modulo 5. order_type: pic_order_cnt_type; deltas: delta_pic_order_cnt is there. chroma: planes of it are.
    """
    if pps.bottom_order and not is_field and (order_type == 0 or (order_type == 1 and deltas)):
        bits.se()
    if pps.redundant:
        bits.ue()
    if kind == B:
        bits.u(1)
    lists = []
    if kind in (P, B, SP):
        active = list(pps.default_active)
        if bits.flag():
            active = [bits.ue() + 1, bits.ue() + 1 if kind == B else 0]

        count = 2 if kind == B else 1
        lists = [(active[number], tuple(_operations(bits)) if bits.flag() else ()) for number in range(count)]
        if (pps.weighted and kind != B) or (pps.weighted_b and kind == B):
            _skip_weights(bits, [entries for entries, _ in lists], chroma)
    marking, long_idr = None, False
    if referenced:
        if idr:
            bits.u(1)
            long_idr = bits.flag()
        elif bits.flag():
            marking = tuple(_marking(bits))
    return Slice(kind, tuple(lists), marking, long_idr)


def _operations(bits: BitReader) -> Iterator[tuple[int, int]]:
    for _ in range(MOST_OPERATIONS):
        operation = bits.ue()
        if operation == 3:
            return
        yield operation, bits.ue()
    raise ValueError("a list of references is modified without end")


def _marking(bits: BitReader) -> Iterator[tuple[int, int, int]]:
    for _ in range(MOST_OPERATIONS):
        operation = bits.ue()
        if not operation:
            return
        first = bits.ue() if operation in (1, 2, 3, 4, 6) else 0
        yield operation, first, bits.ue() if operation == 3 else 0
    raise ValueError("references are marked without end")


def _skip_weights(bits: BitReader, active: list[int], chroma: bool) -> None:
    """Skip pred_weight_table() (7.3.3.2)."""
    bits.ue()
    if chroma:
        bits.ue()
    for entries in active:
        for _ in range(entries):
            if bits.flag():
                bits.se(), bits.se()
            if chroma and bits.flag():
                bits.se(), bits.se(), bits.se(), bits.se()


@dataclass(slots=True)
class _Held:
    """A frame in the decoded picture buffer. fields: which of its fields are references. long: its number among those kept for
    long, or NOT_LONG.
    """

    picture: int
    frame_num: int
    order: int
    fields: int
    long: int = NOT_LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """One picture, or one field of it, in decode order. picture: a number that both fields share. slices: None where a header
    could not be read.
    """

    picture: int
    parity: int
    frame_num: int
    order: int
    idr: bool
    referenced: bool
    max_frame_num: int
    max_refs: int
    slices: list[Slice] | None


@dataclass(slots=True)
class Buffer:
    """The reference pictures that a decoder holds, as pictures come. whole: it began at an IDR picture, so that none is missing."""

    _whole: bool
    _frames: list[_Held] = field(default_factory=list)

    def references(self, coded: Coded) -> set[int]:
        """Return the pictures that stand in some list of references of this one."""
        found: set[int] = set()
        assert coded.slices is not None  # of others nobody asks
        for each in coded.slices:
            for number, (active, operations) in enumerate(each.lists):
                found |= self._listed(coded, each.kind, number, active, operations)
        return found

    def _listed(
        self, coded: Coded, kind: int, number: int, active: int, operations: tuple[tuple[int, int], ...]
    ) -> set[int]:
        """Return the pictures of one list's active entries (8.2.4)."""
        named = [self._named(coded, operation) for operation in self._resolved(coded, operations)]
        initial = self._initial(coded, kind, number)
        rest = [entry for entry in initial if entry not in named]
        entries = [*named, *rest]
        missing = {MISSING} if len(entries) < active and not self._whole else set()
        return missing | {picture for picture, _ in entries[:active]}

    def _resolved(self, coded: Coded, operations: tuple[tuple[int, int], ...]) -> Iterator[tuple[bool, int]]:
        """Yield (long, picture number) of list modifications (8.2.4.3.1)."""
        is_field = coded.parity != FRAME
        most = coded.max_frame_num * (2 if is_field else 1)
        predicted = 2 * coded.frame_num + 1 if is_field else coded.frame_num
        current = predicted
        for operation, value in operations:
            if operation > 1:
                yield True, value
                continue
            predicted = (predicted + (value + 1 if operation else -value - 1)) % most
            yield False, predicted - most if predicted > current else predicted

    def _named(self, coded: Coded, wanted: tuple[bool, int]) -> tuple[int, int]:
        """Return (picture, parity) of a picture number; (MISSING, 0) where there is none (8.2.4.1)."""
        long, number = wanted
        for held in self._frames:
            for parity in (FRAME,) if coded.parity == FRAME else (TOP, BOTTOM):
                if (held.long != NOT_LONG) == long and self._number(coded, held, parity) == number:
                    return held.picture, parity
        return MISSING, FRAME

    def _number(self, coded: Coded, held: _Held, parity: int) -> int:
        """Return the PicNum or LongTermPicNum of a frame or field (8.2.4.1)."""
        number = held.long if held.long != NOT_LONG else self._wrapped(coded, held)
        return number if coded.parity == FRAME else 2 * number + (parity == coded.parity)

    @staticmethod
    def _wrapped(coded: Coded, held: _Held) -> int:
        return held.frame_num - coded.max_frame_num if held.frame_num > coded.frame_num else held.frame_num

    def _initial(self, coded: Coded, kind: int, number: int) -> list[tuple[int, int]]:
        """Return a list of references as it is before it is modified (8.2.4.2), (picture, parity) each."""
        whole = [held for held in self._frames if held.fields == BOTH_FIELDS or (coded.parity and held.fields)]
        short = [held for held in whole if held.long == NOT_LONG]
        long = sorted((held for held in whole if held.long != NOT_LONG), key=lambda held: held.long)
        if kind != B:
            short.sort(key=lambda held: -self._wrapped(coded, held))
            return self._entries(coded, short) + self._entries(coded, long)
        before = [held for held in short if held.order <= coded.order]
        after = [held for held in short if held.order > coded.order]
        before.sort(key=lambda held: -held.order)
        after.sort(key=lambda held: held.order)
        lists = [
            self._entries(coded, first + second) + self._entries(coded, long)
            for first, second in ((before, after), (after, before))
        ]
        if lists[0] == lists[1] and len(lists[1]) > 1:
            lists[1][:2] = lists[1][1], lists[1][0]
        return lists[number]

    @staticmethod
    def _entries(coded: Coded, frames: list[_Held]) -> list[tuple[int, int]]:
        """Return frames as entries; for a field, their fields in turn, beginning with its own parity (8.2.4.2.5)."""
        if coded.parity == FRAME:
            return [(held.picture, FRAME) for held in frames]
        own, other = coded.parity, TOP + BOTTOM - coded.parity
        queues = {parity: [held.picture for held in frames if held.fields & parity] for parity in (own, other)}
        entries, parity = [], own
        while queues[own] and queues[other]:
            entries.append((queues[parity].pop(0), parity))
            parity = TOP + BOTTOM - parity
        if queues[parity] and not queues[TOP + BOTTOM - parity]:
            return entries + [(picture, parity) for picture in queues[parity]]
        parity = TOP + BOTTOM - parity
        return entries + [(picture, parity) for picture in queues[parity]]

    def take(self, coded: Coded) -> None:
        """Mark references once a picture is decoded (8.2.5)."""
        if not coded.referenced:
            return
        assert coded.slices  # one whose header was not read ends the work
        first = coded.slices[0]
        fields = BOTH_FIELDS if coded.parity == FRAME else coded.parity
        if coded.idr:
            self._frames = [
                _Held(coded.picture, coded.frame_num, coded.order, fields, 0 if first.long_idr else NOT_LONG)
            ]
            return
        same = [held for held in self._frames if held.picture == coded.picture]
        long = NOT_LONG
        if first.marking is None:
            if not same:
                self._slide(coded)
        else:
            long = self._mark(coded, first.marking)
        if same and same[0] in self._frames:
            same[0].fields |= fields
        else:
            cleared = first.marking is not None and any(operation == 5 for operation, _, _ in first.marking)
            order = 0 if cleared else coded.order
            self._frames.append(_Held(coded.picture, 0 if cleared else coded.frame_num, order, fields, long))
            del self._frames[: -max(coded.max_refs, 1)]  # marking may leave more than the stream says that there are

    def _slide(self, coded: Coded) -> None:
        """Take out the oldest picture where there is no room (8.2.5.3)."""
        short = [held for held in self._frames if held.long == NOT_LONG]
        if short and len(self._frames) >= max(coded.max_refs, 1):
            self._frames.remove(min(short, key=lambda held: self._wrapped(coded, held)))

    def _mark(self, coded: Coded, marking: Iterable[tuple[int, int, int]]) -> int:
        """Mark pictures as told (8.2.5.4); return the number for long of the current one, or NOT_LONG."""
        is_field, own = coded.parity != FRAME, NOT_LONG
        current = 2 * coded.frame_num + 1 if is_field else coded.frame_num
        for operation, first, second in marking:
            if operation in (1, 3):
                picture, parity = self._named(coded, (False, current - first - 1))
                self._drop(picture, parity, keep_long=second if operation == 3 else NOT_LONG)
            elif operation == 2:
                self._drop(*self._named(coded, (True, first)))
            elif operation == 4:
                self._frames = [held for held in self._frames if held.long < first]
            elif operation == 5:
                self._frames = []
            elif operation == 6:
                self._frames = [held for held in self._frames if held.long != first or held.picture == coded.picture]
                own = first
        return own

    def _drop(self, picture: int, parity: int, keep_long: int = NOT_LONG) -> None:
        """Mark a picture, or one field of it, as not used any more, or as kept for long."""
        for held in [held for held in self._frames if held.picture == picture]:
            if keep_long != NOT_LONG:
                self._frames = [other for other in self._frames if other.long != keep_long or other is held]
                held.long = keep_long
                continue
            held.fields &= ~parity if parity else 0
            if not held.fields:
                self._frames.remove(held)


def references(pictures: Iterable[Coded]) -> Iterator[set[int]]:
    """Yield for each picture or field, in decode order, which pictures stand in its lists of references, MISSING for those that
    the first picture follows, and wherever it cannot be told: from a header that could not be read to the next IDR picture.
    """
    buffer: Buffer | None = Buffer(False)
    for coded in pictures:
        if coded.idr:
            buffer = Buffer(True)
        if coded.slices is None:
            buffer = None
        if buffer is None:
            yield {MISSING}
            continue
        yield buffer.references(coded)
        buffer.take(coded)
