"""Some frames of a medium, reached as clips reach them and by a decode that begins further back, and compared."""

from __future__ import annotations

from collections.abc import Iterator

import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.indexer.containers.medium_file import ProbedFile, open_medium
from framedex.indexer.containers.opening import demux_packets
from framedex.indexer.plans.reach import Numbers, Reach, drops_leading
from framedex.indexer.proofs.runs import Stream, differing, prints_of_runs
from framedex.indexer.proofs.shapes import SEED, Shape, runs_shape
from framedex.indexer.timeline import CONTINUES, DAMAGED, RESET, Flags, shown_packets
from framedex.storage.reader import Read

MOST_BYTES = 16 << 20  # of neighbouring packets that are read together
STARTS_BACK = 2  # the decode to compare with begins at least so many start points before a clip's
SHORT = 300  # packets; in a medium of no more it begins with the first one


def differing_samples(
    stream: Stream, flags: Flags, targets: Numbers, packets: Iterator[tuple[int, bytes]]
) -> NDArray[np.bool_]:
    """Return bool [packets]: targets for which both ways give different pictures, or one of them gives none.

    Args:
        stream: what decoders have to know.
        flags: int32 [packets], read wherever a clip with one of the targets needs them.
        targets: int64 [targets], ascending, as `drawn` returns them.
        packets: numbers and bytes of packets in decode order, at least of those that `needed_for` returns.
    """
    of_clips, further_back = shapes_of_some(
        flags, targets, stream.coded.reorder_depth, drop_leading=drops_leading(stream.coded.codec)
    )
    found, expected = prints_of_runs(stream, [of_clips, further_back], packets, going_on=(1,))
    by_packet = {number: print_ for (number, _), print_ in expected.items()}
    return differing([of_clips], [found], [by_packet.get(number) for number in range(len(flags))])


def needed_for(flags: Flags, targets: Numbers, reorder_depth: int, *, drop_leading: bool) -> Numbers:
    """Return int64, ascending: the packets that comparing some targets takes. For arguments, see `shapes_of_some`."""
    return np.unique(shapes_of_some(flags, targets, reorder_depth, drop_leading=drop_leading)[1].packet)


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
    piece = (begin - begin[0]) // MOST_BYTES if len(begin) else begin
    edges = np.flatnonzero(apart | (np.diff(piece) != 0)) + 1
    for part in np.split(np.arange(len(numbers)), edges):
        if not len(part):
            continue
        first = int(begin[part[0]])
        data = read(first, int(begin[part[-1]] + length[part[-1]]) - first)
        for number, at, count in zip(
            numbers[part].tolist(), (begin[part] - first).tolist(), length[part].tolist(), strict=True
        ):
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
        count: how many are wanted.
        drop_leading: As `reach.drops_leading` returns it.
    """
    frames = _sound(flags, shown_packets(flags), drop_leading=drop_leading)
    edges = np.linspace(0, len(frames), min(count, len(frames)) + 1).astype(np.int64)
    return frames[np.random.default_rng(SEED).integers(edges[:-1], edges[1:])] if len(frames) else frames


def shapes_of_some(flags: Flags, targets: Numbers, reorder_depth: int, *, drop_leading: bool) -> tuple[Shape, Shape]:
    """Return (runs as of clips with one frame each, runs from further back), one of each for a target.

    Targets that turn out to be damaged are left out.

    Args:
        flags: int32 [packets], read wherever a clip with one of the targets needs them.
        targets: int64 [targets], ascending.
        reorder_depth: How many pictures a decoder holds back. So many packets behind a target are decoded, too.
        drop_leading: As `reach.drops_leading` returns it.
    """
    targets = _sound(flags, targets, drop_leading=drop_leading)
    reach = Reach(flags, drop_leading=drop_leading)
    begins = reach.begins(targets)
    ends = reach.picture_end(targets)
    of_clips = [
        reach.needed(targets[at : at + 1], begins[at : at + 1], ends[at : at + 1])[0] for at in range(len(targets))
    ]
    resets = np.flatnonzero(flags & RESET)
    numbers = np.searchsorted(reach.starts, begins)
    further = (
        np.zeros(len(begins), np.int64) if len(flags) <= SHORT else reach.starts[np.maximum(numbers - STARTS_BACK, 0)]
    )
    # No decoder session may run over a reset.
    last_reset = np.append(resets, 0)[np.searchsorted(resets, begins, side="right") - 1]
    further = np.maximum(further, last_reset)
    until = np.minimum(ends + reorder_depth + 1, len(flags))
    from_further_back = [np.arange(first, end) for first, end in zip(further.tolist(), until.tolist(), strict=True)]
    continues = (flags & CONTINUES) != 0
    one_each = list(targets[:, None])
    return (
        runs_shape(of_clips, one_each, continues),
        runs_shape(from_further_back, one_each, np.zeros(len(flags), np.bool_)),
    )


def _sound(flags: Flags, frames: Numbers, *, drop_leading: bool) -> Numbers:
    """Return those frames that are not damaged and that some start point reaches."""
    frames = frames[(flags[frames] & DAMAGED) == 0]
    return frames[Reach(flags, drop_leading=drop_leading).is_reachable(frames)]
