"""Counts the clips of a policy without planning them, where that is possible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.sharder.configuration.parameters import located
from framedex.sharder.planning.indexed_medium import OpenMedia
from framedex.sharder.planning.steps import plan_clip, wanted_clip
from framedex.sharder.planning.units import UnitClip, Units
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Timeline

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


def count_clips(units: Units, policy: Terms, media: OpenMedia, *, audio: bool) -> CountedClips:
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


def _count_by_length(facts: pa.Table, policy: Terms) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
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
    for place, clip in enumerate(clips):
        if sound[clip.mention.number] or broken[clip.mention.number]:
            doubtful.setdefault(clip.mention.number, []).append(place)
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
