"""Which H.264 recovery points may be believed: those at which a decoder builds the lists of one that has decoded everything."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from framedex.indexer.bitstream.h26x.h264_references import BOTH_FIELDS, MISSING, Buffer, Coded, Entry, Held

FIRST_ORDER = -(1 << 62)  # of pictures that FFmpeg makes up: before all others


def made_up(coded: Coded) -> list[Held]:
    """Return the pictures that FFmpeg makes up where a picture that is no IDR picture is its first one: as many as the stream may
    hold (`h264_field_start` in libavcodec/h264_slice.c, "Frame num gap").
    """
    numbers = range(coded.frame_num - max(coded.max_refs, 1), coded.frame_num)
    return [
        Held(MISSING - 1 - place, number % coded.max_frame_num, FIRST_ORDER + place, BOTH_FIELDS)
        for place, number in enumerate(numbers)
    ]


@dataclass(slots=True)
class Start:
    """A recovery point, and two decoders that start there: one that makes up the missing pictures as FFmpeg does, and one that
    makes up none.

    first: the recovery point's picture; order: of it. unlike: pictures whose lists differ from those of a decoder that has decoded
    everything. known: before which picture that was looked at; None: for good.
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
        """Compare a picture's lists with those of a decoder that has everything, and decode it.

        What came before the recovery point, and pictures that lead it, have other content here: no list may name them.
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
        """Return whether lists stay the same from here on, given the buffer of a decoder that has everything."""
        return not buffer.holds_any(self._leading, self.first) and all(alone.holds_as(buffer) for alone in self._alone)


def compare_starts(pictures: Iterable[Coded], candidates: Collection[int], *, in_middle: bool) -> dict[int, Start]:
    """Return for recovery points, by their pictures, where lists differ for a decoder that starts there.

    pictures: from the first start point on, in decode order. in_middle: others came before them. A start is looked at until lists
    stay the same, or the recovery point after the next one: up to there pictures may be decoded from it.
    """
    starts: dict[int, Start] = {}
    active: list[Start] = []
    buffer: Buffer | None = None
    for number, coded in enumerate(pictures):
        if coded.idr:
            buffer, active = Buffer(), []
        elif not number:
            buffer = Buffer(_gaps=True, _frames=[] if in_middle else made_up(coded))
        if coded.slices is None:  # up to the next IDR picture, nobody knows what is held
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
