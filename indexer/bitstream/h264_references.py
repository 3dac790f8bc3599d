"""Reference lists of H.264 pictures, and a test of whether recovery points are random access points.

Slice headers control reference lists and the marking of references (ITU-T H.264 7.3.3.1 to 7.3.3.3). `Buffer` simulates
the buffer of reference pictures of a decoder (8.2.4, 8.2.5). A recovery point is a random access point if a decoder
that starts there builds the same reference lists as a decoder that starts at the beginning of the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import CLOSED_START, NO_START, OPEN_START, BitReader, segments
from framedex.indexer.bitstream.h264_sets import Pps, Sps

P, B, SP = 0, 1, 3  # values of slice_type modulo 5 (table 7-6)
# Maximum number of operations that modify a list or mark references: two for each of 32 fields, and an end code.
MAX_OPERATIONS = 66


class SliceHeader(NamedTuple):
    """The fields of a slice header that concern references.

    Attributes:
        kind: slice_type modulo 5.
        lists: (number of active entries, modifications) of reference list 0. B slices have a second element for list 1.
            Each modification is (modification_of_pic_nums_idc, value).
        marking: (memory_management_control_operation, first value, second value) for each operation of adaptive marking
            (table 7-9). None if references are marked by the sliding window.
        long_idr: whether the picture is an IDR picture that becomes a long-term reference.
    """

    kind: int
    lists: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    marking: tuple[tuple[int, int, int], ...] | None
    long_idr: bool

    @property
    def resets(self) -> bool:
        """Whether the picture drops all references and resets its counts (memory_management_control_operation 5)."""
        return self.marking is not None and any(operation == 5 for operation, _, _ in self.marking)


def parse_slice(
    bits: BitReader, sps: Sps, pps: Pps, *, kind: int, idr: bool, referenced: bool, is_field: bool
) -> SliceHeader:
    """Parse the fields of a slice header after pic_order_cnt_lsb or delta_pic_order_cnt[0]. Raises ValueError.

    Args:
        bits: a reader of the header, positioned after pic_order_cnt_lsb or delta_pic_order_cnt[0].
        sps: the sequence parameter set of the slice.
        pps: the picture parameter set of the slice.
        kind: slice_type modulo 5.
        idr: whether the picture is an IDR picture.
        referenced: whether the picture is a reference picture.
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
    raise ValueError("a slice header has too many modifications of a reference list")


def _marking(bits: BitReader) -> Iterator[tuple[int, int, int]]:
    for _ in range(MAX_OPERATIONS):
        operation = bits.ue()
        if not operation:
            return
        first = bits.ue() if operation in (1, 2, 3, 4, 6) else 0
        yield operation, first, bits.ue() if operation == 3 else 0
    raise ValueError("a slice header has too many operations that mark references")


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


FRAME, TOP, BOTTOM = 0, 1, 2  # parity of a slice or of an entry in a reference list
BOTH_FIELDS = 3  # TOP and BOTTOM as bits
NOT_LONG = -1  # value of `ReferenceFrame.long` for a short-term reference
# Placeholder for the number of a picture that is not in the buffer. Pictures that FFmpeg generates in place of missing
# pictures get lower numbers.
MISSING = -1


