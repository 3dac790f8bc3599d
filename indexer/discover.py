"""From what the user names to media: files, folders, globs, lists, DALI file lists and listings with columns."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from framedex.errors import SourceError

VIDEO_SUFFIXES = frozenset(
    [
        ".3gp",
        ".apng",
        ".asf",
        ".avi",
        ".flv",
        ".gif",
        ".h264",
        ".h265",
        ".hevc",
        ".ivf",
        ".m2ts",
        ".m2v",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
        ".mxf",
        ".obu",
        ".ogv",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
        ".264",
        ".265",
    ]
)
TABLE_SUFFIXES = frozenset({".csv", ".jsonl", ".ndjson", ".parquet"})
LIST_SUFFIXES = frozenset({".txt", ".list"})
# DALI's file lists: path label start end, or path label. Tried in this order; paths may have spaces.
DALI_LINES = (
    re.compile(r"(?P<path>.*\S)\s+(?P<label>-?\d+)\s+(?P<start>-?\d+(?:\.\d*)?)\s+(?P<end>-?\d+(?:\.\d*)?)"),
    re.compile(r"(?P<path>.*\S)\s+(?P<label>-?\d+)"),
)
# Names that a clip's own columns have; a user column of that name would hide one of them.
RESERVED_COLUMNS = frozenset(
    [
        "media_id",
        "media_row",
        "listing_row",
        "listed_uri",
        "clip_id",
        "uri",
        "frames",
        "pts",
        "seconds",
        "frame_index",
        "mask",
        "audio",
        "movie",
        "positions",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One mention of a medium: its absolute path, its uri as spelled, and the user's columns beside it."""

    path: str
    spelled: str
    columns: dict[str, Any] = field(default_factory=dict)


def media_id(uri: str, stream: int | None = None) -> str:
    """Return the stable name of a medium: 16 hex digits of BLAKE2b over its uri.

    stream: the number of a video stream that is not its file's best one; it goes into the hash.
    """
    name = uri if stream is None else f"{uri}#{stream}"
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def relative_uri(path: str, root: str) -> str:
    """Return a path as recorded: relative to the root with forward slashes, or absolute outside it."""
    relative = os.path.relpath(path, root)
    return path if relative == ".." or relative.startswith("../") else Path(relative).as_posix()


def default_root(sources: Sequence[str]) -> str:
    """Return the deepest folder that holds everything named on the command line."""
    folders = []
    for source in sources:
        path = os.path.abspath(_fixed_prefix(source.removeprefix("@")))
        folders.append(path if os.path.isdir(path) else os.path.dirname(path))
    return os.path.commonpath(folders)


def _fixed_prefix(source: str) -> str:
    """Return a glob's part before its first wildcard folder; other sources as they are."""
    if not _is_glob(source):
        return source
    parts = Path(source).parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return os.path.join(*parts[:fixed]) if fixed else "."


def _is_glob(source: str) -> bool:
    return glob.has_magic(source) and not os.path.lexists(source)


def discover(sources: Sequence[str], *, root: str | None = None, label_from_parent: bool = False) -> list[Listed]:
    """Return every mention of a medium in the order given; folders and globs sorted.

    root: what relative paths inside lists and listings are relative to; by default the list's own folder, then the
    working directory. Raises SourceError for a list that cannot be read and for a folder or glob that names nothing.
    """
    listed = [item for source in sources for item in _expand(source, root)]
    if label_from_parent:
        listed = [_with_parent_label(item) for item in listed]
    for item in listed:
        if any("\ud800" <= char <= "\udfff" for char in item.path):
            raise SourceError("the file name is not valid UTF-8", where=ascii(item.path), remedy="rename the file")
        if clash := RESERVED_COLUMNS & item.columns.keys():
            raise SourceError(
                "a user column has a reserved name",
                where=item.spelled,
                found=", ".join(sorted(clash)),
                remedy="rename the column in the listing",
            )
    return _without_repeats(listed)


