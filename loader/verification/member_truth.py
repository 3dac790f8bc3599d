"""Copies a video out of a tar or a Parquet file by its name, as `tar x` or pyarrow would.

Clips are compared with this copy, so it does not use the positions in the index.
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from framedex.errors import StaleError
from framedex.files.parquet_cells import read_cell
from framedex.sharder.clips.medium import Medium
from framedex.sharder.reading.local_copies import local_copy
from framedex.sharder.reading.recorded_files import open_recorded
from framedex.storage.uris import is_remote

COPIED_BYTES = 8 << 20  # per read of a copy


@contextlib.contextmanager
def own_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium whose path is on this machine, as `local_copy` does.

    A video in a tar or a Parquet file of this machine is found there by its name. In a store it is found by its
    position.

    Raises:
        StaleError: the source is not the one recorded.
        StorageError: the store does not deliver the source.
        OSError: the source cannot be opened, or the copy cannot be written.
    """
    if medium.part is None or medium.member is None or is_remote(medium.path):
        with local_copy(medium) as copy:
            yield copy
        return
    os.close(open_recorded(medium.source))
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / f"medium{Path(medium.member).suffix}"
        if _is_parquet(medium.path):
            try:
                path.write_bytes(read_cell(Path(medium.path), medium.member))
            except ValueError as error:
                raise _stale(medium, str(error)) from error
            yield replace(medium, path=str(path), member_offset=None, member_bytes=None)
            return
        try:
            entry = _entries(medium.path, medium.mtime_ns).get(medium.member)
        except tarfile.TarError as error:
            raise _stale(medium, str(error)) from error
        if entry is None:
            raise _stale(medium, "no such member")
        with open(medium.path, "rb") as tar, open(path, "wb") as file:
            tar.seek(entry.offset_data)
            left = entry.size
            while left > 0 and (data := tar.read(min(left, COPIED_BYTES))):  # the tar may end within it
                left -= file.write(data)
        yield replace(medium, path=str(path), member_offset=None, member_bytes=None)


def _is_parquet(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


@functools.lru_cache(maxsize=4)
def _entries(path: str, mtime_ns: int) -> dict[str, tarfile.TarInfo]:
    """Return the files of a tar by name, up to where it is damaged."""
    entries: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(path, "r:", errors="surrogateescape") as tar, contextlib.suppress(tarfile.TarError):
        for entry in tar:
            if entry.isfile():
                entries[posixpath.normpath(entry.name)] = entry
    return entries


def _stale(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the file does not hold the video that was indexed",
        where=f"{medium.path}, {medium.member}",
        found=found,
        remedy="index and shard again, or point root at where the file moved",
    )
