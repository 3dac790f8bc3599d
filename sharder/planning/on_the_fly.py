"""The clips of an index by a policy, by number. Each is planned when it is requested; no dataset is written to disk.

Opening counts clips and samples none. For most policies, a medium's duration and number of frames determine its number
of clips. Media that need more than that (damage, audio, a policy that looks at timestamps) are planned at that point.

Counts the clips of a policy without planning them, where that is possible.
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
from framedex.sharder.clips.clip_source import FRAME_FIELDS, ClipSource
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
    """The clips of all units in epoch 0.

    Attributes:
        first: int64 [units + 1], the number of each unit's first clip, and behind them the number of all clips.
        incomplete: int64, the units of which the policy wants more clips.
        planned: For units of which not all clips can be planned: int64, the places of those that can, among the sampled
            ones.
        mention: For scenes: int64 [clips], the row of each clip.
        views: For scenes: which clips belong together.
    """

    first: NDArray[np.int64]
    incomplete: NDArray[np.int64]
    planned: dict[int, NDArray[np.int64]]
    mention: NDArray[np.int64] | None = None
    views: ViewsOfClips | None = None


def count_clips(units: Units, policy: Policy, media: OpenMedia, *, audio: bool) -> CountedClips:
    """Count the clips of all units.

    Only planning shows which clips a medium has if GOPs are damaged, if its packets are not byte ranges of a file, or
    if clips carry audio and it has some. Of other media, the number of clips may depend on their lengths alone.

    Args:
        units: With the columns FACTS of `videos`.
        audio: Whether clips carry audio.

    Raises:
        PolicyError: The policy forbids a medium.
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
    rows = [np.zeros((0, 4), np.int64)]  # of each clip of a scene: unit, number, row, view
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
    """Return int64 [rows] and bool [rows]: the number of clips by a video's length, and whether more are wanted."""
    lengths = np.stack([facts[name].to_numpy() for name in LENGTHS], axis=1)
    different, first, place = np.unique(lengths, axis=0, return_index=True, return_inverse=True)
    clips, more = np.zeros(len(different), np.int64), np.zeros(len(different), np.bool_)
    for row in np.argsort(first).tolist():  # an error is about the first of the media that have it
        frames, duration_pts, *time_base = different[row].tolist()
        pts = np.broadcast_to(np.int64(0), frames)  # timestamps do not matter here
        try:
            sampling = policy.sample(Timeline(pts=pts, duration_pts=duration_pts, time_base=Fraction(*time_base)), {})
        except PolicyError as error:
            raise located(error, facts["uri"][int(first[row])].as_py()) from error
        clips[row], more[row] = len(sampling.clips), bool(sampling.missed)
    return clips[place.reshape(-1)], more[place.reshape(-1)]


