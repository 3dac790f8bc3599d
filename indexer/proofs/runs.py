"""Runs of packets that are decoded as clips decode them, to compare their pictures with expected ones.

Expected pictures come from a full decode of the medium. For media that are not decoded in full, some frames are drawn,
and expected pictures come from a decode that begins further back.

A `Shape` is a set of runs that are decoded together. Clips begin at any random access point, end at any frame, and
leave out packets that none of their frames needs. Their choice depends on their frames, so not every plan can be tried.
Each frame is reached in two ways, which together hold every packet and leave out every packet that may be left out:

- `halves`: from each random access point on, every picture that others need, and one half of those that none needs;
  then the other half. If every picture is needed, one run holds them all. Leading pictures of an open random access
  point are reached from the random access point before it.
- `single`: from each random access point, one picture, without anything that it does not need. The run ends with it.

Where packets are not parsed, some of the halves go on over the next random access point, as clips of several GOPs do,
and another shape takes the place of `single`:

- `bare`: from each random access point on, every picture that others need, and only the last one of the others. Two
  pictures that may be left out can bring the same header, so that leaving out one of them changes nothing.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import av
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError
from framedex.indexer import timeline
from framedex.indexer.containers import Coded, ProbedFile, RunDecoder, demux_packets, open_medium, picture_print
from framedex.indexer.reach import Numbers, Reach, drops_leading
from framedex.indexer.timeline import Flags, Pts
from framedex.storage.reader import Read

# For each 60 packets of a medium, one run goes on over the next random access point, by 3 frames; at least 2 runs do.
CROSSING_SHARE, MIN_CROSSINGS, CROSSING_FRAMES = 60, 2, 3
SEED = 22  # the choice of frames is the same each time
NONE: Numbers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Runs of one shape, which are fed together, by packet.

    Attributes:
        packet: int64 [fed], ascending: the packets that decoders get. Two runs may share packets.
        run: int64 [fed], the run of each packet.
        wanted: bool [fed], packets whose pictures have to equal the expected ones.
        over: bool [fed], wanted packets behind a random access point over which their run goes on.
        whole: bool [fed], packets that complete their picture. (The first field of two does not.)
        last: bool [fed], packets with which their run ends.
    """

    packet: Numbers
    run: Numbers
    wanted: NDArray[np.bool_]
    over: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    last: NDArray[np.bool_]


def shapes_of(flags: Flags, *, drop_leading: bool, starts: Numbers | None = None) -> list[Shape]:
    """Return the shapes that prove every presented frame outside of damaged GOPs.

    Args:
        flags: int32 [packets], all of them read.
        drop_leading: As `reach.drops_leading` returns it.
        starts: int64: only frames that are decoded from these random access points. If None, all frames.
    """
    reach = Reach(flags, drop_leading=drop_leading)
    frames = _sound_frames(reach, flags, timeline.shown_packets(flags), starts)
    shuffled = np.random.default_rng(SEED).permutation(frames)
    _, first, count = np.unique(reach.begins(shuffled), return_index=True, return_counts=True)
    single = np.sort(shuffled[first[count > 1]])  # a run to the only frame of a GOP is already in a half
    return [_shape(reach, some) for some in (*_halves(frames, flags), single) if len(some)]


def crossing_shapes(flags: Flags, starts: Numbers | None) -> list[Shape]:
    """Return the shapes of halves, and `bare`.

    Some runs of the first shape go on over the next random access point.

    Args:
        flags: int32 [packets], all of them read.
        starts: int64: only frames that are decoded from these random access points, all of whose runs go on. If None,
            all frames.
    """
    reach = Reach(flags, drop_leading=False)
    frames = _sound_frames(reach, flags, timeline.shown_packets(flags), starts)
    count = len(flags) // CROSSING_SHARE if starts is None else len(flags)
    behind, begins = _crossings(reach, frames, count, flags)
    chosen = _halves(frames, flags)
    if len(chosen) > 1:
        chosen.append(_bare(reach, frames, flags))
    first = [_shape(reach, some, behind, begins) for some in chosen[:1]]
    return first + [_shape(reach, some) for some in chosen[1:]]


