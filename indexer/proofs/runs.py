"""Runs of packets, decoded as clips decode them, and their pictures compared with expected ones."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError
from framedex.indexer.containers.decoders import Coded, RunDecoder
from framedex.indexer.containers.planes import picture_print
from framedex.indexer.proofs.shapes import Shape
from framedex.indexer.timeline import START, Flags, Pts

# So many threads decode each run of the first shape: of a damaged stream, some decoders then give other pictures.
THREADS = 2
# Pictures of the first shape are kept up to this size, so that its decoders do not reuse their memory. A decoder that
# leaves a part of a picture unwritten then leaves it at zero, and the other decode at what was there before.
HELD_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What a decoder of runs has to know of a stream of n packets.

    Attributes:
        coded: what decoders are told.
        where: the stream's file, for messages.
        given: for some start points, what a decoder must be given before it starts there, by packet.
        place: int64 [n], the place of each picture in presentation order.
        ordered: whether clips rely on decoders to give pictures in that order.
    """

    coded: Coded
    where: str
    given: dict[int, bytes]
    place: NDArray[np.int64]
    ordered: bool


def stream_of(
    coded: Coded,
    states: Sequence[bytes],
    state: NDArray[np.int32],
    pts: Pts,
    flags: Flags,
    *,
    where: str,
    ordered: bool,
) -> Stream:
    """Return what a decoder of runs has to know of a stream.

    Args:
        coded: what decoders are told.
        states: as in `videos`.
        state: int32 [starts], which of them a decoder must be given at each start point.
        pts: int64 [n].
        flags: int32 [n].
        where: the stream's file, for messages.
        ordered: whether clips rely on decoders to give pictures in presentation order.
    """
    place = np.empty(len(pts), np.int64)
    place[np.argsort(pts, kind="stable")] = np.arange(len(pts))
    starts = np.flatnonzero(flags & START).tolist()
    given = {start: states[number] for start, number in zip(starts, state.tolist(), strict=True) if states[number]}
    return Stream(coded=coded, where=where, given=given, place=place, ordered=ordered)


Prints = dict[tuple[int, int], int]  # by packet and run


def prints_of_runs(
    stream: Stream, shapes: Sequence[Shape], packets: Iterable[tuple[int, bytes]], *, going_on: Collection[int] = ()
) -> list[Prints]:
    """Decode the runs of some shapes, and return for each shape the `picture_print` of its wanted pictures.

    A picture that its run does not give is missing.

    Args:
        stream: the packets' stream.
        shapes: which runs. Those of the first shape are decoded with `THREADS` threads.
        packets: numbers and bytes of packets in decode order, at least of those that the runs need.
        going_on: numbers of the shapes whose decoders go on after errors, as that of a full decode does. A clip's
            decoder does not.
    """
    sides = [
        _Side(stream, shape, threads=1 if number else THREADS, keeps=not number, goes_on=number in going_on)
        for number, shape in enumerate(shapes)
    ]
    for number, data in packets:
        for side in sides:
            side.feed(number, data)
    for side in sides:
        side.end()
    return [side.prints for side in sides]


def differing(
    shapes: Sequence[Shape], prints: Sequence[Prints], expected: Sequence[int | None], *, over: bool = False
) -> NDArray[np.bool_]:
    """Return bool [packets]: wanted pictures that some run does not give as expected.

    Args:
        shapes: which runs.
        prints: the result of `prints_of_runs`.
        expected: the `picture_print` of each packet's picture, by packet. A picture that is missing, or None, differs.
        over: whether to look at the pictures behind start points over which runs have gone on, and not at the others.
    """
    differs = np.zeros(len(expected), np.bool_)
    for shape, found in zip(shapes, prints, strict=True):
        chosen = shape.wanted & (shape.over == over)
        for number, run in zip(shape.packet[chosen].tolist(), shape.run[chosen].tolist(), strict=True):
            differs[number] |= (number, run) not in found or found[number, run] != expected[number]
    return differs


