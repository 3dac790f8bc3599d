"""Whether what was indexed is still there, and still the same: the tables `files` and `tars` that checks ask."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.audit.database import Database
from framedex.audit.relations import OF_SOURCES
from framedex.errors import StorageError
from framedex.indexer.fingerprint import is_object_tag, is_same_file
from framedex.indexer.schema import IMAGES
from framedex.indexer.sequences import visible_images
from framedex.sharder.media import Locations, Root
from framedex.sharder.schema import SHARDS_FOLDER
from framedex.storage.objects import head
from framedex.storage.places import Stored
from framedex.storage.uris import is_remote

THREADS = 16  # of network storage, most of the time is waiting
GONE, CHANGED, SAME, ORPHANED, UNKNOWN = "gone", "changed", "same", "orphaned", "unknown"
FOUND = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("state", pa.string()), ("found", pa.string())])
TARS = pa.schema([("name", pa.string()), ("state", pa.string()), ("found", pa.string())])
Row = dict[str, Any]
State = tuple[str, str | None]  # and what was found instead


def add_files(database: Database, root: Root | None) -> None:
    """Add `files`: a row a medium that had a file when it was indexed, and whether that is the same, changed or gone."""
    locations = Locations(database.audited.header["root"], root)
    rows = database.ask(
        f"SELECT {', '.join(OF_SOURCES)} FROM videos WHERE fingerprint IS NOT NULL ORDER BY uri"
    ).records()
    paths = {row["uri"]: row for row in rows}  # several streams, or sequences, of one file are looked at once

    def look(row: Row) -> State:
        return state_of(locations.path(row["uri"]), row)

    with ThreadPoolExecutor(THREADS) as pool:
        states = dict(zip(paths, pool.map(look, paths.values()), strict=True))
    found = [row | {"state": states[row["uri"]][0], "found": states[row["uri"]][1]} for row in rows]
    database.add("files", pa.Table.from_pylist(found, schema=FOUND))


def state_of(path: str, row: Row) -> State:
    """Return whether a medium's source is what its row of `videos` says."""
    try:
        if is_remote(path):
            return _object_state(path, row)
        if row["kind"] == IMAGES and row["container"] == "files" and os.path.isdir(path):
            return _folder_state(path, row)
        return _file_state(path, row)
    except FileNotFoundError:
        return GONE, None
    except OSError as error:
        return GONE, f"cannot be opened: {error.strerror}"


def _file_state(path: str, row: Row) -> State:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        recorded = {"size_bytes": row["size_bytes"], "mtime_ns": row["mtime_ns"], "expected": row["fingerprint"]}
        if is_same_file(descriptor, **recorded):
            return SAME, None
        return CHANGED, f"{size} bytes" if size != row["size_bytes"] else "other content"
    finally:
        os.close(descriptor)


def _folder_state(path: str, row: Row) -> State:
    """Return whether a folder's images have the size and the latest time that were recorded."""
    with os.scandir(path) as entries:
        status = {entry.name: entry.stat() for entry in entries if not entry.is_dir()}
    images = visible_images(status)
    if not images:
        return GONE, "no image lies in the folder"
    size = sum(status[name].st_size for name in images)
    latest = max(status[name].st_mtime_ns for name in images)
    if (size, latest) == (row["size_bytes"], row["mtime_ns"]):
        return SAME, None
    return CHANGED, f"{len(images)} images of {size} bytes" if size != row["size_bytes"] else "written again"


def _object_state(path: str, row: Row) -> State:
    if not is_object_tag(row["fingerprint"]) or row["kind"] == IMAGES:
        return UNKNOWN, None  # it was indexed somewhere else, or is many objects
    try:
        facts = head(path)
    except StorageError as error:
        if error.kind == "missing":
            return GONE, None
        raise
    if facts.tag == row["fingerprint"]:
        return SAME, None
    return CHANGED, f"{facts.size_bytes} bytes" if facts.size_bytes != row["size_bytes"] else "another version"


def add_tars(database: Database, *, content: bool) -> None:
    """Add `tars`: a row a tar, of the manifest or in the folder, and whether it is the same, changed, gone or orphaned.

    content: compare fingerprints, too, not sizes alone.
    """
    place = database.audited.place
    known = database.ask("SELECT name, size_bytes, fingerprint FROM shards").records()
    rows = [{"name": row["name"]} | _tar_state(place, row, content=content) for row in known]
    names = {row["name"] for row in known}
    rows += [{"name": name, "state": ORPHANED, "found": None} for name in sorted(set(_tar_names(place)) - names)]
    database.add("tars", pa.Table.from_pylist(rows, schema=TARS))


def _tar_names(place: Path | Stored) -> Iterable[str]:
    if isinstance(place, Stored):
        return (f"{SHARDS_FOLDER}/{name}" for name in (place / SHARDS_FOLDER).names() if name.endswith(".tar"))
    return (f"{SHARDS_FOLDER}/{path.name}" for path in (place / SHARDS_FOLDER).glob("*.tar"))


def _tar_state(place: Path | Stored, row: Row, *, content: bool) -> Row:
    where = place / row["name"]
    try:
        if isinstance(where, Stored):
            size = where.facts().size_bytes
        elif content:
            # No time is recorded of a tar: its content decides.
            state, found = _file_state(str(where), row | {"mtime_ns": -1})
            return {"state": state, "found": found}
        else:
            size = where.stat().st_size
    except FileNotFoundError:
        return {"state": GONE, "found": None}
    same = size == row["size_bytes"]
    return {"state": SAME if same else CHANGED, "found": None if same else f"{size} bytes"}