def _plannable(
    clips: list[UnitClip], media: OpenMedia, sound: NDArray[np.bool_], broken: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the places of the clips that can be planned. `sound`, `broken`: bool [rows], what is to be doubted."""
    doubtful: dict[int, list[int]] = {}
    for position, clip in enumerate(clips):
        if sound[clip.mention.number] or broken[clip.mention.number]:
            doubtful.setdefault(clip.mention.number, []).append(position)
    impossible: set[int] = set()
    for row, places in doubtful.items():
        medium = media.of(clips[places[0]].mention.media_id)
        wanted = [wanted_clip(clips[place]) for place in places]
        if not broken[row] and isinstance(plan_clip(medium, wanted[0]), Clip):
            continue  # the audio of a medium is available for all clips or for none
        medium.prepare(wanted)
        impossible |= {
            place for place, clip in zip(places, wanted, strict=True) if not isinstance(plan_clip(medium, clip), Clip)
        }
    return np.array([place for place in range(len(clips)) if place not in impossible], np.int64)


SAMPLINGS = 64  # number of samplings that are kept, each of a unit in an epoch


class ClipPlans(ClipSource):
    """The clips of an index by a policy: the same, in the same order, as `framedex shard INDEX --policy …` writes.

    Random draws differ in each epoch. Epoch 0 has the draws of `framedex shard` and determines which clips there are.
    If a clip's draw in a later epoch is not possible (too far from a frame, in a damaged GOP), the clip keeps its draw
    of epoch 0.

    Instances are picklable; cached data is not pickled.

    For arguments, see PlanningOptions.

    Raises:
        FormatError: The index is not valid.
        StorageError: Sources must not be read.
        PolicyError: The policy does not fit the index.
        NoClipsError: The policy gives no clip.
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
        user_columns(opened, file.policy.split)  # raises for columns that clash
        units = units_of(opened, file, FACTS)
        media = OpenMedia(opened, self._options)
        self._counted = count_clips(units, file.policy, media, audio=audio is not None)
        self._units = replace(units, table=replace(units.table, facts=units.table.facts.select([])))
        self._begin()
        if not len(self):
            raise no_clips(opened, self.failures())

    def _begin(self) -> None:
        # Caches of this process alone; see __getstate__.
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
        """Return clip `number` as drawn in an epoch.

        Raises:
            IndexError: There is no such clip.
            FormatError: The index was changed in the meantime.
            StaleError: The source has to be read and is not what was indexed.
            PolicyError: Reading the source shows that the clip is impossible.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        unit = int(np.searchsorted(self._counted.first, number, side="right")) - 1
        with self._lock:  # pyarrow's readers must not be shared by several threads at once
            first = self._clips(unit)[number - int(self._counted.first[unit])]
            if epoch and self._policy.is_random:
                drawn = self._drawn(unit, epoch, first)
                if drawn is not None:
                    return drawn
            medium, wanted = self._medium_of(first), _own(first)
            try:
                return medium.clip(wanted)
            except (PolicyError, StaleError) as error:
                where = f"clip {wanted.clip_id} of {medium.medium.name}" + (f": {error.where}" if error.where else "")
                raise type(error)(
                    error.what, where=where, found=error.found, allowed=error.allowed, remedy=error.remedy
                ) from error

    def _clips(self, unit: int) -> list[UnitClip]:
        """Return the clips of a unit in epoch 0 that can be planned."""
        clips, planned = self._sampling(unit, 0).clips, self._counted.planned.get(unit)
        return clips if planned is None else [clips[place] for place in planned.tolist()]

    def _drawn(self, unit: int, epoch: int, first: UnitClip) -> Clip | None:
        """Return a clip as drawn in an epoch.

        Returns:
            The clip, or None if that draw is not possible, for it or for another view that belongs to it.
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
        """Return where a source lies. Raises StorageError if it must not be read."""
        return self._index.locate(uri)

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types of the columns of the listing and the split, which every clip has."""
        return {field.name: field.type for field in self._units.table.columns.schema if field.name not in KEPT_NAMES}

    def _user_column(self, name: str) -> pa.ChunkedArray:
        return self._units.table.columns[name].take(pa.array(self._rows()))

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column that are numbered: those of all rows that the policy samples.

        Raises:
            FramedexError: The clips have no such column.
        """
        return self._units.table.columns[name] if name in self.columns else self.column(name)

    def _clip_field(self, name: str) -> pa.ChunkedArray:
        if name == "wanted_frames":
            return self.frame_counts()
        with self._lock:
            clips = self._sampled()
            if name in FRAME_FIELDS:
                nearest = np.fmin if name == "begin_seconds" else np.fmax
                seconds = [nearest.reduce(self._seconds(clip), initial=np.nan) for clip in clips]
                return pa.chunked_array([pa.array(seconds, pa.float64(), from_pandas=True)])
            texts: list[str | None] = [
                wanted_clip(clip).clip_id if name == "clip_id" else getattr(clip.multiview, name, None)
                for clip in clips
            ]
        return pa.chunked_array([pa.array(texts, pa.string())])

    def _seconds(self, clip: UnitClip) -> NDArray[np.float64]:
        """Return float64 [F]: the times of a clip's frames, NaN for padding by a constant."""
        medium, frames = self._medium_of(clip), clip.sampled.frames
        tick = medium.timeline.time_base
        return np.where(frames == PAD, np.nan, medium.planner.pts[frames] * tick.numerator / tick.denominator)

    def _sampled(self) -> Iterator[UnitClip]:
        """Yield the clips of epoch 0 before they are planned. This reads the packets of all media."""
        for unit in np.flatnonzero(np.diff(self._counted.first)).tolist():
            yield from self._clips(unit)

    def _media(self, names: Sequence[str]) -> pa.Table:
        with self._lock:
            media = self._index.columns(["status", *names])
        return media.filter(pc.equal(media["status"], OK))

    def frame_counts(self) -> pa.ChunkedArray:
        """Return how many frames each clip has in epoch 0, padding included.

        If the policy's clips differ in their number of frames, all media are sampled, which reads their packets.
        """
        policy = self._policy
        if policy.length is None or policy.last == "partial" or policy.views is not None:
            with self._lock:
                return pa.chunked_array([pa.array([len(clip.sampled.frames) for clip in self._sampled()], pa.int32())])
        return pa.chunked_array([np.full(len(self), policy.length, np.int32)])

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of every clip's medium."""
        return self._units.table.media_row[self._rows()]

    def _rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the row of the listing of every clip."""
        if self._counted.mention is not None:
            return self._counted.mention
        return np.repeat(np.arange(len(self._units)), np.diff(self._counted.first))

    def views(self) -> ViewsOfClips | None:
        """Return which clips are views of one clip of several views; None if each clip stands alone."""
        return self._counted.views

    def failures(self) -> Iterator[Failure]:
        """Yield why clips that the policy wants are missing, as in `failures.parquet` of a dataset.

        The reasons are determined again, medium by medium. Problems that only reading a source can show are not
        included, unless its medium had to be planned when this was opened.
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
    """Return a clip as it is planned, with arrays and columns of its own: callers may write to them."""
    wanted = wanted_clip(clip)
    return replace(wanted, frames=wanted.frames.copy(), mask=wanted.mask.copy(), columns=copy.deepcopy(wanted.columns))


def _numbered(sampling: UnitSampling, number: int) -> list[UnitClip]:
    """Return the clips with that number: one, or several views, or none."""
    first = bisect.bisect_left(sampling.clips, number, key=lambda clip: clip.sampled.number)
    same = itertools.takewhile(lambda clip: clip.sampled.number == number, sampling.clips[first:])
    return list(same)
