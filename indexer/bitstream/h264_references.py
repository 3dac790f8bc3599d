"""References of H.264 pictures, and the recovery points at which decoding may start.

Slice headers state reference lists and marking (ITU-T H.264 7.3.3.1 to 7.3.3.3). `Buffer` follows the pictures that a
decoder holds (8.2.4, 8.2.5). A recovery point is a random access point if a decoder that starts there builds the same
reference lists as a decoder that has decoded everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import CLOSED_START, NO_START, OPEN_START, BitReader, segments
from framedex.indexer.bitstream.h264_sets import Pps, Sps

P, B, SP = 0, 1, 3  # slice_type modulo 5, table 7-6
MAX_OPERATIONS = 66  # a list or a marking has at most two operations for each of 32 fields, and an end code


class SliceHeader(NamedTuple):
    """The reference information of a slice header.

    Attributes:
        kind: slice_type modulo 5.
        lists: (active entries, [(operation, value)]) of list 0 and 1.
        marking: [(operation, first value, second value)] of adaptive marking (table 7-9). If None, the sliding window
            marks references.
        long_idr: whether it is an IDR picture that becomes a long-term reference.
    """

    kind: int
    lists: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    marking: tuple[tuple[int, int, int], ...] | None
    long_idr: bool

    @property
    def resets(self) -> bool:
        """Whether all references are dropped and counting starts again (memory_management_control_operation 5)."""
        return self.marking is not None and any(operation == 5 for operation, _, _ in self.marking)


def parse_slice(
    bits: BitReader, sps: Sps, pps: Pps, *, kind: int, idr: bool, referenced: bool, is_field: bool
) -> SliceHeader:
    """Return the rest of a slice header, after pic_order_cnt_lsb or delta_pic_order_cnt[0]. Raises ValueError.

    Args:
        bits: reader at that position.
        sps: sequence parameter set of the slice.
        pps: picture parameter set of the slice.
        kind: slice_type modulo 5.
        idr: whether the picture is an IDR picture.
        referenced: whether the picture is a reference.
        is_field: whether the picture is a field.
    """
    if pps.bottom_order and not is_field and (sps.order_count_type == 0 or sps.deltas_follow):
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
            has_chroma = bool(sps.shape[0]) and not sps.separate_colour_planes
            _skip_weights(bits, [entries for entries, _ in lists], has_chroma)
    marking, long_idr = None, False
    if referenced:
        if idr:
            bits.u(1)
            long_idr = bits.flag()
        elif bits.flag():
            marking = tuple(_marking(bits))
    return SliceHeader(kind, tuple(lists), marking, long_idr)


def _operations(bits: BitReader) -> Iterator[tuple[int, int]]:
    for _ in range(MAX_OPERATIONS):
        operation = bits.ue()
        if operation == 3:
            return
        yield operation, bits.ue()
    raise ValueError("a list of references is modified without end")


def _marking(bits: BitReader) -> Iterator[tuple[int, int, int]]:
    for _ in range(MAX_OPERATIONS):
        operation = bits.ue()
        if not operation:
            return
        first = bits.ue() if operation in (1, 2, 3, 4, 6) else 0
        yield operation, first, bits.ue() if operation == 3 else 0
    raise ValueError("references are marked without end")


def _skip_weights(bits: BitReader, active: list[int], has_chroma: bool) -> None:
    """Skip pred_weight_table() (7.3.3.2)."""
    bits.ue()
    if has_chroma:
        bits.ue()
    for entries in active:
        for _ in range(entries):
            if bits.flag():
                bits.se(), bits.se()
            if has_chroma and bits.flag():
                bits.se(), bits.se(), bits.se(), bits.se()


FRAME, TOP, BOTTOM = 0, 1, 2  # parity of a slice
BOTH_FIELDS = 3
NOT_LONG = -1
MISSING = -1  # a picture that no decoder has; the pictures that FFmpeg makes up have lower numbers


@dataclass(slots=True)
class ReferenceFrame:
    """A frame in the decoded picture buffer.

    Attributes:
        picture: number of the picture.
        frame_num: its frame_num.
        order: its picture order count.
        fields: the parities of its fields that are references, as bits.
        long: its number as a long-term reference, or NOT_LONG.
    """

    picture: int
    frame_num: int
    order: int
    fields: int
    long: int = NOT_LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """One picture, or one field of it, in decode order.

    Attributes:
        picture: a number that both fields share.
        slices: headers of its slices, empty if one could not be read.
    """

    picture: int
    parity: int
    frame_num: int
    order: int
    idr: bool
    referenced: bool
    max_frame_num: int
    max_refs: int
    slices: list[SliceHeader]


Entry = tuple[int, int, bool]  # picture, parity, whether it is a long-term reference


@dataclass(slots=True)
class Buffer:
    """The reference pictures that a decoder holds while it decodes a stream.

    Attributes:
        _gaps: whether lists may lack pictures that came before the first picture.
    """

    _gaps: bool = False
    _frames: list[ReferenceFrame] = field(default_factory=list)

    def holds_as(self, other: Buffer) -> bool:
        """Return whether another buffer holds the same pictures."""
        return self._frames == other._frames

    def holds_any(self, pictures: Collection[int], before: int) -> bool:
        """Return whether the buffer holds one of some pictures, or a picture before number `before`."""
        return any(frame.picture < before or frame.picture in pictures for frame in self._frames)

    def lists(self, coded: Coded) -> list[list[Entry]]:
        """Return the active entries of the reference lists of a picture's slices."""
        return [
            self._listed(coded, each.kind, number, active, operations)
            for each in coded.slices
            for number, (active, operations) in enumerate(each.lists)
        ]

    def _listed(
        self, coded: Coded, kind: int, number: int, active: int, operations: tuple[tuple[int, int], ...]
    ) -> list[Entry]:
        """Return one list's active entries (8.2.4)."""
        long = {frame.picture for frame in self._frames if frame.long != NOT_LONG}
        named = [self._named(coded, operation) for operation in self._resolved(coded, operations)]
        initial = self._initial(coded, kind, number)
        rest = [entry for entry in initial if entry not in named]
        entries = [(picture, parity, picture in long) for picture, parity in [*named, *rest][:active]]
        return entries if len(entries) == active or not self._gaps else [*entries, (MISSING, FRAME, False)]

    def _resolved(self, coded: Coded, operations: tuple[tuple[int, int], ...]) -> Iterator[tuple[bool, int]]:
        """Yield (is long-term, picture number) of list modifications (8.2.4.3.1)."""
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
        """Return (picture, parity) of a picture number (8.2.4.1), (MISSING, FRAME) if no picture has that number."""
        long, number = wanted
        for frame in self._frames:
            for parity in (FRAME,) if coded.parity == FRAME else (TOP, BOTTOM):
                if (frame.long != NOT_LONG) == long and self._number(coded, frame, parity) == number:
                    return frame.picture, parity
        return MISSING, FRAME

    def _number(self, coded: Coded, frame: ReferenceFrame, parity: int) -> int:
        """Return the PicNum or LongTermPicNum of a frame or field (8.2.4.1)."""
        number = frame.long if frame.long != NOT_LONG else self._wrapped(coded, frame)
        return number if coded.parity == FRAME else 2 * number + (parity == coded.parity)

    @staticmethod
    def _wrapped(coded: Coded, frame: ReferenceFrame) -> int:
        return frame.frame_num - coded.max_frame_num if frame.frame_num > coded.frame_num else frame.frame_num

    def _initial(self, coded: Coded, kind: int, number: int) -> list[tuple[int, int]]:
        """Return a reference list before its modification (8.2.4.2), as (picture, parity) entries."""
        whole = [frame for frame in self._frames if frame.fields == BOTH_FIELDS or (coded.parity and frame.fields)]
        short = [frame for frame in whole if frame.long == NOT_LONG]
        long = sorted((frame for frame in whole if frame.long != NOT_LONG), key=lambda frame: frame.long)
        if kind != B:
            short.sort(key=lambda frame: -self._wrapped(coded, frame))
            return self._entries(coded, short) + self._entries(coded, long)
        before = [frame for frame in short if frame.order <= coded.order]
        after = [frame for frame in short if frame.order > coded.order]
        before.sort(key=lambda frame: -frame.order)
        after.sort(key=lambda frame: frame.order)
        lists = [
            self._entries(coded, first + second) + self._entries(coded, long)
            for first, second in ((before, after), (after, before))
        ]
        if lists[0] == lists[1] and len(lists[1]) > 1:
            lists[1][:2] = lists[1][1], lists[1][0]
        return lists[number]

    @staticmethod
    def _entries(coded: Coded, frames: list[ReferenceFrame]) -> list[tuple[int, int]]:
        """Return frames as entries; for a field, alternate their fields, beginning with its own parity (8.2.4.2.5)."""
        if coded.parity == FRAME:
            return [(frame.picture, FRAME) for frame in frames]
        parity, other = coded.parity, TOP + BOTTOM - coded.parity
        queues = {each: [frame.picture for frame in frames if frame.fields & each] for each in (parity, other)}
        entries = []
        while queues[TOP] and queues[BOTTOM]:
            entries.append((queues[parity].pop(0), parity))
            parity = TOP + BOTTOM - parity
        # One queue is empty: the fields of the other one follow in their order.
        return entries + [(picture, each) for each, queue in queues.items() for picture in queue]

    def take(self, coded: Coded) -> None:
        """Mark references after a picture is decoded (8.2.5)."""
        if not coded.referenced:
            return
        first = coded.slices[0]
        fields = BOTH_FIELDS if coded.parity == FRAME else coded.parity
        if coded.idr:
            long = 0 if first.long_idr else NOT_LONG
            self._frames = [ReferenceFrame(coded.picture, coded.frame_num, coded.order, fields, long)]
            return
        same = [frame for frame in self._frames if frame.picture == coded.picture]
        long = NOT_LONG
        if first.marking is None:
            # The sliding window removes the oldest picture if there is no room (8.2.5.3).
            has_short = any(frame.long == NOT_LONG for frame in self._frames)
            if not same and has_short and len(self._frames) >= max(coded.max_refs, 1):
                self._remove_oldest()
        else:
            long = self._mark(coded, first.marking)
        if same and same[0] in self._frames:
            same[0].fields |= fields
        else:
            frame_num, order = (0, 0) if first.resets else (coded.frame_num, coded.order)
            self._frames.append(ReferenceFrame(coded.picture, frame_num, order, fields, long))
            if len(self._frames) > max(coded.max_refs, 1):  # marking left more than the stream allows
                self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Remove the oldest short-term picture, or the oldest long-term one if there are no short-term ones."""
        short = (frame for frame in self._frames if frame.long == NOT_LONG)
        self._frames.remove(next(short, self._frames[0]))

    def _mark(self, coded: Coded, marking: Iterable[tuple[int, int, int]]) -> int:
        """Mark pictures by adaptive marking (8.2.5.4); return the long-term number of the current one, or NOT_LONG."""
        is_field, own = coded.parity != FRAME, NOT_LONG
        current = 2 * coded.frame_num + 1 if is_field else coded.frame_num
        for operation, first, second in marking:
            if operation in (1, 3):
                picture, parity = self._named(coded, (False, current - first - 1))
                self._drop(picture, parity, keep_long=second if operation == 3 else NOT_LONG)
            elif operation == 2:
                self._drop(*self._named(coded, (True, first)))
            elif operation == 4:
                self._frames = [frame for frame in self._frames if frame.long < first]
            elif operation == 5:
                self._frames = []
            elif operation == 6:
                self._frames = [
                    frame for frame in self._frames if frame.long != first or frame.picture == coded.picture
                ]
                own = first
        return own

    def _drop(self, picture: int, parity: int, keep_long: int = NOT_LONG) -> None:
        """Mark a picture, or one field of it, as unused for reference, or as a long-term reference."""
        for frame in [frame for frame in self._frames if frame.picture == picture]:
            if keep_long != NOT_LONG:
                self._frames = [other for other in self._frames if other.long != keep_long or other is frame]
                frame.long = keep_long
                continue
            frame.fields &= ~parity if parity else 0
            if not frame.fields:
                self._frames.remove(frame)


MAX_ROUNDS = 16  # each round rejects recovery points; a stream that needs more rounds is an attack
FIRST_ORDER = -(1 << 62)  # the pictures that FFmpeg makes up come before all others


def made_up(coded: Coded) -> list[ReferenceFrame]:
    """Return the pictures that FFmpeg makes up if the first picture that it decodes is not an IDR picture.

    It makes up as many as the stream may hold (`h264_field_start` in libavcodec/h264_slice.c, "Frame num gap").
    """
    numbers = range(coded.frame_num - max(coded.max_refs, 1), coded.frame_num)
    return [
        ReferenceFrame(MISSING - 1 - place, number % coded.max_frame_num, FIRST_ORDER + place, BOTH_FIELDS)
        for place, number in enumerate(numbers)
    ]


@dataclass(slots=True)
class Start:
    """A recovery point, and two decoders that start there.

    One decoder makes up the missing pictures as FFmpeg does; the other one makes up none.

    Attributes:
        first: the picture of the recovery point.
        order: output order of that picture.
        unlike: pictures whose lists differ from those of a decoder that has decoded everything.
        known: the picture before which the comparison ended. If None, its result holds for all later pictures.
    """

    first: int
    order: int
    unlike: set[int] = field(default_factory=set)
    known: int | None = None
    _leading: set[int] = field(default_factory=set)
    _alone: list[Buffer] = field(default_factory=list)

    @classmethod
    def at(cls, coded: Coded) -> Start:
        """Return a start at a recovery point, before its picture is decoded."""
        return cls(coded.picture, coded.order, _alone=[Buffer(_frames=made_up(coded)), Buffer()])

    def compare(self, coded: Coded, lists: list[list[Entry]]) -> None:
        """Compare a picture's lists with those of a decoder that has decoded everything, then decode the picture.

        Pictures from before the recovery point, and its leading pictures, have other content here, so no list may
        name them.
        """
        if coded.picture > self.first and coded.order < self.order:
            self._leading.add(coded.picture)
        named = {picture for entries in lists for picture, _, _ in entries} - {coded.picture}
        if (
            self._leading & named
            or any(picture < self.first for picture in named)
            or any(alone.lists(coded) != lists for alone in self._alone)
        ):
            self.unlike.add(coded.picture)
        for alone in self._alone:
            alone.take(coded)

    def differs(self, base: NDArray[np.int64]) -> bool:
        """Return whether a picture that is decoded from here has other references, or may have.

        Args:
            base: int64 [packets], the random access point from which each packet is decoded.
        """
        if any(base[picture] == self.first for picture in self.unlike):
            return True
        return self.known is not None and bool((base[self.known :] == self.first).any())

    def is_settled(self, buffer: Buffer) -> bool:
        """Return whether lists stay the same from here on.

        Args:
            buffer: the buffer of a decoder that has decoded everything.
        """
        return not buffer.holds_any(self._leading, self.first) and all(alone.holds_as(buffer) for alone in self._alone)


def compare_starts(pictures: Iterable[Coded], candidates: Collection[int], *, in_middle: bool) -> dict[int, Start]:
    """Compare decoders that start at recovery points with a decoder that has decoded everything.

    The comparison of a start ends when its lists stay the same, or at the recovery point after the next one: pictures
    may be decoded from the start up to there.

    Args:
        pictures: all pictures from the first random access point on, in decode order.
        candidates: pictures of the recovery points.
        in_middle: whether other pictures came before these.
    """
    starts: dict[int, Start] = {}
    active: list[Start] = []
    buffer: Buffer | None = None
    for number, coded in enumerate(pictures):
        if coded.idr:
            buffer, active = Buffer(), []
        elif not number:
            buffer = Buffer(_gaps=True, _frames=[] if in_middle else made_up(coded))
        if not coded.slices:  # up to the next IDR picture, the content of the buffer is unknown
            buffer = None
        if coded.picture in candidates and coded.picture not in starts:
            starts[coded.picture] = start = Start.at(coded)
            active.append(start)
            for passed in active[:-2]:
                passed.known = coded.picture
            active = active[-2:]
        if buffer is None:
            for start in active:
                start.known = coded.picture
            active = []
            continue
        if active:
            lists = buffer.lists(coded)
            for start in active:
                start.compare(coded, lists)
        buffer.take(coded)
        active = [start for start in active if not start.is_settled(buffer)]
    return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPoints:
    """The columns of n packets that decide where decoding may start.

    Attributes:
        idr: bool [n], IDR pictures.
        recovery: bool [n], recovery points.
        order: int64 [n], output order.
        continues: bool [n], as in `Pictures`.
        count: int64 [n], number of slices.
    """

    idr: NDArray[np.bool_]
    recovery: NDArray[np.bool_]
    order: NDArray[np.int64]
    continues: NDArray[np.bool_]
    count: NDArray[np.int64]

    def starts_without(self, rejected: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (start uint8 [n], leading bool [n]) as defined by `Pictures`, without the rejected recovery points."""
        recovery = self.recovery & ~rejected
        start = np.where(self.idr, CLOSED_START, np.where(recovery, OPEN_START, NO_START)).astype(np.uint8)
        segment = segments(start)
        behind = np.maximum(segment, 0)
        leading = (start[behind] == OPEN_START) & (segment >= 0) & (self.order < self.order[behind])
        leading &= ~self.continues & (self.count > 0)
        return start, leading | (self.continues & np.roll(leading, 1))


