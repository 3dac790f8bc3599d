"""A plan in pieces: what a policy wants of a medium or a scene, or some explicit clips. Any process can plan one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import WantedClip
from framedex.sharder.planning.indexed_medium import IndexedMedium, OpenMedia
from framedex.sharder.planning.steps import PlanItem, ReadGroup, missed_clip, wanted_clip
from framedex.sharder.planning.units import Unit, Units
from framedex.sharder.policies.policy import Terms
from framedex.sharder.policies.sampling import Choose
from framedex.sharder.selection.explicit_clips import ExplicitClip, ExplicitClips, Outside, UriResolver, frames_of

REQUESTS_AT_ONCE = 256
PIECE_FACTS = ("frame_count", "uri", "member")


class Piece(Protocol):
    """A piece of a plan. It can be pickled."""

    @property
    def weight(self) -> int:
        """About the most clips that it may have."""
        ...

    def items(self, media: OpenMedia) -> ReadGroup:
        """Return the wanted clips, and why others cannot be made. Raises PolicyError."""
        ...

    def alone(self) -> list[Piece]:
        """Return it in the smallest pieces, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPiece:
    """What a policy wants of all rows about one medium, or of one scene.

    Attributes:
        number: Its place in the plan, from 1 on.
        weight: About the most clips that it may have.
    """

    policy: Terms
    units: list[Unit]
    number: int
    weight: int

    def items(self, media: OpenMedia) -> ReadGroup:
        several = self.units[0].scene is not None  # scenes may share media
        open_medium = media.of if several else functools.lru_cache(1)(media.open)
        found: ReadGroup = []
        for unit in self.units:
            sampling = unit.sample(self.policy, lambda media_id: open_medium(media_id).timeline)
            for clip in sampling.clips:
                medium = open_medium(clip.mention.media_id)
                found.append(PlanItem(medium=medium, wanted=wanted_clip(clip), done=self.number))
            for mention, missed in sampling.missed:
                uri = unit.stray_uri or open_medium(mention.media_id).medium.name
                found.append(PlanItem(medium=None, wanted=missed_clip(uri, mention, missed), done=self.number))
        return found

    def alone(self) -> list[Piece]:
        return [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitPiece:
    """Some explicit clips.

    Attributes:
        requests: Each with the media_id of the medium that it means; None if the index has none.
        choose: Which frame a time means.
        outside: What happens to places outside of a video, unless a clip says so itself.
        number: The place of the first one in the plan, from 1 on.
    """

    requests: list[tuple[str | None, ExplicitClip]]
    choose: Choose
    outside: Outside
    number: int

    @property
    def weight(self) -> int:
        return len(self.requests)

    def items(self, media: OpenMedia) -> ReadGroup:
        found = [self._find(identity, request, media) for identity, request in self.requests]
        return [
            PlanItem(medium=medium, wanted=item, done=done) for done, (medium, item) in enumerate(found, self.number)
        ]

    def _find(
        self, identity: str | None, request: ExplicitClip, media: OpenMedia
    ) -> tuple[IndexedMedium | None, WantedClip | Failure]:
        """Return the medium that a request means, and the frames that it wants, or why they are not available."""
        line = f"line {request.line}"
        medium: IndexedMedium | None = None
        try:
            if identity is None:
                stream = {} if request.stream is None else {"found": f"stream {request.stream}"}
                remedy = "index it first; a medium inside a tar or a Parquet file is called uri/member"
                raise PolicyError("the index has no such medium", **stream, remedy=remedy)
            medium = media.of(identity)
            frames, mask = frames_of(request, medium.timeline, self.choose, self.outside)
        except PolicyError as error:
            return medium, Failure(clip_id=request.clip_id, uri=request.uri, kind="request", message=f"{line}: {error}")
        return medium, WantedClip(
            clip_id=request.clip_id, frames=frames, mask=mask, columns=request.columns, asked_in=line
        )

    def alone(self) -> list[Piece]:
        return [
            replace(self, requests=[request], number=number)
            for number, request in enumerate(self.requests, self.number)
        ]


def policy_pieces(units: Units, policy: Terms) -> Iterator[Piece]:
    """Yield what a policy wants, medium by medium or scene by scene.

    Args:
        units: With the columns PIECE_FACTS of `videos`.
    """
    table = units.table
    frames = table.facts["frame_count"].to_numpy()
    if units.scenes is not None:
        frames = frames // np.maximum(np.bincount(table.media_row)[table.media_row], 1)  # rows share a medium's frames

    def together(unit: Unit) -> object:
        return min(unit.mentions) if units.scenes is not None else table.media_row[min(unit.mentions)]

    for number, (_, some) in enumerate(itertools.groupby(units, together), 1):
        of_piece = list(some)
        weight = sum(int(frames[row]) for unit in of_piece if unit.stray is None for row in unit.mentions)
        yield PolicyPiece(policy=policy, units=of_piece, number=number, weight=max(1, weight))


def explicit_pieces(index: Index, requests: ExplicitClips, choose: Choose, outside: Outside) -> Iterator[Piece]:
    """Yield what explicit clips want, in the order requested."""
    resolver, left, number = UriResolver(index), iter(requests), 1
    while chunk := list(itertools.islice(left, REQUESTS_AT_ONCE)):
        found = [(resolver.media_id(request.uri, request.stream), request) for request in chunk]
        yield ExplicitPiece(requests=found, choose=choose, outside=outside, number=number)
        number += len(chunk)
