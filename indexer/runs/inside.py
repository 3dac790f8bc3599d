"""Replaces the tars and Parquet files of a run by what they hold: their videos, one by one, and their images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from framedex.errors import MediaError, StorageError
from framedex.execution.engine import Calls, Outcome
from framedex.indexer.facts import Identity, MediumFacts, problem_of
from framedex.indexer.runs.media_there import Opened, media_there
from framedex.indexer.runs.work import IndexOptions, Item
from framedex.indexer.schema import IMAGES, NO_VIDEO, VIDEO

FILES_TOGETHER = 64  # whose members are in memory at a time
READ_TOGETHER = 4  # files that one task of a cluster reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why a file with several media is not readable, and which file it is, if that is known."""

    error: MediaError
    identity: Identity | None


Found = Opened | Unreadable | StorageError


def opened_files(items: Sequence[Item], options: IndexOptions) -> Iterator[list[Item]]:
    """Yield the items in order, in batches, with each tar or Parquet file replaced by items for what it holds.

    Raises:
        StorageError: the store denies access.
    """
    for batch in _batches(items):
        holders = sum(map(is_holder, batch))
        if not holders:
            yield batch
            continue
        calls = Calls(
            function=read_contents,
            items=batch,
            timeout_seconds=options.timeout_seconds,
            passes=lambda item: not is_holder(item),
            together=READ_TOGETHER,
        )
        outcomes = options.engine(calls, workers=min(options.workers, holders), memory_bytes=options.memory_bytes)
        yield [item for outcome in outcomes for item in _opened(outcome)]


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    holders = 0
    for item in items:
        batch.append(item)
        holders += is_holder(item)
        if holders == FILES_TOGETHER:
            yield batch
            batch, holders = [], 0
    if batch:
        yield batch


def is_holder(item: Item) -> bool:
    """Return whether an item is a file whose contents are to be found."""
    return item.task is not None and item.task.holds is not None


def read_contents(item: Item) -> Found:
    """Return what a file holds, or why it is not readable. Runs in a worker."""
    assert item.task is not None  # the engine does not call this for other items
    there = media_there(item.task)
    try:
        return there.contents()
    except StorageError as error:
        return error
    except MediaError as error:
        with contextlib.suppress(MediaError, StorageError):
            return Unreadable(error=error, identity=there.identity())
        return Unreadable(error=error, identity=None)


def _opened(outcome: Outcome[Item, Found]) -> list[Item]:
    """Return the items that replace an item.

    Raises:
        StorageError: the store denies access.
    """
    item, found = outcome.item, outcome.result
    if not is_holder(item):
        return [item]
    if isinstance(found, StorageError):
        raise found
    if isinstance(found, Unreadable):
        return [_failed(item, found.error, found.identity)]
    if found is None:
        assert outcome.kind is not None  # because there is no result
        assert outcome.message is not None
        return [_failed(item, MediaError(outcome.kind, outcome.message, traceback=outcome.traceback))]
    inside = [*_images(item, found), *_videos(item, found), *_rest(item, found)]
    # Only the last one counts for the part, so that all rows of a file are in one.
    return [replace(one, files=0) for one in inside[:-1]] + inside[-1:]


def _failed(item: Item, error: MediaError, identity: Identity | None = None, kind: str | None = None) -> Item:
    """Return the item of a file of which something is not usable."""
    assert item.task is not None  # `is_holder`
    holder = item.task.holds
    kind = kind or (IMAGES if holder == "tar" else VIDEO)
    return replace(item, found=MediumFacts(kind=kind, container=holder, identity=identity, problem=problem_of(error)))


def _images(item: Item, file: Opened) -> list[Item]:
    """Return the item for the images of a file."""
    assert item.task is not None  # `is_holder`
    images = file.contents.images
    if not images:
        return []
    assert item.task.images is not None  # only tars hold images
    if not item.task.images.ignored:
        return [replace(item, task=replace(item.task, holds=None))]
    return [_failed(item, MediaError(NO_VIDEO, f"its {len(images)} images are ignored", refused=True), file.identity)]


def _videos(item: Item, file: Opened) -> list[Item]:
    """Return an item for each video of a file."""
    assert item.task is not None  # `is_holder`
    task = replace(item.task, images=None, holds=None, sidecars=(), searched=True)
    task = replace(task, facts=file.facts, expected=file.identity.fingerprint)
    uri, _ = item.identity
    return [
        replace(item, identity=(uri, member.name), task=replace(task, member=member)) for member in file.contents.videos
    ]


def _rest(item: Item, file: Opened) -> list[Item]:
    """Return an item that says what else a file may hold, or that it holds nothing; else none.

    Sequences of images have a remark each if their file is damaged.
    """
    contents = file.contents
    if contents.damage is not None and (contents.videos or not contents.images):
        error = MediaError("truncated", f"the file is truncated or damaged: {contents.damage}")
        return [_failed(item, error, file.identity, VIDEO)]
    if not contents.videos and not contents.images:
        return [_failed(item, MediaError("empty", "the file holds no video and no image", refused=True), file.identity)]
    return []
