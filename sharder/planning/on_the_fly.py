"""Provide the clips that a policy selects from an index by their numbers, without writing a dataset.

When `ClipPlans` is created, clips are only counted. A clip is planned when it is requested. For most policies, the
number of a medium's clips follows from its duration and its number of frames. For other policies, and for media with
damage or audio, clips have to be sampled or planned to be counted.
"""

import bisect
import contextlib
import copy
import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FormatError, PolicyError, StaleError
from framedex.indexer.parts.index import Index
from framedex.records.clip import PAD, Failure
from framedex.records.medium import OK
from framedex.sharder.clips.clip import AudioOptions, Clip, ViewsOfClips, WantedClip
from framedex.sharder.clips.clip_source import FRAME_FIELDS, ClipSource, frame_field
from framedex.sharder.configuration.parameters import located
from framedex.sharder.planning.indexed_medium import IndexedMedium, OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import missed_clip, plan_clip, wanted_clip
from framedex.sharder.planning.units import UnitClip, Units, UnitSampling, units_of
from framedex.sharder.policies.policy import Policy
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.sampling import Timeline
from framedex.sharder.selection.mentions import KEPT_NAMES, no_clips, user_columns
from framedex.storage.places import OWN_STORE, Access, Stored, place

LENGTHS = ("frame_count", "duration_pts", "time_base_num", "time_base_den")
FACTS = ("uri", "media_id", *LENGTHS, "damaged_gop_count", "byte_addressable", "audio_stream_index")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedClips:
    """The clips of all units in epoch 0, counted. A unit is a row of the listing, or a scene.

    Attributes:
        first: int64 [units + 1], the number of each unit's first clip. The last element is the total number of clips.
        incomplete: int64, the numbers of the units for which the policy wants more clips than can be made.
        planned: {number of a unit: int64, the indices of the unit's sampled clips that can be planned}. It contains
            only units in which some clip cannot be planned.
        mention: int64 [clips], the listing's row from which each clip is made. None if the policy has no scenes.
        views: The assignment of clips to clips of several views. None if the policy has no scenes.
    """

    first: NDArray[np.int64]
    incomplete: NDArray[np.int64]
    planned: dict[int, NDArray[np.int64]]
    mention: NDArray[np.int64] | None = None
    views: ViewsOfClips | None = None


def count_clips(units: Units, policy: Policy, media: OpenMedia, *, audio: bool) -> CountedClips:
    """Count the clips of all units.

    For some media, all clips have to be planned to find out which of them can be made: media with damaged GOPs, media
    whose packets are not byte ranges of a file, and, if clips carry audio, media with audio. For all other media, the
    number of clips may follow from the length of the medium alone.

    Args:
        units: The units of the policy. Their table must have those columns of `videos` that the constant FACTS lists.
        policy: The policy.
        media: The media of the index.
        audio: Whether clips carry audio.

    Raises:
        PolicyError: The policy does not allow a medium.
    """
    facts = units.table.facts
    sound = pc.and_(pa.scalar(audio), pc.is_valid(facts["audio_stream_index"])).to_numpy()
    in_place = facts["byte_addressable"].fill_null(False)
    broken = pc.or_(pc.greater(facts["damaged_gop_count"].fill_null(1), 0), pc.invert(in_place)).to_numpy()
    clips, more = np.zeros(len(units), np.int64), np.zeros(len(units), np.bool_)
    sampled = np.arange(len(units))
    if units.scenes is None and not policy.counts_by_pts:
        clips, more = _count_by_length(facts, policy)
        sampled = np.flatnonzero(sound | broken)
    planned: dict[int, NDArray[np.int64]] = {}
    names = [] if units.scenes is None else units.scenes.names
    place_of = {name: place for place, name in enumerate(names)}
    rows = [np.zeros((0, 4), np.int64)]  # for each clip of a scene: (unit, number, row, view)
    for number, unit in zip(sampled.tolist(), units.some(sampled.tolist()), strict=True):
        found = unit.sample(policy, media.timeline)
        places = _plannable(found.clips, media, sound, broken)
        if len(places) < len(found.clips):
            planned[number] = places
        clips[number], more[number] = len(places), bool(found.missed) or number in planned
        own = [
            (number, clip.sampled.number, clip.mention.number, place_of[clip.multiview.view_name])
            for clip in (found.clips[place] for place in places.tolist())
            if clip.multiview is not None
        ]
        rows.append(np.array(own, np.int64).reshape(-1, 4))
    counted = CountedClips(
        first=np.cumsum([0, *clips], dtype=np.int64), incomplete=np.flatnonzero(more), planned=planned
    )
    if units.scenes is None or policy.views is None:
        return counted
    unit_of, number_of, mention, view = np.concatenate(rows).T
    begins = np.ones(len(mention), np.int64)
    begins[1:] = (np.diff(unit_of) != 0) | (np.diff(number_of) != 0)
    views = ViewsOfClips(names=names, missing=policy.views.missing, item=np.cumsum(begins) - 1, view=view.copy())
    return replace(counted, mention=mention.copy(), views=views)


