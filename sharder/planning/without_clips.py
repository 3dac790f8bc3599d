"""Finds the media of an index in which a policy finds no clip."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from framedex.indexer.parts.index import Index
from framedex.sharder.planning.counting import OPEN_MEDIA
from framedex.sharder.planning.indexed_medium import timeline
from framedex.sharder.planning.units import SceneUnits, TimelineOf
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.selection.listing_ranges import check_ranges
from framedex.sharder.selection.mentions import MentionTable, usable_media
from framedex.sharder.selection.scenes import listed_scenes

Row = dict[str, Any]
NOTHING = "the policy asks for no clip of it"


def timelines(index: Index) -> TimelineOf:
    """Return a function that returns the timeline of a medium by its media_id."""
    return functools.lru_cache(OPEN_MEDIA)(functools.partial(timeline, index))


def media_without_clips(index: Index, file: PolicyFile) -> Iterator[tuple[Row, str]]:
    """Yield each usable medium in which a policy finds no clip: its row of `videos`, and why. Raises PolicyError."""
    check_ranges(index, file)
    if file.policy.views is not None:
        listed = listed_scenes(index, file, file.policy.views)
        yield from _without_views(index, SceneUnits(file.policy, listed), listed.table)
        return
    for mentioned in usable_media(index, file.filter, file.split):
        times = timeline(index, mentioned.video["media_id"])
        samplings = [file.policy.sample(times, mention.columns) for mention in mentioned.mentions]
        if not any(sampling.clips for sampling in samplings):
            reasons = [missed.message for sampling in samplings for missed in sampling.missed]
            yield mentioned.video, reasons[0] if reasons else NOTHING


def _without_views(index: Index, units: SceneUnits, table: MentionTable) -> Iterator[tuple[Row, str]]:
    """Yield each medium that is a view of no clip of several views."""
    timeline_of = timelines(index)
    reasons: dict[str, str | None] = {}  # by media_id, in the order of the index; None if there is a clip
    for unit in range(len(units)):
        sampling = units.sample(unit, timeline_of)
        said = [missed.message for _, missed in sampling.missed]
        having = {clip.mention for clip in sampling.clips}
        for mention in units.mentions(unit):
            identity = table.identity(mention)
            if mention in having:
                reasons[identity] = None
            else:
                own = [missed.message for about, missed in sampling.missed if about == mention]
                reasons.setdefault(identity, next(iter([*own, *said]), NOTHING))
    for identity, reason in reasons.items():
        if reason is not None:
            yield index.video(identity), reason
