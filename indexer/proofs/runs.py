"""Proofs: runs are decoded as in clips, and their pictures are compared with expected pictures.

A run is a random access point and later packets, decoded in one decoder session. Expected pictures come from a full
decode of the medium. If a medium is not decoded in full, some frames are drawn at random, and their expected pictures
come from a decode that begins further back.

Clips begin at any random access point, end at any frame, and leave out packets that none of their frames needs. The
packets of a clip depend on its frames, so not every choice of packets can be tried. Instead, a few sets of runs are
decoded. Such a set is called a shape (`Shape`). Together, the runs of all shapes decode every packet, and leave out
every packet that clips may leave out. A picture that no other picture needs is called droppable. The shapes are:

- `halves`: two shapes with runs from each random access point. Both decode all pictures that are not droppable. Each
  decodes one half of the droppable pictures. If no picture is droppable, there is only one shape, which decodes all
  pictures. Leading pictures of an open random access point are decoded from the preceding random access point.
- `single`: a run from each random access point that decodes one picture and only the packets that this picture needs.
  The run ends with this picture.

If packets are not parsed, some runs of `halves` continue across the next random access point, as runs of clips with
several GOPs do. Another shape then replaces `single`:

- `bare`: a run from each random access point that decodes all pictures that are not droppable, and the last droppable
  picture. Later pictures may need a header that several droppable pictures repeat. A run that leaves out only one of
  these would not show it.
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

# One run per 60 packets of a medium, but at least 2 runs, continue for 3 frames across the next random access point.
CROSSING_SHARE, MIN_CROSSINGS, CROSSING_FRAMES = 60, 2, 3
SEED = 22  # seed of random choices, so that each proof of a medium makes the same choices
NONE: Numbers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A set of runs that are decoded at the same time. Each row is a packet that the decoder of a run is given.

    Attributes:
        packet: int64 [rows], the number of the packet, ascending. A packet of several runs has several rows.
        run: int64 [rows], the number of the run.
        wanted: bool [rows], whether the picture of the packet has to equal the expected picture.
        over: bool [rows], whether the packet is wanted, and the run crosses a random access point before it.
        whole: bool [rows], whether the packet completes a picture. It is false for the first of two fields.
        last: bool [rows], whether the packet is the last one of its run.
    """

    packet: Numbers
    run: Numbers
    wanted: NDArray[np.bool_]
    over: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    last: NDArray[np.bool_]


def shapes_of(flags: Flags, *, drop_leading: bool, starts: Numbers | None = None) -> list[Shape]:
    """Return the shapes `halves` and `single`, which prove all presented frames except damaged ones.

    Args:
        flags: int32 [packets], the flags of all packets (`timeline.packet_flags`).
        drop_leading: the result of `reach.drops_leading`.
        starts: int64, the random access points whose frames are proven. If None, all frames are proven.
    """
    reach = Reach(flags, drop_leading=drop_leading)
    frames = _sound_frames(reach, flags, timeline.shown_packets(flags), starts)
    shuffled = np.random.default_rng(SEED).permutation(frames)
    _, first, count = np.unique(reach.begins(shuffled), return_index=True, return_counts=True)
    single = np.sort(shuffled[first[count > 1]])  # a run to the only frame of a GOP is already part of `halves`
    return [_shape(reach, some) for some in (*_halves(frames, flags), single) if len(some)]