@dataclass(slots=True)
class ReferenceFrame:
    """A frame in the decoded picture buffer.

    Attributes:
        picture: the number of the picture.
        frame_num: the frame_num of the picture.
        order: the picture order count of the picture.
        fields: the bits TOP and BOTTOM of the fields that are marked as references.
        long: the LongTermFrameIdx of a long-term reference, or NOT_LONG.
    """

    picture: int
    frame_num: int
    order: int
    fields: int
    long: int = NOT_LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """One coded frame or field.

    Attributes:
        picture: the number of the picture, which both fields of a frame share.
        slices: the headers of the slices. The list is empty if some header could not be read.
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


Entry = tuple[int, int, bool]  # (picture, parity, whether the reference is long-term)


@dataclass(slots=True)
class Buffer:
    """The reference pictures that a decoder holds while it decodes a stream.

    Attributes:
        _gaps: whether reference lists may have fewer entries than slice headers state, because decoding began in the
            middle of a stream.
        frames: the frames that the decoder holds.
    """

    _gaps: bool = False
    frames: list[ReferenceFrame] = field(default_factory=list)

    def lists(self, coded: Coded) -> list[list[Entry]]:
        """Return the active entries of each reference list of a picture's slices (8.2.4)."""
        found: list[list[Entry]] = []
        long = {frame.picture for frame in self.frames if frame.long != NOT_LONG}
        for each in coded.slices:
            for number, (active, operations) in enumerate(each.lists):
                named = [self._named(coded, operation) for operation in self._resolved(coded, operations)]
                rest = [entry for entry in self._initial(coded, each.kind, number) if entry not in named]
                entries = [(picture, parity, picture in long) for picture, parity in [*named, *rest][:active]]
                is_short = len(entries) < active and self._gaps
                found.append([*entries, (MISSING, FRAME, False)] if is_short else entries)
        return found

    def _resolved(self, coded: Coded, operations: tuple[tuple[int, int], ...]) -> Iterator[tuple[bool, int]]:
        """Yield (whether the reference is long-term, picture number) for each modification of a list (8.2.4.3.1)."""
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
        """Return the (picture, parity) with a picture number (8.2.4.1), or (MISSING, FRAME) if there is none.

        Args:
            coded: the picture whose slice header contains the number.
            wanted: whether the number belongs to a long-term reference, and the picture number.
        """
        long, number = wanted
        for frame in self.frames:
            for parity in (FRAME,) if coded.parity == FRAME else (TOP, BOTTOM):
                if (frame.long != NOT_LONG) == long and self._number(coded, frame, parity) == number:
                    return frame.picture, parity
        return MISSING, FRAME

    def _number(self, coded: Coded, frame: ReferenceFrame, parity: int) -> int:
        """Return the PicNum or LongTermPicNum of a frame or field (8.2.4.1), which depends on the current picture."""
        number = frame.long if frame.long != NOT_LONG else self._wrapped(coded, frame)
        return number if coded.parity == FRAME else 2 * number + (parity == coded.parity)

    @staticmethod
    def _wrapped(coded: Coded, frame: ReferenceFrame) -> int:
        return frame.frame_num - coded.max_frame_num if frame.frame_num > coded.frame_num else frame.frame_num

    def _initial(self, coded: Coded, kind: int, number: int) -> list[tuple[int, int]]:
        """Return the (picture, parity) entries of a reference list before it is modified (8.2.4.2)."""
        whole = [frame for frame in self.frames if frame.fields == BOTH_FIELDS or (coded.parity and frame.fields)]
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
        """Return reference list entries for frames, in the order of the frames.

        If the current picture is a field, the entries are fields of alternating parity. The first one has the parity of
        the current field (8.2.4.2.5).
        """
        if coded.parity == FRAME:
            return [(frame.picture, FRAME) for frame in frames]
        parity, other = coded.parity, TOP + BOTTOM - coded.parity
        queues = {each: [frame.picture for frame in frames if frame.fields & each] for each in (parity, other)}
        entries = []
        while queues[TOP] and queues[BOTTOM]:
            entries.append((queues[parity].pop(0), parity))
            parity = TOP + BOTTOM - parity
        # When one queue is empty, the fields of the other queue follow in their order.
        return entries + [(picture, each) for each, queue in queues.items() for picture in queue]

    def take(self, coded: Coded) -> None:
        """Update the marking of references after a picture has been decoded (8.2.5)."""
        if not coded.referenced:
            return
        first = coded.slices[0]
        fields = BOTH_FIELDS if coded.parity == FRAME else coded.parity
        if coded.idr:
            long = 0 if first.long_idr else NOT_LONG
            self.frames = [ReferenceFrame(coded.picture, coded.frame_num, coded.order, fields, long)]
            return
        same = [frame for frame in self.frames if frame.picture == coded.picture]
        long = NOT_LONG
        if first.marking is None:
            # The sliding window removes the oldest picture if the buffer is full (8.2.5.3).
            has_short = any(frame.long == NOT_LONG for frame in self.frames)
            if not same and has_short and len(self.frames) >= max(coded.max_refs, 1):
                self._remove_oldest()
        else:
            long = self._mark(coded, first.marking)
        if same and same[0] in self.frames:
            same[0].fields |= fields
        else:
            frame_num, order = (0, 0) if first.resets else (coded.frame_num, coded.order)
            self.frames.append(ReferenceFrame(coded.picture, frame_num, order, fields, long))
            if len(self.frames) > max(coded.max_refs, 1):  # adaptive marking keeps more pictures than the SPS allows
                self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Remove the oldest short-term reference. If there is none, remove the oldest long-term reference."""
        self.frames.remove(next((frame for frame in self.frames if frame.long == NOT_LONG), self.frames[0]))

    def _mark(self, coded: Coded, marking: Iterable[tuple[int, int, int]]) -> int:
        """Apply the operations of adaptive marking (8.2.5.4).

        Returns:
            The LongTermFrameIdx of the current picture, or NOT_LONG.
        """
        is_field, own = coded.parity != FRAME, NOT_LONG
        current = 2 * coded.frame_num + 1 if is_field else coded.frame_num
        for operation, first, second in marking:
            if operation in (1, 3):
                picture, parity = self._named(coded, (False, current - first - 1))
                self._drop(picture, parity, keep_long=second if operation == 3 else NOT_LONG)
            elif operation == 2:
                self._drop(*self._named(coded, (True, first)))
            elif operation == 4:
                self.frames = [frame for frame in self.frames if frame.long < first]
            elif operation == 5:
                self.frames = []
            elif operation == 6:
                self.frames = [frame for frame in self.frames if frame.long != first or frame.picture == coded.picture]
                own = first
        return own

    def _drop(self, picture: int, parity: int, keep_long: int = NOT_LONG) -> None:
        """Mark a picture or one of its fields as unused for reference.

        If `keep_long` is a LongTermFrameIdx, mark the picture as a long-term reference with this index instead.
        """
        for frame in [frame for frame in self.frames if frame.picture == picture]:
            if keep_long != NOT_LONG:
                self.frames = [other for other in self.frames if other.long != keep_long or other is frame]
                frame.long = keep_long
                continue
            frame.fields &= ~parity if parity else 0
            if not frame.fields:
                self.frames.remove(frame)


MAX_ROUNDS = 16  # maximum number of rounds in `false_starts`; a stream that needs more counts as an attack
FIRST_ORDER = -(1 << 62)  # output order of the first picture that FFmpeg generates; it precedes all coded pictures


def made_up(coded: Coded) -> list[ReferenceFrame]:
    """Return the reference pictures that FFmpeg generates when it starts at a picture that is not an IDR picture.

    Their number is the maximum number of reference pictures (`h264_field_start` in libavcodec/h264_slice.c, "Frame num
    gap").
    """
    numbers = range(coded.frame_num - max(coded.max_refs, 1), coded.frame_num)
    return [
        ReferenceFrame(MISSING - 1 - place, number % coded.max_frame_num, FIRST_ORDER + place, BOTH_FIELDS)
        for place, number in enumerate(numbers)
    ]


@dataclass(slots=True)
class Start:
    """A recovery point, and the buffers of two decoders that start there.

    The first decoder generates the missing reference pictures, as FFmpeg does. The second decoder does not.

    Attributes:
        first: the number of the recovery point's picture.
        order: the picture order count of the recovery point's picture.
        unlike: the pictures whose reference lists differ from those of a decoder that starts at the beginning of the
            stream.
        known: the first picture that could not be compared, so that nothing is known about it and later pictures. None
            if no such picture exists.
    """

    first: int
    order: int
    unlike: set[int] = field(default_factory=set)
    known: int | None = None
    _leading: set[int] = field(default_factory=set)
    _alone: list[Buffer] = field(default_factory=list)

    @classmethod
    def at(cls, coded: Coded) -> Start:
        """Return a `Start` for the recovery point `coded`, before that picture is decoded."""
        return cls(coded.picture, coded.order, _alone=[Buffer(frames=made_up(coded)), Buffer()])

    def compare(self, coded: Coded, lists: list[list[Entry]]) -> None:
        """Compare a picture's reference lists in the two buffers with expected lists, then update the buffers.

        A decoder that starts at the recovery point cannot decode earlier pictures or leading pictures of that point. So
        reference lists must not contain them.

        Args:
            coded: the picture.
            lists: the reference lists of a decoder that starts at the beginning of the stream.
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
        """Return whether a picture that is decoded from this recovery point may have wrong references.

        They are wrong if they differ from the references in a decode from the beginning of the stream.

        Args:
            base: int64 [packets], the random access point from which the packet is decoded.
        """
        if any(base[picture] == self.first for picture in self.unlike):
            return True
        return self.known is not None and bool((base[self.known :] == self.first).any())

    def is_settled(self, buffer: Buffer) -> bool:
        """Return whether the reference lists of all later pictures are certain to agree with those from `buffer`.

        Args:
            buffer: the buffer of a decoder that starts at the beginning of the stream.
        """
        is_old = (frame.picture < self.first or frame.picture in self._leading for frame in buffer.frames)
        return not any(is_old) and all(alone.frames == buffer.frames for alone in self._alone)


def compare_starts(pictures: Iterable[Coded], candidates: Collection[int], *, in_middle: bool) -> dict[int, Start]:
    """Compare decoders that start at recovery points with a decoder that starts at the beginning of the stream.

    The comparison for a recovery point ends when all later reference lists are certain to agree. It ends at the latest
    at the second recovery point after this one, because clips decode all later pictures from another random access
    point.

    Args:
        pictures: all frames and fields from the first random access point on, in decode order.
        candidates: the picture numbers of the recovery points.
        in_middle: whether the stream has pictures before the first of `pictures`.

    Returns:
        The result of the comparison for each recovery point, by its picture number.
    """
    starts: dict[int, Start] = {}
    active: list[Start] = []
    buffer: Buffer | None = None
    for number, coded in enumerate(pictures):
        if coded.idr:
            buffer, active = Buffer(), []
        elif not number:
            buffer = Buffer(_gaps=True, frames=[] if in_middle else made_up(coded))
        if not coded.slices:  # the content of the buffer is then unknown up to the next IDR picture
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
    """The properties of n packets that determine where decoding may start.

    Attributes:
        idr: bool [n], whether the packet begins an IDR picture.
        recovery: bool [n], whether the packet is a recovery point.
        order: int64 [n], as in `Pictures`.
        continues: bool [n], as in `Pictures`.
        count: int64 [n], the number of slices of the packet.
    """

    idr: NDArray[np.bool_]
    recovery: NDArray[np.bool_]
    order: NDArray[np.int64]
    continues: NDArray[np.bool_]
    count: NDArray[np.int64]

    def starts_without(self, rejected: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return `start` and `leading` of `Pictures`. Rejected recovery points are not random access points.

        Args:
            rejected: bool [n], whether the packet is a rejected recovery point.
        """
        recovery = self.recovery & ~rejected
        start = np.where(self.idr, CLOSED_START, np.where(recovery, OPEN_START, NO_START)).astype(np.uint8)
        segment = segments(start)
        behind = np.maximum(segment, 0)
        leading = (start[behind] == OPEN_START) & (segment >= 0) & (self.order < self.order[behind])
        leading &= ~self.continues & (self.count > 0)
        return start, leading | (self.continues & np.roll(leading, 1))


def false_starts(starts: dict[int, Start], points: AccessPoints, *, in_middle: bool) -> NDArray[np.bool_]:
    """Return bool [packets]: whether the packet is a recovery point that is not a random access point.

    A decoder that starts at such a recovery point decodes some later picture with other references than a decoder that
    starts at the beginning of the stream. Differences in leading pictures are allowed.

    Args:
        starts: the result of `compare_starts`.
        points: the properties of the packets.
        in_middle: whether the stream has pictures before the first packet.
    """
    rejected = np.zeros(len(points.idr), np.bool_)
    candidates = np.flatnonzero(points.recovery)
    first = int(np.argmax(points.idr | points.recovery))
    for _ in range(MAX_ROUNDS):
        start, leading = points.starts_without(rejected)
        begins = np.append(np.flatnonzero(start != NO_START), -1)
        # Leading pictures after a random access point are decoded from the preceding random access point. -1 means that
        # there is none.
        before = begins[np.maximum(np.cumsum(start != NO_START) - 2, -1)]
        base = np.where(leading, before, segments(start))
        believed = candidates[~rejected[candidates] & ((candidates > first) | in_middle)]
        found = [packet for packet in believed.tolist() if starts[packet].differs(base)]
        if not found:
            return rejected
        rejected[found] = True
    # The last round still found recovery points to reject, so the others are not proven. All of them are rejected.
    rejected[candidates[candidates >= first + (not in_middle)]] = True
    return rejected


def first_start(start: NDArray[np.uint8]) -> int:
    """Return the packet number of the first random access point, or the number of packets if there is none."""
    return int(np.argmax(start != NO_START)) if start.any() else len(start)
