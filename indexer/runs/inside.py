"""Replaces the tars and Parquet files of a run by what they hold: their videos, one by one, and their images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from framedex.errors import MediaError, StorageError
from framedex.execution.engine import Calls, Outcome
from framedex.indexer.facts import Identity, MediumFacts, problem_of
from framedex.indexer.media_rows import Row
from framedex.indexer.runs.media_there import Opened, media_there
from framedex.indexer.runs.work import IndexOptions, Item
from framedex.indexer.schema import NO_VIDEO
from framedex.indexer.sources.file_member import FileMember
from framedex.indexer.sources.named_medium import readable_name
from framedex.indexer.sources.sequences import group_names
from framedex.records.medium import GONE, IMAGES, VIDEO

FILES_TOGETHER = 64  # whose members are in memory at a time
READ_TOGETHER = 4  # files that one task of a cluster reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why a file with several media is not readable, and which file it is, if that is known."""

    error: MediaError
    identity: Identity | None


ContentsOrError = Opened | Unreadable | StorageError


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


def read_contents(item: Item) -> ContentsOrError:
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


def _opened(outcome: Outcome[Item, ContentsOrError]) -> list[Item]:
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
    sequences = _sequences(item, found)
    images, videos, rest = _images(item, found), _videos(item, found, sequences), _rest(item, found)
    there = sequences | {video.identity[1] for video in videos}
    if any(one.found for one in (*images, *rest)):
        there.add(None)  # the file itself has a row
    inside = [*_gone(item, there), *images, *videos, *rest]
    # Only the last one counts for the part, so that all rows of a file are in one.
    return [replace(one, files=0) for one in inside[:-1]] + inside[-1:]


def _sequences(item: Item, file: Opened) -> set[str | None]:
    """Return the names of the sequences that the images of a file make."""
    images = None if item.task is None else item.task.images
    if images is None or images.ignored:
        return set()
    names = group_names((image.name for image in file.contents.images), single=images.single)
    return {readable_name(name) for name in names}


def _gone(item: Item, there: set[str | None]) -> list[Item]:
    """Return an item for each known medium that a file no longer holds.

    Args:
        item: the file.
        there: the names of the media that it holds; None among them if the file itself has a row.
    """
    uri, _ = item.identity
    gone: dict[str | None, list[Row]] = {}
    for row in item.known:
        if row["status"] != GONE and row["member"] not in there:
            gone.setdefault(row["member"], []).append(row)
    return [Item(identity=(uri, name), rows=some) for name, some in gone.items()]


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


def _videos(item: Item, file: Opened, sequences: set[str | None]) -> list[Item]:
    """Return an item for each video of a file. `sequences`: the names of its sequences of images."""
    assert item.task is not None  # `is_holder`
    task = replace(item.task, images=None, holds=None, sidecars=(), searched=True)
    task = replace(task, facts=file.facts, expected=file.identity.fingerprint)
    uri, _ = item.identity
    return [
        replace(item, identity=(uri, member.name), task=replace(task, member=_alone(member, sequences)))
        for member in file.contents.videos
    ]


def _alone(member: FileMember, sequences: set[str | None]) -> FileMember:
    """Return a video of a file. It is refused if a sequence of images has its name."""
    if member.name not in sequences:
        return member
    said = "the file holds a sequence of images of the same name; rename one of them"
    return replace(member, error=MediaError("tar", said, refused=True))


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