def _sound_frames(reach: Reach, flags: Flags, frames: Numbers, starts: Numbers | None = None) -> Numbers:
    """Return the frames that are not damaged and that some random access point, or one of `starts`, reaches."""
    sound: Numbers = frames[(flags[frames] & timeline.DAMAGED) == 0]
    sound = sound[reach.is_reachable(sound)]
    return sound if starts is None else sound[np.isin(reach.begins(sound), starts)]


def _halves(frames: Numbers, flags: Flags) -> list[Numbers]:
    """Return two halves. Both have all frames that other frames may need, and each has one half of the rest."""
    droppable = (flags[frames] & timeline.NON_REFERENCE) != 0
    leading = (flags[frames] & timeline.LEADING) != 0
    # A picture is left out in the half that has its neighbour. All leading pictures are in one half, because the
    # random access point in front of them is decoded once more for them.
    half = np.where(leading, 0, np.cumsum(droppable & ~leading) % 2)
    halves = [frames[~droppable | (half == number)] for number in (0, 1)[: 1 + droppable.any()]]
    return [half for half in halves if len(half)]


def _bare(reach: Reach, frames: Numbers, flags: Flags) -> Numbers:
    """Return the frames that other frames may need, and the last frame of each random access point."""
    is_last = np.zeros(len(frames), np.bool_)
    by_start = np.lexsort((frames, reach.begins(frames)))
    is_last[by_start] = np.append(np.diff(reach.begins(frames)[by_start]) != 0, True)[: len(frames)]
    chosen: Numbers = frames[((flags[frames] & timeline.NON_REFERENCE) == 0) | is_last]
    return chosen


def _crossings(reach: Reach, frames: Numbers, count: int, flags: Flags) -> tuple[Numbers, Numbers]:
    """Return frames behind a random access point, and the one before it, from which they are decoded once more."""
    begins = np.unique(reach.begins(frames))
    edges = np.append(reach.starts, [len(flags)] * 2)
    number = np.searchsorted(reach.starts, begins)
    crossed, end = edges[number + 1], edges[number + 2]
    own = frames[(flags[frames] & timeline.LEADING) == 0]
    first = np.searchsorted(own, crossed)
    can = first < np.searchsorted(own, end)
    can &= (flags[np.minimum(crossed, len(flags) - 1)] & timeline.RESET) == 0
    chosen = np.random.default_rng(SEED).permutation(np.flatnonzero(can))[: max(MIN_CROSSINGS, count)]
    behind = [own[first[at] : np.searchsorted(own, end[at])][:CROSSING_FRAMES] for at in chosen.tolist()]
    return np.concatenate([NONE, *behind]), np.repeat(begins[chosen], [len(some) for some in behind])


def runs_shape(packets: list[Numbers], targets: list[Numbers], continues: NDArray[np.bool_]) -> Shape:
    """Return the shape of runs.

    Args:
        packets: int64 [fed] of each run, ascending.
        targets: int64 [wanted] of each run.
        continues: bool [packets], packets that are decoded together with the packet before them.
    """
    packet = np.concatenate([*packets, NONE])
    run = np.repeat(np.arange(len(packets)), [len(one) for one in packets])
    wanted = np.concatenate([*map(np.isin, packets, targets), np.zeros(0, np.bool_)])
    return _shape_by_packet(packet, run, wanted, np.zeros(len(packet), np.bool_), continues)


