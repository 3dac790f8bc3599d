"""The clips of an index by a policy, by number. Each is planned when it is requested; no dataset is written to disk.

Opening counts clips and samples none. For most policies, a medium's duration and number of frames determine its number
of clips. Media that need more than that (damage, audio, a policy that looks at timestamps) are planned at that point.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.tallies import no_clip_has, tally
from framedex.errors import FormatError, FramedexError, PolicyError, StaleError
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.audio import AudioOptions
from framedex.sharder.clips.clip import Clip, Failure, WantedClip
from framedex.sharder.clips.medium import Locations, Root
from framedex.sharder.configuration.parameters import located
from framedex.sharder.planning.batches import missed_clip, plan_clip, wanted_clip
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.records import Policy, Sampled, Sampling, Timeline
from framedex.sharder.selection.left_out import left_out
from framedex.sharder.selection.listing_ranges import check_ranges
from framedex.sharder.selection.mentions import mention_name, mentions, own_rows, usable_media, user_columns
from framedex.storage.places import Stored, place

Row = dict[str, Any]

OPEN_MEDIA = 16  # number of media whose packets are kept
SAMPLINGS = 64  # number of samplings that are kept, each of a mention in an epoch
COUNTS = 65_536  # number of clip counts that are kept; media of equal length share one
FACTS = (
    "media_id",
    "uri",
    "frame_count",
    "duration_pts",
    "time_base_num",
    "time_base_den",
    "damaged_gop_count",
    "byte_addressable",
    "audio_stream_index",
)


class ClipPlans:
    """The clips of an index by a policy: the same, in the same order, as `framedex shard INDEX --policy …` writes.

    Random draws differ in each epoch. Epoch 0 has the draws of `framedex shard` and determines which clips there are.
    If a clip's draw in a later epoch is not possible (too far from a frame, in a damaged GOP), the clip keeps its draw
    of epoch 0.

    Instances are picklable; cached data is not pickled.

    Args:
        root: Where the sources lie now, as for `Locations`.
        keep_damaged: Plan frames of damaged GOPs, too.
        audio: The clips' audio; None for no audio.

    Raises:
        FormatError: The index is not valid.
        PolicyError: The policy does not fit the index.
    """

    def __init__(
        self,
        index: str | Path | Stored,
        file: PolicyFile,
        *,
        root: Root | None = None,
        keep_damaged: bool = False,
        audio: AudioOptions | None = None,
    ) -> None:
        self.path = place(index).absolute()
        opened = Index(self.path)
        self._state = opened.state()
        self.ffmpeg = opened.ffmpeg
        self._policy = file.policy
        self._making = _Making(Locations(opened.root, root), keep_damaged=keep_damaged, audio=audio)
        user_columns(opened, file.split)  # raises for columns that clash
        check_ranges(opened, file)
        left_out(opened, file)  # raises for a filter that leaves out all media
        media: list[pa.Array] = []
        numbers, rows, columns, counted = [], [], [], []
        count = _Counting(opened, file.policy, self._making)
        seen = 0
        for several in mentions(opened, file.filter, file.split):
            facts = several.videos.select(FACTS).to_pylist()
            own = own_rows(several.columns) if file.policy.counts_by_pts else [{}] * len(several.video)
            for video, number, row in zip(several.video.tolist(), several.number.tolist(), own, strict=True):
                counted.append(count(facts[video], mention_name(facts[video]["media_id"], number), row))
            media.append(several.videos["media_id"].combine_chunks().take(pa.array(several.video)))
            numbers.append(several.number)
            rows.append(several.video + seen)
            columns.append(several.columns)
            seen += len(several.videos)
        self._media_id = pa.concat_arrays(media) if media else pa.array([], pa.string())
        self._number = _joined(numbers)
        self._media_row = _joined(rows)
        self._columns: pa.Table = pa.concat_tables(columns).combine_chunks() if columns else opened.listing.slice(0, 0)
        self._first = np.cumsum([0, *(one.clips for one in counted)], dtype=np.int64)
        self._incomplete = np.flatnonzero([one.left_out for one in counted])
        self._planned = {mention: one.planned for mention, one in enumerate(counted) if one.planned is not None}
        self._begin()

    def _begin(self) -> None:
        # Caches of this process alone; see __getstate__.
        self._lock = threading.Lock()
        self._medium = functools.lru_cache(OPEN_MEDIA)(self._open_medium)
        self._sampling = functools.lru_cache(SAMPLINGS)(self._sample)

    def __getstate__(self) -> Row:
        left = ("_lock", "_medium", "_sampling", "_index")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: Row) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return int(self._first[-1])

    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return clip `number` as drawn in an epoch.

        Raises:
            IndexError: There is no such clip.
            FormatError: The index was changed in the meantime.
            StaleError: The source has to be read and is not what was indexed.
            PolicyError: Reading the source shows that the clip is impossible.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        mention = int(np.searchsorted(self._first, number, side="right")) - 1
        place = number - int(self._first[mention])
        planned = self._planned.get(mention)
        if planned is not None:
            place = int(planned[place])
        with self._lock:  # pyarrow's readers must not be shared by several threads at once
            medium = self._medium(self._media_id[mention].as_py())
            first = self._sampling(mention, 0).clips[place]
            if epoch and self._policy.is_random:
                drawn = _numbered(self._sampling(mention, epoch), first.number)
                if drawn is not None:
                    with contextlib.suppress(PolicyError):  # then the draw of epoch 0 stays
                        return medium.clip(self._wanted(mention, drawn))
            return self._plan(medium, self._wanted(mention, first))

    @property
    def locations(self) -> Locations:
        """Where the sources lie."""
        return self._making.locations

    @property
    def columns(self) -> list[str]:
        """The columns of the listing and the split, which every clip has."""
        return [name for name in self._columns.column_names if name != "media_id"]

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of every clip's medium."""
        return np.repeat(self._media_row, np.diff(self._first))

    def where(self, wanted: Mapping[str, object]) -> NDArray[np.int64]:
        """Return int64, ascending: the numbers of clips whose columns of the listing or the split have these values.

        Raises:
            FramedexError: The clips do not have a column, its type has no such value, or no clip matches.
        """
        chosen = np.ones(len(self._columns), np.bool_)
        own = self.columns
        for name, value in wanted.items():
            if name not in own:
                raise FramedexError(
                    "the clips have no such column", where=str(self.path), found=name, allowed=", ".join(own)
                )
            column = self._columns[name]
            try:
                equal = pc.equal(column, pa.scalar(value, column.type)).fill_null(False)
            except (pa.ArrowException, TypeError) as error:
                raise FramedexError(
                    f"column {name!r} never has such a value", where=str(self.path), found=repr(value)
                ) from error
            chosen &= equal.to_numpy().astype(np.bool_)
        clips = np.diff(self._first)
        found = np.flatnonzero(np.repeat(chosen, clips))
        if wanted and not len(found):
            rows = pa.array(np.repeat(np.arange(len(clips)), clips))
            values = {name: tally(self._columns[name].take(rows).chunks) for name in wanted}
            raise no_clip_has(wanted, values, self.path)
        return found

    def failures(self) -> Iterator[Failure]:
        """Yield why clips that the policy wants are missing, as in `failures.parquet` of a dataset.

        The reasons are determined again, medium by medium. Problems that only reading a source can show are not
        included, unless its medium had to be planned when this was opened.
        """
        for mention in self._incomplete.tolist():
            with self._lock:
                medium = self._medium(self._media_id[mention].as_py())
                sampling = self._sampling(mention, 0)
                if mention in self._planned:
                    outcomes = [plan_clip(medium, self._wanted(mention, clip)) for clip in sampling.clips]
                    yield from [outcome for outcome in outcomes if isinstance(outcome, Failure)]
                uri, name = medium.medium.name, self._name(mention)
                yield from [missed_clip(uri, name, missed) for missed in sampling.missed]

    @functools.cached_property
    def _index(self) -> Index:
        index = Index(self.path)
        if index.state() != self._state:
            raise FormatError("the index was changed since it was opened", where=str(self.path), remedy="open it again")
        return index

    def _open_medium(self, media_id: str) -> IndexedMedium:
        return self._making.medium(self._index, self._index.video(media_id))

    def _sample(self, mention: int, epoch: int) -> Sampling:
        timeline = self._medium(self._media_id[mention].as_py()).timeline
        return self._policy.sample(replace(timeline, epoch=epoch), self._row(mention))

    def _name(self, mention: int) -> str:
        return mention_name(self._media_id[mention].as_py(), int(self._number[mention]))

    def _row(self, mention: int) -> Row:
        [row] = own_rows(self._columns.slice(mention, 1))
        return row

    def _wanted(self, mention: int, sampled: Sampled) -> WantedClip:
        own = replace(sampled, frames=sampled.frames.copy(), mask=sampled.mask.copy())  # callers may write to them
        return wanted_clip(self._name(mention), own, self._row(mention))

    @staticmethod
    def _plan(medium: IndexedMedium, wanted: WantedClip) -> Clip:
        try:
            return medium.clip(wanted)
        except (PolicyError, StaleError) as error:
            where = f"clip {wanted.clip_id} of {medium.medium.name}" + (f": {error.where}" if error.where else "")
            raise type(error)(
                error.what, where=where, found=error.found, allowed=error.allowed, remedy=error.remedy
            ) from error


