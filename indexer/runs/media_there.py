"""Access to what exists at the path of a medium: a file or folder of this machine, or objects of a store.

Both have the same interface.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from framedex.errors import MediaError
from framedex.files.fingerprint import open_same_file
from framedex.indexer.containers.opened_file import check_unchanged, opened_file
from framedex.indexer.facts import Identity, MediumFacts
from framedex.indexer.images.probe_images import ImageTask, folder_identity
from framedex.indexer.media_rows import Row
from framedex.indexer.probing.cells import is_cell, probe_file_cell
from framedex.indexer.probing.probe import ProbeTask, probe_medium
from framedex.indexer.runs.objects import identity_of, loose_identity, object_contents, probe_object
from framedex.indexer.sources.file_contents import contents_of
from framedex.indexer.sources.file_member import FileContents
from framedex.storage.objects import Facts, children, exists
from framedex.storage.uris import is_remote


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
