"""Build a dataset: index and policy (or explicit clips) → wanted clips → planned clips → the writer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.errors import DamageError, PolicyError, StaleError
from framedex.indexer.index import Index
from framedex.indexer.schema import OK
from framedex.sharder.clip import Clip, WantedClip
from framedex.sharder.indexed import IndexedMedium
from framedex.sharder.mentions import Mention, usable_media, user_columns
from framedex.sharder.parameters import located
from framedex.sharder.policies import Missed, PolicyFile
from framedex.sharder.requests import Request, Requests, UriResolver, frames_of
from framedex.sharder.sampling import Choose
from framedex.sharder.schema import PAD, SCHEMA_VERSION
from framedex.sharder.writer import DatasetWriter, Failure, ShardReport

Row = dict[str, Any]

MEDIA_IN_MEMORY = 256  # whose packets are kept while explicit clips go back and forth between them
REQUESTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """How datasets are written. keep_damaged: plan frames of damaged GOPs, too. on_progress: called with (done, total)."""

    overwrite: bool = False
    keep_damaged: bool = False
    on_progress: Callable[[int, int], None] = lambda done, total: None


DEFAULTS = ShardOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Clips of one medium that follow each other in the plan, and those of them that cannot be had. done: of the plan's
    progress, after this batch.
    """

    medium: IndexedMedium | None
    items: list[WantedClip | Failure]
    done: int


def build_from_policy(index: Index, out: Path, file: PolicyFile, options: ShardOptions = DEFAULTS) -> ShardReport:
    """Write a dataset of the clips that a policy finds in every usable medium. Raises OutputError, PolicyError.

    A clip that cannot be had becomes a row of failures.parquet.
    """
    schema = user_columns(index, file.split)
    total = len(index.videos) - index.unusable
    return _build(index, out, file.resolved, schema, _policy_batches(index, file, options), total, options)


def _policy_batches(index: Index, file: PolicyFile, options: ShardOptions) -> Iterator[Batch]:
    """Yield what a policy wants, medium by medium in the order of the index."""
    for number, mentioned in enumerate(usable_media(index, file.filter, file.split), 1):
        medium = IndexedMedium(index, mentioned.video, keep_damaged=options.keep_damaged)
        items: list[WantedClip | Failure] = []
        for mention in mentioned.mentions:
            try:
                sampling = file.policy.sample(medium.track, mention.columns)
            except PolicyError as error:
                raise located(error, mentioned.video["uri"]) from error
            items += [
                WantedClip(
                    clip_id=f"{mention.name}-{clip.number:06d}",
                    frames=clip.frames,
                    mask=clip.mask,
                    columns=mention.columns,
                )
                for clip in sampling.clips
            ]
            items += [_missed(mentioned.video["uri"], mention, missed) for missed in sampling.missed]
        yield Batch(medium=medium, items=items, done=number)


def _missed(uri: str, mention: Mention, missed: Missed) -> Failure:
    clip_id = mention.name if missed.number is None else f"{mention.name}-{missed.number:06d}"
    return Failure(clip_id=clip_id, uri=uri, kind=missed.kind, message=missed.message, counts=missed.counts)


def build_from_requests(
    index: Index, out: Path, requests: Requests, *, choose: Choose, options: ShardOptions = DEFAULTS
) -> ShardReport:
    """Write a dataset of explicitly requested clips, in the order requested. Raises OutputError, PolicyError.

    A request that cannot be met becomes a row of failures.parquet.
    """
    resolved = {"policy": "clips", "choose": choose, "clips": requests.digest}
    batches = _request_batches(index, requests, choose, options)
    return _build(index, out, resolved, requests.user_schema, batches, len(requests), options)


