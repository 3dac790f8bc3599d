"""Probe and identify the media at a path: in a file or folder on this machine, or in object storage.

Objects are probed by reading byte ranges if their sample tables are sufficient. Other objects are copied into a
temporary folder and probed there.

Videos in a compressed column of a Parquet file are also copied into a temporary folder. Their packets are not byte
ranges of the file, so clips of these videos have to be packed.
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
from framedex.indexer.facts import Identity, MediumFacts, problem_of
from framedex.indexer.probing import probe
from framedex.indexer.probing.probe_images import ImageTask, folder_identity, probe_images
from framedex.indexer.sources.members import FileContents, FileMember, read_parquet, read_tar
from framedex.indexer.sources.sequences import TIMES_NAME
from framedex.records.columns import Row
from framedex.storage.objects import Facts, at_once, children, download, exists
from framedex.storage.places import FOOTER_BYTES, Place, Stored
from framedex.storage.reader import ObjectReader, Read
from framedex.storage.uris import is_remote


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The contents of a tar or a Parquet file.

    Attributes:
        contents: The media in the file.
        identity: The size, time and fingerprint of the file.
        facts: The metadata of the object. None for a file on this machine.
    """

    contents: FileContents
    identity: Identity
    facts: Facts | None = None


OF_THE_RUN = frozenset({"denied", "forked"})  # kinds of StorageError that end the run, because they affect all objects
WHOLE_BYTES = 1 << 20  # up to this size, an object is copied immediately, which is faster than more requests
HOLDER_KEPT_BYTES = 4 << 20  # size of the read cache for a tar or Parquet file, whose headers are read in order
MAX_REQUESTS = 64  # maximum number of requests for sample tables; a copy of the object is faster than more requests


def probe_media(task: probe.ProbeTask) -> list[MediumFacts]:
    """Return the metadata of the media of a task. The field `problem` has the reason why a medium is not usable.

    Raises:
        StorageError: The store denies access, or this process was forked from a process that used a store.
    """
    member, medium = task.member, probe.medium_of(task)
    try:
        if member is not None and member.part is None:
            identity = find_identity(task)
            medium = replace(medium, identity=identity)
            probe.check_member(task, identity)
            return _probe_cell(task, member, medium)
        if not is_remote(task.path):
            return probe.probe_medium(task)
        if _is_loose(task.images):
            return _probe_loose(task.path, task.images, verify=task.verify)
        facts, part = (None, None) if member is None else (task.facts, member.part)
        reader = ObjectReader(task.path, facts, part=part, most_requests=MAX_REQUESTS)
        identity = identity_of(reader.facts)
        medium = replace(medium, identity=identity)
        probe.check_member(task, identity)
        found = _probe_one(task, reader, medium)
        return found if member is None else [probe.in_file(one, member) for one in found]
    except StorageError as error:
        problem = _media_error(error)
    except MediaError as error:
        problem = error
    return [replace(medium, problem=problem_of(problem))]


def _probe_cell(task: probe.ProbeTask, member: FileMember, medium: MediumFacts) -> list[MediumFacts]:
    """Return the metadata of a video that is a value of a compressed column of a Parquet file.

    Args:
        task: The task for the video.
        member: The value.
        medium: The metadata of the video that is known before probing.

    Raises:
        MediaError: The value cannot be read.
        StorageError: The store does not deliver the object.
    """
    where: Place = Stored(uri=task.path) if is_remote(task.path) else Path(task.path)
    try:
        content = read_cell(where, member.name, tag=None if task.facts is None else task.facts.tag)
    except (ValueError, OSError) as error:
        raise MediaError("unreadable", f"the value cannot be read: {error}") from error
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / "medium"
        path.write_bytes(content)
        found = probe.probe_medium(replace(task, path=str(path), member=None, depth="packets"))
    return [probe.in_cell(replace(one, identity=medium.identity), member, len(content)) for one in found]


def open_holder(task: probe.ProbeTask) -> Opened:
    """Find the media in a tar or a Parquet file.

    Raises:
        MediaError: The file is not readable.
        StorageError: The store denies access, or this process was forked from a process that used a store.
    """
    if not is_remote(task.path):
        with opened_file(task.path) as file:
            contents = _contents(task, file.read, file.size_bytes)
            check_unchanged(file)
            return Opened(contents=contents, identity=file.identity)
    try:
        if task.holds == "parquet":
            reader = ObjectReader.from_end(task.path, FOOTER_BYTES, kept_bytes=HOLDER_KEPT_BYTES)
        else:
            reader = ObjectReader(task.path, kept_bytes=HOLDER_KEPT_BYTES)
        contents = _contents(task, reader, reader.size_bytes)
    except StorageError as error:
        raise _media_error(error) from error
    return Opened(contents=contents, identity=identity_of(reader.facts), facts=reader.facts)


def _contents(task: probe.ProbeTask, read: Read, size_bytes: int) -> FileContents:
    """Return the contents of a tar or a Parquet file. Raises MediaError."""
    if task.holds == "parquet":
        return read_parquet(read, size_bytes)
    return read_tar(read, size_bytes, sidecars=task.sidecars)


