"""Access to the media at a path: in a file or folder of this machine, or in objects of a store.

Objects are probed by byte ranges if sample tables are sufficient, else from a temporary copy. Values of a compressed
column of a Parquet file are always probed from temporary copies: their packets are not byte ranges of the file, so
clips of them have to be copied into the dataset.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from framedex.errors import MediaError, StorageError
from framedex.files.outputs import open_same_file
from framedex.files.parquet_cells import read_cell
from framedex.indexer.containers import NeedsWholeError, ProbedObject, check_unchanged, opened_file
from framedex.indexer.facts import Identity, MediumFacts, Row, problem_of
from framedex.indexer.probing.probe import (
    ProbeTask,
    check_member,
    in_cell,
    in_file,
    medium_of,
    probe_medium,
    probe_opened,
)
from framedex.indexer.probing.probe_images import ImageTask, folder_identity, probe_images
from framedex.indexer.sources.members import FileContents, contents_of
from framedex.indexer.sources.sequences import TIMES_NAME
from framedex.storage.objects import Facts, at_once, children, download, exists
from framedex.storage.places import FOOTER_BYTES, Place, Stored
from framedex.storage.reader import ObjectReader
from framedex.storage.uris import is_remote


def is_cell(task: ProbeTask) -> bool:
    """Return whether a medium is a value of a compressed column."""
    return task.member is not None and task.member.part is None


def probe_cell(task: ProbeTask, where: Place, medium: MediumFacts, *, tag: str | None = None) -> list[MediumFacts]:
    """Return the facts of a value of a compressed column.

    Args:
        task: how to probe it.
        where: the Parquet file.
        medium: the facts known so far.
        tag: the tag that an object must have.

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
HOLDER_KEPT_BYTES = 4 << 20  # kept of a tar or Parquet file, whose headers are read one after the other
MAX_REQUESTS = 64  # requests for sample tables; more cost more than a copy


def probe_object(task: ProbeTask) -> list[MediumFacts]:
    """Return the facts of the media in an object, or of the images in a folder of a store, like `probe_medium`.

    Raises:
        StorageError: the store denies access, or this process was forked from one that used a store.
    """
    member = task.member
    medium = medium_of(task)
    try:
        if _is_loose(task.images):
            return _probe_loose(task.path, task.images, verify=task.verify)
        if is_cell(task):
            assert task.facts is not None  # known from the object in which the member was found
            medium = replace(medium, identity=identity_of(task.facts))
            check_member(task, identity_of(task.facts))
            return probe_cell(task, Stored(uri=task.path), medium, tag=task.facts.tag)
        facts, part = (None, None) if member is None else (task.facts, member.part)
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
    """Return the contents of a tar or a Parquet file in a store, and the facts of the object.

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
    message = f"{error.what} ({error.found})" if error.found else error.what
    kinds = {"missing": "missing", "changed": "changing"}
    return MediaError(kinds.get(error.kind, "unreadable"), message)


def _probe_one(task: ProbeTask, reader: ObjectReader, medium: MediumFacts) -> list[MediumFacts]:
    """Return the facts of an object, or of the video inside it, from byte ranges or a copy."""
    if not reader.size_bytes:
        raise MediaError("empty", "the object is empty")
    in_ranges = task.images is None and task.depth != "packets" and not task.verify
    if in_ranges and reader.size_bytes > WHOLE_BYTES:
        with contextlib.suppress(NeedsWholeError):
            found = _probe_ranges(task, reader, medium)
            if found is not None:
                return found
    name, part = task.path.rpartition("/")[2], None
    if task.member is not None:
        name, part = f"medium{Path(task.member.name).suffix}", task.member.part
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / name
        download(task.path, reader.facts, path, part)
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
        if reader.failure is not None:  # libavformat took the failure for the end of the file
            raise reader.failure
        return found
    except (StorageError, MediaError) as error:
        failure = error if reader.failure is None or isinstance(error, StorageError) else reader.failure
        if isinstance(failure, StorageError) and failure.kind == "requests":
            return None
        raise failure from None


def identity_of(facts: Facts) -> Identity:
    """Return the identity of an object."""
    return Identity(size_bytes=facts.size_bytes, mtime_ns=facts.mtime_ns, fingerprint=facts.tag)


def _probe_loose(uri: str, images: ImageTask, *, verify: bool) -> list[MediumFacts]:
    """Return the facts of a sequence of loose images in a folder of a store."""
    there = children(uri)
    identity = loose_identity(images, there)
    names = list(dict.fromkeys(_files_of(images, there)))
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        at_once(lambda name: download(f"{uri}/{name}", there[name], Path(folder) / name), names)
        found = probe_images(folder, images, verify=verify)
    return [replace(one, identity=identity) for one in found]


def _files_of(images: ImageTask, there: Mapping[str, Facts]) -> list[str]:
    """Return the names of the images, and of the file with their times if it exists."""
    return [*images.names, *([TIMES_NAME] if images.may_have_times_file and TIMES_NAME in there else [])]


def loose_identity(images: ImageTask, there: Mapping[str, Facts]) -> Identity:
    """Return the identity of the images in a folder of a store.

    Args:
        images: the images, and how they are timed.
        there: the facts of the objects in the folder, by name.

    Raises:
        MediaError: an image is missing.
    """
    missing = next((name for name in images.names if name not in there), None)
    if missing is not None:
        raise MediaError("missing", f"{missing} is not there")
    # The timing counts as part of the images: if it changes, they are probed again.
    digest = hashlib.blake2b(repr((images.fps, images.default_fps, images.seconds)).encode(), digest_size=16)
    for name in _files_of(images, there):
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
        contents: its media.
        identity: the identity of the file.
        facts: the facts of an object; None for a file of this machine.
    """

    contents: FileContents
    identity: Identity
    facts: Facts | None = None