class _Side:
    """The runs of one shape.

    Args:
        stream: their stream.
        shape: which packets each gets.
        threads: how many each decoder uses.
        keeps: whether to keep pictures, up to `HELD_BYTES`.
        goes_on: whether decoders go on after errors.

    Attributes:
        prints: hashes of wanted pictures.
    """

    def __init__(self, stream: Stream, shape: Shape, *, threads: int, keeps: bool, goes_on: bool) -> None:
        self.stream, self.threads, self.goes_on = stream, threads, goes_on
        self.prints: Prints = {}
        self._keeps, self._kept, self._kept_bytes = keeps, collections.deque[av.VideoFrame](), 0
        columns = (shape.packet, shape.run, shape.wanted, shape.whole, shape.last)
        self._coming = iter(zip(*(column.tolist() for column in columns), strict=True))
        self._next = next(self._coming, None)
        self._runs: dict[int, _Run] = {}

    def feed(self, number: int, data: bytes) -> None:
        """Give a packet to the runs that need it. A packet that was not fed is missing in its runs."""
        while self._next is not None and self._next[0] <= number:
            packet, run, wanted, whole, last = self._next
            self._next = next(self._coming, None)
            if run not in self._runs:
                self._runs[run] = _Run(self, run)
                if packet == number:
                    self._runs[run].take(packet, self.stream.given.get(packet, b""))
            if packet == number:
                self._runs[run].take(packet, data)
            if wanted:
                self._runs[run].left.add(packet)
            if whole:
                self._runs[run].decode()
            if last:
                self._runs.pop(run).end()

    def end(self) -> None:
        """End the runs whose packets have not all come."""
        for run in self._runs.values():
            run.end()
        self._runs.clear()

    def take(self, number: int, run: int, picture: av.VideoFrame) -> None:
        """Record a wanted picture."""
        self.prints[number, run] = picture_print(picture)
        if self._keeps:
            self._kept.append(picture)
            self._kept_bytes += _bytes_of(picture)
            while self._kept_bytes > HELD_BYTES:
                self._kept_bytes -= _bytes_of(self._kept.popleft())


def _bytes_of(picture: av.VideoFrame) -> int:
    return sum(plane.buffer_size for plane in picture.planes)


class _Run:
    """One run: a decoder, and what it still has to give."""

    def __init__(self, side: _Side, number: int) -> None:
        self._side, self._number = side, number
        self.left: set[int] = set()
        self._data, self._packet = b"", -1
        self._given: list[int] = []
        self._decoder: RunDecoder | None
        try:
            self._decoder = RunDecoder(
                side.stream.coded, where=side.stream.where, threads=side.threads, keep_damaged=side.goes_on
            )
        except DecodeError:
            self._decoder = None

    def take(self, packet: int, data: bytes) -> None:
        """Add to the picture that is decoded next. Its number is that of its first packet."""
        if not self._data:
            self._packet = packet
        self._data += data

    def decode(self) -> None:
        """Decode the picture whose packets were taken."""
        data, self._data = self._data, b""
        if self._decoder is not None and data:
            try:
                self._give(self._decoder.decode(data, self._packet))
            except av.error.FFmpegError:
                self._fail()

    def end(self) -> None:
        """Take what the decoder holds back."""
        if self._decoder is not None:
            try:
                self._give(self._decoder.flush())
            except av.error.FFmpegError:
                self._fail()

    def _fail(self) -> None:
        if not self._side.goes_on:
            self._decoder = None

    def _give(self, pictures: list[av.VideoFrame]) -> None:
        """Pass wanted pictures on. A corrupt picture ends the run, as it ends a clip.

        So does a picture that comes too late. Those that came before it in its place are taken back.
        """
        place = self._side.stream.place
        for picture in pictures:
            number = picture.pts
            if picture.is_corrupt and not self._side.goes_on:
                self._decoder = None
                return
            if number is None or picture.is_corrupt:
                continue
            if self._side.stream.ordered and self._given and place[number] <= place[self._given[-1]]:
                if not self._side.goes_on:
                    self._decoder = None
                    for late in self._given:
                        if place[late] >= place[number]:
                            self._side.prints.pop((late, self._number), None)
                    return
                continue
            self._given.append(number)
            if number in self.left:
                self.left.remove(number)
                self._side.take(number, self._number, picture)