def _shape_by_packet(
    packet: Numbers, run: Numbers, wanted: NDArray[np.bool_], over: NDArray[np.bool_], continues: NDArray[np.bool_]
) -> Shape:
    """Return a shape from columns of `Shape` that are sorted by run, then by packet."""
    last = np.append(run[1:] != run[:-1], True)[: len(run)]
    whole = last | np.append(~continues[packet[1:]], True)[: len(run)]
    by_packet = np.lexsort((run, packet))
    return Shape(
        packet=packet[by_packet],
        run=run[by_packet],
        wanted=wanted[by_packet],
        over=over[by_packet],
        whole=whole[by_packet],
        last=last[by_packet],
    )


def _shape(reach: Reach, targets: Numbers, behind: Numbers = NONE, begins_of_behind: Numbers = NONE) -> Shape:
    """Return the shape that reaches each target from its random access point with a decoder of its own.

    Args:
        reach: how pictures of the medium are reached.
        targets: int64, ascending.
        behind: int64: frames that are also reached from the random access point before.
        begins_of_behind: int64: these random access points.
    """
    own_begins = reach.begins(targets)
    begins = np.append(own_begins, begins_of_behind)
    firsts = np.unique(begins)
    both = np.append(targets, behind)
    parts: list[tuple[Numbers, Numbers]] = []
    for number in (0, 1):  # runs from every second random access point do not overlap
        mine = firsts[number::2]
        is_mine = np.isin(begins, mine)
        furthest = np.zeros(len(mine), np.int64)
        np.maximum.at(furthest, np.searchsorted(mine, begins[is_mine]), both[is_mine])
        packets, run = reach.needed(np.unique(both[is_mine]), mine, reach.picture_end(furthest))
        parts.append((packets, run * 2 + number))
    run = np.concatenate([part[1] for part in parts])
    packet = np.concatenate([part[0] for part in parts])
    by_run = np.lexsort((packet, run))
    packet, run = packet[by_run], run[by_run]
    n = len(reach.continues)
    fed = firsts[run] * n + packet  # one number for each pair of a random access point and a packet
    over = np.isin(fed, begins_of_behind * n + behind)
    wanted = over | np.isin(fed, own_begins * n + targets)
    return _shape_by_packet(packet, run, wanted, over, reach.continues)


# Number of threads that decode each run of the first shape. With several, some decoders give other pictures if the
# stream is damaged.
THREADS = 2
# Pictures of the first shape are kept up to this size, so that its decoders do not reuse their memory. If a decoder
# leaves a part of a picture unwritten, that part is then zero here, and has older data in the other decode.
HELD_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Facts of a stream of n packets for decoders of its runs.

    Attributes:
        coded: the codec parameters.
        where: the stream's file, for messages.
        given: by packet, the units that a decoder must be given before it starts at some random access points.
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
    """Return the facts of a stream for decoders of its runs.

    Args:
        coded: the codec parameters.
        states: as in `videos`.
        state: int32 [starts], which of them a decoder must be given at each random access point.
        pts: int64 [n].
        flags: int32 [n].
        where: the stream's file, for messages.
        ordered: whether clips rely on decoders to give pictures in presentation order.
    """
    place = np.empty(len(pts), np.int64)
    place[np.argsort(pts, kind="stable")] = np.arange(len(pts))
    starts = np.flatnonzero(flags & timeline.START).tolist()
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
        shapes: the runs. Those of the first shape are decoded with `THREADS` threads.
        packets: numbers and bytes of packets in decode order, at least of those that the runs need.
        going_on: numbers of the shapes whose decoders go on after errors, as the decoder of a full decode does. The
            decoder of a clip does not.
    """
    sides = [
        RunsDecoder(
            stream, shape, threads=1 if number else THREADS, keeps=not number, continue_on_error=number in going_on
        )
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
        shapes: the runs.
        prints: the result of `prints_of_runs`.
        expected: the `picture_print` of each packet's picture, by packet. A picture that is missing, or None, differs.
        over: whether to compare the pictures behind random access points over which runs go on. Otherwise the other
            pictures are compared.
    """
    differs = np.zeros(len(expected), np.bool_)
    for shape, found in zip(shapes, prints, strict=True):
        chosen = shape.wanted & (shape.over == over)
        for number, run in zip(shape.packet[chosen].tolist(), shape.run[chosen].tolist(), strict=True):
            differs[number] |= (number, run) not in found or found[number, run] != expected[number]
    return differs


