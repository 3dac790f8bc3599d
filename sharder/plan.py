"""From wanted frames to byte ranges: the paper plan of a clip. Pure functions over numpy columns.

1. The wanted frames give packets. 2. From each, back to a packet where decoding may start. 3. Minus every packet that
no wanted frame needs. 4. What is left is a list of byte ranges, in one or more runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.index import Packets
from framedex.indexer.timeline import LEADING, NON_REFERENCE, OPEN, START, presentation_order
from framedex.sharder.recipe import Recipe
from framedex.sharder.schema import PAD


class Planner:
    """Plans clips of one medium; what all of them need is computed once.

    drop_leading: leading pictures of an open start at which a run begins are left out. Right for HEVC, whose
    reference picture sets are explicit (ITU-T H.265 8.3.2); in H.264 they count for frame_num and stay.
    """

    def __init__(self, packets: Packets, *, drop_leading: bool) -> None:
        self._packets = packets
        self._drop_leading = drop_leading
        self._order = presentation_order(packets.pts, packets.flags)
        self._starts = np.flatnonzero(packets.flags & START)
        self.pts: NDArray[np.int64] = packets.pts[self._order]

    def plan(self, frames: NDArray[np.int64]) -> Recipe:
        """Return the recipe for int64 [wanted] presentation numbers (-1 for padding, repeats allowed).

        Raises PolicyError for a number that the medium does not have.
        """
        real = frames != PAD
        wrong = frames[real & ((frames < 0) | (frames >= len(self._order)))]
        if len(wrong):
            raise PolicyError(
                "a frame number past the end",
                found=int(wrong[0]),
                allowed=f"0 to {len(self._order) - 1}, or -1 for padding",
            )
        if not real.any():
            raise PolicyError("a clip of padding alone", found=f"{len(frames)} padded frames")
        targets = np.unique(self._order[frames[real]])
        run_begin, run_end = self._runs(targets)
        kept, run = self._keep(targets, run_begin, run_end)
        rank = np.empty(len(kept), np.int32)
        rank[np.lexsort((self._packets.pts[kept], run))] = np.arange(len(kept), dtype=np.int32)
        position = np.full(len(frames), PAD, np.int32)
        position[real] = rank[np.searchsorted(kept, self._order[frames[real]])]
        offset, size = self._packets.offset[kept], self._packets.size[kept]
        run_first = np.searchsorted(run, np.arange(len(run_begin)))
        range_offset, range_length = coalesce(offset, size, run_first)
        return Recipe(
            packet_size=size.astype(np.int32),
            packet_rank=rank,
            range_offset=range_offset,
            range_length=range_length,
            run_first=run_first.astype(np.int32),
            run_open=(self._packets.flags[run_begin] & OPEN) != 0,
            from_start=bool(run_begin[0] == 0),
            position=position,
        )

    def _runs(self, targets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (first, last) packets of each run: the stretches from start points to last targets, joined."""
        number = np.searchsorted(self._starts, targets, side="right") - 1
        number -= (self._packets.flags[targets] & LEADING) != 0
        begin = self._starts[np.maximum(number, 0)]
        order = np.lexsort((targets, begin))
        begin, end = begin[order], np.maximum.accumulate(targets[order])
        new = np.ones(len(begin), np.bool_)
        new[1:] = begin[1:] > end[:-1] + 1
        last = np.append(new[1:], True)
        return begin[new], end[last]

    def _keep(
        self, targets: NDArray[np.int64], run_begin: NDArray[np.int64], run_end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (decode numbers, run numbers) of the packets that have to be decoded, ascending."""
        lengths = run_end - run_begin + 1
        run = np.repeat(np.arange(len(run_begin)), lengths)
        packets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + run_begin[run]
        flags = self._packets.flags[packets]
        droppable = (flags & NON_REFERENCE) != 0
        if self._drop_leading:
            next_start = np.append(self._starts, len(self._packets.pts))[
                np.searchsorted(self._starts, run_begin, side="right")
            ]
            droppable |= ((flags & LEADING) != 0) & (packets < next_start[run])
        keep = ~droppable
        keep[np.searchsorted(packets, targets)] = True
        return packets[keep], run[keep]


def coalesce(
    offset: NDArray[np.int64], size: NDArray[np.int64], run_first: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join byte ranges that follow each other without a gap in one run; return (offset, length), int64 [ranges]."""
    first = np.ones(len(offset), np.bool_)
    first[1:] = offset[1:] != offset[:-1] + size[:-1]
    first[run_first] = True
    return offset[first], np.add.reduceat(size, np.flatnonzero(first)).astype(np.int64)
