"""Probe objects of a store: by byte ranges if sample tables are sufficient, else from a temporary copy."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from framedex.errors import MediaError, StorageError
from framedex.indexer.containers.medium_file import NeedsWholeError, ProbedObject
from framedex.indexer.facts import Identity, MediumFacts, problem_of
from framedex.indexer.images.probe_images import ImageTask, probe_images
from framedex.indexer.probing.cells import is_cell, probe_cell
from framedex.indexer.probing.members import in_file
from framedex.indexer.probing.probe import ProbeTask, check_member, medium_of, probe_medium, probe_opened
from framedex.indexer.sources.file_contents import contents_of
from framedex.indexer.sources.file_member import FileContents
from framedex.indexer.sources.image_times import TIMES_NAME
from framedex.storage.objects import Facts, at_once, children, download
from framedex.storage.places import FOOTER_BYTES, Stored
from framedex.storage.reader import ObjectReader

OF_THE_RUN = frozenset({"denied", "forked"})  # kinds of a StorageError that are not due to one object
WHOLE_BYTES = 1 << 20  # objects up to this size are copied at once: a second request costs more
HOLDER_KEPT_BYTES = 4 << 20  # of a file whose headers are read one after the other
MOST_REQUESTS = 64  # for sample tables; more requests cost more than a copy


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
        reader = ObjectReader(task.path, facts, part=part, most_requests=MOST_REQUESTS)
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
