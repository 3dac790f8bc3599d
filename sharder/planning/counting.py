"""Counts the clips of a policy without planning them, where that is possible."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.audio import AudioOptions
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.sharder.configuration.parameters import located
from framedex.sharder.planning.batches import plan_clip, wanted_clip
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.units import UnitClip, Units
from framedex.sharder.sampling.records import Policy, Timeline
from framedex.sharder.schema import Missing
from framedex.sharder.selection.mentions import MentionTable, own_rows

Row = dict[str, Any]

OPEN_MEDIA = 16  # number of media whose packets are kept
COUNTS = 65_536  # number of clip counts that are kept; media of equal length share one
ROWS_AT_ONCE = 1024  # of the listing that are Python objects at a time
NONE = np.zeros(0, np.int64)
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


@dataclass(frozen=True, slots=True)
class Opening:
    """How media are opened for planning."""

    keep_damaged: bool
    audio: AudioOptions | None

    def medium(self, index: Index, video: Row) -> IndexedMedium:
        return IndexedMedium(index, video, keep_damaged=self.keep_damaged, audio=self.audio)


@dataclass(frozen=True, slots=True)
class Counted:
    """The clips of a unit in epoch 0.

    Attributes:
        left_out: Whether the policy wanted more clips.
        planned: int64 [clips], their places among the sampled clips; None for all of them.
        mentions: Of a scene: int64 [clips], the mention of each.
        numbers: Of a scene: int64 [clips], the number of the clip of several views that each belongs to.
        views: Of a scene: the name of the view of each.
    """

    clips: int
    left_out: bool
    planned: NDArray[np.int64] | None = None
    mentions: NDArray[np.int64] = field(default_factory=NONE.copy)
    numbers: NDArray[np.int64] = field(default_factory=NONE.copy)
    views: tuple[str, ...] = ()


class Counting:
    """Counts the clips of units, one after the other."""

    def __init__(self, index: Index, policy: Policy, making: Opening) -> None:
        self._policy, self._making = policy, making
        self._by_length = functools.lru_cache(COUNTS)(self._count_by_length)
        self._medium = functools.lru_cache(OPEN_MEDIA)(lambda media_id: making.medium(index, index.video(media_id)))

    def rows(self, table: MentionTable) -> list[Counted]:
        """Count the clips of each mention. Raises PolicyError."""
        counted = []
        for first in range(0, len(table), ROWS_AT_ONCE):
            some = table.part(first, ROWS_AT_ONCE)
            own = own_rows(some.columns) if self._policy.counts_by_pts else [{}] * len(some)
            for mention, (facts, row) in enumerate(zip(some.facts.to_pylist(), own, strict=True)):
                counted.append(self._row(facts, some.name(mention), row))
        return counted

    def unit(self, units: Units, unit: int, table: MentionTable) -> Counted:
        """Count the clips of a scene. Raises PolicyError."""
        sampling = units.sample(unit, lambda media_id: self._medium(media_id).timeline)
        doubtful = {mention for mention in units.mentions(unit) if self._is_doubtful(table.fact(mention))}
        planned = [
            place
            for place, clip in enumerate(sampling.clips)
            if clip.mention not in doubtful or self._can_be_planned(clip, table)
        ]
        clips = [sampling.clips[place] for place in planned]
        everything = len(clips) == len(sampling.clips)
        return Counted(
            clips=len(clips),
            left_out=bool(sampling.missed) or not everything,
            planned=None if everything else np.array(planned, np.int64),
            mentions=np.array([clip.mention for clip in clips], np.int64),
            numbers=np.array([clip.sampled.number for clip in clips], np.int64),
            views=tuple("" if clip.multiview is None else clip.multiview.view_name for clip in clips),
        )

    def _can_be_planned(self, clip: UnitClip, table: MentionTable) -> bool:
        medium = self._medium(table.identity(clip.mention))
        return isinstance(plan_clip(medium, wanted_clip("", clip.sampled, {}, clip.multiview)), Clip)

    def _row(self, facts: Row, name: str, row: Row) -> Counted:
        try:
            if self._is_doubtful(facts):
                return self._plan_all(facts, name, row)
            if self._policy.counts_by_pts:
                sampling = self._policy.sample(self._medium(facts["media_id"]).timeline, row)
                return Counted(len(sampling.clips), bool(sampling.missed))
            return self._by_length(
                facts["frame_count"], facts["duration_pts"], Fraction(facts["time_base_num"], facts["time_base_den"])
            )
        except PolicyError as error:
            raise located(error, facts["uri"]) from error

    def _is_doubtful(self, facts: Row) -> bool:
        """Return whether only planning shows which clips of a medium there are."""
        return bool(facts["damaged_gop_count"] or not facts["byte_addressable"] or self._has_sound(facts))

    def _has_sound(self, facts: Row) -> bool:
        return self._making.audio is not None and facts["audio_stream_index"] is not None

    def _count_by_length(self, frames: int, duration_pts: int, time_base: Fraction) -> Counted:
        """Count the clips of a video by its length alone; its timestamps do not matter here."""
        pts = np.broadcast_to(np.int64(0), frames)
        sampling = self._policy.sample(Timeline(pts=pts, duration_pts=duration_pts, time_base=time_base), {})
        return Counted(len(sampling.clips), bool(sampling.missed))

    def _plan_all(self, facts: Row, name: str, row: Row) -> Counted:
        """Count the clips that can be planned. If audio is the only doubt, the first clip decides for all."""
        medium = self._medium(facts["media_id"])
        sampling = self._policy.sample(medium.timeline, row)
        wanted = [wanted_clip(name, clip, {}) for clip in sampling.clips]
        sound_alone = not facts["damaged_gop_count"] and facts["byte_addressable"]
        if sound_alone and (not wanted or isinstance(plan_clip(medium, wanted[0]), Clip)):
            return Counted(len(wanted), bool(sampling.missed))
        medium.prepare(wanted)
        planned = np.flatnonzero([isinstance(plan_clip(medium, clip), Clip) for clip in wanted])
        left_out = bool(sampling.missed) or len(planned) < len(wanted)
        return Counted(len(planned), left_out, planned if len(planned) < len(wanted) else None)


def joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the numbers of all parts."""
    return np.concatenate([NONE, *parts])


def views_of_clips(counted: list[Counted], names: list[str], missing: Missing) -> ViewsOfClips:
    """Return which clips belong together.

    Args:
        counted: The clips of each scene.
        names: The views that a clip has.
        missing: What becomes of clips that lack one.
    """
    numbers = joined([one.numbers for one in counted])
    units = np.repeat(np.arange(len(counted)), [one.clips for one in counted])
    begins = np.ones(len(numbers), np.int64)
    begins[1:] = (np.diff(units) != 0) | (np.diff(numbers) != 0)
    place = {name: at for at, name in enumerate(names)}
    view = np.array([place[name] for one in counted for name in one.views], np.int64)
    return ViewsOfClips(names=names, missing=missing, item=np.cumsum(begins) - 1, view=view)
