"""Access to what exists at the path of a medium: a file or folder of this machine, or objects of a store.

Both have the same interface.

Probe objects of a store: by byte ranges if sample tables are sufficient, else from a temporary copy.

Probes videos that are values of a compressed column of a Parquet file, from temporary copies.

Their packets are no byte ranges of the file, so clips of them have to be copied into the dataset.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeGuard

from framedex.errors import MediaError, StorageError
from framedex.files.outputs import open_same_file
from framedex.files.parquet_cells import read_cell
from framedex.indexer.containers import NeedsWholeError, ProbedObject, check_unchanged, opened_file
from framedex.indexer.facts import Identity, MediumFacts, Row, problem_of
from framedex.indexer.images.probe_images import ImageTask, folder_identity, probe_images
from framedex.indexer.probing.probe import (
    ProbeTask,
    check_member,
    in_cell,
    in_file,
    medium_of,
    probe_medium,
    probe_opened,
)
from framedex.indexer.sources.members import FileContents, contents_of
from framedex.indexer.sources.sequences import TIMES_NAME
from framedex.storage.objects import Facts, at_once, children, download, exists
from framedex.storage.places import FOOTER_BYTES, Place, Stored
from framedex.storage.reader import ObjectReader
from framedex.storage.uris import is_remote


def is_cell(task: ProbeTask) -> bool:
    """Return whether a medium is a value of a compressed column."""
    return task.member is not None and task.member.part is None


def probe_file_cell(task: ProbeTask) -> list[MediumFacts]:
    """Return the facts of a value of a compressed column of a file of this machine. Bad files raise nothing."""
    medium = medium_of(task)
    try:
        with opened_file(task.path) as file:
            medium = replace(medium, identity=file.identity)
            check_member(task, file.identity)
            return probe_cell(task, Path(task.path), medium)
    except MediaError as error:
        return [replace(medium, problem=problem_of(error))]


def probe_cell(task: ProbeTask, where: Place, medium: MediumFacts, *, tag: str | None = None) -> list[MediumFacts]:
    """Return the facts of a value of a compressed column.

    Args:
        task: how to probe it.
        where: the Parquet file.
        medium: what is known of it so far.
        tag: of an object, the tag that it must have.

    Raises:
        MediaError: the value cannot be read.
        StorageError: the store does not deliver the object.
    """
    member = task.member
    assert member is not None  # the caller checked this
    try:
        content = read_cell(where, member.name, tag=tag)
    except StorageError:
        raise
    except (ValueError, OSError) as error:
        raise MediaError("unreadable", f"the value cannot be read: {error}") from error
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / "medium"
        path.write_bytes(content)
        found = probe_medium(replace(task, path=str(path), member=None, depth="packets"))
    return [in_cell(replace(one, identity=medium.identity), member, len(content)) for one in found]


OF_THE_RUN = frozenset({"denied", "forked"})  # kinds of a StorageError that are not due to one object
WHOLE_BYTES = 1 << 20  # objects up to this size are copied at once: a second request costs more
HOLDER_KEPT_BYTES = 4 << 20  # of a file whose headers are read one after the other
MAX_REQUESTS = 64  # for sample tables; more requests cost more than a copy


def probe_object(task: ProbeTask) -> list[MediumFacts]:
    """Return the facts of the media in an object, or of the images in a folder of a store.

    The result is that of `probe.probe_medium`.

    Raises:
        StorageError: the store denies access, or this process was forked from one that used a store.
    """
    images, member = task.images, task.member
    medium = medium_of(task)
    try:
        if images is not None and images.form == "folder":
            return _probe_loose(task.path, images, verify=task.verify)
        facts, part = (None, None) if member is None else (task.facts, member.part)
        if is_cell(task):
            return _probe_cell(task, medium)
        reader = ObjectReader(task.path, facts, part=part, most_requests=MAX_REQUESTS)
        medium = replace(medium, identity=identity_of(reader.facts))
        check_member(task, identity_of(reader.facts))
        found = _probe_one(task, reader, medium)
        return found if member is None else [in_file(one, member) for one in found]
    except StorageError as error:
        if error.kind in OF_THE_RUN:
            raise
        problem = media_error(error)
    except MediaError as error:
        problem = error
    return [replace(medium, problem=problem_of(problem))]


def object_contents(task: ProbeTask) -> tuple[FileContents, Facts]:
    """Return what a tar or a Parquet file in a store holds, and the facts of the object.

    Raises:
        MediaError: the object is not readable.
        StorageError: the store denies access, or this process was forked from one that used a store.
    """
    assert task.holds is not None  # the caller checked this
    try:
        if task.holds == "parquet":
            reader = ObjectReader.from_end(task.path, FOOTER_BYTES, kept_bytes=HOLDER_KEPT_BYTES)
        else:
            reader = ObjectReader(task.path, kept_bytes=HOLDER_KEPT_BYTES)
        contents = contents_of(task.holds, reader, reader.size_bytes, sidecars=task.sidecars)
    except StorageError as error:
        if error.kind in OF_THE_RUN:
            raise
        raise media_error(error) from error
    return contents, reader.facts


def media_error(error: StorageError) -> MediaError:
    """Return the error of a medium whose object is not readable."""
    said = f"{error.what} ({error.found})" if error.found else error.what
    kinds = {"missing": "missing", "changed": "changing"}
    return MediaError(kinds.get(error.kind, "unreadable"), said)


def _probe_one(task: ProbeTask, reader: ObjectReader, medium: MediumFacts) -> list[MediumFacts]:
    if not reader.size_bytes:
        raise MediaError("empty", "the object is empty")
    in_ranges = task.images is None and task.depth != "packets" and not task.verify
    if in_ranges and reader.size_bytes > WHOLE_BYTES:
        with contextlib.suppress(NeedsWholeError):
            found = _probe_ranges(task, reader, medium)
            if found is not None:
                return found
    with _copy(task, reader.facts) as path:
        copied = probe_medium(replace(task, path=str(path), member=None))
    return [replace(one, identity=medium.identity) for one in copied]


def _probe_ranges(task: ProbeTask, reader: ObjectReader, medium: MediumFacts) -> list[MediumFacts] | None:
    """Return the facts of a video by reading byte ranges, or None if that takes too many requests.

    Raises:
        StorageError: the store does not answer.
        NeedsWholeError: only the whole object shows the facts.
        MediaError: the video is not usable.
    """
    try:
        file = ProbedObject(read=reader, identity=identity_of(reader.facts), member=task.member)
        found = probe_opened(task, file, medium)
    except StorageError as error:
        if error.kind == "requests":
            return None
        raise
    except MediaError:
        if reader.failure is None:
            raise
        found = []
    if reader.failure is not None:  # libavformat mistook it for the end of the file
        if reader.failure.kind == "requests":
            return None
        raise reader.failure
    return found


def _probe_cell(task: ProbeTask, medium: MediumFacts) -> list[MediumFacts]:
    """Return the facts of a value of a compressed column. Raises MediaError, StorageError."""
    assert task.member is not None  # the caller checked this
    assert task.facts is not None  # of the object in which the member was found
    medium = replace(medium, identity=identity_of(task.facts))
    check_member(task, identity_of(task.facts))
    return probe_cell(task, Stored(uri=task.path), medium, tag=task.facts.tag)


@contextlib.contextmanager
def _copy(task: ProbeTask, facts: Facts) -> Iterator[Path]:
    """Provide a copy of an object, or of the video inside it."""
    name, part = task.path.rpartition("/")[2], None
    if task.member is not None:
        name, part = f"medium{Path(task.member.name).suffix}", task.member.part
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / name
        download(task.path, facts, path, part)
        yield path


def identity_of(facts: Facts) -> Identity:
    """Return the identity of an object."""
    return Identity(size_bytes=facts.size_bytes, mtime_ns=facts.mtime_ns, fingerprint=facts.tag)


def _probe_loose(uri: str, images: ImageTask, *, verify: bool) -> list[MediumFacts]:
    """Return the facts of a sequence of loose images in a folder of a store."""
    there = children(uri)
    identity = loose_identity(images, there)
    wanted = [*images.names, *([TIMES_NAME] if images.may_have_times_file and TIMES_NAME in there else [])]
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        at_once(lambda name: download(f"{uri}/{name}", there[name], Path(folder) / name), list(dict.fromkeys(wanted)))
        found = probe_images(folder, images, verify=verify)
    return [replace(one, identity=identity) for one in found]


def loose_identity(images: ImageTask, there: Mapping[str, Facts]) -> Identity:
    """Return the identity of the images in a folder of a store.

    Args:
        images: which images, and how they are timed.
        there: the facts of the objects in the folder, by name.

    Raises:
        MediaError: an image is missing.
    """
    missing = next((name for name in images.names if name not in there), None)
    if missing is not None:
        raise MediaError("missing", f"{missing} is not there")
    digest = hashlib.blake2b(repr((images.fps, images.default_fps, images.seconds)).encode(), digest_size=16)
    names = [*images.names, *([TIMES_NAME] if images.may_have_times_file and TIMES_NAME in there else [])]
    for name in names:
        digest.update(f"{name}\0{there[name].size_bytes}\0{there[name].tag}\n".encode())
    return Identity(
        size_bytes=sum(there[name].size_bytes for name in images.names),
        mtime_ns=max((there[name].mtime_ns for name in images.names), default=0),
        fingerprint=digest.hexdigest(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A file with several media.

    Attributes:
        contents: what it holds.
        identity: of the file.
        facts: of the file, if it is an object.
    """

    contents: FileContents
    identity: Identity
    facts: Facts | None = None


