"""Find out whether something exists at a path of this machine or at a uri of object storage."""

from __future__ import annotations

import os

from framedex.indexer.sources.object_folders import is_folder
from framedex.storage.objects import children, exists
from framedex.storage.uris import is_remote, local_path


def is_there(path: str) -> bool:
    """Return whether a file, link, object or folder exists at an absolute path or uri. Raises StorageError."""
    return (exists(path) is not None or is_folder(path)) if is_remote(path) else os.path.lexists(path)


def is_seen_missing(path: str) -> bool:
    """Return whether nothing exists at a path of this machine. False for a store; probing shows it there."""
    return not is_remote(path) and not os.path.lexists(path)


def may_be_folder(source: str) -> bool:
    """Return whether a source is a folder. In a store, which has only objects, any source may be one."""
    return is_remote(source) or os.path.isdir(local_path(source))


def names_folder(path: str, spelled: str) -> bool:
    """Return whether an entry of a list names a folder.

    In a store, the spelling decides: a folder has a slash at its end, or no ending.
    """
    if is_remote(path):
        return spelled.endswith("/") or not os.path.splitext(path)[1]
    return os.path.isdir(path)


def files_in(folder: str) -> list[str]:
    """Return the names of the files directly in a folder. Raises OSError, StorageError."""
    if is_remote(folder):
        return list(children(folder))
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir()]
