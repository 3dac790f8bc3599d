"""Search for media of an index from which a policy selects no clip."""

from collections.abc import Iterator
from typing import Any

from framedex.indexer.parts.index import Index
from framedex.sharder.planning.indexed_medium import timelines
from framedex.sharder.planning.units import units_of
from framedex.sharder.policies.reading import PolicyFile

Row = dict[str, Any]
NOTHING = "the policy wants no clip of this medium"


def media_without_clips(index: Index, file: PolicyFile) -> Iterator[tuple[Row, str]]:
    """Yield each usable medium from which a policy selects no clip: its row of `videos`, and the reason.

    Raises PolicyError.
    """
    timeline_of = timelines(index)
    reasons: dict[str, str | None] = {}  # the reason for each media_id; None if the medium has a clip
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