@dataclass(frozen=True, slots=True)
class _Making:
    """How media are opened for planning."""

    locations: Locations
    keep_damaged: bool
    audio: AudioOptions | None

    def medium(self, index: Index, video: Row) -> IndexedMedium:
        path = self.locations.path(video["uri"])
        return IndexedMedium(index, video, keep_damaged=self.keep_damaged, audio=self.audio, path=path)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The clips of a mention in epoch 0.

    Attributes:
        left_out: Whether the policy wanted more clips.
        planned: int64 [clips], their places among the sampled clips; None for all of them.
    """

    clips: int
    left_out: bool
    planned: NDArray[np.int64] | None = None


class _Counting:
    """Counts the clips of mentions, one medium after the other."""

    def __init__(self, index: Index, policy: Policy, making: _Making) -> None:
        self._policy, self._making = policy, making
        self._by_length = functools.lru_cache(COUNTS)(self._count_by_length)
        self._medium = functools.lru_cache(1)(lambda media_id: making.medium(index, index.video(media_id)))

    def __call__(self, facts: Row, name: str, row: Row) -> _Counted:
        try:
            if facts["damaged_gop_count"] or not facts["byte_addressable"] or self._has_sound(facts):
                return self._plan_all(facts, name, row)
            if self._policy.counts_by_pts:
                sampling = self._policy.sample(self._medium(facts["media_id"]).timeline, row)
                return _Counted(len(sampling.clips), bool(sampling.missed))
            return self._by_length(
                facts["frame_count"], facts["duration_pts"], Fraction(facts["time_base_num"], facts["time_base_den"])
            )
        except PolicyError as error:
            raise located(error, facts["uri"]) from error

    def _has_sound(self, facts: Row) -> bool:
        return self._making.audio is not None and facts["audio_stream_index"] is not None

    def _count_by_length(self, frames: int, duration_pts: int, time_base: Fraction) -> _Counted:
        """Count the clips of a video by its length alone; its timestamps do not matter here."""
        pts = np.broadcast_to(np.int64(0), frames)
        sampling = self._policy.sample(Timeline(pts=pts, duration_pts=duration_pts, time_base=time_base), {})
        return _Counted(len(sampling.clips), bool(sampling.missed))

    def _plan_all(self, facts: Row, name: str, row: Row) -> _Counted:
        """Count the clips that can be planned. If audio is the only doubt, the first clip decides for all."""
        medium = self._medium(facts["media_id"])
        sampling = self._policy.sample(medium.timeline, row)
        wanted = [wanted_clip(name, clip, {}) for clip in sampling.clips]
        sound_alone = not facts["damaged_gop_count"] and facts["byte_addressable"]
        if sound_alone and (not wanted or isinstance(plan_clip(medium, wanted[0]), Clip)):
            return _Counted(len(wanted), bool(sampling.missed))
        medium.prepare(wanted)
        planned = np.flatnonzero([isinstance(plan_clip(medium, clip), Clip) for clip in wanted])
        left_out = bool(sampling.missed) or len(planned) < len(wanted)
        return _Counted(len(planned), left_out, planned if len(planned) < len(wanted) else None)


def _numbered(sampling: Sampling, number: int) -> Sampled | None:
    """Return the clip with that number, or None if it was not found."""
    at = int(np.searchsorted([clip.number for clip in sampling.clips], number))
    if at < len(sampling.clips) and sampling.clips[at].number == number:
        return sampling.clips[at]
    return None


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def media_without_clips(index: Index, file: PolicyFile) -> Iterator[tuple[Row, str]]:
    """Yield each usable medium in which a policy finds no clip: its row of `videos`, and why. Raises PolicyError."""
    check_ranges(index, file)
    for mentioned in usable_media(index, file.filter, file.split):
        timeline = IndexedMedium(index, mentioned.video, keep_damaged=True).timeline
        samplings = [file.policy.sample(timeline, mention.columns) for mention in mentioned.mentions]
        if not any(sampling.clips for sampling in samplings):
            reasons = [missed.message for sampling in samplings for missed in sampling.missed]
            yield mentioned.video, reasons[0] if reasons else "the policy asks for no clip of it"