def false_starts(starts: dict[int, Start], points: AccessPoints, *, in_middle: bool) -> NDArray[np.bool_]:
    """Return bool [packets]: recovery points that are not random access points.

    After such a recovery point, pictures have other references for a decoder that starts there. Leading
    pictures are allowed to have other references.

    Args:
        starts: result of `compare_starts`.
        points: facts of the packets.
        in_middle: whether other pictures came before the first packet.
    """
    rejected = np.zeros(len(points.idr), np.bool_)
    candidates = np.flatnonzero(points.recovery)
    first = int(np.argmax(points.idr | points.recovery))
    for _ in range(MAX_ROUNDS):
        start, leading = points.starts_without(rejected)
        begins = np.append(np.flatnonzero(start != NO_START), -1)
        # A leading picture is decoded from the random access point before its own, -1 if there is none.
        before = begins[np.maximum(np.cumsum(start != NO_START) - 2, -1)]
        base = np.where(leading, before, segments(start))
        believed = candidates[~rejected[candidates] & ((candidates > first) | in_middle)]
        found = [packet for packet in believed.tolist() if starts[packet].differs(base)]
        if not found:
            return rejected
        rejected[found] = True
    rejected[candidates[candidates >= first + (not in_middle)]] = (
        True  # each round rejected more points, so all are rejected
    )
    return rejected


def first_start(start: NDArray[np.uint8]) -> int:
    """Return the number of the first random access point; the number of packets if there is none."""
    return int(np.argmax(start != NO_START)) if start.any() else len(start)