def _request_batches(index: Index, requests: Requests, choose: Choose, options: ShardOptions) -> Iterator[Batch]:
    """Yield what explicit clips want, one by one."""
    resolver = UriResolver(index)

    @functools.lru_cache(MEDIA_IN_MEMORY)
    def medium_of(identity: str) -> IndexedMedium:
        video = index.video(identity)
        if video["status"] != OK:
            raise PolicyError(f"the medium is {video['status']}: {video['error_message']}")
        return IndexedMedium(index, video, keep_damaged=options.keep_damaged)

    number = 0
    for chunk in _chunks(requests, REQUESTS_AT_ONCE):
        found = [_find(request, resolver, medium_of, choose) for request in chunk]
        together: dict[str, tuple[IndexedMedium, list[WantedClip]]] = {}
        for medium, item in found:
            if medium is not None and isinstance(item, WantedClip):
                together.setdefault(medium.medium.media_id, (medium, []))[1].append(item)
        for medium, clips in together.values():
            medium.prepare(clips)
        for medium, item in found:
            number += 1
            yield Batch(medium=medium, items=[item], done=number)


def _chunks(requests: Requests, size: int) -> Iterator[list[Request]]:
    left = iter(requests)
    while chunk := list(itertools.islice(left, size)):
        yield chunk


def _find(
    request: Request, resolver: UriResolver, medium_of: Callable[[str], IndexedMedium], choose: Choose
) -> tuple[IndexedMedium | None, WantedClip | Failure]:
    """Return the medium that a request means, and the frames that it wants of it, or why they cannot be had."""
    line = f"line {request.line}"
    medium: IndexedMedium | None = None
    try:
        identity = resolver.media_id(request.uri, request.stream)
        if identity is None:
            raise PolicyError("the index has no such medium", remedy="index it first")
        medium = medium_of(identity)
        frames = frames_of(request, medium.track, choose)
    except PolicyError as error:
        return medium, Failure(clip_id=request.clip_id, uri=request.uri, kind="request", message=f"{line}: {error}")
    return medium, WantedClip(
        clip_id=request.clip_id, frames=frames, mask=frames != PAD, columns=request.columns, asked_in=line
    )


def _build(
    index: Index,
    out: Path,
    resolved: Row,
    user_schema: pa.Schema,
    batches: Iterable[Batch],
    total: int,
    options: ShardOptions,
) -> ShardReport:
    job = {
        "schema_version": SCHEMA_VERSION,
        "index": index.state(),
        "policy": resolved,
        "keep_damaged": options.keep_damaged,
    }
    with DatasetWriter(out, job=job, user_schema=user_schema, overwrite=options.overwrite) as writer:
        position = 0
        for batch in batches:
            left = batch.items[max(0, writer.done - position) :]
            position += len(batch.items)
            wanted = [item for item in left if isinstance(item, WantedClip)]
            if batch.medium is not None and len(wanted) > 1:
                batch.medium.prepare(wanted)
            for item in left:
                _take(writer, batch.medium, item)
            options.on_progress(batch.done, total)
        return writer.commit(root=index.root, resolved=resolved)


def _take(writer: DatasetWriter, medium: IndexedMedium | None, item: WantedClip | Failure) -> None:
    """Plan a clip and give it to the writer, or say why it cannot be had."""
    if isinstance(item, WantedClip):
        assert medium is not None  # a clip is wanted of some medium
        outcome = plan_clip(medium, item)
        if isinstance(outcome, Clip):
            writer.add(outcome)
            return
        item = outcome
    writer.fail(item)


def plan_clip(medium: IndexedMedium, wanted: WantedClip) -> Clip | Failure:
    """Return a planned clip, or why it cannot be had."""
    try:
        return medium.clip(wanted)
    except (PolicyError, StaleError) as error:
        kind = "policy" if wanted.asked_in is None else "request"
        if isinstance(error, DamageError | StaleError):
            kind = "damaged" if isinstance(error, DamageError) else "stale"
        return Failure(
            clip_id=wanted.clip_id,
            uri=medium.medium.uri,
            kind=kind,
            message=error.text() if wanted.asked_in is None else f"{wanted.asked_in}: {error}",
            counts=kind != "damaged" or wanted.asked_in is not None,
        )