def media_there(task: ProbeTask) -> "FileMedia | ObjectMedia":
    """Return access to the media at the path of a task."""
    return ObjectMedia(task) if is_remote(task.path) else FileMedia(task)


def _is_loose(images: ImageTask | None) -> TypeGuard[ImageTask]:
    """Return whether the media are images in a folder, one file per image."""
    return images is not None and images.form == "folder"


class FileMedia:
    """Access to the media of one task, in a file or folder of this machine."""

    def __init__(self, task: ProbeTask) -> None:
        self._task = task

    def probe(self) -> list[MediumFacts]:
        """Return the facts of each medium. Bad files raise no error."""
        task = self._task
        if not is_cell(task):
            return probe_medium(task)
        medium = medium_of(task)
        try:
            with opened_file(task.path) as file:
                medium = replace(medium, identity=file.identity)
                check_member(task, file.identity)
                return probe_cell(task, Path(task.path), medium)
        except MediaError as error:
            return [replace(medium, problem=problem_of(error))]

    def contents(self) -> Opened:
        """Return the contents of a tar or a Parquet file. Raises MediaError."""
        task = self._task
        assert task.holds is not None  # the caller checked this
        with opened_file(task.path) as file:
            contents = contents_of(task.holds, file.read, file.size_bytes, sidecars=task.sidecars)
            check_unchanged(file)
            return Opened(contents=contents, identity=file.identity)

    def identity(self) -> Identity | None:
        """Return the identity of the file or of the images in the folder. Raises MediaError."""
        task = self._task
        if _is_loose(task.images):
            return folder_identity(task.path, task.images)
        with opened_file(task.path) as file:
            return file.identity

    def is_same(self, row: Row) -> bool:
        """Return whether the medium at the path is still the one that a known row describes."""
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
        """Return whether the medium at the path can be read. An empty file counts as unreadable."""
        try:
            return self.identity() is not None
        except MediaError:
            return False


class ObjectMedia:
    """Access to the media of one task, in objects of a store.

    The methods are those of `FileMedia`. Each raises StorageError if the store denies access.
    """

    def __init__(self, task: ProbeTask) -> None:
        self._task = task

    def _facts(self) -> Facts | None:
        """Return the facts of the object, from the listing of its folder or else from its store; None if missing."""
        return self._task.facts or exists(self._task.path)

    def probe(self) -> list[MediumFacts]:
        """Return the facts of each medium. Bad objects raise no error."""
        return probe_object(self._task)

    def contents(self) -> Opened:
        """Return the contents of a tar or a Parquet file. Raises MediaError."""
        contents, facts = object_contents(self._task)
        return Opened(contents=contents, identity=identity_of(facts), facts=facts)

    def identity(self) -> Identity | None:
        """Return the identity of the object, or None if it does not exist."""
        facts = self._facts()
        return None if facts is None else identity_of(facts)

    def is_same(self, row: Row) -> bool:
        """Return whether the medium at the path is still the one that a known row describes."""
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
        """Return whether the object exists."""
        return self._facts() is not None
