"""The clips of an index by a policy, by number. Each is planned when it is requested; no dataset is written to disk.

Opening counts clips and samples none. For most policies, a medium's duration and number of frames determine its number
of clips. Media that need more than that (damage, audio, a policy that looks at timestamps) are planned at that point.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FormatError, PolicyError, StaleError
from framedex.indexer.parts.index import Index
from framedex.records.clip import PAD
from framedex.records.medium import OK
from framedex.sharder.clips.audio import AudioOptions
from framedex.sharder.clips.clip import Clip, Failure, WantedClip
from framedex.sharder.clips.fields import (
    CLIP_FIELDS,
    FIELD_NAMES,
    FRAME_FIELDS,
    frame_field,
    media_columns_of,
    media_field,
    no_such_column,
)
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.sharder.clips.shapes import SIZE_FIELDS, shapes_of
from framedex.sharder.planning.batches import missed_clip, plan_clip, wanted_clip
from framedex.sharder.planning.counting import FACTS, OPEN_MEDIA, Counting, Opening, joined, views_of_clips
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.units import RowUnits, SceneUnits, UnitClip, Units, UnitSampling
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.schema import CLIPS
from framedex.sharder.selection.left_out import left_out, no_clips
from framedex.sharder.selection.listing_ranges import check_ranges
from framedex.sharder.selection.mentions import KEPT_NAMES, all_mentions, user_columns
from framedex.sharder.selection.scenes import listed_scenes
from framedex.storage.locations import OWN_STORE, Access
from framedex.storage.places import Stored, place

Row = dict[str, Any]

SAMPLINGS = 64  # number of samplings that are kept, each of a mention in an epoch


class ClipPlans:
    """The clips of an index by a policy: the same, in the same order, as `framedex shard INDEX --policy …` writes.

    Random draws differ in each epoch. Epoch 0 has the draws of `framedex shard` and determines which clips there are.
    If a clip's draw in a later epoch is not possible (too far from a frame, in a damaged GOP), the clip keeps its draw
    of epoch 0.

    Instances are picklable; cached data is not pickled.

    Args:
        access: Which sources may be read.
        keep_damaged: Plan frames of damaged GOPs, too.
        audio: The clips' audio; None for no audio.

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
        self._access = access
        opened = Index(self.path, access=access)
        opened.check_locations()
        self._state = opened.state()
        self.ffmpeg = opened.ffmpeg
        self._policy = file.policy
        self._making = Opening(keep_damaged=keep_damaged, audio=audio)
        user_columns(opened, file.split)  # raises for columns that clash
        check_ranges(opened, file)
        left_out(opened, file)  # raises for a filter that leaves out all media
        views = file.policy.views
        count = Counting(opened, file.policy, self._making)
        if views is None:
            table = all_mentions(opened, file.filter, file.split, FACTS)
            self._units: Units = RowUnits(file.policy, table.without_facts())
            self._views: ViewsOfClips | None = None
            counted = count.rows(table)
        else:
            listed = listed_scenes(opened, file, views, FACTS)
            table = listed.table
            units = self._units = SceneUnits(file.policy, listed)
            counted = [count.unit(units, unit, table) for unit in range(len(units))]
            self._views = views_of_clips(counted, units.names, views.missing)
        self._table = table.without_facts()
        self._first = np.cumsum([0, *(one.clips for one in counted)], dtype=np.int64)
        self._incomplete = np.flatnonzero([one.left_out for one in counted])
        self._planned = {unit: one.planned for unit, one in enumerate(counted) if one.planned is not None}
        self._mention = None if views is None else joined([one.mentions for one in counted])
        self._begin()
        if not len(self):
            raise no_clips(opened, self.failures())

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
        unit = int(np.searchsorted(self._first, number, side="right")) - 1
        place = number - int(self._first[unit])
        planned = self._planned.get(unit)
        if planned is not None:
            place = int(planned[place])
        with self._lock:  # pyarrow's readers must not be shared by several threads at once
            first = self._sampling(unit, 0).clips[place]
            if epoch and self._policy.is_random:
                drawn = self._drawn(unit, epoch, first)
                if drawn is not None:
                    return drawn
            return self._plan(self._medium_of(first), self._wanted(first))

    def _drawn(self, unit: int, epoch: int, first: UnitClip) -> Clip | None:
        """Return a clip as drawn in an epoch.

        Returns:
            The clip, or None if that draw is not possible, for it or for another view that belongs to it.
        """
        before = _numbered(self._sampling(unit, 0), first.sampled.number)
        drawn = _numbered(self._sampling(unit, epoch), first.sampled.number)
        if [clip.mention for clip in drawn] != [clip.mention for clip in before]:
            return None
        with contextlib.suppress(PolicyError):
            planned = {clip.mention: self._medium_of(clip).clip(self._wanted(clip)) for clip in drawn}
            return planned[first.mention]
        return None

    def locate(self, uri: str) -> str:
        """Return where a source lies. Raises StorageError if it must not be read."""
        return self._index.locate(uri)

    @property
    def columns(self) -> list[str]:
        """The columns of the listing and the split, which every clip has."""
        return [name for name in self._table.columns.column_names if name not in KEPT_NAMES]

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types of the user's columns."""
        return {name: self._table.columns.schema.field(name).type for name in self.columns}

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the user's, or a field of `sharder.clips.fields`, of all clips in epoch 0.

        Plans no clip. For CLIP_FIELDS and FRAME_FIELDS, all clips are sampled, which reads the packets of all media.

        Raises:
            FramedexError: The clips have no such column.
            FormatError: The index was changed in the meantime.
        """
        if name in self.columns:
            return self._table.columns[name].take(pa.array(self._mentions()))
        if name not in FIELD_NAMES:
            raise no_such_column(name, self.columns, self.path)
        if name in CLIP_FIELDS or name in FRAME_FIELDS:
            with self._lock:
                return self._sampled_column(name)
        with self._lock:
            media = self._index.columns(["status", *media_columns_of(name)])
        usable = media.filter(pc.equal(media["status"], OK))
        return media_field(name, usable).take(pa.array(self.media_rows()))

    def _sampled_column(self, name: str) -> pa.ChunkedArray:
        """Return a field of all clips that only sampling them shows."""
        clips = list(self._sampled())
        if name == "clip_id":
            return pa.chunked_array([pa.array([self._wanted(clip).clip_id for clip in clips], pa.string())])
        if name in FRAME_FIELDS:
            column = FRAME_FIELDS[name]
            lists = [clip.sampled.frames if column == "frames" else self._seconds(clip) for clip in clips]
            kind = CLIPS.field(column).type
            return frame_field(name, pa.chunked_array([pa.array(lists, kind, from_pandas=True)]))
        values = [None if clip.multiview is None else getattr(clip.multiview, name) for clip in clips]
        return pa.chunked_array([pa.array(values, pa.string())])

    def _seconds(self, clip: UnitClip) -> NDArray[np.float64]:
        """Return float64 [F]: the times of a clip's frames, NaN for padding by a constant."""
        medium, frames = self._medium_of(clip), clip.sampled.frames
        tick = medium.timeline.time_base
        return np.where(frames == PAD, np.nan, medium.planner.pts[frames] * tick.numerator / tick.denominator)

    def _sampled(self) -> Iterator[UnitClip]:
        """Yield the clips of epoch 0 before they are planned. This reads the packets of all media."""
        for unit in range(len(self._units)):
            if self._first[unit] < self._first[unit + 1]:
                clips = self._sampling(unit, 0).clips
                planned = self._planned.get(unit)
                yield from clips if planned is None else [clips[place] for place in planned.tolist()]

    def shapes(self, *, upright: bool) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames (padding included), height and width, as stored or as turned upright.

        They are those of epoch 0. If the policy's clips differ in their number of frames, all media are sampled, which
        reads their packets.

        Raises:
            FormatError: The index was changed in the meantime.
        """
        with self._lock:
            media = self._index.columns(["status", *SIZE_FIELDS])
            usable, rows = media.filter(pc.equal(media["status"], OK)), pa.array(self.media_rows())
            frames = pa.chunked_array([self._frame_counts()])
            return shapes_of(frames, *(usable[name].take(rows) for name in SIZE_FIELDS), upright=upright)

    def _frame_counts(self) -> NDArray[np.int64]:
        """Return int64 [clips]: how many frames each clip has in epoch 0."""
        policy = self._policy
        if policy.length is not None and policy.last != "partial" and policy.views is None:
            return np.full(len(self), policy.length, np.int64)
        return np.array([len(clip.sampled.frames) for clip in self._sampled()], np.int64)

    @property
    def labels(self) -> None:
        """No labels: an index records none."""
        return None

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column that are numbered: those of all rows that the policy samples.

        Raises:
            FramedexError: The clips have no such column.
        """
        return self._table.columns[name] if name in self.columns else self.column(name)

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of every clip's medium."""
        return self._table.media_row[self._mentions()]

    def _mentions(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the mention of every clip."""
        if self._mention is not None:
            return self._mention
        return np.repeat(np.arange(len(self._table)), np.diff(self._first))

    def views(self) -> ViewsOfClips | None:
        """Return which clips are views of one clip of several views; None if each clip stands alone."""
        return self._views

    def failures(self) -> Iterator[Failure]:
        """Yield why clips that the policy wants are missing, as in `failures.parquet` of a dataset.

        The reasons are determined again, medium by medium. Problems that only reading a source can show are not
        included, unless its medium had to be planned when this was opened.
        """
        for unit in self._incomplete.tolist():
            with self._lock:
                sampling = self._sampling(unit, 0)
                if unit in self._planned:
                    outcomes = [plan_clip(self._medium_of(clip), self._wanted(clip)) for clip in sampling.clips]
                    yield from [outcome for outcome in outcomes if isinstance(outcome, Failure)]
                for mention, missed in sampling.missed:
                    uri = self._medium(self._table.identity(mention)).medium.name
                    [row] = self._table.mentions([mention])
                    yield missed_clip(uri, row, missed)

    @functools.cached_property
    def _index(self) -> Index:
        index = Index(self.path, access=self._access)
        if index.state() != self._state:
            raise FormatError("the index was changed since it was opened", where=str(self.path), remedy="open it again")
        return index

    def _open_medium(self, media_id: str) -> IndexedMedium:
        return self._making.medium(self._index, self._index.video(media_id))

    def _medium_of(self, clip: UnitClip) -> IndexedMedium:
        return self._medium(self._table.identity(clip.mention))

    def _sample(self, unit: int, epoch: int) -> UnitSampling:
        return self._units.sample(unit, lambda media_id: self._medium(media_id).timeline, epoch)

    def _wanted(self, clip: UnitClip) -> WantedClip:
        sampled = clip.sampled
        own = replace(sampled, frames=sampled.frames.copy(), mask=sampled.mask.copy())  # callers may write to them
        mention = clip.mention
        return wanted_clip(self._table.name(mention), own, self._table.row(mention), clip.multiview)

    @staticmethod
    def _plan(medium: IndexedMedium, wanted: WantedClip) -> Clip:
        try:
            return medium.clip(wanted)
        except (PolicyError, StaleError) as error:
            where = f"clip {wanted.clip_id} of {medium.medium.name}" + (f": {error.where}" if error.where else "")
            raise type(error)(
                error.what, where=where, found=error.found, allowed=error.allowed, remedy=error.remedy
            ) from error


def _numbered(sampling: UnitSampling, number: int) -> list[UnitClip]:
    """Return the clips with that number: one, or several views, or none."""
    first = bisect.bisect_left(sampling.clips, number, key=lambda clip: clip.sampled.number)
    same = itertools.takewhile(lambda clip: clip.sampled.number == number, sampling.clips[first:])
    return list(same)