def crossing_shapes(flags: Flags, starts: Numbers | None) -> list[Shape]:
    """Return the shapes `halves` and `bare`, in which some runs continue across the next random access point.

    Only runs of the first shape continue across a random access point.

    Args:
        flags: int32 [packets], the flags of all packets (`timeline.packet_flags`).
        starts: int64, the random access points whose frames are proven. All runs of the first shape then continue where
            possible. If None, all frames are proven, and only some runs continue (CROSSING_SHARE).
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
    """Return the frames that are not damaged and can be decoded from a random access point.

    Args:
        reach: the `Reach` of the medium, made from the same flags.
        flags: int32 [packets], the flags of packets.
        frames: int64, the packets of the frames.
        starts: int64, the random access points whose frames are returned. If None, the frames of all random access
            points are returned.
    """
    sound: Numbers = frames[(flags[frames] & timeline.DAMAGED) == 0]
    sound = sound[reach.is_reachable(sound)]
    return sound if starts is None else sound[np.isin(reach.begins(sound), starts)]


def _halves(frames: Numbers, flags: Flags) -> list[Numbers]:
    """Return the frames of the shapes `halves`: one set of frames, or two if some frames are droppable."""
    droppable = (flags[frames] & timeline.NON_REFERENCE) != 0
    leading = (flags[frames] & timeline.LEADING) != 0
    # Droppable pictures are assigned to the two halves alternately. Droppable leading pictures are all in the first
    # half, so that only the first half has to decode their preceding GOP again.
    half = np.where(leading, 0, np.cumsum(droppable & ~leading) % 2)
    halves = [frames[~droppable | (half == number)] for number in (0, 1)[: 1 + droppable.any()]]
    return [half for half in halves if len(half)]


def _bare(reach: Reach, frames: Numbers, flags: Flags) -> Numbers:
    """Return the frames of the shape `bare`: frames that are not droppable, and the last frame of each run."""
    is_last = np.zeros(len(frames), np.bool_)
    by_start = np.lexsort((frames, reach.begins(frames)))
    is_last[by_start] = np.append(np.diff(reach.begins(frames)[by_start]) != 0, True)[: len(frames)]
    chosen: Numbers = frames[((flags[frames] & timeline.NON_REFERENCE) == 0) | is_last]
    return chosen


def _crossings(reach: Reach, frames: Numbers, count: int, flags: Flags) -> tuple[Numbers, Numbers]:
    """Choose the frames that are decoded by runs that continue across a random access point.

    Args:
        reach: the `Reach` of the medium, made from the same flags.
        frames: int64, the packets of the frames that are proven.
        count: the number of runs that continue across a random access point. At least MIN_CROSSINGS runs do.
        flags: int32 [packets], the flags of packets.

    Returns:
        The packets of the chosen frames, int64 [chosen], and the random access points from which these runs begin,
        int64 [chosen].
    """
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
    """Return the shape that consists of some runs.

    Args:
        packets: int64 for each run, the packets that the decoder is given, ascending.
        targets: int64 for each run, the packets whose pictures are wanted.
        continues: bool [packets of the medium], whether the packet is decoded together with the preceding packet.
    """
    packet = np.concatenate([*packets, NONE])
    run = np.repeat(np.arange(len(packets)), [len(one) for one in packets])
    wanted = np.concatenate([*map(np.isin, packets, targets), np.zeros(0, np.bool_)])
    return _shape_by_packet(packet, run, wanted, np.zeros(len(packet), np.bool_), continues)


def _shape_by_packet(
    packet: Numbers, run: Numbers, wanted: NDArray[np.bool_], over: NDArray[np.bool_], continues: NDArray[np.bool_]
) -> Shape:
    """Return a shape, given columns of `Shape` that are sorted by run, then by packet.

    Args:
        packet: as in `Shape`.
        run: as in `Shape`.
        wanted: as in `Shape`.
        over: as in `Shape`.
        continues: bool [packets of the medium], whether the packet is decoded together with the preceding packet.
    """
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
    """Return the shape with one run from each random access point to all targets that are decoded from it.

    Args:
        reach: the `Reach` of the medium.
        targets: int64 [targets], the wanted packets, ascending.
        behind: int64 [behind], wanted packets that follow a random access point which their run crosses.
        begins_of_behind: int64 [behind], the random access point at which the run of each packet in `behind` begins.
    """
    own_begins = reach.begins(targets)
    begins = np.append(own_begins, begins_of_behind)
    firsts = np.unique(begins)
    both = np.append(targets, behind)
    parts: list[tuple[Numbers, Numbers]] = []
    for number in (0, 1):  # runs from every second random access point do not overlap, as `needed` requires
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
    fed = firsts[run] * n + packet  # a unique number for each pair of a random access point and a packet
    over = np.isin(fed, begins_of_behind * n + behind)
    wanted = over | np.isin(fed, own_begins * n + targets)
    return _shape_by_packet(packet, run, wanted, over, reach.continues)


# Number of threads of each decoder of the first shape. The decoders of other shapes use one thread, because some
# decoders output other pictures of damaged streams with several threads.
THREADS = 2
# Maximum total size in bytes of the decoded pictures of the first shape that are kept. Decoders cannot reuse the memory
# of kept pictures. If a decoder does not write some part of a picture, this part is therefore zero in the first shape.
# In the decode of the expected pictures, it has data of an older picture. So the pictures differ, and the error is
# found.
HELD_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The properties of a stream of n packets that are needed to decode its runs.

    Attributes:
        coded: the codec parameters.
        where: the file of the stream, for error messages.
        given: the decoder state by packet number, for each random access point at which a decoder needs one.
        place: int64 [n], the position of the packet's picture in presentation order.
        ordered: whether clips rely on decoders to output pictures in presentation order.
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
    """Return the properties of a stream that are needed to decode its runs.

    Args:
        coded: the codec parameters.
        states: the decoder states of the stream, as in the table `videos`.
        state: int32 [starts], the index in `states` of the state for each random access point.
        pts: int64 [n], the PTS of the packets.
        flags: int32 [n], the flags of the packets.
        where: the file of the stream, for error messages.
        ordered: whether clips rely on decoders to output pictures in presentation order.
    """
    place = timeline.places(np.argsort(pts, kind="stable"), len(pts))
    starts = np.flatnonzero(flags & timeline.START).tolist()
    given = {start: states[number] for start, number in zip(starts, state.tolist(), strict=True) if states[number]}
    return Stream(coded=coded, where=where, given=given, place=place, ordered=ordered)


Prints = dict[tuple[int, int], int]  # (packet, run) → `picture_print` of the picture


def prints_of_runs(
    stream: Stream, shapes: Sequence[Shape], packets: Iterable[tuple[int, bytes]], *, going_on: Collection[int] = ()
) -> list[Prints]:
    """Decode the runs of some shapes, and return the `picture_print` of wanted pictures for each shape.

    If a run does not output a wanted picture, the result has no entry for it.

    Args:
        stream: the stream of the packets.
        shapes: the shapes. Runs of the first shape are decoded with `THREADS` threads, others with one.
        packets: (number, bytes) of packets in decode order. All packets that the runs need must be included.
        going_on: the indices of the shapes whose decoders continue after errors, as in a full decode. Decoders of clips
            do not continue.
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
    """Return bool [packets]: whether the packet's picture is wanted, but differs from the expected one in some run.

    Args:
        shapes: the shapes.
        prints: the result of `prints_of_runs`.
        expected: the `picture_print` of each packet's picture. A picture differs if it is missing in the run, or if its
            element of `expected` is None.
        over: whether to compare only pictures with `Shape.over`. If false, only the other pictures are compared.
    """
    differs = np.zeros(len(expected), np.bool_)
    for shape, found in zip(shapes, prints, strict=True):
        chosen = shape.wanted & (shape.over == over)
        for number, run in zip(shape.packet[chosen].tolist(), shape.run[chosen].tolist(), strict=True):
            differs[number] |= (number, run) not in found or found[number, run] != expected[number]
    return differs