def _expand(source: str, root: str | None) -> Iterator[Listed]:
    path = Path(source)
    if source.startswith("@") and not os.path.lexists(source):
        yield from _read_list(Path(source[1:]), root)
    elif path.is_dir():
        yield from _walk(path)
    elif _is_glob(source):
        found = sorted(glob.glob(source, recursive=True))
        if not found:
            raise SourceError("the pattern matches nothing", where=source)
        for name in found:
            yield from _walk(Path(name)) if os.path.isdir(name) else [_plain(name)]
    elif path.suffix.lower() in TABLE_SUFFIXES:
        yield from _read_table(path, root)
    elif path.suffix.lower() in LIST_SUFFIXES:
        yield from _read_list(path, root)
    else:
        yield _plain(source)


def _plain(name: str) -> Listed:
    return Listed(path=os.path.abspath(name), spelled=name)


def _walk(folder: Path) -> Iterator[Listed]:
    names = [
        os.path.join(base, name)
        for base, _, files in os.walk(folder, onerror=_unreadable)
        for name in files
        if os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES
    ]
    if not names:
        raise SourceError(
            "the folder holds no video",
            where=str(folder),
            allowed="files ending in " + " ".join(sorted(VIDEO_SUFFIXES)),
            remedy="name the files themselves if they have other endings",
        )
    yield from (_plain(name) for name in sorted(names))


def _unreadable(error: OSError) -> None:
    raise SourceError("a folder cannot be searched", where=str(error.filename), found=error.strerror) from error


def _resolve(spelled: str, base: Path, root: str | None) -> str:
    """Return the absolute path of an entry of a list."""
    spelled = spelled.removeprefix("file://")
    candidates = [root] if root is not None else [str(base), os.getcwd()]
    paths = [os.path.abspath(os.path.join(folder, spelled)) for folder in candidates]
    return next((path for path in paths if os.path.lexists(path)), paths[0])


def _read_list(path: Path, root: str | None) -> Iterator[Listed]:
    """Read a text list: a path a line, or DALI's `path label [start end]`; blank lines and # comments pass."""
    for line in _read_text(path).split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        yield _read_line(line, path.parent, root)


def _read_line(line: str, base: Path, root: str | None) -> Listed:
    """Return the reading of a line whose path exists; where none does, the one with the most fields."""
    readings = [Listed(path=_resolve(line, base, root), spelled=line)]
    for pattern in DALI_LINES:
        if match := pattern.fullmatch(line):
            found = match.groupdict()
            columns: dict[str, Any] = {"label": int(found["label"])}
            columns |= {name: float(found[name]) for name in ("start", "end") if name in found}
            readings.append(Listed(path=_resolve(found["path"], base, root), spelled=found["path"], columns=columns))
    existing = [reading for reading in readings if os.path.lexists(reading.path)]
    return existing[0] if existing else readings[min(1, len(readings) - 1)]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError("the list cannot be read", where=str(path), found=error) from error


def _read_table(path: Path, root: str | None) -> Iterator[Listed]:
    """Read a CSV, JSONL or Parquet listing: a `uri` column, and the user's own columns."""
    readers = {".csv": pyarrow.csv.read_csv, ".parquet": pq.read_table}
    try:
        table: pa.Table = readers.get(path.suffix.lower(), pyarrow.json.read_json)(path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error
    if "uri" not in table.column_names:
        raise SourceError(
            "the listing has no uri column", where=str(path), found=f"columns {', '.join(table.column_names)}"
        )
    for number, row in enumerate(table.to_pylist()):
        uri = row.pop("uri")
        if not isinstance(uri, str) or not uri:
            raise SourceError("a uri must be a non-empty string", where=f"{path}, row {number}", found=repr(uri))
        yield Listed(path=_resolve(uri, path.parent, root), spelled=uri, columns=row)


def _with_parent_label(item: Listed) -> Listed:
    if "label" in item.columns:
        raise SourceError(
            "two labels for one medium: the listing's and its folder's name",
            where=item.spelled,
            remedy="leave out --label-from, or drop the listing's label column",
        )
    label = os.path.basename(os.path.dirname(item.path))
    return Listed(path=item.path, spelled=item.spelled, columns=item.columns | {"label": label})


def _without_repeats(listed: list[Listed]) -> list[Listed]:
    """Drop mentions that say nothing new: the same path with the same columns."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for item in listed:
        key = (item.path, repr(sorted(item.columns.items())))
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept
