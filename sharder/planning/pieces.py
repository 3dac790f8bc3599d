"""A plan in pieces: what a policy wants of a medium, or some explicit clips. Each can be planned in another process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.records.medium import OK
from framedex.sharder.clips.clip import Failure, WantedClip
from framedex.sharder.configuration.parameters import located
from framedex.sharder.planning.batches import Batch, Round, missed_clip, wanted_clip
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.units import scene_clips
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.frames_at import Choose
from framedex.sharder.sampling.records import Missed, Policy
from framedex.sharder.selection.clip_frames import frames_of
from framedex.sharder.selection.explicit_clips import ExplicitClip, ExplicitClips, Outside, UriResolver
from framedex.sharder.selection.mentions import Mention, Mentioned, usable_media
from framedex.sharder.selection.scenes import ListedScenes, Scene
from framedex.storage.uris import medium_name

Row = dict[str, Any]

MEDIA_IN_MEMORY = 256  # media whose packets are kept while explicit clips switch between them; fewer in workers
REQUESTS_AT_ONCE = 256
SCENES_AT_ONCE = 1024  # whose rows are Python objects at a time


class Media:
    """The media of an index, ready for planning.

    Args:
        make: Makes one from its row of `videos`.
        most: How many are kept in memory.
    """

    def __init__(self, index: Index, make: Callable[[Row], IndexedMedium], most: int = MEDIA_IN_MEMORY) -> None:
        self._index, self.open = index, make
        self.of = functools.lru_cache(most)(self._of)

    def _of(self, identity: str) -> IndexedMedium:
        """Return a medium by its media_id. Raises PolicyError if it is not usable."""
        video = self._index.video(identity)
        if video["status"] != OK:
            raise PolicyError(f"the medium is {video['status']}: {video['error_message']}")
        return self.open(video)


class Piece(Protocol):
    """A piece of a plan. It can be pickled."""

    @property
    def weight(self) -> int:
        """About the most clips that it may have."""
        ...

    def round(self, media: Media) -> Round:
        """Return the wanted clips by medium, and why others cannot be made. Raises PolicyError."""
        ...

    def alone(self) -> list[Piece]:
        """Return it in the smallest pieces, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumPiece:
    """What a policy wants of one medium.

    Attributes:
        number: The medium's place in the plan, from 1 on.
    """

    policy: Policy
    mentioned: Mentioned
    number: int

    @property
    def weight(self) -> int:
        return max(1, self.mentioned.video["frame_count"] or 0) * len(self.mentioned.mentions)

    def round(self, media: Media) -> Round:
        medium = media.open(self.mentioned.video)
        uri = medium_name(self.mentioned.video["uri"], self.mentioned.video["member"])
        items: list[WantedClip | Failure] = []
        for mention in self.mentioned.mentions:
            try:
                sampling = self.policy.sample(medium.timeline, mention.columns)
            except PolicyError as error:
                raise located(error, uri) from error
            items += [wanted_clip(mention.name, clip, mention.columns) for clip in sampling.clips]
            items += [missed_clip(uri, mention, missed) for missed in sampling.missed]
        return [Batch(medium=medium, items=items, done=self.number)]

    def alone(self) -> list[Piece]:
        return [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenePiece:
    """What a policy wants of the views of one scene.

    Attributes:
        names: The views that a clip has.
        views: (media_id, mention) by the mentions' numbers in `scene`.
        number: The scene's place in the plan, from 1 on.
        weight: About the most clips that it may have.
    """

    policy: Terms
    scene: Scene
    names: list[str]
    views: dict[int, tuple[str, Mention]]
    number: int
    weight: int

    def round(self, media: Media) -> Round:
        columns = {number: (identity, mention.columns) for number, (identity, mention) in self.views.items()}
        timelines = {identity: media.of(identity).timeline for identity, _ in columns.values()}
        sampling = scene_clips(self.policy, self.scene, self.names, columns, timelines.__getitem__)
        batches: Round = []
        for clip in sampling.clips:
            identity, mention = self.views[clip.mention]
            item = wanted_clip(mention.name, clip.sampled, mention.columns, clip.multiview)
            batches.append(Batch(medium=media.of(identity), items=[item], done=self.number))
        for number, missed in sampling.missed:
            identity, mention = self.views[number]
            failure = missed_clip(media.of(identity).medium.name, mention, missed)
            batches.append(Batch(medium=None, items=[failure], done=self.number))
        return batches or [Batch(medium=None, items=[], done=self.number)]

    def alone(self) -> list[Piece]:
        return [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayPiece:
    """A row of the listing of which no clip can be made.

    Attributes:
        number: Its place in the plan, from 1 on.
    """

    failure: Failure
    number: int
    weight: int = 1

    def round(self, media: Media) -> Round:
        return [Batch(medium=None, items=[self.failure], done=self.number)]

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

    def round(self, media: Media) -> Round:
        found = [self._find(identity, request, media) for identity, request in self.requests]
        return [Batch(medium=medium, items=[item], done=done) for done, (medium, item) in enumerate(found, self.number)]

    def _find(
        self, identity: str | None, request: ExplicitClip, media: Media
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


def policy_pieces(index: Index, file: PolicyFile) -> Iterator[Piece]:
    """Yield what a policy wants, medium by medium in the order of the index. Raises PolicyError."""
    for number, mentioned in enumerate(usable_media(index, file.filter, file.split), 1):
        yield MediumPiece(policy=file.policy, mentioned=mentioned, number=number)


def scene_pieces(listed: ListedScenes, file: PolicyFile) -> Iterator[Piece]:
    """Yield what a policy wants, scene by scene."""
    table, found = listed.table, listed.scenes
    numbers = itertools.count(1)
    shared = np.bincount(table.media_row)[table.media_row]  # how many rows are about each row's medium
    frames = table.facts["frame_count"].to_numpy() // np.maximum(shared, 1)
    left = iter(found.scenes)
    while some := list(itertools.islice(left, SCENES_AT_ONCE)):
        own = sorted({mention for scene in some for mention in (*scene.mentions, scene.first)})
        known = {
            number: (table.identity(number), mention) for number, mention in zip(own, table.mentions(own), strict=True)
        }
        for scene in some:
            mentions = sorted({*scene.mentions, scene.first})
            yield ScenePiece(
                policy=file.policy,
                scene=scene,
                names=found.names,
                views={number: known[number] for number in mentions},
                number=next(numbers),
                weight=max(1, int(frames[mentions].sum())),
            )
    for mention, message in found.strays:
        uri = medium_name(table.facts["uri"][mention].as_py(), table.facts["member"][mention].as_py())
        missed = Missed(kind="row", message=message, counts=True)
        [row] = table.mentions([mention])
        failure = missed_clip(uri, row, missed)
        yield StrayPiece(failure=failure, number=next(numbers))


def explicit_pieces(index: Index, requests: ExplicitClips, choose: Choose, outside: Outside) -> Iterator[Piece]:
    """Yield what explicit clips want, in the order requested."""
    resolver, left, number = UriResolver(index), iter(requests), 1
    while chunk := list(itertools.islice(left, REQUESTS_AT_ONCE)):
        found = [(resolver.media_id(request.uri, request.stream), request) for request in chunk]
        yield ExplicitPiece(requests=found, choose=choose, outside=outside, number=number)
        number += len(chunk)
