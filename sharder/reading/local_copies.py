"""Sources as files of this machine, for code that decodes or demuxes them from their beginning."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from framedex.indexer.schema import IMAGES
from framedex.sharder.clips.medium import Medium
from framedex.sharder.reading.object_sources import Objects, stale_as
from framedex.sharder.reading.recorded_files import open_recorded
from framedex.storage.objects import Facts, at_once, children, download
from framedex.storage.uris import is_remote

LOOSE = "files"  # the container of images that are files of a folder


@contextlib.contextmanager
def local_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium whose path is on this machine: the medium itself, or a temporary copy of its object or objects.

    Raises:
        StaleError: The source is not the one recorded.
        StorageError: The store does not deliver the source.
        OSError: The source cannot be opened, or the copy cannot be written.
    """
    loose = medium.kind == IMAGES and medium.container == LOOSE
    if not is_remote(medium.path):
        if not loose:
            os.close(open_recorded(medium.source))
        yield medium
        return
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder, stale_as(medium.source):
        if loose:
            copy_folder(medium.path, Path(folder))
            yield replace(medium, path=folder)
            return
        path = Path(folder) / f"medium{Path(medium.path).suffix}"
        download(medium.path, Objects(None).facts(medium.source), path)
        yield replace(medium, path=str(path))


def copy_folder(uri: str, folder: Path) -> dict[str, Facts]:
    """Copy the objects directly in a folder of a store; return their facts by name."""
    found = children(uri)
    at_once(lambda name: download(f"{uri}/{name}", found[name], folder / name), list(found))
    return found