class MediaThere(Protocol):
    """Access to the media of one task at their path."""

    def probe(self) -> list[MediumFacts]:
        """Return the facts of each medium. Raises StorageError if the store denies access."""
        ...

    def contents(self) -> Opened:
        """Return what a tar or a Parquet file holds. Raises MediaError, StorageError if the store denies access."""
        ...

    def identity(self) -> Identity | None:
        """Return the identity of what exists at the path, or None. Raises MediaError, StorageError."""
        ...

    def is_same(self, row: Row) -> bool:
        """Return whether the medium at the path is still the one that a known row describes."""
        ...

    def is_readable(self) -> bool:
        """Return whether the medium at the path can be read. An empty file counts as unreadable."""
        ...


def media_there(task: ProbeTask) -> MediaThere:
    """Return access to what exists at the path of a task."""
    return _Objects(task) if is_remote(task.path) else _Files(task)


def _is_loose(images: ImageTask | None) -> TypeGuard[ImageTask]:
    """Return whether the media are images in a folder, one file per image."""
    return images is not None and images.form == "folder"


class _Files:
    def __init__(self, task: ProbeTask) -> None:
        self._task = task

    def probe(self) -> list[MediumFacts]:
        return probe_file_cell(self._task) if is_cell(self._task) else probe_medium(self._task)

    def contents(self) -> Opened:
        task = self._task
        assert task.holds is not None  # the caller checked this
        with opened_file(task.path) as file:
            contents = contents_of(task.holds, file.read, file.size_bytes, sidecars=task.sidecars)
            check_unchanged(file)
            return Opened(contents=contents, identity=file.identity)

    def identity(self) -> Identity | None:
        task = self._task
        if _is_loose(task.images):
            return folder_identity(task.path, task.images)
        with opened_file(task.path) as file:
            return file.identity

    def is_same(self, row: Row) -> bool:
        task = self._task
        if _is_loose(task.images):
            try:
                return bool(folder_identity(task.path, task.images).fingerprint == row["fingerprint"])
            except MediaError:
                return row["fingerprint"] is None
        try:
            descriptor = open_same_file(
                task.path, size_bytes=row["size_bytes"], mtime_ns=row["mtime_ns"], expected=row["fingerprint"]
            )
        except OSError:
            return False
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def is_readable(self) -> bool:
        try:
            return self.identity() is not None
        except MediaError:
            return False


class _Objects:
    def __init__(self, task: ProbeTask) -> None:
        self._task = task

    def _facts(self) -> Facts | None:
        """Return the facts of the object, from the listing of its folder or else from its store. None: no object."""
        return self._task.facts or exists(self._task.path)

    def probe(self) -> list[MediumFacts]:
        return probe_object(self._task)

    def contents(self) -> Opened:
        contents, facts = object_contents(self._task)
        return Opened(contents=contents, identity=identity_of(facts), facts=facts)

    def identity(self) -> Identity | None:
        facts = self._facts()
        return None if facts is None else identity_of(facts)

    def is_same(self, row: Row) -> bool:
        task = self._task
        if row["error_kind"] == "unreadable":  # the store may answer this time
            return False
        if _is_loose(task.images):
            try:
                return bool(loose_identity(task.images, children(task.path)).fingerprint == row["fingerprint"])
            except MediaError:
                return False
        facts = self._facts()
        return facts is not None and (facts.size_bytes, facts.tag) == (row["size_bytes"], row["fingerprint"])

    def is_readable(self) -> bool:
        return self._facts() is not None
