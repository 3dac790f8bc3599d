"""Plan a clip: determine byte ranges from the wanted frames. Only columns of the index are used, never the source.

1. Each wanted frame is mapped to the packet that contains its picture.
2. For each of these packets, the random access point from which the packet can be decoded is found.
3. Packets after these random access points are removed if no wanted frame needs them.
4. The remaining packets form one or more runs, stored as a list of byte ranges.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DamageError, PolicyError, UncuttableError
from framedex.indexer import timeline
from framedex.indexer.parts.packets import Packets
from framedex.indexer.reach import Reach
from framedex.records.clip import PAD, PlannedRecipe
from framedex.sharder.clips.clip import first_of_ranges

PACKETS_TOGETHER = 1 << 15  # number of packets up to which clips are planned together, because it takes memory
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
        return self._plan_all([frames], one_stream=one_stream)[0]

    def plan_together(
        self, clips: Sequence[NDArray[np.int64]], *, one_stream: bool = False
    ) -> list[PlannedRecipe | Exception]:
        """Return the recipe of each clip, or the error that `plan` raises for it. For arguments, see `plan`.

        The clips are planned by the same numpy calls, which is faster than one clip after the other. If they cannot be
        planned together, each half of them is.
        """
        try:
            return [*self._plan_all(clips, one_stream=one_stream)]
        except Exception as error:  # also a bug is an error of one clip alone
            if len(clips) == 1:
                return [error]
        half = len(clips) // 2
        return [
            found for some in (clips[:half], clips[half:]) for found in self.plan_together(some, one_stream=one_stream)
        ]

    def _plan_all(self, clips: Sequence[NDArray[np.int64]], *, one_stream: bool) -> list[PlannedRecipe]:
        """Return the recipe of each clip. If a clip has an error, raise it. (Its text is right for one clip alone.)

        Packets of different clips are kept apart by a number that ascends with clips, and with packets in each clip:
        the number of the clip, times the number of packets of the medium, plus the packet.
        """
        count, lengths = len(self._packets.pts), list(map(len, clips))
        frames, clip = np.concatenate(clips), np.repeat(np.arange(len(clips)), lengths)
        real = frames != PAD
        if not np.bincount(clip[real], minlength=len(clips)).all():
            raise PolicyError("a clip must not consist of padding alone", found=f"{len(frames)} padded frames")
        wanted = clip[real] * count + self.packet_of(frames[real])
        target_clip, targets = np.divmod(np.unique(wanted), count)
        is_damaged = np.zeros(len(clips), np.bool_)
        if self._is_damaged:
            damage = (self._packets.flags[targets] & timeline.DAMAGED) != 0
            if damage.any() and not self._keep_damaged:
                raise self._damage_error(int(targets[np.argmax(damage)]))
            is_damaged[target_clip[damage]] = True
        if self._packets.offset is None:
            raise PolicyError(
                "the medium's packets are not byte ranges of its file",
                remedy="pass --pack needed, which copies them into the dataset",
            )
        first, last, run_clip = self._reach.runs_of_clips(targets, target_clip)
        if one_stream:
            first, last, run_clip = self._join_each(first, last, run_clip)
        if len(clips) > 1 and int((last - first).sum()) > PACKETS_TOGETHER:
            raise OverflowError("the clips need too many packets to be planned together")
        if not self._is_read and not self._packets.read[self._reach.within(first, last)[0]].all():
            raise ValueError("the plan needs packets whose flags were not read")  # see UnreadHeaders
        kept, run = self._reach.needed_of_clips(targets, target_clip, first, last, run_clip)
        if one_stream:
            flags = self._packets.flags[kept]
            if self._hidden_unordered and (flags & timeline.HIDDEN).any():
                hidden = "pictures that an edit list hides, and it is not known when a decoder outputs them"
                raise _uncuttable(f"the clip needs {hidden}", kept)
            if (((flags & timeline.DAMAGED) != 0) & ~is_damaged[run_clip[run]]).any():
                raise _uncuttable(f"{NO_TINY_FILE} a damaged GOP lies between its frames", kept)
        return self._recipes(_Runs(kept, run, first, run_clip), frames, wanted, lengths, is_damaged)

    def _damage_error(self, packet: int) -> DamageError:
        unlike = self._packets.flags[packet] & timeline.NOT_REPRODUCIBLE
        return DamageError(
            "a wanted frame is in a GOP whose frames differ between decoding a clip and decoding the whole video"
            if unlike
            else "a wanted frame is in a damaged GOP",
            found=f"packet {packet}",
            remedy="choose other frames, or pass --damaged keep",
        )

    def _join_each(
        self, first: NDArray[np.int64], last: NDArray[np.int64], clip: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Join the runs of each clip by `_join`. Return all runs as (first, last, clip)."""
        ends = np.flatnonzero(np.diff(clip, prepend=-1, append=-1))
        joined = [self._join(first[own], last[own]) for own in _slices(ends)]
        clips = np.repeat(clip[ends[:-1]], [len(begin) for begin, _ in joined])
        begins, lasts = map(np.concatenate, zip(*joined, strict=True))
        return begins, lasts, clips

    def _recipes(
        self,
        runs: "_Runs",
        frames: NDArray[np.int64],
        wanted: NDArray[np.int64],
        lengths: list[int],
        is_damaged: NDArray[np.bool_],
    ) -> list[PlannedRecipe]:
        """Return the recipe of each clip.

        Args:
            runs: The packets that the clips need.
            frames: int64 [wanted], the frames of all clips, -1 for padding.
            wanted: int64, the packet of each frame without padding, as the number of `_plan_all`.
            lengths: The number of frames of each clip.
            is_damaged: bool [clips], whether a wanted frame is in a damaged GOP.
        """
        kept, run, begins, run_clip = runs
        numbers, count, offset = np.arange(len(lengths) + 1), len(self._packets.pts), self._packets.offset
        assert offset is not None
        offset, size = offset[kept], self._packets.size[kept]
        first = np.flatnonzero(~self._reach.continues[kept])  # index in `kept` of each picture's first packet
        pictures, picture_run = kept[first], run[first]
        picture_clip = run_clip[picture_run]
        flags, pts, state = (
            column[pictures] for column in (self._packets.flags, self._packets.pts, self._packets.state)
        )
        packet_ends, picture_ends, run_ends = (
            np.searchsorted(of, numbers) for of in (run_clip[run], picture_clip, run_clip)
        )
        rank = np.empty(len(pictures), np.int32)
        rank[np.lexsort((pts, picture_run))] = np.arange(len(pictures), dtype=np.int32)
        rank -= picture_ends[picture_clip].astype(np.int32)
        position = np.full(len(frames), PAD, np.int32)
        position[frames != PAD] = rank[np.searchsorted(picture_clip * count + pictures, wanted)]
        paths, crc32 = self._packets.path, self._packets.crc32
        numbers = np.arange(len(begins))
        alone = np.arange(len(kept)) if crc32 is not None else np.searchsorted(run, numbers)
        range_first = first_of_ranges(offset, size, alone)
        own_size = size
        if len(first) < len(kept):  # some pictures consist of several packets
            own_size = np.where(self._follow_no_picture(kept, run_clip[run]), 0, size)
        run_first = np.searchsorted(picture_run, numbers) - picture_ends[run_clip]
        of_ranges: dict[str, NDArray[Any]] = {
            "range_offset": offset[range_first],
            "range_length": np.add.reduceat(size, range_first).astype(np.int64),
        }
        of_pictures: dict[str, NDArray[Any]] = {
            "packet_size": np.add.reduceat(own_size, first).astype(np.int32),
            "packet_rank": rank,
            "packet_pts": pts,
            "packet_shown": (flags & timeline.SKIPPED) == 0,
            "packet_start": ((flags & (timeline.CLOSED | timeline.RESET)) == timeline.CLOSED) & (state == 0),
        }
        if self._in_decode_order:
            of_pictures["packet_order"] = self._ranks()[pictures]
        of_runs: dict[str, NDArray[Any]] = {
            "run_first": run_first.astype(np.int32),
            "run_open": (self._packets.flags[begins] & timeline.OPEN) != 0,
            "run_state": self._packets.state[begins],
        }
        range_ends = np.searchsorted(range_first, packet_ends)
        frame_ends = np.array([0, *itertools.accumulate(lengths)])
        found = []
        ends = (packet_ends, picture_ends, run_ends, range_ends, frame_ends)
        for number, (packets, own_pictures, own_runs, ranges, own_frames) in enumerate(
            zip(*map(_slices, ends), strict=True)
        ):
            recipe: dict[str, Any] = {"packet_order": None}
            for columns, own in ((of_pictures, own_pictures), (of_runs, own_runs), (of_ranges, ranges)):
                recipe |= {name: column[own] for name, column in columns.items()}
            recipe["range_path"] = None if paths is None else [paths[packet] for packet in kept[packets].tolist()]
            recipe["range_crc32"] = None if crc32 is None else crc32[kept[packets]]
            found.append(PlannedRecipe(**recipe, position=position[own_frames], damaged=bool(is_damaged[number])))
        return found

    def _follow_no_picture(self, kept: NDArray[np.int64], clip: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool [packets]: whether a packet continues a picture, and its clip has no picture before it."""
        continues = self._reach.continues[kept]
        picture = np.cumsum(~continues)  # the number of pictures up to each packet
        before = np.concatenate([[0], picture])[np.searchsorted(clip, clip)]  # and up to the begin of its clip
        lost: NDArray[np.bool_] = continues & (picture == before)
        return lost

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


class _Runs(NamedTuple):
    """The packets that some clips need.

    Attributes:
        kept: int64 [packets], the packets, ascending within each clip.
        run: int64 [packets], the number of the run of each packet.
        begins: int64 [runs], the first packet of each run.
        clip: int64 [runs], the number of the clip of each run.
    """

    kept: NDArray[np.int64]
    run: NDArray[np.int64]
    begins: NDArray[np.int64]
    clip: NDArray[np.int64]


def _slices(ends: NDArray[np.intp]) -> list[slice]:
    """Return the slice between each two neighbouring indices."""
    return [slice(begin, end) for begin, end in itertools.pairwise(ends.tolist())]


def _is_in_decode_order(packets: Packets) -> bool:
    """Return whether the packets of a medium are in decode order in its file. The order of images does not matter."""
    offset, is_images = packets.offset, packets.crc32 is not None
    return offset is not None and (is_images or bool((offset[1:] > offset[:-1]).all()))


def _uncuttable(what: str, packets: NDArray[np.int64]) -> UncuttableError:
    return UncuttableError(what, found=f"packets {packets[0]} to {packets[-1]}", remedy="pass --pack images")
