"""Find the packets that a decoder needs to decode wanted pictures.

The packets form runs: each run begins at a random access point and omits packets that the wanted pictures do not need.
If the reference slots that each packet uses and refreshes are known, they determine the packets that a picture needs.

`sharder.planning` uses this module to plan clips. `indexer.proofs` uses it to prove that such runs decode to the same
pictures as a full decode. All functions are pure functions over numpy columns.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DamageError, PolicyError
from framedex.indexer import timeline

SLOT_COUNT = timeline.REFRESHED_SHIFT - timeline.USED_SHIFT


def needed_packets(flags: NDArray[np.int32], targets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: whether a decoder needs each packet of a run to decode the targets.

    A decoder needs the targets, random access points, packets that change the active parameter sets, and every packet
    that one of these packets refers to, directly or indirectly.

    If the references of a packet are unknown, it is assumed to need every packet before it. It is also assumed to
    refresh every slot. The exception is a leading picture, because only other leading pictures refer to it.

    Args:
        flags: int32 [packets], the bits of `frames.flags` and `frames.slots` of each packet of the run, in decode
            order. The first packet is a random access point.
        targets: bool [packets], whether each packet is wanted.
    """
    if not (flags & timeline.REFERENCES_KNOWN).any():
        return np.ones(len(flags), np.bool_)
    known = ((flags & timeline.REFERENCES_KNOWN) != 0).tolist()
    # Only the lowest SLOT_COUNT bits of `used` and `refreshed` are read.
    used = (flags >> timeline.USED_SHIFT).tolist()
    refreshed = (flags >> timeline.REFRESHED_SHIFT).tolist()
    opaque = ((flags & (timeline.REFERENCES_KNOWN | timeline.LEADING)) == 0).tolist()
    # The number of the packet whose frame is in each slot. Initially, every slot holds the run's first packet.
    holds: list[int] = [0] * SLOT_COUNT
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
    """Return whether a run that begins at an open random access point may omit the leading pictures after it.

    Omitting them is correct in HEVC, because its reference picture sets are explicit (ITU-T H.265 8.3.2). H.264 counts
    leading pictures in frame_num, so they must stay.
    """
    return codec == "hevc"


