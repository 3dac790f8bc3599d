"""Finds the media of an index in which a policy finds no clip."""

import functools
from collections.abc import Iterator
from typing import Any

from framedex.indexer.parts.index import Index
from framedex.sharder.planning.indexed_medium import KEPT_OPEN, timeline
from framedex.sharder.planning.units import TimelineOf, units_of
from framedex.sharder.policies.reading import PolicyFile

Row = dict[str, Any]
NOTHING = "the policy asks for no clip of it"


def timelines(index: Index) -> TimelineOf:
    """Return a function that returns the timeline of a medium by its media_id."""
    return functools.lru_cache(KEPT_OPEN)(functools.partial(timeline, index))


def media_without_clips(index: Index, file: PolicyFile) -> Iterator[tuple[Row, str]]:
    """Yield each usable medium in which a policy finds no clip: its row of `videos`, and why. Raises PolicyError."""
    timeline_of = timelines(index)
    reasons: dict[str, str | None] = {}  # by media_id; None if there is a clip
    for unit in units_of(index, file, may_be_empty=True):
        sampling = unit.sample(file.policy, timeline_of)
        having = {clip.mention.number for clip in sampling.clips}
        rows = unit.mentions if unit.scene is None else unit.scene.mentions
        for mention in (unit.mentions[row] for row in rows):
            if mention.number in having:
                reasons[mention.media_id] = None
            elif reasons.get(mention.media_id, NOTHING) == NOTHING:
                own = [missed.message for about, missed in sampling.missed if about.number == mention.number]
                others = [missed.message for _, missed in sampling.missed]
                reasons[mention.media_id] = next(iter([*own, *others]), NOTHING)
    for identity, reason in reasons.items():
        if reason is not None:
            yield index.video(identity), reason
