"""Sources as files of this machine, for code that decodes or demuxes them from their beginning."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from framedex.records.medium import IMAGES
from framedex.sharder.clips.byte_source import stale
from framedex.sharder.clips.medium import Medium
from framedex.sharder.reading.object_sources import Objects, stale_as
from framedex.sharder.reading.recorded_files import open_recorded
from framedex.sharder.reading.sources import opened_part
from framedex.storage.objects import Facts, at_once, children, download
from framedex.storage.uris import is_remote

PIECE_BYTES = 16 << 20  # of a video inside a file, copied at once
LOOSE = "files"  # the container of images that are files of a folder


@contextlib.contextmanager
def local_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium whose path is on this machine: the medium itself, or a temporary copy.

    Objects are copied, and so are videos inside a file.

    Raises:
        StaleError: The source is not the one recorded.
        StorageError: The store does not deliver the source.
        OSError: The source cannot be opened, or the copy cannot be written.
    """
    loose, part = medium.kind == IMAGES and medium.container == LOOSE, medium.part
    if medium.cell is not None or (part is not None and not is_remote(medium.path)):
        with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
            yield _alone(medium, Path(folder))
        return
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
        path = Path(folder) / f"medium{_ending(medium)}"
        download(medium.path, Objects(None).facts(medium.source), path, part)
        yield replace(medium, path=str(path), member_offset=None, member_bytes=None)


def _ending(medium: Medium) -> str:
    """Return the ending of the name of a medium's file, or of its own name in a file that holds several."""
    return Path(medium.path if medium.part is None else medium.member or "").suffix


def _alone(medium: Medium, folder: Path) -> Medium:
    """Copy a video inside a file into a folder, and return the medium there. Raises StaleError, OSError."""
    path = folder / f"medium{_ending(medium)}"
    with open(path, "wb") as file:
        shutil.copyfileobj(opened_part(medium), file, PIECE_BYTES)
        if file.tell() != medium.member_bytes:
            raise stale(medium.path, f"{file.tell()} of {medium.member_bytes} bytes of {medium.member}")
    return replace(medium, path=str(path), member_offset=None, member_bytes=None)


def copy_folder(uri: str, folder: Path) -> dict[str, Facts]:
    """Copy the objects directly in a folder of a store; return their facts by name."""
    found = children(uri)
    at_once(lambda name: download(f"{uri}/{name}", found[name], folder / name), list(found))
    return found
