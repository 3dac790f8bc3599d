"""The shapes of plans that are proved: which runs are decoded beside a full decode of a medium.

Clips begin at any start point, end at any frame, and leave out packets that none of their frames needs. What they leave
out depends on their frames, so not every plan can be tried. Each frame is reached in two ways, which together hold
every packet and leave out every packet that may be left out:

- `halves`: from each start point on, every picture that others need, and one half of those that none needs; then the
  other half. If every picture is needed, one run holds them all. Leading pictures of an open start point are reached
  from the start point before it.
- `single`: from each start point, one picture, without anything that it does not need. The run ends with it.

Where packets are not parsed, some of the halves go on over the next start point, as clips of several GOPs do, and
another shape takes the place of `single`:

- `bare`: from each start point on, every picture that others need, and only the last one of the others. Two pictures
  that may be left out can bring the same header, so that leaving out one of them changes nothing.

Pure functions over numpy columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.reach import Numbers, Reach
from framedex.indexer.timeline import CONTINUES, DAMAGED, LEADING, NON_REFERENCE, RESET, Flags, shown_packets

# One run in a medium goes on over the next start point for so many packets, at least so many runs do, and so far.
CROSSING_SHARE, LEAST_CROSSINGS, CROSSING_FRAMES = 60, 2, 3
SEED = 22  # which half a picture belongs to, and which ones are reached alone, does not change from run to run
NONE: Numbers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Runs of one shape, which are fed together, by packet.

    Attributes:
        packet: int64 [fed], ascending: the packets that decoders are given. Two runs may share packets.
        run: int64 [fed], which run each belongs to.
        wanted: bool [fed], pictures that have to equal those of the full decode.
        over: bool [fed], those of them that lie behind a start point over which their run has gone on.
        whole: bool [fed], the packet completes its picture. (The first field of two does not.)
        last: bool [fed], the run ends with it.
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
        starts: int64: only frames that are decoded from these start points. None: all frames.
    """
    reach = Reach(flags, drop_leading=drop_leading)
    frames = _sound_frames(reach, flags, starts)
    shuffled = np.random.default_rng(SEED).permutation(frames)
    _, first, count = np.unique(reach.begins(shuffled), return_index=True, return_counts=True)
    single = np.sort(shuffled[first[count > 1]])  # a run to the only frame is one of the halves
    shapes = [_shape(reach, half, flags) for half in _halves(frames, flags)]
    return [*shapes, _shape(reach, single, flags)] if len(single) else shapes


def crossing_shapes(flags: Flags, starts: Numbers | None) -> list[Shape]:
    """Return the shapes of halves, of which some runs of the first one go on over the next start point, and `bare`.

    Args:
        flags: int32 [packets], all of them read.
        starts: int64: only frames that are decoded from these start points, all of whose runs go on. None: all frames.
    """
    reach = Reach(flags, drop_leading=False)
    frames = _sound_frames(reach, flags, starts)
    count = len(flags) // CROSSING_SHARE if starts is None else len(flags)
    behind, begins = _crossings(reach, frames, count, flags)
    chosen = _halves(frames, flags)
    if len(chosen) > 1:
        chosen.append(_bare(reach, frames, flags))
    first = [_shape(reach, some, flags, behind, begins) for some in chosen[:1]]
    return first + [_shape(reach, some, flags) for some in chosen[1:]]


def _sound_frames(reach: Reach, flags: Flags, starts: Numbers | None) -> Numbers:
    frames = shown_packets(flags)
    sound: Numbers = frames[(flags[frames] & DAMAGED) == 0]
    sound = sound[reach.is_reachable(sound)]
    return sound if starts is None else sound[np.isin(reach.begins(sound), starts)]


def _halves(frames: Numbers, flags: Flags) -> list[Numbers]:
    """Return the frames that some other may need and one half of the others, and the same with the other half."""
    droppable = (flags[frames] & NON_REFERENCE) != 0
    leading = (flags[frames] & LEADING) != 0
    # A picture is left out where its neighbour is wanted. Leading pictures are in one half, because the start
    # point in front of them is decoded once more for them.
    half = np.where(leading, 0, np.cumsum(droppable & ~leading) % 2)
    halves = [frames[~droppable | (half == number)] for number in (0, 1)[: 1 + droppable.any()]]
    return [half for half in halves if len(half)]