def _count_by_length(facts: pa.Table, policy: Policy) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Count the clips of each row of the listing from the length of the row's medium alone.

    Returns:
        int64 [rows], the number of clips, and bool [rows], whether the policy wants more clips than the medium gives.
    """
    lengths = np.stack([facts[name].to_numpy() for name in LENGTHS], axis=1)
    different, first, place = np.unique(lengths, axis=0, return_index=True, return_inverse=True)
    clips, more = np.zeros(len(different), np.int64), np.zeros(len(different), np.bool_)
    for row in np.argsort(first).tolist():  # ascending, so that an error names the first affected medium
        frames, duration_pts, *time_base = different[row].tolist()
        pts = np.broadcast_to(np.int64(0), frames)  # this policy uses only the number of frames, not their timestamps
        try:
            sampling = policy.sample(Timeline(pts=pts, duration_pts=duration_pts, time_base=Fraction(*time_base)), {})
        except PolicyError as error:
            raise located(error, facts["uri"][int(first[row])].as_py()) from error
        clips[row], more[row] = len(sampling.clips), bool(sampling.missed)
    return clips[place.reshape(-1)], more[place.reshape(-1)]


def _plannable(
    clips: list[UnitClip], media: OpenMedia, sound: NDArray[np.bool_], broken: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the indices of the clips of a unit that can be planned.

    Args:
        clips: All sampled clips of the unit.
        media: The media of the index.
        sound: bool [rows], True if clips carry audio and the row's medium has audio.
        broken: bool [rows], True if the row's medium has damaged GOPs, or packets that are not byte ranges of a file.
    """
    doubtful: dict[int, list[int]] = {}
    for position, clip in enumerate(clips):
        if sound[clip.mention.number] or broken[clip.mention.number]:
            doubtful.setdefault(clip.mention.number, []).append(position)
    impossible: set[int] = set()
    for row, places in doubtful.items():
        medium = media.of(clips[places[0]].mention.media_id)
        wanted = [wanted_clip(clips[place]) for place in places]
        if not broken[row] and isinstance(plan_clip(medium, wanted[0]), Clip):
            continue  # audio is available either for all clips of a medium or for none
        medium.prepare(wanted)
        impossible |= {
            place for place, clip in zip(places, wanted, strict=True) if not isinstance(plan_clip(medium, clip), Clip)
        }
    return np.array([place for place in range(len(clips)) if place not in impossible], np.int64)


# Maximum number of cache entries. An entry has the clips that the policy selects from one unit (a row of the listing,
# or a scene) in one epoch.
SAMPLINGS = 64


