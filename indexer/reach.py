"""The packets that a decoder needs for wanted pictures: runs from random access points, without unneeded packets.

Clips are planned with it (`sharder.planning`), and indexing proves with it that such runs give the pictures of a full
decode (`indexer.proofs`). Pure functions over numpy columns.

The reference slots that packets use and refresh show which packets a frame needs.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DamageError, PolicyError
from framedex.indexer import timeline

SLOT_COUNT = timeline.REFRESHED_SHIFT - timeline.USED_SHIFT


def needed_packets(flags: NDArray[np.int32], targets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: the packets that a decoder needs for the targets.

    These are the targets, random access points, packets whose parameter sets differ from those in force, and every
    packet that one of these refers to, directly or not.

    A packet whose references are unknown may need every packet before it. It may also refresh every slot, unless it is
    a leading picture: only leading pictures refer to leading pictures.

    Args:
        flags: int32 [packets] of a run in decode order, from a random access point on, with the bits of `frames.slots`.
        targets: bool [packets], the packets that are wanted.
    """
    if not (flags & timeline.REFERENCES_KNOWN).any():
        return np.ones(len(flags), np.bool_)
    known = ((flags & timeline.REFERENCES_KNOWN) != 0).tolist()
    used = (flags >> timeline.USED_SHIFT).tolist()  # only the low bits of both count
    refreshed = (flags >> timeline.REFRESHED_SHIFT).tolist()
    opaque = ((flags & (timeline.REFERENCES_KNOWN | timeline.LEADING)) == 0).tolist()
    holds: list[int] = [
        0
    ] * SLOT_COUNT  # the packet of the frame in each slot; in the beginning, the first packet of the run
    refers_to: list[list[int]] = []
    for packet in range(len(flags)):
        refers_to.append([holds[slot] for slot in range(SLOT_COUNT) if used[packet] >> slot & 1])
        for slot in range(SLOT_COUNT):
            if refreshed[packet] >> slot & 1 or opaque[packet]:
                holds[slot] = packet
    needed = (targets | ((flags & (timeline.START | timeline.CHANGES_SETS)) != 0)).tolist()
    for packet in range(len(flags) - 1, -1, -1):
        if needed[packet]:
            if not known[packet]:
                needed[:packet] = [True] * packet
                break
            for reference in refers_to[packet]:
                needed[reference] = True
    return np.array(needed, np.bool_)


Numbers = NDArray[np.int64]


def drops_leading(codec: str) -> bool:
    """Return whether a run may leave out the leading pictures of an open random access point at which it begins.

    This is correct for HEVC, whose reference picture sets are explicit (ITU-T H.265 8.3.2). In H.264 they count for
    frame_num and stay.
    """
    return codec == "hevc"


class Reach:
    """How the pictures of one medium are reached.

    Args:
        flags: int32 [packets], the bits of `frames.flags` and `frames.slots` (`timeline.packet_flags`).
        drop_leading: The result of `drops_leading`.
    """

    def __init__(self, flags: timeline.Flags, *, drop_leading: bool) -> None:
        self._flags, self._drop_leading = flags, drop_leading
        self.starts: Numbers = np.flatnonzero(flags & timeline.START)
        self.continues: NDArray[np.bool_] = (flags & timeline.CONTINUES) != 0

    def is_reachable(self, targets: Numbers) -> NDArray[np.bool_]:
        """Return bool [targets]: pictures for which `begins` returns a random access point and raises no error."""
        number, leading = self._own_starts(targets)
        return (number >= 0) & ~self._is_across(number, leading)

    def begins(self, targets: Numbers) -> Numbers:
        """Return int64 [targets]: the random access point from which each target is decoded.

        A leading picture is decoded from the random access point before its own.

        Raises:
            DamageError: No random access point precedes a target.
            PolicyError: A target needs pictures from before a change of the decoder's configuration.
        """
        number, leading = self._own_starts(targets)
        if (number < 0).any():
            raise DamageError(
                "a wanted frame comes before the first packet where decoding may start",
                found=f"packet {int(targets[0])}",
                remedy="choose other frames",
            )
        across = self._is_across(number, leading)
        if across.any():
            raise PolicyError(
                "a wanted frame needs pictures from before a change of the decoder's configuration",
                found=f"packet {int(targets[np.argmax(across)])}",
                remedy="choose other frames",
            )
        begins: Numbers = self.starts[np.maximum(number - leading, 0)]
        return begins

    def _own_starts(self, targets: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return (number of the random access point that each target follows or is, whether it is leading)."""
        return np.searchsorted(self.starts, targets, side="right") - 1, (self._flags[targets] & timeline.LEADING) != 0

    def _is_across(self, number: Numbers, leading: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bool [targets]: leading pictures of a random access point over which no decoder session may run."""
        across: NDArray[np.bool_] = leading & ((self._flags[self.starts[number]] & timeline.RESET) != 0)
        return across

    def runs(self, targets: Numbers) -> tuple[Numbers, Numbers]:
        """Return (first, last) packets of each run: the stretches from random access points to last targets, joined.

        Args:
            targets: int64 [targets], ascending.

        Raises:
            DamageError, PolicyError: As `begins` raises them.
        """
        begin = self.begins(targets)
        order = np.lexsort((targets, begin))
        begin, end = begin[order], np.maximum.accumulate(targets[order])
        end = self.picture_end(end)
        new = np.ones(len(begin), np.bool_)
        new[1:] = (begin[1:] > end[:-1] + 1) | ((self._flags[begin[1:]] & timeline.RESET) != 0) & (
            begin[1:] != begin[:-1]
        )
        last = np.append(new[1:], True)
        return begin[new], end[last]

    def picture_end(self, packets: Numbers) -> Numbers:
        """Return the last packet of the picture that each packet begins."""
        continued: NDArray[np.bool_] = np.append(self.continues[1:], False)[packets]
        return packets + continued.astype(np.int64)

    def within(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Return (packets, run of each) of all packets of some runs, ascending."""
        lengths = last - first + 1
        run = np.repeat(np.arange(len(first)), lengths)
        return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + first[run], run

    def needed(self, targets: Numbers, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Return (packets, run of each), ascending: the packets that have to be decoded for the targets.

        Args:
            targets: int64 [targets], ascending.
            first: int64 [runs], the first packet of each run. Runs do not overlap.
            last: int64 [runs].
        """
        packets, run = self.within(first, last)
        flags = self._flags[packets]
        droppable = (flags & timeline.NON_REFERENCE) != 0
        if self._drop_leading:
            next_start = np.append(self.starts, len(self._flags))[np.searchsorted(self.starts, first, side="right")]
            droppable |= ((flags & (timeline.LEADING | timeline.CHANGES_SETS)) == timeline.LEADING) & (
                packets < next_start[run]
            )
        is_target = np.zeros(len(packets), np.bool_)
        is_target[np.searchsorted(packets, targets)] = True
        if (flags & timeline.REFERENCES_KNOWN).any():
            edges = np.searchsorted(run, np.arange(len(first) + 1))
            for begin, end in itertools.pairwise(edges.tolist()):
                droppable[begin:end] |= ~needed_packets(flags[begin:end], is_target[begin:end])
        keep = is_target | ~droppable
        keep[1:] = np.where(self.continues[packets[1:]], keep[:-1], keep[1:])
        return packets[keep], run[keep]
