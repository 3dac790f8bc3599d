"""The shapes of plans that are proved: which runs are decoded beside a full decode of a medium.

Clips begin at any start point, end at any frame, and leave out packets that none of their frames needs. What they leave
out depends on their frames, so not every plan can be tried. Each frame is reached in two ways, which together hold
every packet and leave out every packet that may be left out:

- `halves`: from each start point on, every picture that others need, and one half of those that none needs; then the
  other half. If every picture is needed, one run holds them all. Leading pictures of an open start point are reached
  from the start point before it.
- `single`: from each start point, one picture, without anything that it does not need. The run ends with it.

Pure functions over numpy columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.plans.reach import Numbers, Reach
from framedex.indexer.timeline import CONTINUES, DAMAGED, NON_REFERENCE, Flags, shown_packets

SEED = 22  # which half a picture belongs to, and which ones are reached alone, does not change from run to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Runs of one shape, fed while a full decode reads the packets in order.

    Attributes:
        packet: int64 [fed], ascending: the packets that decoders are given. Two runs may share packets.
        run: int64 [fed], which run each belongs to.
        wanted: bool [fed], pictures that have to equal those of the full decode.
        whole: bool [fed], the packet completes its picture. (The first field of two does not.)
        last: bool [fed], the run ends with it.
    """

    packet: Numbers
    run: Numbers
    wanted: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    last: NDArray[np.bool_]


def shapes_of(flags: Flags, *, drop_leading: bool) -> list[Shape]:
    """Return the shapes that prove every presented frame outside of damaged GOPs.

    Args:
        flags: int32 [packets], all of them read.
        drop_leading: As `reach.drops_leading` returns it.
    """
    reach = Reach(flags, drop_leading=drop_leading)
    frames = shown_packets(flags)
    frames = frames[(flags[frames] & DAMAGED) == 0]
    frames = frames[reach.is_reachable(frames)]
    if not len(frames):
        return []
    random = np.random.default_rng(SEED)
    droppable = (flags[frames] & NON_REFERENCE) != 0
    half = random.integers(0, 2, len(frames), np.int8)
    shapes = [_shape(reach, frames[~droppable | (half == number)], flags) for number in (0, 1)[: 1 + droppable.any()]]
    return [*shapes, _shape(reach, _one_each(reach, frames, random), flags)]


def _one_each(reach: Reach, frames: Numbers, random: np.random.Generator) -> Numbers:
    """Return int64 [starts that frames are decoded from], ascending: one of the frames for each."""
    shuffled = random.permutation(frames)
    _, first = np.unique(reach.begins(shuffled), return_index=True)
    return np.sort(shuffled[first])


def _shape(reach: Reach, targets: Numbers, flags: Flags) -> Shape:
    """Return the shape that reaches each target from its start point with a decoder of its own."""
    begins = reach.begins(targets)
    firsts = np.unique(begins)
    parts: list[tuple[Numbers, Numbers]] = []
    for number in (0, 1):  # runs of every second start point do not overlap
        mine = firsts[number::2]
        own = targets[np.isin(begins, mine)]
        furthest = np.zeros(len(mine), np.int64)
        np.maximum.at(furthest, np.searchsorted(mine, begins[np.isin(begins, mine)]), own)
        packets, run = reach.needed(own, mine, reach.picture_end(furthest))
        parts.append((packets, run * 2 + number))
    run = np.concatenate([part[1] for part in parts])
    packet = np.concatenate([part[0] for part in parts])
    by_run = np.lexsort((packet, run))
    packet, run = packet[by_run], run[by_run]
    last = np.append(run[1:] != run[:-1], True)[: len(run)]
    whole = last | np.append((flags[packet[1:]] & CONTINUES) == 0, True)[: len(run)]
    is_target = np.zeros(len(flags), np.bool_)
    is_target[targets] = True
    wanted = is_target[packet] & (_begins_of(begins, targets, len(flags))[packet] == firsts[run])
    by_packet = np.lexsort((run, packet))
    return Shape(
        packet=packet[by_packet],
        run=run[by_packet],
        wanted=wanted[by_packet],
        whole=whole[by_packet],
        last=last[by_packet],
    )


def _begins_of(begins: Numbers, targets: Numbers, packets: int) -> Numbers:
    """Return int64 [packets]: the start point from which each target is decoded, -1 for others."""
    of: Numbers = np.full(packets, -1, np.int64)
    of[targets] = begins
    return of