class ClipPlans(ClipSource):
    """The clips that a policy selects from an index: the same clips, in the same order, as those of `framedex shard`.

    Random draws differ between epochs. Epoch 0 has the same draws as `framedex shard`, and determines the number of
    clips. If the frames that are drawn for a clip in a later epoch are not available (no frame is near enough, or a
    frame is in a damaged GOP), the clip keeps its frames of epoch 0.

    Instances can be pickled. The pickle does not contain cached data.

    Args:
        index: The folder of the index.
        file: The policy.
        access: The rule that says which sources may be read.
        keep_damaged: Whether clips may have frames of damaged GOPs.
        audio: The options of the clips' audio. None if clips carry no audio.

    Raises:
        FormatError: The index is not valid.
        StorageError: A source is in a store that may not be read.
        PolicyError: The policy does not fit the index.
        NoClipsError: The policy selects no clip.
    """

    def __init__(
        self,
        index: str | Path | Stored,
        file: PolicyFile,
        *,
        access: Access = OWN_STORE,
        keep_damaged: bool = False,
        audio: AudioOptions | None = None,
    ) -> None:
        self.path = place(index).absolute()
        self._policy = file.policy
        self._options = PlanningOptions(access=access, keep_damaged=keep_damaged, audio=audio)
        opened = Index(self.path, access=access)
        opened.check_locations()
        self._state = opened.state()
        self.ffmpeg = opened.ffmpeg
        user_columns(opened, file.policy.split)  # raises PolicyError if a column of the user has a reserved name
        units = units_of(opened, file, FACTS)
        media = OpenMedia(opened, self._options)
        self._counted = count_clips(units, file.policy, media, audio=audio is not None)
        self._units = replace(units, table=replace(units.table, facts=units.table.facts.select([])))
        self._begin()
        if not len(self):
            raise no_clips(opened, self.failures())

    def _begin(self) -> None:
        # Caches of this process, which are not pickled (see __getstate__).
        self._lock = threading.Lock()
        self._sampling = functools.lru_cache(SAMPLINGS)(self._sample)

    def __getstate__(self) -> dict[str, Any]:
        left = ("_lock", "_sampling", "_index", "_media_of")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return int(self._counted.first[-1])

    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return clip `number`, with the frames that are drawn for it in `epoch`.

        Raises:
            IndexError: No clip has this number.
            FormatError: The index was changed after it was opened.
            StaleError: Packet headers had to be read from the source, but the source has changed since it was indexed.
            PolicyError: Packet headers had to be read from the source, and they show that the clip cannot be made.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        unit = int(np.searchsorted(self._counted.first, number, side="right")) - 1
        with self._lock:  # pyarrow's readers must not be used by several threads at once
            first = self._clips(unit)[number - int(self._counted.first[unit])]
            if epoch and self._policy.is_random and (drawn := self._drawn(unit, epoch, first)) is not None:
                return drawn
            medium, wanted = self._medium_of(first), _own(first)
            try:
                return medium.clip(wanted)
            except (PolicyError, StaleError) as error:
                raise error.inside(f"clip {wanted.clip_id} of {medium.medium.name}") from error

    def _clips(self, unit: int) -> list[UnitClip]:
        """Return the clips of a unit in epoch 0, without the clips that cannot be planned."""
        clips, planned = self._sampling(unit, 0).clips, self._counted.planned.get(unit)
        return clips if planned is None else [clips[place] for place in planned.tolist()]

    def _drawn(self, unit: int, epoch: int, first: UnitClip) -> Clip | None:
        """Return a clip with the frames that are drawn for it in an epoch, if these frames are available.

        Args:
            unit: The number of the clip's unit.
            epoch: The epoch, from 1 on.
            first: The clip in epoch 0.

        Returns:
            The clip. None if its frames are not available, or if the frames of another view of the same clip of several
                views are not available.
        """
        before = _numbered(self._sampling(unit, 0), first.sampled.number)
        drawn = _numbered(self._sampling(unit, epoch), first.sampled.number)
        if [clip.mention.number for clip in drawn] != [clip.mention.number for clip in before]:
            return None
        with contextlib.suppress(PolicyError):
            planned = {clip.mention.number: self._medium_of(clip).clip(_own(clip)) for clip in drawn}
            return planned[first.mention.number]
        return None

    def locate(self, uri: str) -> str:
        """Return the path or uri of a source. Raises StorageError if the source is in a store that may not be read."""
        return self._index.locate(uri)

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types of the columns that clips have from the listing and the split, by name."""
        return {field.name: field.type for field in self._units.table.columns.schema if field.name not in KEPT_NAMES}

    def _user_column(self, name: str) -> pa.ChunkedArray:
        return self._units.table.columns[name].take(pa.array(self._rows()))

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column for numbering them as labels.

        For a column of the listing, these are the values of all rows that the policy's filter accepts, including rows
        that give no clips.

        Raises:
            FramedexError: The clips do not have this column.
        """
        return self._units.table.columns[name] if name in self.columns else self.column(name)

    def _clip_field(self, name: str) -> pa.ChunkedArray:
        if name == "wanted_frames":
            return self.frame_counts()
        with self._lock:
            clips = self._sampled()
            if name in FRAME_FIELDS:
                seconds = pa.array([self._seconds(clip) for clip in clips], pa.list_(pa.float64()))
                return frame_field(name, pa.chunked_array([seconds]))
            texts: list[str | None] = [
                wanted_clip(clip).clip_id if name == "clip_id" else getattr(clip.multiview, name, None)
                for clip in clips
            ]
        return pa.chunked_array([pa.array(texts, pa.string())])

    def _seconds(self, clip: UnitClip) -> NDArray[np.float64]:
        """Return float64 [F]: the time of each frame of a clip in seconds, NaN for padding by a constant."""
        medium, frames = self._medium_of(clip), clip.sampled.frames
        tick = medium.timeline.time_base
        return np.where(frames == PAD, np.nan, medium.planner.pts[frames] * tick.numerator / tick.denominator)

    def _sampled(self) -> Iterator[UnitClip]:
        """Yield all clips of epoch 0, sampled but not planned. This reads the packets of all media."""
        for unit in np.flatnonzero(np.diff(self._counted.first)).tolist():
            yield from self._clips(unit)

    def _media(self, names: Sequence[str]) -> pa.Table:
        with self._lock:
            media = self._index.columns(["status", *names])
        return media.filter(pc.equal(media["status"], OK))

    def frame_counts(self) -> pa.ChunkedArray:
        """Return the number of frames of each clip in epoch 0, padding included.

        If clips of the policy can have different numbers of frames, the packets of all media are read.
        """
        policy = self._policy
        if policy.length is None or policy.last == "partial" or policy.views is not None:
            with self._lock:
                return pa.chunked_array([pa.array([len(clip.sampled.frames) for clip in self._sampled()], pa.int32())])
        return pa.chunked_array([np.full(len(self), policy.length, np.int32)])

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of each clip's medium among the usable media of the index."""
        return self._units.table.media_row[self._rows()]

    def _rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the row of each clip's mention (row of the listing) in the table of mentions."""
        if self._counted.mention is not None:
            return self._counted.mention
        return np.repeat(np.arange(len(self._units)), np.diff(self._counted.first))

    def views(self) -> ViewsOfClips | None:
        """Return the assignment of clips to clips of several views. None if the policy has no scenes."""
        return self._counted.views

    def failures(self) -> Iterator[Failure]:
        """Yield a failure for each clip that the policy wants but that cannot be made, as in `failures.parquet`.

        The failures are not stored, so the affected media are sampled and planned again. Some problems show only when
        a source is read. They are included only for media whose clips were planned when the clips were counted.
        """
        for unit in self._counted.incomplete.tolist():
            with self._lock:
                sampling = self._sampling(unit, 0)
                if unit in self._counted.planned:
                    outcomes = [plan_clip(self._medium_of(clip), _own(clip)) for clip in sampling.clips]
                    yield from [outcome for outcome in outcomes if isinstance(outcome, Failure)]
                for mention, missed in sampling.missed:
                    yield missed_clip(self._media_of.of(mention.media_id).medium.name, mention, missed)

    @functools.cached_property
    def _index(self) -> Index:
        index = Index(self.path, access=self._options.access)
        if index.state() != self._state:
            raise FormatError("the index was changed since it was opened", where=str(self.path), remedy="open it again")
        return index

    @functools.cached_property
    def _media_of(self) -> OpenMedia:
        return OpenMedia(self._index, self._options)

    def _medium_of(self, clip: UnitClip) -> IndexedMedium:
        return self._media_of.of(clip.mention.media_id)

    def _sample(self, unit: int, epoch: int) -> UnitSampling:
        [found] = self._units.some([unit])
        return found.sample(self._policy, self._media_of.timeline, epoch)


def _own(clip: UnitClip) -> WantedClip:
    """Convert a sampled clip to a wanted clip. Arrays and columns are copied, so that callers may modify them."""
    wanted = wanted_clip(clip)
    return replace(wanted, frames=wanted.frames.copy(), mask=wanted.mask.copy(), columns=copy.deepcopy(wanted.columns))


def _numbered(sampling: UnitSampling, number: int) -> list[UnitClip]:
    """Return the clips with the given number: none, one, or the views of one clip of several views."""
    first = bisect.bisect_left(sampling.clips, number, key=lambda clip: clip.sampled.number)
    return list(itertools.takewhile(lambda clip: clip.sampled.number == number, sampling.clips[first:]))