class RunsDecoder:
    """The runs of one shape.

    Args:
        stream: their stream.
        shape: the packets of each run.
        threads: number of threads of each decoder.
        keeps: whether to keep pictures, up to `HELD_BYTES`.
        continue_on_error: whether decoders go on after errors.

    Attributes:
        prints: hashes of wanted pictures.
    """

    def __init__(self, stream: Stream, shape: Shape, *, threads: int, keeps: bool, continue_on_error: bool) -> None:
        self.stream, self.threads, self.continue_on_error = stream, threads, continue_on_error
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
        """End the runs some of whose packets did not come."""
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
    """One run: its decoder, and the wanted pictures that have not come yet."""

    def __init__(self, side: RunsDecoder, number: int) -> None:
        self._side, self._number = side, number
        self.left: set[int] = set()
        self._data, self._packet = b"", -1
        self._given: list[int] = []
        self._decoder: RunDecoder | None
        try:
            self._decoder = RunDecoder(
                side.stream.coded, where=side.stream.where, threads=side.threads, keep_damaged=side.continue_on_error
            )
        except DecodeError:
            self._decoder = None

    def take(self, packet: int, data: bytes) -> None:
        """Add a packet to the picture that is decoded next. The picture has the number of its first packet."""
        if not self._data:
            self._packet = packet
        self._data += data

    def decode(self) -> None:
        """Decode the picture whose packets were taken."""
        data, self._data = self._data, b""
        if data:
            self._pass_on(data)

    def end(self) -> None:
        """Pass on the pictures that the decoder has held back."""
        self._pass_on(None)

    def _pass_on(self, data: bytes | None) -> None:
        """Decode a picture's packets, or flush the decoder if there are none, and pass wanted pictures on.

        An error or a corrupt picture ends the run, as it ends a clip. So does a picture that comes too late. The
        pictures that came before it, although their place is behind it, are then removed.
        """
        if self._decoder is None:
            return
        try:
            pictures = self._decoder.flush() if data is None else self._decoder.decode(data, self._packet)
        except av.error.FFmpegError:
            if not self._side.continue_on_error:
                self._decoder = None
            return
        place = self._side.stream.place
        for picture in pictures:
            number = picture.pts
            if picture.is_corrupt and not self._side.continue_on_error:
                self._decoder = None
                return
            if number is None or picture.is_corrupt:
                continue
            if self._side.stream.ordered and self._given and place[number] <= place[self._given[-1]]:
                if not self._side.continue_on_error:
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


MAX_BYTES = 16 << 20  # neighbouring packets are read together up to this size, which limits the memory
STARTS_BACK = 2  # the decode from further back begins so many random access points before that of a clip
SHORT = 300  # in a medium with at most so many packets, it begins with the first packet


def differing_samples(
    stream: Stream,
    flags: Flags,
    targets: Numbers,
    packets_of: Callable[[Numbers], Iterable[tuple[int, bytes]]],
) -> NDArray[np.bool_]:
    """Return bool [packets]: targets whose clip gives another picture than a decode from further back, or none.

    Args:
        stream: facts for decoders.
        flags: int32 [packets], read wherever a clip with one of the targets needs them.
        targets: int64 [targets], ascending, as `drawn` returns them.
        packets_of: returns the numbers and bytes of packets in decode order, at least of those asked for.
    """
    of_clips, further_back = shapes_of_some(
        flags, targets, stream.coded.reorder_depth, drop_leading=drops_leading(stream.coded.codec)
    )
    needed = np.unique(further_back.packet)
    found, expected = prints_of_runs(stream, [of_clips, further_back], packets_of(needed), going_on=(1,))
    by_packet = {number: print_ for (number, _), print_ in expected.items()}
    return differing([of_clips], [found], [by_packet.get(number) for number in range(len(flags))])


