"""Replaces the tars among the items of a run by what they hold: their videos, one by one, and their images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from framedex.errors import MediaError, StorageError
from framedex.execution.engine import Calls, Outcome
from framedex.indexer.facts import Identity, MediumFacts, problem_of
from framedex.indexer.runs.media_there import ReadTar, media_there
from framedex.indexer.runs.work import IndexOptions, Item
from framedex.indexer.schema import IMAGES, NO_VIDEO, VIDEO

TARS_TOGETHER = 64  # whose members are in memory at a time
READ_TOGETHER = 4  # tars that one task of a cluster reads

Headers = ReadTar | MediaError | StorageError


def without_tars(items: Sequence[Item], options: IndexOptions) -> Iterator[list[Item]]:
    """Yield the items in order, in batches, with each tar replaced by items for what it holds.

    Raises:
        StorageError: the store denies access.
    """
    for batch in _batches(items):
        tars = sum(map(is_tar, batch))
        if not tars:
            yield batch
            continue
        calls = Calls(
            function=read_headers,
            items=batch,
            timeout_seconds=options.timeout_seconds,
            passes=lambda item: not is_tar(item),
            together=READ_TOGETHER,
        )
        outcomes = options.engine(calls, workers=min(options.workers, tars), memory_bytes=options.memory_bytes)
        yield [item for outcome in outcomes for item in _opened(outcome)]


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    tars = 0
    for item in items:
        batch.append(item)
        tars += is_tar(item)
        if tars == TARS_TOGETHER:
            yield batch
            batch, tars = [], 0
    if batch:
        yield batch


def is_tar(item: Item) -> bool:
    """Return whether an item is a tar to be read."""
    return item.task is not None and item.task.images is not None and item.task.images.form == "tar"


def read_headers(item: Item) -> Headers:
    """Return what a tar holds, or why it is not readable. Runs in a worker."""
    assert item.task is not None  # the engine does not call this for other items
    try:
        return media_there(item.task).read_tar()
    except (MediaError, StorageError) as error:
        return error


def _opened(outcome: Outcome[Item, Headers]) -> list[Item]:
    """Return the items that replace an item.

    Raises:
        StorageError: the store denies access.
    """
    item, found = outcome.item, outcome.result
    if not is_tar(item):
        return [item]
    if isinstance(found, StorageError):
        raise found
    if isinstance(found, MediaError):
        return [_failed(item, found)]
    if found is None:
        assert outcome.kind is not None  # because there is no result
        assert outcome.message is not None
        return [_failed(item, MediaError(outcome.kind, outcome.message, traceback=outcome.traceback))]
    inside = [*_images(item, found), *_videos(item, found), *_rest(item, found)]
    # Only the last one counts for the part, so that all rows of a tar are in one.
    return [replace(one, files=0) for one in inside[:-1]] + inside[-1:]


def _failed(item: Item, error: MediaError, identity: Identity | None = None, kind: str = IMAGES) -> Item:
    """Return the item of a tar of which something is not usable."""
    nothing = MediumFacts(kind=kind, container="tar", identity=identity, problem=problem_of(error))
    return replace(item, found=nothing)


def _images(item: Item, tar: ReadTar) -> list[Item]:
    """Return the item for the images of a tar."""
    assert item.task is not None  # `is_tar`
    assert item.task.images is not None
    images = tar.contents.images
    if not images or not item.task.images.ignored:
        return [item] if images else []
    return [_failed(item, MediaError(NO_VIDEO, f"its {len(images)} images are ignored", refused=True), tar.identity)]


def _videos(item: Item, tar: ReadTar) -> list[Item]:
    """Return an item for each video of a tar."""
    assert item.task is not None  # `is_tar`
    task = replace(
        item.task, images=None, searched=True, facts=tar.facts, expected=tar.identity.fingerprint, sidecars=()
    )
    uri, _ = item.identity
    return [
        replace(item, identity=(uri, member.name), task=replace(task, member=member)) for member in tar.contents.videos
    ]


def _rest(item: Item, tar: ReadTar) -> list[Item]:
    """Return an item that says what else a tar may hold, or that it holds nothing; else none.

    Sequences of images have a remark each if their tar is damaged.
    """
    contents = tar.contents
    if contents.truncation is not None and (contents.videos or not contents.images):
        error = MediaError("truncated", f"the tar is truncated or damaged: {contents.truncation}")
        return [_failed(item, error, tar.identity, VIDEO)]
    if not contents.videos and not contents.images:
        return [_failed(item, MediaError("empty", "the tar holds no video and no image", refused=True), tar.identity)]
    return []
