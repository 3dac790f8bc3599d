"""Whether something lies where a source says, on this machine or in object storage."""

from __future__ import annotations

import os

from framedex.indexer.sources.object_folders import is_folder
from framedex.storage.objects import children, exists
from framedex.storage.uris import is_remote, local_path


def is_there(path: str) -> bool:
    """Return whether a file, a link, an object or a folder lies at an absolute path or uri. Raises StorageError."""
    return (exists(path) is not None or is_folder(path)) if is_remote(path) else os.path.lexists(path)


def is_seen_missing(path: str) -> bool:
    """Return whether nothing lies at a path of this machine; of a store, probing shows that."""
    return not is_remote(path) and not os.path.lexists(path)


def may_be_folder(source: str) -> bool:
    """Return whether a source is a folder; of a store, which has objects alone, any may be."""
    return is_remote(source) or os.path.isdir(local_path(source))


def names_folder(path: str, spelled: str) -> bool:
    """Return whether an entry of a list names a folder; of a store, as it is spelled: with a slash at its end, or no ending."""
    if is_remote(path):
        return spelled.endswith("/") or not os.path.splitext(path)[1]
    return os.path.isdir(path)


def files_in(folder: str) -> list[str]:
    """Return the names of the files that lie right in a folder. Raises OSError, StorageError."""
    if is_remote(folder):
        return list(children(folder))
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir()]
