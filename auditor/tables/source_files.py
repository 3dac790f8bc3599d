"""Tables that some checks need and that an index or a dataset does not contain.

`files` and `tars` record whether sources and tars still exist and are unchanged. `policy_misses` records the media in
which a policy finds no clip. `scene_views` records the views of the scenes of a policy.
"""

import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import OF_SOURCES
from framedex.errors import FormatError, StorageError
from framedex.files.outputs import is_object_tag, is_same_file
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.packets import Packets
from framedex.records.columns import Row
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import CONTENT_ALONE
from framedex.sharder.planning.indexed_medium import timelines
from framedex.sharder.planning.units import units_of
from framedex.sharder.planning.without_clips import media_without_clips
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.sharder.policies.scene_sampling import facts_of
from framedex.sharder.schema import SHARDS_FOLDER
from framedex.storage.objects import head
from framedex.storage.places import Access, Locations, Place, local_of, names_in, size_of
from framedex.storage.uris import is_remote, leads_out

THREADS = 16  # number of threads that look at files. They mostly wait for network storage
GONE, CHANGED, SAME, ORPHANED, UNKNOWN = "gone", "changed", "same", "orphaned", "unknown"
FOUND = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("state", pa.string()), ("found", pa.string())])
TARS = pa.schema([("name", pa.string()), ("state", pa.string()), ("found", pa.string())])
State = tuple[str, str | None]  # the state of a file, and a text that describes the change or the error, if any


def add_files(database: Database, access: Access) -> None:
    """Add the table `files`. It has one row per medium whose file existed when it was indexed.

    The column `state` is `same`, `changed`, `gone` or `unknown`. For a dataset, only the sources of clips that are not
    packed into tars are included.
    """
    audited = database.audited
    needed = "" if audited.kind == "index" else "AND media_id IN (SELECT media_id FROM clips WHERE shard IS NULL)"
    sql = f"SELECT {', '.join(OF_SOURCES)} FROM videos WHERE fingerprint IS NOT NULL {needed} ORDER BY uri"
    rows = database.ask(sql).records()
    if "root" not in audited.header:
        raise FormatError("the header is damaged", where=str(audited.place), found="no root")
    locations = Locations(str(audited.place), str(audited.header["root"]), access)
    locations.check(pa.chunked_array([[row["uri"] for row in rows]], pa.string()))
    index = Index(audited.place) if audited.kind == "index" else None

    def check_source(row: Row) -> dict[str, str | None]:
        packets = index.packets(row["media_id"]) if index is not None and _is_folder(row) else None
        state, found = _or_gone(_state_of, locations.path(row["uri"]), row, packets)
        return {"state": state, "found": found}

    single = {_identity(row): row for row in rows}  # media of the same file are checked once
    # Folders of images need the index, which only one thread may use at a time.
    with ThreadPoolExecutor(1 if any(map(_is_folder, rows)) else THREADS) as pool:
        states = dict(zip(single, pool.map(check_source, single.values()), strict=True))
    database.add("files", pa.Table.from_pylist([row | states[_identity(row)] for row in rows], schema=FOUND))


def _is_folder(row: Row) -> bool:
    """Return whether a medium is an image sequence in a folder."""
    return bool(row["kind"] == IMAGES and row["container"] == "files")


def _identity(row: Row) -> str:
    return str(row["media_id"] if _is_folder(row) else row["uri"])


def _state_of(path: str, row: Row, packets: Packets | None) -> State:
    """Compare a medium's source with its row of `videos`, or with its packets if it is a folder of images."""
    if is_remote(path):
        return _object_state(path, row)
    if _is_folder(row) and os.path.isdir(path):
        return _images_state(path, packets) if packets is not None and packets.path else (UNKNOWN, None)
    return _file_state(path, row)


def _or_gone(state_of: Callable[..., State], *arguments: object) -> State:
    """Return the state that a function returns, or GONE if the function cannot open the file."""
    try:
        return state_of(*arguments)
    except FileNotFoundError:
        return GONE, None
    except OSError as error:
        return GONE, f"cannot be opened: {error.strerror}"


def _file_state(path: str, row: Row) -> State:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        if is_object_tag(row["fingerprint"]) and size == row["size_bytes"]:
            return UNKNOWN, None  # it was indexed in object storage, so its fingerprint is not a hash of its content
        recorded = {"size_bytes": row["size_bytes"], "mtime_ns": row["mtime_ns"], "expected": row["fingerprint"]}
        if is_same_file(descriptor, **recorded):
            return SAME, None
        return CHANGED, f"{size} bytes" if size != row["size_bytes"] else "other content"
    finally:
        os.close(descriptor)


