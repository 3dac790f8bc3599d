"""Plan a clip: determine byte ranges from the wanted frames. Only columns of the index are used, never the source.

1. Each wanted frame is mapped to the packet that contains its picture.
2. For each of these packets, the random access point from which the packet can be decoded is found.
3. Packets after these random access points are removed if no wanted frame needs them.
4. The remaining packets form one or more runs, stored as a list of byte ranges.
"""

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DamageError, PolicyError, UncuttableError
from framedex.indexer import timeline
from framedex.indexer.parts.packets import Packets
from framedex.indexer.reach import Reach
from framedex.records.clip import PAD, PlannedRecipe
from framedex.sharder.clips.clip import coalesce

NO_TINY_FILE = "the clip cannot be cut into a tiny file, because"


class Planner:
    """Plans the clips of one medium. Data that all clips need is computed once.

    Args:
        packets: The packets of the medium.
        drop_leading: Whether a run that begins at an open random access point may omit the leading pictures after it.
            This depends on the codec (see `drops_leading`).
        keep_damaged: Whether clips may have frames of damaged GOPs.
        hidden_unordered: Whether the order in which a decoder outputs pictures that an edit list hides is not known, as
            in the column `hidden_unordered` of `videos`.
    """

    def __init__(
        self, packets: Packets, *, drop_leading: bool, keep_damaged: bool = False, hidden_unordered: bool = False
    ) -> None:
        self._drop_leading, self._keep_damaged = drop_leading, keep_damaged
        self._hidden_unordered = hidden_unordered
        self._order = timeline.presentation_order(packets.pts, packets.flags)
        self._rank: NDArray[np.int32] | None = None  # the rank of each packet in presentation order, if it was needed
        self.renew(packets)
        self.pts: NDArray[np.int64] = packets.pts[self._order]

    def renew(self, packets: Packets) -> None:
        """Replace the medium's packets, after more flags were read or offsets changed.

        The new values must mark the same packets as shown as before, so that frame numbers do not change.
        """
        self._packets = packets
        self._reach = Reach(packets.flags, drop_leading=self._drop_leading)
        self._in_decode_order = _is_in_decode_order(packets)
        self._is_read = bool(packets.read.all())
        self._is_damaged = bool((packets.flags & timeline.DAMAGED).any())

    def start_frames(self) -> NDArray[np.int64]:
        """Return the numbers (int64, ascending, in presentation order) of the frames where decoding may start."""
        return np.flatnonzero((self._packets.flags[self._order] & timeline.START) != 0)

    def packet_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [frames]: the number of the packet that contains the picture of each frame.

        Raises:
            PolicyError: A frame number is out of range.
        """
        wrong = frames[(frames < 0) | (frames >= len(self._order))]
        if len(wrong):
            raise PolicyError(
                "a frame number is out of range",
                found=int(wrong[0]),
                allowed=f"0 to {len(self._order) - 1}, or -1 for padding",
            )
        return self._order[frames]

    def plan(self, frames: NDArray[np.int64], *, one_stream: bool = False) -> PlannedRecipe:
        """Return the recipe of a clip.

        Args:
            frames: int64 [wanted], frame numbers in presentation order, -1 for padding. Numbers may repeat.
            one_stream: Whether the packets must decode to the right frames as a single stream in one decoder session.
                If True, runs are joined where necessary.

        Raises:
            PolicyError: A frame number is out of range, all frames are padding, or the packets are not byte ranges of
                the file.
            DamageError: A wanted frame is in a damaged GOP, and `keep_damaged` is False.
            UncuttableError: `one_stream` is True, and no single stream decodes to the wanted frames.
            ValueError: The headers of packets that the plan needs were not read.
        """
        real = frames != PAD
        if not real.any():
            raise PolicyError("a clip must not consist of padding alone", found=f"{len(frames)} padded frames")
        wanted = self.packet_of(frames[real])
        targets = np.unique(wanted)
        damaged = targets[(self._packets.flags[targets] & timeline.DAMAGED) != 0] if self._is_damaged else targets[:0]
        if len(damaged) and not self._keep_damaged:
            unlike = self._packets.flags[damaged[0]] & timeline.NOT_REPRODUCIBLE
            raise DamageError(
                "a wanted frame is in a GOP whose frames differ between decoding a clip and decoding the whole video"
                if unlike
                else "a wanted frame is in a damaged GOP",
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
        if not self._is_read and not self._packets.read[self._reach.within(run_begin, run_end)[0]].all():
            raise ValueError("the plan needs packets whose flags were not read")  # see UnreadHeaders
        kept, run = self._reach.needed(targets, run_begin, run_end)
        if one_stream:
            of_kept = self._packets.flags[kept]
            if self._hidden_unordered and (of_kept & timeline.HIDDEN).any():
                hidden = "pictures that an edit list hides, and it is not known when a decoder outputs them"
                raise _uncuttable(f"the clip needs {hidden}", kept)
            if not len(damaged) and (of_kept & timeline.DAMAGED).any():
                raise _uncuttable(f"{NO_TINY_FILE} a damaged GOP lies between its frames", kept)
        offset, size = self._packets.offset[kept], self._packets.size[kept]
        first = np.flatnonzero(~self._reach.continues[kept])  # index in `kept` of each picture's first packet
        pictures, picture_run = kept[first], run[first]
        flags, pts = self._packets.flags[pictures], self._packets.pts[pictures]
        rank = np.empty(len(pictures), np.int32)
        rank[np.lexsort((pts, picture_run))] = np.arange(len(pictures), dtype=np.int32)
        position = np.full(len(frames), PAD, np.int32)
        position[real] = rank[np.searchsorted(pictures, wanted)]
        paths, crc32 = self._packets.path, self._packets.crc32
        alone = np.arange(len(kept)) if crc32 is not None else np.searchsorted(run, np.arange(len(run_begin)))
        range_offset, range_length = coalesce(offset, size, alone)
        return PlannedRecipe(
            packet_size=np.add.reduceat(size, first).astype(np.int32),
            packet_rank=rank,
            packet_order=self._ranks()[pictures] if self._in_decode_order else None,
            range_offset=range_offset,
            range_length=range_length,
            run_first=np.searchsorted(picture_run, np.arange(len(run_begin))).astype(np.int32),
            run_open=(self._packets.flags[run_begin] & timeline.OPEN) != 0,
            run_state=self._packets.state[run_begin],
            damaged=bool(len(damaged)),
            position=position,
            range_path=None if paths is None else [paths[packet] for packet in kept.tolist()],
            range_crc32=None if crc32 is None else crc32[kept],
            packet_pts=pts,
            packet_shown=(flags & timeline.SKIPPED) == 0,
            packet_start=((flags & (timeline.CLOSED | timeline.RESET)) == timeline.CLOSED)
            & (self._packets.state[pictures] == 0),
        )

    def _ranks(self) -> NDArray[np.int32]:
        """Return int32 [packets]: the rank of each packet in presentation order among all packets."""
        if self._rank is None:
            self._rank = np.argsort(np.argsort(self._packets.pts, kind="stable")).astype(np.int32)
        return self._rank

    def joined(self, frames: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last packet of each run that `plan` would make with `one_stream`.

        Raises the errors of `plan`.
        """
        targets = np.unique(self.packet_of(frames[frames != PAD]))
        return self._join(*self._reach.runs(targets)) if len(targets) else (targets, targets)

    def _join(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Join runs, so that one decoder session can decode all runs, one after the other, as one stream.

        A run that begins at a closed random access point stays a separate run. Any other run is joined to the previous
        run, together with all packets between the two runs. The first run is extended to an earlier random access point
        if leading pictures after its own can neither be decoded nor dropped by a decoder.

        Args:
            begin: int64 [runs], the first packet of each run.
            end: int64 [runs], the last packet of each run.

        Returns:
            The first and the last packet of each joined run.

        Raises:
            UncuttableError: There is no random access point at which the first run can begin, or the decoder's
                configuration changes within the joined runs.
        """
        alone = np.union1d(np.flatnonzero((self._packets.flags[begin] & timeline.CLOSED) != 0), 0)
        begin, end = begin[alone], end[np.append(alone[1:] - 1, len(end) - 1)]
        first = int(np.searchsorted(self._reach.starts, begin[0]))
        while first > 0 and self._leaves_undecodable(first, int(end[0])):
            first -= 1
        begin[0] = self._reach.starts[first]
        inside = self._reach.starts[(self._reach.starts > begin[0]) & (self._reach.starts <= end[-1])]
        if self._leaves_undecodable(first, int(end[0])) or (self._packets.flags[inside] & timeline.RESET).any():
            what = f"{NO_TINY_FILE} no single decoder session gives its frames"
            raise _uncuttable(what, np.array([begin[0], end[-1]]))
        return begin, end

    def _leaves_undecodable(self, start: int, end: int) -> bool:
        """Return whether a run has leading pictures that a decoder can neither decode nor drop.

        These leading pictures need packets before the run's random access point, and decoders of the codec do not drop
        them by themselves.

        Args:
            start: The number of the random access point (among all random access points) where the run begins.
            end: The number of the run's last packet.
        """
        if self._drop_leading:
            return False
        edges = np.append(self._reach.starts, len(self._packets.pts))
        flags = self._packets.flags[edges[start] : min(int(edges[start + 1]), end + 1)]
        kinds = flags & (timeline.LEADING | timeline.NON_REFERENCE | timeline.SKIPPED)
        return bool((kinds == timeline.LEADING).any())


def _is_in_decode_order(packets: Packets) -> bool:
    """Return whether the packets of a medium are in decode order in its file. The order of images does not matter."""
    offset, is_images = packets.offset, packets.crc32 is not None
    return offset is not None and (is_images or bool((offset[1:] > offset[:-1]).all()))


def _uncuttable(what: str, packets: NDArray[np.int64]) -> UncuttableError:
    return UncuttableError(what, found=f"packets {packets[0]} to {packets[-1]}", remedy="pass --pack images")
