"""Runs as clips take them, decoded beside a full decode of the same packets, and compared picture by picture."""

from __future__ import annotations

import collections

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError
from framedex.indexer.containers.decoders import Coded, RunDecoder
from framedex.indexer.containers.planes import native_planes
from framedex.indexer.proofs.shapes import Shape

MOST_WAITING = 40  # pictures that one of two decoders has given and the other not; more than any codec's delay
# Pictures of the first shape are kept up to this size, so that its decoders do not reuse their memory. A decoder that
# leaves a part of a picture unwritten then leaves it at zero, and the full decode at what was there before.
HELD_BYTES = 128 << 20


def same_picture(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Return whether two pictures have the same format, size and visible pixels."""
    if (one.format.name, one.width, one.height) != (other.format.name, other.width, other.height):
        return False
    return all(map(np.array_equal, native_planes(one), native_planes(other)))


class Proof:
    """Compares the pictures of some shapes of runs with those of a full decode that goes on at the same time.

    Args:
        shapes: Which runs.
        coded: The stream, as clips' decoders are told of it.
        where: Its file, for messages.
        given: For each packet, what a decoder must be given before it if it starts there.
        place: int64 [packets], the place of each presented frame in presentation order.
        ordered: Whether clips rely on decoders to give pictures in that order.

    Attributes:
        differs: bool [packets], pictures that a run does not give as the full decode does.
    """

    def __init__(
        self,
        shapes: list[Shape],
        coded: Coded,
        *,
        where: str,
        given: list[bytes],
        place: NDArray[np.int64],
        ordered: bool,
    ) -> None:
        self.differs = np.zeros(len(place), np.bool_)
        self._due = np.zeros(len(place), np.int64)  # shapes that have not given the picture yet
        for shape in shapes:
            self._due[shape.packet[shape.wanted]] += 1
        self._expected: dict[int, av.VideoFrame] = {}
        self._early: dict[tuple[int, int], av.VideoFrame] = {}  # by packet and shape: not yet in the full decode
        self._held, self._held_bytes = collections.deque[av.VideoFrame](), 0
        self._sides = [
            _Side(number, self, shape, coded, where, given, place, ordered=ordered)
            for number, shape in enumerate(shapes)
        ]

    def feed(self, number: int, data: bytes) -> None:
        """Take the next packet of the stream. A packet that the full decode did not read is not fed."""
        for side in self._sides:
            side.feed(number, data)

    def expect(self, picture: av.VideoFrame) -> None:
        """Take a picture of the full decode. Its pts is the number of its packet."""
        number = picture.pts
        assert number is not None  # decode_all numbers packets
        for side in range(len(self._sides)):
            early = self._early.pop((number, side), None)
            if early is not None:
                self._compare(number, picture, early)
        if self._due[number]:
            self._expected[number] = picture
            if len(self._expected) > MOST_WAITING:
                self.missing(next(iter(self._expected)))

    def finish(self) -> None:
        """End all runs. What one side alone has given differs."""
        for side in self._sides:
            side.end()
        for number, _ in self._early:
            self.differs[number] = True

    def come(self, number: int, picture: av.VideoFrame, side: int) -> None:
        """Take a wanted picture of a run."""
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
            self.missing(late[0])

    def missing(self, number: int) -> None:
        """Note that a run, or the full decode, does not give a picture that the other one gives."""
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
    """The runs of one shape."""

    def __init__(
        self,
        number: int,
        proof: Proof,
        shape: Shape,
        coded: Coded,
        where: str,
        given: list[bytes],
        place: NDArray[np.int64],
        *,
        ordered: bool,
    ) -> None:
        self._number, self._proof, self._coded, self._where = number, proof, coded, where
        self._given, self._place, self._ordered = given, place, ordered
        columns = (shape.packet, shape.run, shape.wanted, shape.whole, shape.last)
        self._coming = iter(zip(*(column.tolist() for column in columns), strict=True))
        self._next = next(self._coming, None)
        self._runs: dict[int, _Run] = {}

    def feed(self, number: int, data: bytes) -> None:
        while self._next is not None and self._next[0] <= number:
            packet, run, wanted, whole, last = self._next
            self._next = next(self._coming, None)
            if run not in self._runs:
                self._runs[run] = _Run(self)
                if self._given[packet] and packet == number:
                    self._runs[run].take(packet, self._given[packet])
            if packet == number:
                self._runs[run].take(packet, data)
            if wanted:
                self._runs[run].left.add(packet)
            if whole:
                self._runs[run].decode()
            if last:
                self._runs.pop(run).end()

    def end(self) -> None:
        for run in self._runs.values():
            run.end()
        self._runs.clear()

    def open(self) -> RunDecoder:
        return RunDecoder(self._coded, where=self._where)

    def comes(self, number: int, picture: av.VideoFrame) -> None:
        self._proof.come(number, picture, self._number)

    def misses(self, number: int) -> None:
        self._proof.missing(number)

    def is_behind(self, number: int, other: int) -> bool:
        """Return whether a picture comes out after one that is presented later."""
        return self._ordered and self._place[number] <= self._place[other]


class _Run:
    """One run: a decoder, and what it still has to give."""

    def __init__(self, side: _Side) -> None:
        self._side = side
        self.left: set[int] = set()
        self._data, self._packet = b"", -1
        self._last: int | None = None
        self._decoder: RunDecoder | None
        try:
            self._decoder = side.open()
        except DecodeError:
            self._decoder = None

    def take(self, packet: int, data: bytes) -> None:
        """Add to the picture that is decoded next. Its number is that of its first packet."""
        if not self._data:
            self._packet = packet
        self._data += data

    def decode(self) -> None:
        data, self._data = self._data, b""
        if self._decoder is None or not data:
            return
        try:
            self._give(self._decoder.decode(data, self._packet))
        except av.error.FFmpegError:
            self._decoder = None

    def end(self) -> None:
        if self._decoder is not None:
            try:
                self._give(self._decoder.flush())
            except av.error.FFmpegError:
                self._decoder = None
        for number in sorted(self.left):
            self._side.misses(number)

    def _give(self, pictures: list[av.VideoFrame]) -> None:
        """Pass wanted pictures on. A corrupt picture ends the run, as it ends a clip."""
        for picture in pictures:
            number = picture.pts
            if picture.is_corrupt:
                self._decoder = None
                return
            if number is None or number not in self.left:
                continue
            if self._last is not None and self._side.is_behind(number, self._last):
                continue
            self._last = number
            self.left.remove(number)
            self._side.comes(number, picture)