def packets_in_ranges(
    read: Read, offset: NDArray[np.int64], size: NDArray[np.int64], numbers: Numbers
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of some packets that are byte ranges of a file or object. Neighbours are read together.

    Args:
        read: reads ranges of it.
        offset: int64 [packets].
        size: int64 [packets].
        numbers: int64, ascending.
    """
    begin, length = offset[numbers], size[numbers]
    apart = begin[1:] != begin[:-1] + length[:-1]
    piece = (begin - begin[0]) // MAX_BYTES if len(begin) else begin
    edges = np.flatnonzero(apart | (np.diff(piece) != 0)) + 1
    for part in np.split(np.arange(len(numbers)), edges):
        if not len(part):
            continue
        first = int(begin[part[0]])
        data = read(first, int(begin[part[-1]] + length[part[-1]]) - first)
        columns = (numbers[part], begin[part] - first, length[part])
        for number, at, count in zip(*(column.tolist() for column in columns), strict=True):
            yield number, data[at : at + count]


def demuxed_packets(file: ProbedFile, stream_index: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of all packets of a stream, up to an error."""
    with open_medium(file) as container:
        try:
            for number, packet in enumerate(demux_packets(container, stream_index)):
                yield number, bytes(packet)
        except av.error.FFmpegError:
            return


def drawn(flags: Flags, count: int, *, drop_leading: bool) -> Numbers:
    """Return int64 [≤ count], ascending: packets of presented frames, one at random from each of `count` stretches.

    The same medium gives the same frames each time.

    Args:
        flags: int32 [packets], 0 where not read.
        count: number of stretches.
        drop_leading: As `reach.drops_leading` returns it.
    """
    frames = _sound_frames(Reach(flags, drop_leading=drop_leading), flags, timeline.shown_packets(flags))
    edges = np.linspace(0, len(frames), min(count, len(frames)) + 1).astype(np.int64)
    return frames[np.random.default_rng(SEED).integers(edges[:-1], edges[1:])] if len(frames) else frames


def shapes_of_some(flags: Flags, targets: Numbers, reorder_depth: int, *, drop_leading: bool) -> tuple[Shape, Shape]:
    """Return two runs for each target: the run of a clip with this frame, and a run from further back.

    Damaged targets are left out.

    Args:
        flags: int32 [packets], read wherever a clip with one of the targets needs them.
        targets: int64 [targets], ascending.
        reorder_depth: Number of pictures that a decoder holds back. As many packets behind a target are decoded, too.
        drop_leading: As `reach.drops_leading` returns it.
    """
    reach = Reach(flags, drop_leading=drop_leading)
    targets = _sound_frames(reach, flags, targets)
    begins = reach.begins(targets)
    ends = reach.picture_end(targets)
    of_clips = [
        reach.needed(targets[at : at + 1], begins[at : at + 1], ends[at : at + 1])[0] for at in range(len(targets))
    ]
    resets = np.flatnonzero(flags & timeline.RESET)
    numbers = np.searchsorted(reach.starts, begins)
    further = np.zeros_like(begins) if len(flags) <= SHORT else reach.starts[np.maximum(numbers - STARTS_BACK, 0)]
    # No decoder session may run over a reset.
    last_reset = np.append(resets, 0)[np.searchsorted(resets, begins, side="right") - 1]
    further = np.maximum(further, last_reset)
    until = np.minimum(ends + reorder_depth + 1, len(flags))
    from_further_back = [np.arange(first, end) for first, end in zip(further.tolist(), until.tolist(), strict=True)]
    one_each = list(targets[:, None])
    return (
        runs_shape(of_clips, one_each, reach.continues),
        runs_shape(from_further_back, one_each, np.zeros(len(flags), np.bool_)),
    )
