"""From wanted frames to byte ranges: planning of a clip without reading the source. Pure functions over numpy columns.

1. The wanted frames determine packets.
2. From each packet, the plan goes back to a packet where decoding may start.
3. Packets that no wanted frame needs are removed.
4. The rest is a list of byte ranges, in one or more runs.
"""

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DamageError, PolicyError, UncuttableError
from framedex.indexer import timeline
from framedex.indexer.parts.packets import Packets
from framedex.indexer.reach import Reach
from framedex.records.clip import PAD, Recipe
from framedex.sharder.clips.clip import coalesce


class Planner:
    """Plans clips of one medium; data that all clips need is computed once.

    Args:
        drop_leading: As `drops_leading` returns it.
        keep_damaged: Plan clips that want frames of damaged GOPs, too.
        hidden_unordered: As in `videos`.
    """

    def __init__(
        self, packets: Packets, *, drop_leading: bool, keep_damaged: bool = False, hidden_unordered: bool = False
    ) -> None:
        self._drop_leading, self._keep_damaged = drop_leading, keep_damaged
        self._hidden_unordered = hidden_unordered
        self._order = timeline.presentation_order(packets.pts, packets.flags)
        self.renew(packets)
        self.pts: NDArray[np.int64] = packets.pts[self._order]

    def renew(self, packets: Packets) -> None:
        """Replace the medium's packets after more flags were read or offsets changed.

        No additional packet may be shown.
        """
        self._packets = packets
        self._reach = Reach(packets.flags, drop_leading=self._drop_leading)

    def start_frames(self) -> NDArray[np.int64]:
        """Return int64, ascending: the presentation numbers of frames where decoding may start."""
        return np.flatnonzero((self._packets.flags[self._order] & timeline.START) != 0)

    def packet_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [frames]: the packet that presents each frame. Raises PolicyError for a number past the end."""
        wrong = frames[(frames < 0) | (frames >= len(self._order))]
        if len(wrong):
            raise PolicyError(
                "a frame number past the end",
                found=int(wrong[0]),
                allowed=f"0 to {len(self._order) - 1}, or -1 for padding",
            )
        return self._order[frames]

    def plan(self, frames: NDArray[np.int64], *, one_stream: bool = False) -> Recipe:
        """Return the recipe for int64 [wanted] presentation numbers (-1 for padding, repeats allowed).

        Args:
            one_stream: Join runs so that a decoder that takes the packets as one stream gives the same frames.

        Raises:
            PolicyError: The medium does not have a frame of that number.
            DamageError: A frame lies in a damaged GOP.
            UncuttableError: No single stream gives the frames.
            ValueError: Flags are needed that were not read.
        """
        real = frames != PAD
        if not real.any():
            raise PolicyError("a clip of padding alone", found=f"{len(frames)} padded frames")
        wanted = self.packet_of(frames[real])
        targets = np.unique(wanted)
        damaged = targets[(self._packets.flags[targets] & timeline.DAMAGED) != 0]
        if len(damaged) and not self._keep_damaged:
            unlike = self._packets.flags[damaged[0]] & timeline.NOT_REPRODUCIBLE
            raise DamageError(
                "a wanted frame lies in a GOP that a clip's decoder does not give as a full decode does"
                if unlike
                else "a wanted frame lies in a damaged GOP",
                found=f"packet {int(damaged[0])}",
                remedy="choose other frames, or pass --damaged keep",
            )
        if self._packets.offset is None:
            raise PolicyError(
                "the medium's packets are not byte ranges of its file",
                remedy="pass --pack needed, which copies them into the dataset",
            )
        run_begin, run_end = self._reach.runs(targets)
        if one_stream:
            run_begin, run_end = self._join(run_begin, run_end)
        if not self._packets.read[self._reach.within(run_begin, run_end)[0]].all():
            raise ValueError("a plan over packets whose flags were not read")  # see UnreadHeaders
        kept, run = self._reach.needed(targets, run_begin, run_end)
        if one_stream:
            self._check_places(kept)
            if not len(damaged):
                self._check_between(kept)
        offset, size = self._packets.offset[kept], self._packets.size[kept]
        first = np.flatnonzero(~self._reach.continues[kept])  # where each picture's packets begin among the kept ones
        pictures, picture_run = kept[first], run[first]
        rank = np.empty(len(pictures), np.int32)
        rank[np.lexsort((self._packets.pts[pictures], picture_run))] = np.arange(len(pictures), dtype=np.int32)
        position = np.full(len(frames), PAD, np.int32)
        position[real] = rank[np.searchsorted(pictures, wanted)]
        paths, crc32 = self._packets.path, self._packets.crc32
        alone = np.arange(len(kept)) if crc32 is not None else np.searchsorted(run, np.arange(len(run_begin)))
        range_offset, range_length = coalesce(offset, size, alone)
        return Recipe(
            packet_size=np.add.reduceat(size, first).astype(np.int32),
            packet_rank=rank,
            range_offset=range_offset,
            range_length=range_length,
            run_first=np.searchsorted(picture_run, np.arange(len(run_begin))).astype(np.int32),
            run_open=(self._packets.flags[run_begin] & timeline.OPEN) != 0,
            run_state=self._packets.state[run_begin],
            damaged=bool(len(damaged)),
            position=position,
            range_path=None if paths is None else [paths[packet] for packet in kept.tolist()],
            range_crc32=None if crc32 is None else crc32[kept],
            packet_pts=self._packets.pts[pictures],
            packet_shown=(self._packets.flags[pictures] & timeline.SKIPPED) == 0,
            packet_start=((self._packets.flags[pictures] & (timeline.CLOSED | timeline.RESET)) == timeline.CLOSED)
            & (self._packets.state[pictures] == 0),
        )

    def _check_places(self, kept: NDArray[np.int64]) -> None:
        """Raise UncuttableError if the order in which a decoder outputs some packets is not known."""
        if self._hidden_unordered and (self._packets.flags[kept] & timeline.HIDDEN).any():
            raise UncuttableError(
                "the clip needs pictures that an edit list hides, and their places in a file of its own are not known",
                found=f"packets {int(kept[0])} to {int(kept[-1])}",
                remedy="pass --pack images",
            )

    def _check_between(self, kept: NDArray[np.int64]) -> None:
        """Raise UncuttableError if some of these packets, which lead to frames outside of damage, are damaged."""
        if (self._packets.flags[kept] & timeline.DAMAGED).any():
            raise UncuttableError(
                "the clip cannot be cut into a file of its own: a damaged GOP lies between its frames",
                found=f"packets {int(kept[0])} to {int(kept[-1])}",
                remedy="pass --pack images",
            )

    def joined(self, frames: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (first, last) packets of each run of a plan for one stream. Raises as `plan` does."""
        targets = np.unique(self.packet_of(frames[frames != PAD]))
        return self._join(*self._reach.runs(targets)) if len(targets) else (targets, targets)

    def _join(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (first, last) packets of runs that may follow each other in one stream.

        A run may follow if it begins at a closed start point. Any other run continues the one before it, with
        everything in between. The first run begins where a decoder keeps no leading picture that it cannot decode.

        Raises:
            UncuttableError: There is no such start point, or the decoder's configuration changes on the way.
        """
        alone = np.union1d(np.flatnonzero((self._packets.flags[begin] & timeline.CLOSED) != 0), 0)
        begin, end = begin[alone], end[np.append(alone[1:] - 1, len(end) - 1)]
        first = int(np.searchsorted(self._reach.starts, begin[0]))
        while first > 0 and self._leaves_undecodable(first, int(end[0])):
            first -= 1
        begin[0] = self._reach.starts[first]
        inside = self._reach.starts[(self._reach.starts > begin[0]) & (self._reach.starts <= end[-1])]
        if self._leaves_undecodable(first, int(end[0])) or (self._packets.flags[inside] & timeline.RESET).any():
            raise UncuttableError(
                "the clip cannot be cut into a file of its own: no single decoder session gives its frames",
                found=f"packets {int(begin[0])} to {int(end[-1])}",
                remedy="pass --pack images",
            )
        return begin, end

    def _leaves_undecodable(self, start: int, end: int) -> bool:
        """Return whether a run from this start point keeps leading pictures that a decoder can neither decode nor drop.

        Such pictures need packets before the start point, and no decoder drops them by itself.

        Args:
            start: Number of the start point.
        """
        if self._drop_leading:
            return False
        edges = np.append(self._reach.starts, len(self._packets.pts))
        flags = self._packets.flags[edges[start] : min(int(edges[start + 1]), end + 1)]
        return bool(
            ((flags & (timeline.LEADING | timeline.NON_REFERENCE | timeline.SKIPPED)) == timeline.LEADING).any()
        )