class Reach:
    """The random access points and other packets that are needed to decode pictures of one medium.

    In all methods, targets are numbers of packets, in decode order.

    Args:
        flags: int32 [packets], the bits of `frames.flags` and `frames.slots` (`timeline.packet_flags`).
        drop_leading: The result of `drops_leading` for the codec of the medium.
    """

    def __init__(self, flags: timeline.Flags, *, drop_leading: bool) -> None:
        self._flags, self._drop_leading = flags, drop_leading
        self.starts: Numbers = np.flatnonzero(flags & timeline.START)
        self.continues: NDArray[np.bool_] = (flags & timeline.CONTINUES) != 0
        self._has_fields = bool(self.continues.any())  # whether pictures may consist of two packets
        self._edges = np.append(self.starts, len(flags))  # the begin of each GOP, and the number of all packets
        self._has_leading = bool((flags & timeline.LEADING).any())
        self._knows_references = bool((flags & timeline.REFERENCES_KNOWN).any())

    def is_reachable(self, targets: Numbers) -> NDArray[np.bool_]:
        """Return bool [targets]: whether each target can be decoded, so that `begins` does not raise an error."""
        number, leading = self._own_starts(targets)
        return (number >= 0) & ~self._is_across(number, leading)

    def begins(self, targets: Numbers) -> Numbers:
        """Return int64 [targets]: the random access point at which decoding of each target begins.

        For a leading picture, this is the second-last random access point before the picture in decode order, because
        the picture needs the previous GOP.

        Raises:
            DamageError: A target precedes the first random access point.
            PolicyError: A target needs pictures that precede a change of the decoder's configuration.
        """
        number, leading = self._own_starts(targets)
        if (number < 0).any():
            raise DamageError(
                "a wanted frame precedes the first packet at which decoding may begin",
                found=f"packet {int(targets[0])}",
                remedy="choose other frames",
            )
        if not self._has_leading:
            return self.starts[number]
        across = self._is_across(number, leading)
        if across.any():
            raise PolicyError(
                "a wanted frame needs pictures that precede a change of the decoder's configuration",
                found=f"packet {int(targets[np.argmax(across)])}",
                remedy="choose other frames",
            )
        begins: Numbers = self.starts[np.maximum(number - leading, 0)]
        return begins

    def _own_starts(self, targets: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """Find the last random access point at or before each target, and the targets that are leading pictures.

        Returns:
            (int64 [targets], the index in `starts` of the last random access point at or before each target, -1 if
            there is none; bool [targets], whether each target is a leading picture).
        """
        return np.searchsorted(self.starts, targets, side="right") - 1, (self._flags[targets] & timeline.LEADING) != 0

    def _is_across(self, number: Numbers, leading: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bool [targets]: whether decoding would continue across a required reset of the decoder.

        Such targets are leading pictures of a random access point with the flag RESET: their run would begin before
        that point, but must not cross it.
        """
        across: NDArray[np.bool_] = leading & ((self._flags[self.starts[number]] & timeline.RESET) != 0)
        return across

    def runs(self, targets: Numbers) -> tuple[Numbers, Numbers]:
        """Return (first, last), each int64 [runs]: the first and the last packet of each run that decodes the targets.

        A run extends from a random access point to the last target that is decoded from it. Overlapping and adjacent
        runs are joined, unless the decoder must be reset between them.

        Args:
            targets: int64 [targets], ascending.

        Raises:
            DamageError, PolicyError: as in `begins`.
        """
        return self.runs_of_clips(targets, np.zeros(len(targets), np.int64))[:2]

    def runs_of_clips(self, targets: Numbers, clip: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the runs of several clips, as (first, last, clip), each int64 [runs]. Clips share no run.

        Args:
            targets: int64 [targets], ascending within each clip.
            clip: int64 [targets], the number of the clip of each target, ascending.

        Raises:
            DamageError, PolicyError: as in `begins`.
        """
        begin, end = self.begins(targets), targets
        if self._has_leading:  # otherwise, `begin` ascends within each clip
            order = np.lexsort((targets, begin, clip))
            base = clip * len(self._flags)  # keeps apart the targets of different clips
            begin, end = begin[order], np.maximum.accumulate(base + targets[order]) - base
        end = self.picture_end(end)
        new = np.ones(len(begin), np.bool_)
        new[1:] = (begin[1:] > end[:-1] + 1) | ((self._flags[begin[1:]] & timeline.RESET) != 0) & (
            begin[1:] != begin[:-1]
        )
        new[1:] |= clip[1:] != clip[:-1]
        last = np.append(new[1:], True)
        return begin[new], end[last], clip[new]

    def picture_end(self, packets: Numbers) -> Numbers:
        """Return int64 [packets]: the last packet of the picture whose first packet is given.

        This is the next packet if it contains the second field of the picture, and otherwise the packet itself.
        """
        if not self._has_fields:
            return packets
        after = np.minimum(packets + 1, len(self.continues) - 1)
        return np.where(self.continues[after], after, packets)

    def within(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Return all packets of some runs, and the index of each packet's run, both int64 [packets].

        The packets are in the order of the runs, and ascend in each run.
        """
        lengths = last - first + 1
        run = np.repeat(np.arange(len(first)), lengths)
        return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + first[run], run

    def needed(self, targets: Numbers, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Return the packets that have to be decoded for the targets, and the index of the run of each packet.

        Args:
            targets: int64 [targets], ascending.
            first: int64 [runs], the first packet of each run. Runs do not overlap.
            last: int64 [runs], the last packet of each run.

        Returns:
            (packets, runs), each int64 [packets], ascending.
        """
        return self.needed_of_clips(targets, np.zeros(len(targets), np.int64), first, last, np.zeros_like(first))

    def needed_of_clips(
        self, targets: Numbers, clip: Numbers, first: Numbers, last: Numbers, run_clip: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return the packets to decode for several clips, like `needed`. Packets ascend within each clip.

        Args:
            targets, clip: As in `runs_of_clips`.
            first, last, run_clip: The runs, as `runs_of_clips` returns them.
        """
        packets, run = self.within(first, last)
        flags = self._flags[packets]
        droppable = (flags & timeline.NON_REFERENCE) != 0
        if self._drop_leading:
            next_start = self._edges[np.searchsorted(self.starts, first, side="right")]
            droppable |= ((flags & (timeline.LEADING | timeline.CHANGES_SETS)) == timeline.LEADING) & (
                packets < next_start[run]
            )
        is_target = np.zeros(len(packets), np.bool_)
        count = len(self._flags)
        run_of_target = np.searchsorted(run_clip * count + first, clip * count + targets, side="right") - 1
        lengths = last - first + 1
        is_target[(np.cumsum(lengths) - lengths - first)[run_of_target] + targets] = True
        if self._knows_references and (flags & timeline.REFERENCES_KNOWN).any():
            edges = np.searchsorted(run, np.arange(len(first) + 1))
            for begin, end in itertools.pairwise(edges.tolist()):
                droppable[begin:end] |= ~needed_packets(flags[begin:end], is_target[begin:end])
        keep = is_target | ~droppable
        if self._has_fields:
            of_clip = run_clip[run]
            is_second = self.continues[packets[1:]] & (of_clip[1:] == of_clip[:-1])
            keep[1:] = np.where(is_second, keep[:-1], keep[1:])
        return packets[keep], run[keep]