class RunsDecoder:
    """The decoders of the runs of one shape.

    Args:
        stream: the stream of the runs.
        shape: the packets of each run.
        threads: the number of threads of each decoder.
        keeps: whether to keep decoded pictures in memory, up to `HELD_BYTES`.
        continue_on_error: whether decoders continue after errors.

    Attributes:
        prints: the `picture_print` of wanted pictures.
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
        """Give a packet to the decoders of the runs that need it. Packets that are never fed are left out."""
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
                self._runs.pop(run).pass_on(None)

    def end(self) -> None:
        """End all runs that have not ended because some of their packets were not fed."""
        for run in self._runs.values():
            run.pass_on(None)
        self._runs.clear()

    def take(self, number: int, run: int, picture: av.VideoFrame) -> None:
        """Record a wanted picture of a run.

        Args:
            number: the packet number of the picture.
            run: the number of the run.
            picture: the decoded picture.
        """
        self.prints[number, run] = picture_print(picture)
        if self._keeps:
            self._kept.append(picture)
            self._kept_bytes += _bytes_of(picture)
            while self._kept_bytes > HELD_BYTES:
                self._kept_bytes -= _bytes_of(self._kept.popleft())


def _bytes_of(picture: av.VideoFrame) -> int:
    return sum(plane.buffer_size for plane in picture.planes)


class _Run:
    """One run, with its decoder and the packets of wanted pictures that have not been output yet."""

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
        """Add a packet to the picture that is decoded next. The picture gets the number of its first packet."""
        if not self._data:
            self._packet = packet
        self._data += data

    def decode(self) -> None:
        """Decode the picture whose packets `take` has added."""
        data, self._data = self._data, b""
        if data:
            self.pass_on(data)

    def pass_on(self, data: bytes | None) -> None:
        """Decode the data of a picture, or flush the decoder if `data` is None. Record the wanted pictures.

        Unless decoders continue after errors, an error or a corrupt picture ends the run, as it ends a clip. A picture
        that is output too late also ends the run. In this case, the results for pictures that were output before it,
        but follow it in presentation order, are removed.
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