def _images_state(path: str, packets: Packets) -> State:
    """Compare the images of a folder with their recorded checksums."""
    assert packets.path is not None  # the index has paths and checksums for folders of images
    assert packets.crc32 is not None
    missing, others = [], []
    for name, expected in zip(packets.path, packets.crc32.tolist(), strict=True):
        try:
            if leads_out(name) or zlib.crc32(Path(path, name).read_bytes()) != expected:
                others.append(name)
        except OSError:
            missing.append(name)
    if len(missing) == len(packets.path):
        return GONE, "all of its images are missing"
    if missing:
        return CHANGED, f"{missing[0]} is missing" + (f", and {len(missing) - 1} more" if missing[1:] else "")
    return (CHANGED, f"{others[0]} has other content") if others else (SAME, None)


def _object_state(path: str, row: Row) -> State:
    if not is_object_tag(row["fingerprint"]) or row["kind"] == IMAGES:
        return UNKNOWN, None  # it was indexed as a local file, or consists of many objects
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
    """Add the table `tars`. It has one row per tar that is in the manifest or in the folder of the dataset.

    The column `state` is `same`, `changed`, `gone` or `orphaned` (in the folder, but not in the manifest).

    Args:
        database: The database of the dataset.
        content: Whether to compare fingerprints in addition to sizes.
    """
    place = database.audited.place
    known = database.ask("SELECT name, size_bytes, fingerprint FROM shards").records()
    rows = [(row["name"], *_or_gone(_tar_state, place / row["name"], row, content)) for row in known]
    tars = {f"{SHARDS_FOLDER}/{name}" for name in names_in(place / SHARDS_FOLDER) if name.endswith(".tar")}
    rows += [(name, ORPHANED, None) for name in sorted(tars - {row["name"] for row in known})]
    database.add("tars", pa.Table.from_pylist([dict(zip(TARS.names, row, strict=True)) for row in rows], schema=TARS))


def _tar_state(tar: Place, row: Row, content: bool) -> State:
    """Compare a tar with its row in the manifest, and return its state."""
    path = local_of(tar)
    if content and path is not None:
        # The manifest does not record modification times of tars, so the content is compared.
        return _file_state(str(path), row | {"mtime_ns": CONTENT_ALONE})
    size = size_of(tar)
    return (SAME, None) if size == row["size_bytes"] else (CHANGED, f"{size} bytes")


MISSES = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("reason", pa.string())])
VIEW_NUMBERS = ("begins_seconds", "ends_seconds", "rate", "frame_seconds", "longest_gap_seconds", "gap_at_seconds")
SCENE_VIEWS = pa.schema(
    [
        *[(name, pa.string()) for name in ("scene", "view", "media_id", "uri", "problem")],
        ("frames", pa.int64()),
        *[(name, pa.float64()) for name in VIEW_NUMBERS],
    ]
)


def add_policy_misses(database: Database, policy: PolicyLike) -> None:
    """Add the table `policy_misses`. Raises PolicyError.

    The table has one row per usable medium that the policy selects, but from which it makes no clip.
    """
    found = media_without_clips(Index(database.audited.place), find_policy(policy))
    rows = [{"media_id": video["media_id"], "uri": video["uri"], "reason": reason} for video, reason in found]
    database.add("policy_misses", pa.Table.from_pylist(rows, schema=MISSES))


def add_scene_views(database: Database, policy: PolicyLike) -> None:
    """Add the table `scene_views`, with one row per scene and view. The policy must have views. Raises PolicyError."""
    file, index = find_policy(policy), Index(database.audited.place)
    rows: list[dict[str, object]] = []
    units, timeline_of = units_of(index, file, ("uri",), may_be_empty=True), timelines(index)
    for unit in units:
        if unit.scene is None:
            continue
        for facts in facts_of(file.policy, unit.views(timeline_of), unit.view_names):
            row, medium = unit.scene.rows.get(facts.view), {}
            if isinstance(row, int):  # the number of a row of the listing, and not a text about a problem of the view
                uri = units.table.facts["uri"][row].as_py()
                medium = {"media_id": unit.mentions[row].media_id, "uri": uri}
            rows.append({"scene": unit.scene.name} | asdict(facts) | medium)
    database.add("scene_views", pa.Table.from_pylist(rows, schema=SCENE_VIEWS))