def _bare(reach: Reach, frames: Numbers, flags: Flags) -> Numbers:
    """Return the frames that some other may need, and of those that are decoded from one start point, the last one."""
    is_last = np.zeros(len(frames), np.bool_)
    by_start = np.lexsort((frames, reach.begins(frames)))
    is_last[by_start] = np.append(np.diff(reach.begins(frames)[by_start]) != 0, True)[: len(frames)]
    chosen: Numbers = frames[((flags[frames] & NON_REFERENCE) == 0) | is_last]
    return chosen


def _crossings(reach: Reach, frames: Numbers, count: int, flags: Flags) -> tuple[Numbers, Numbers]:
    """Return (frames behind a start point, the start point before that, from which they are decoded once more)."""
    begins = np.unique(reach.begins(frames))
    edges = np.append(reach.starts, [len(flags)] * 2)
    number = np.searchsorted(reach.starts, begins)
    crossed, end = edges[number + 1], edges[number + 2]
    own = frames[(flags[frames] & LEADING) == 0]
    first = np.searchsorted(own, crossed)
    can = first < np.searchsorted(own, end)
    can &= (flags[np.minimum(crossed, len(flags) - 1)] & RESET) == 0
    chosen = np.random.default_rng(SEED).permutation(np.flatnonzero(can))[: max(LEAST_CROSSINGS, count)]
    behind = [own[first[at] : np.searchsorted(own, end[at])][:CROSSING_FRAMES] for at in chosen.tolist()]
    return np.concatenate([NONE, *behind]), np.repeat(begins[chosen], [len(some) for some in behind])


def runs_shape(packets: list[Numbers], targets: list[Numbers], continues: NDArray[np.bool_]) -> Shape:
    """Return the shape of runs.

    Args:
        packets: int64 [fed] of each run, ascending.
        targets: int64 [wanted] of each run.
        continues: bool [packets], those that are decoded together with the packet before them.
    """
    packet = np.concatenate([*packets, NONE])
    run = np.repeat(np.arange(len(packets)), [len(one) for one in packets])
    wanted = np.concatenate([*map(np.isin, packets, targets), np.zeros(0, np.bool_)])
    last = np.append(run[1:] != run[:-1], True)[: len(run)]
    by_packet = np.lexsort((run, packet))
    return Shape(
        packet=packet[by_packet],
        run=run[by_packet],
        wanted=wanted[by_packet],
        over=np.zeros(len(packet), np.bool_),
        whole=(last | np.append(~continues[packet[1:]], True)[: len(run)])[by_packet],
        last=last[by_packet],
    )


def _shape(
    reach: Reach,
    targets: Numbers,
    flags: Flags,
    behind: Numbers = NONE,
    begins_of_behind: Numbers = NONE,
) -> Shape:
    """Return the shape that reaches each target from its start point with a decoder of its own.

    Args:
        reach: how pictures of the medium are reached.
        targets: int64, ascending.
        flags: int32 [packets].
        behind: int64: frames that are also reached from the start point before.
        begins_of_behind: int64: these start points.
    """
    own_begins = reach.begins(targets)
    begins = np.append(own_begins, begins_of_behind)
    firsts = np.unique(begins)
    both = np.append(targets, behind)
    parts: list[tuple[Numbers, Numbers]] = []
    for number in (0, 1):  # runs of every second start point do not overlap
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
    last = np.append(run[1:] != run[:-1], True)[: len(run)]
    whole = last | np.append((flags[packet[1:]] & CONTINUES) == 0, True)[: len(run)]
    fed, n = firsts[run] * len(flags) + packet, len(flags)
    is_target = np.isin(fed, own_begins * n + targets)
    over = np.isin(fed, begins_of_behind * n + behind)
    by_packet = np.lexsort((run, packet))
    return Shape(
        packet=packet[by_packet],
        run=run[by_packet],
        wanted=(is_target | over)[by_packet],
        over=over[by_packet],
        whole=whole[by_packet],
        last=last[by_packet],
    )