MAX_BYTES = 16 << 20  # approximate maximum size of a read of adjacent packets, to limit the memory
# The decode from further back begins this number of random access points before the run of the clip.
STARTS_BACK = 2
SHORT = 300  # for a medium of at most this number of packets, the decode from further back begins at packet 0


def differing_samples(
    stream: Stream,
    flags: Flags,
    targets: Numbers,
    packets_of: Callable[[Numbers], Iterable[tuple[int, bytes]]],
) -> NDArray[np.bool_]:
    """Return bool [packets]: whether the packet is a target whose picture in a clip is wrong.

    The picture is wrong if it is missing, or if it differs from that of a decode that begins further back.

    Args:
        stream: the properties of the stream.
        flags: int32 [packets], the flags of packets. Packets that no clip of the targets needs may have the flags 0.
        targets: int64 [targets], the packets of frames that `drawn` returned, ascending.
        packets_of: a function that returns (number, bytes) of the packets with the given numbers, in decode order. It
            may return other packets, too.
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
    """Yield (number, bytes) of some packets that are byte ranges of a file or object.

    Adjacent packets are read together.

    Args:
        read: a function that reads byte ranges of the file or object.
        offset: int64 [packets], the offset of each packet of the medium.
        size: int64 [packets], the size of each packet in bytes.
        numbers: int64, the numbers of the packets to read, ascending.
    """
    begin, length = offset[numbers], size[numbers]
    apart = begin[1:] != begin[:-1] + length[:-1]
    piece = (begin - begin[0]) // MAX_BYTES if len(begin) else begin
    for part in np.split(np.arange(len(numbers)), np.flatnonzero(apart | (np.diff(piece) != 0)) + 1):
        if not len(part):
            continue
        first = int(begin[part[0]])
        data = read(first, int(begin[part[-1]] + length[part[-1]]) - first)
        columns = (numbers[part], begin[part] - first, length[part])
        for number, at, count in zip(*(column.tolist() for column in columns), strict=True):
            yield number, data[at : at + count]


def demuxed_packets(file: ProbedFile, stream_index: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of all packets of a stream, up to the first error of the demuxer."""
    with open_medium(file) as container:
        try:
            for number, packet in enumerate(demux_packets(container, stream_index)):
                yield number, bytes(packet)
        except av.error.FFmpegError:
            return


def drawn(flags: Flags, count: int, *, drop_leading: bool) -> Numbers:
    """Draw presented frames at random, one from each of `count` intervals of equal length.

    Return the packets of these frames, ascending. The result for a medium is always the same.

    Args:
        flags: int32 [packets], the flags of packets (`timeline.packet_flags`), 0 for packets that were not read.
        count: the number of intervals. If there are fewer frames, all frames are returned.
        drop_leading: the result of `reach.drops_leading`.
    """
    frames = _sound_frames(Reach(flags, drop_leading=drop_leading), flags, timeline.shown_packets(flags))
    edges = np.linspace(0, len(frames), min(count, len(frames)) + 1).astype(np.int64)
    return frames[np.random.default_rng(SEED).integers(edges[:-1], edges[1:])] if len(frames) else frames


def shapes_of_some(flags: Flags, targets: Numbers, reorder_depth: int, *, drop_leading: bool) -> tuple[Shape, Shape]:
    """Return two shapes, each with one run for each target.

    The runs of the first shape are those of clips. The runs of the second shape begin further back. Damaged targets are
    left out.

    Args:
        flags: int32 [packets], the flags of packets. Packets that no clip of the targets needs may have the flags 0.
        targets: int64 [targets], the packets of frames, ascending.
        reorder_depth: the number of pictures that a decoder holds back. Runs from further back decode at least this
            number of packets after a target, so that its picture is output.
        drop_leading: the result of `reach.drops_leading`.
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
    # A decoder session must not run across a reset, so runs from further back begin at the last reset or later.
    further = np.maximum(further, np.append(resets, 0)[np.searchsorted(resets, begins, side="right") - 1])
    until = np.minimum(ends + reorder_depth + 1, len(flags))
    from_further_back = [np.arange(first, end) for first, end in zip(further.tolist(), until.tolist(), strict=True)]
    one_each = list(targets[:, None])
    return (
        runs_shape(of_clips, one_each, reach.continues),
        runs_shape(from_further_back, one_each, np.zeros(len(flags), np.bool_)),
    )
