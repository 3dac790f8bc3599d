"""H.264 start points, and which recovery points are start points.

A recovery point is a start point if a decoder that starts there builds the same reference lists as a decoder that has
decoded everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.h264_references import BOTH_FIELDS, MISSING, Buffer, Coded, Entry, Held
from framedex.indexer.bitstream.pictures import CLOSED_START, NO_START, OPEN_START, segments

MOST_ROUNDS = 16  # of rejecting recovery points, each one without those rejected before
FIRST_ORDER = -(1 << 62)  # order of the pictures that FFmpeg makes up: before all others


def made_up(coded: Coded) -> list[Held]:
    """Return the pictures that FFmpeg makes up if the first picture that it decodes is not an IDR picture.

    It makes up as many as the stream may hold (`h264_field_start` in libavcodec/h264_slice.c, "Frame num gap").
    """
    numbers = range(coded.frame_num - max(coded.max_refs, 1), coded.frame_num)
    return [
        Held(MISSING - 1 - place, number % coded.max_frame_num, FIRST_ORDER + place, BOTH_FIELDS)
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
        known: the picture before which the comparison ended; None if its result holds for all later pictures.
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

        Pictures from before the recovery point, and its leading pictures, have other content here: no list may name
        them.
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

    def is_settled(self, buffer: Buffer) -> bool:
        """Return whether lists stay the same from here on. buffer: that of a decoder that has decoded everything."""
        return not buffer.holds_any(self._leading, self.first) and all(alone.holds_as(buffer) for alone in self._alone)


def compare_starts(pictures: Iterable[Coded], candidates: Collection[int], *, in_middle: bool) -> dict[int, Start]:
    """Compare decoders that start at recovery points with a decoder that has decoded everything.

    The comparison of a start ends when its lists stay the same, or at the recovery point after the next one: pictures
    may be decoded from the start up to there.

    Args:
        pictures: all pictures from the first start point on, in decode order.
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
        if coded.slices is None:  # up to the next IDR picture, the content of the buffer is unknown
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


def start_points(
    idr: NDArray[np.bool_],
    recovery: NDArray[np.bool_],
    order: NDArray[np.int64],
    continues: NDArray[np.bool_],
    count: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return (start uint8 [packets], leading bool [packets]) as defined by `Pictures`.

    Args:
        idr: bool [packets], IDR pictures.
        recovery: bool [packets], recovery points that count as start points.
        order: int64 [packets], output order.
        continues: bool [packets], as in `Pictures`.
        count: int64 [packets], number of slices.
    """
    start = np.where(idr, CLOSED_START, np.where(recovery, OPEN_START, NO_START)).astype(np.uint8)
    segment = segments(start)
    behind = np.maximum(segment, 0)
    leading = (start[behind] == OPEN_START) & (segment >= 0) & (order < order[behind]) & ~continues & (count > 0)
    return start, leading | (continues & np.roll(leading, 1))


def false_starts(
    starts: dict[int, Start],
    idr: NDArray[np.bool_],
    recovery: NDArray[np.bool_],
    order: NDArray[np.int64],
    continues: NDArray[np.bool_],
    count: NDArray[np.int64],
    *,
    in_middle: bool,
) -> NDArray[np.bool_]:
    """Return bool [packets]: recovery points that are not start points.

    After such a recovery point, pictures have other references for a decoder that starts there. Leading
    pictures are allowed to have other references.

    Args:
        starts: result of `compare_starts`.
        idr: bool [packets], as in `start_points`.
        recovery: bool [packets], all recovery points.
        order: int64 [packets], as in `start_points`.
        continues: bool [packets], as in `start_points`.
        count: int64 [packets], as in `start_points`.
        in_middle: whether other pictures came before the first packet.
    """
    lies = np.zeros(len(idr), np.bool_)
    candidates = np.flatnonzero(recovery)
    first = int(np.argmax(idr | recovery))
    for _ in range(MOST_ROUNDS):
        start, leading = start_points(idr, recovery & ~lies, order, continues, count)
        base = np.where(leading, _segments_before(start), segments(start))
        believed = candidates[~lies[candidates] & ((candidates > first) | in_middle)]
        found = [packet for packet in believed.tolist() if _differs(starts[packet], packet, base)]
        if not found:
            return lies
        lies[found] = True
    lies[candidates[candidates >= first + (not in_middle)]] = True  # each round rejected more: reject all
    return lies


def _differs(start: Start, packet: int, base: NDArray[np.int64]) -> bool:
    """Return whether a picture that is decoded from a start point has other references there.

    Args:
        start: the comparison of the start point.
        packet: packet of the start point.
        base: int64 [packets], the start point from which each packet is decoded.
    """
    if any(base[picture] == packet for picture in start.unlike):
        return True
    return start.known is not None and bool((base[start.known :] == packet).any())


def _segments_before(start: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [packets]: the start point before that of each packet's segment, -1 if there is none."""
    begins = np.flatnonzero(start != NO_START)
    number = np.cumsum(start != NO_START) - 2
    return np.where(number >= 0, begins[np.maximum(number, 0)] if len(begins) else -1, -1)


def first_start(start: NDArray[np.uint8]) -> int:
    """Return the number of the first start point; the number of packets if there is none."""
    return int(np.argmax(start != NO_START)) if start.any() else len(start)
