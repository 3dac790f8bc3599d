"""Runs as clips take them, decoded beside a decode from further back, and compared picture by picture."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError
from framedex.indexer.containers.decoders import Coded, RunDecoder
from framedex.indexer.containers.planes import native_planes
from framedex.indexer.proofs.shapes import Shape
from framedex.indexer.timeline import START, Flags, Pts

MOST_WAITING = 40  # pictures that one of two decoders has given and the other not; more than any codec's delay
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


def same_picture(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Return whether two pictures have the same format, size and visible pixels."""
    if (one.format.name, one.width, one.height) != (other.format.name, other.width, other.height):
        return False
    return all(map(np.array_equal, native_planes(one), native_planes(other)))


class Proof:
    """Compares the pictures of some shapes of runs with those of a decode from further back, of the same packets.

    Args:
        stream: The packets' stream.
        shapes: Which runs.
        further_back: The runs that give the pictures to compare with. None: whoever feeds packets decodes all of them,
            and calls `expect`.

    Attributes:
        differs: bool [packets], pictures that a run does not give as the other decode does.
    """

    def __init__(self, stream: Stream, shapes: list[Shape], further_back: Shape | None = None) -> None:
        self.differs = np.zeros(len(stream.place), np.bool_)
        self._due = np.zeros(len(stream.place), np.int64)  # shapes that have not given the picture yet
        for shape in shapes:
            self._due[shape.packet[shape.wanted]] += 1
        self._expected: dict[int, av.VideoFrame] = {}
        self._early: dict[tuple[int, int], av.VideoFrame] = {}  # by packet and shape: not expected yet
        self._held, self._held_bytes = collections.deque[av.VideoFrame](), 0
        self._sides = [
            _Side(
                stream,
                shape,
                functools.partial(self._come, side=number),
                self._missing,
                threads=1 if number else THREADS,
            )
            for number, shape in enumerate(shapes)
        ]
        if further_back is not None:
            self._sides.append(_Side(stream, further_back, self.expect, self._missing, goes_on=True))

    def feed(self, number: int, data: bytes) -> None:
        """Take the next packet of the stream."""
        for side in self._sides:
            side.feed(number, data)

    def expect(self, picture: av.VideoFrame) -> None:
        """Take a picture of the decode from further back. Its pts is the number of its packet."""
        number = picture.pts
        assert number is not None  # whoever decodes numbers packets
        for side in range(len(self._sides)):
            early = self._early.pop((number, side), None)
            if early is not None:
                self._compare(number, picture, early)
        if self._due[number]:
            self._expected[number] = picture
            if len(self._expected) > MOST_WAITING:
                self._missing(next(iter(self._expected)))

    def finish(self) -> None:
        """End all runs. What one of two decodes alone has given differs."""
        for side in self._sides:
            side.end()
        for number, _ in self._early:
            self.differs[number] = True

    def _come(self, picture: av.VideoFrame, side: int) -> None:
        """Take a wanted picture of a run."""
        number = picture.pts
        assert number is not None  # runs give wanted pictures alone
        if side == 0:
            self._hold(picture)
        if self.differs[number]:
            return
        expected = self._expected.get(number)
        if expected is not None:
            self._compare(number, expected, picture)
            return
        self._early[number, side] = picture
        if len(self._early) > MOST_WAITING:
            late = next(iter(self._early))
            del self._early[late]
            self._missing(late[0])

    def _missing(self, number: int) -> None:
        """Note that one of two decodes does not give a picture that the other one gives."""
        self.differs[number] = True
        self._settle(number)

    def _compare(self, number: int, expected: av.VideoFrame, picture: av.VideoFrame) -> None:
        self.differs[number] |= not same_picture(expected, picture)
        self._settle(number)

    def _settle(self, number: int) -> None:
        self._due[number] -= 1
        if self._due[number] <= 0 or self.differs[number]:
            self._due[number] = 0
            self._expected.pop(number, None)

    def _hold(self, picture: av.VideoFrame) -> None:
        self._held.append(picture)
        self._held_bytes += _bytes_of(picture)
        while self._held_bytes > HELD_BYTES:
            self._held_bytes -= _bytes_of(self._held.popleft())


def _bytes_of(picture: av.VideoFrame) -> int:
    return sum(plane.buffer_size for plane in picture.planes)


class _Side:
    """The runs of one shape.

    Args:
        stream: Their stream.
        shape: Which packets each gets.
        come: Called with each wanted picture.
        missing: Called with the packet of each wanted picture that a run does not give.
        threads: How many each decoder uses.
        goes_on: Whether a decoder goes on after errors, as that of a full decode does. A clip's decoder does not.
    """

    def __init__(
        self,
        stream: Stream,
        shape: Shape,
        come: Callable[[av.VideoFrame], None],
        missing: Callable[[int], None],
        *,
        threads: int = 1,
        goes_on: bool = False,
    ) -> None:
        self.stream, self.come, self.missing, self.threads, self.goes_on = stream, come, missing, threads, goes_on
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
                self._runs[run] = _Run(self)
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


class _Run:
    """One run: a decoder, and what it still has to give."""

    def __init__(self, side: _Side) -> None:
        self._side = side
        self.left: set[int] = set()
        self._data, self._packet = b"", -1
        self._last = -1
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
        """Take what the decoder holds back. Wanted pictures that are then left are missing."""
        if self._decoder is not None:
            try:
                self._give(self._decoder.flush())
            except av.error.FFmpegError:
                self._fail()
        for number in sorted(self.left):
            self._side.missing(number)

    def _fail(self) -> None:
        if not self._side.goes_on:
            self._decoder = None

    def _give(self, pictures: list[av.VideoFrame]) -> None:
        """Pass wanted pictures on. A corrupt picture ends the run, as it ends a clip."""
        place = self._side.stream.place
        for picture in pictures:
            number = picture.pts
            if picture.is_corrupt and not self._side.goes_on:
                self._decoder = None
                return
            if number is None or number not in self.left or picture.is_corrupt:
                continue
            if self._side.stream.ordered and self._last >= 0 and place[number] <= place[self._last]:
                continue
            self._last = number
            self.left.remove(number)
            self._side.come(picture)