def _media_error(error: StorageError) -> MediaError:
    """Convert an error of a store into the error of one medium. If the error ends the run, raise it again."""
    if error.kind in OF_THE_RUN:
        raise error
    message = f"{error.what} ({error.found})" if error.found else error.what
    return MediaError({"missing": "missing", "changed": "changing"}.get(error.kind, "unreadable"), message)


def _probe_one(task: probe.ProbeTask, reader: ObjectReader, medium: MediumFacts) -> list[MediumFacts]:
    """Return the metadata of the media in an object, by reading byte ranges or from a temporary copy.

    If `task.member` is set, only this member of the object is probed.
    """
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
        download(task.path, reader.facts, path, part, known=reader.first_bytes)
        copied = probe.probe_medium(replace(task, path=str(path), member=None))
    return [replace(one, identity=medium.identity) for one in copied]


def _probe_ranges(task: probe.ProbeTask, reader: ObjectReader, medium: MediumFacts) -> list[MediumFacts] | None:
    """Return the metadata of a video by reading byte ranges, or None if this requires too many requests.

    Raises:
        StorageError: The store does not answer.
        NeedsWholeError: The object has to be copied.
        MediaError: The video is not usable.
    """
    try:
        file = ProbedObject(read=reader, identity=identity_of(reader.facts), member=task.member)
        found = probe.probe_opened(task, file, medium)
        if reader.failure is not None:  # libavformat treats a failed read like the end of the file
            raise reader.failure
        return found
    except (StorageError, MediaError) as error:
        failure = error if isinstance(error, StorageError) else reader.failure or error
        if isinstance(failure, StorageError) and failure.kind == "requests":
            return None
        raise failure from None


def identity_of(facts: Facts) -> Identity:
    """Return the identity of an object from its metadata."""
    return Identity(size_bytes=facts.size_bytes, mtime_ns=facts.mtime_ns, fingerprint=facts.tag)


def _probe_loose(uri: str, images: ImageTask, *, verify: bool) -> list[MediumFacts]:
    """Return the metadata of an image sequence in a folder in object storage, where each image is an object."""
    there = children(uri)
    identity = loose_identity(images, there)
    names = list(dict.fromkeys(_files_of(images, there)))
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        at_once(lambda name: download(f"{uri}/{name}", there[name], Path(folder) / name), names)
        found = probe_images(folder, images, verify=verify)
    return [replace(one, identity=identity) for one in found]


def _files_of(images: ImageTask, there: Mapping[str, Facts]) -> list[str]:
    """Return the names of the images, and the name of the timestamps file if it exists."""
    return [*images.names, *([TIMES_NAME] if images.may_have_times_file and TIMES_NAME in there else [])]


def loose_identity(images: ImageTask, there: Mapping[str, Facts]) -> Identity:
    """Return the identity of the images in a folder in object storage.

    Args:
        images: The images and their timing.
        there: The metadata of each object in the folder, by name.

    Raises:
        MediaError: An image is missing.
    """
    missing = next((name for name in images.names if name not in there), None)
    if missing is not None:
        raise MediaError("missing", f"{missing} does not exist")
    # The fingerprint covers the timing, so that the images are probed again if their timing changes.
    digest = hashlib.blake2b(repr((images.fps, images.default_fps, images.seconds)).encode(), digest_size=16)
    for name in _files_of(images, there):
        digest.update(f"{name}\0{there[name].size_bytes}\0{there[name].tag}\n".encode())
    return Identity(
        size_bytes=sum(there[name].size_bytes for name in images.names),
        mtime_ns=max((there[name].mtime_ns for name in images.names), default=0),
        fingerprint=digest.hexdigest(),
    )


def _is_loose(images: ImageTask | None) -> TypeGuard[ImageTask]:
    """Return whether the images of a task are files or objects of a folder, and not members of a tar."""
    return images is not None and images.form == "folder"


def find_identity(task: probe.ProbeTask) -> Identity:
    """Return the identity of the file or object of a task, or of the images in its folder.

    Raises:
        MediaError: The file, the object or an image is missing or not readable.
        StorageError: The store denies access.
    """
    remote = is_remote(task.path)
    if _is_loose(task.images):
        return loose_identity(task.images, children(task.path)) if remote else folder_identity(task.path, task.images)
    if remote:
        facts = task.facts or exists(task.path)  # `task.facts` is set if the object's folder was listed
        if facts is None:
            raise MediaError("missing", "the object does not exist")
        return identity_of(facts)
    with opened_file(task.path) as file:
        return file.identity


def is_same(task: probe.ProbeTask, row: Row) -> bool:
    """Return whether the file, object or folder of a task is unchanged since it was recorded in a row of the index.

    Raises:
        StorageError: The store denies access.
    """
    if is_remote(task.path) or _is_loose(task.images):
        if is_remote(task.path) and row["error_kind"] == "unreadable":  # another attempt to read may succeed
            return False
        try:
            identity = find_identity(task)
        except MediaError:
            return False
        return (identity.size_bytes, identity.fingerprint) == (row["size_bytes"], row["fingerprint"])
    with contextlib.suppress(OSError):
        descriptor = open_same_file(
            task.path, size_bytes=row["size_bytes"], mtime_ns=row["mtime_ns"], expected=row["fingerprint"]
        )
        if descriptor is not None:
            os.close(descriptor)
            return True
    return False
