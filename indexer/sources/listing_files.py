"""Read lists and listings: text files that name media, and tables that name media with the user's columns."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from framedex.errors import MediaError, SourceError, StorageError
from framedex.indexer.listings.conventions import Convention, recognised
from framedex.indexer.listings.rows import as_dicts, no_name, read_rows
from framedex.indexer.sources.folders import is_below
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.storage.hub import pinned
from framedex.storage.places import Place
from framedex.storage.uris import absolute, checked, is_remote, leads_out, local_path

WRONG_ROW = "listing_row"  # the kind of a row that names no medium

# DALI's file lists: path label start end, or path label. Tried in this order. Paths may contain spaces.
DALI_LINES = (
    re.compile(
        r"(?P<path>.*\S)\s+(?P<label>-?\d{1,18})\s+(?P<start>-?\d{1,18}(?:\.\d*)?)\s+(?P<end>-?\d{1,18}(?:\.\d*)?)"
    ),
    re.compile(r"(?P<path>.*\S)\s+(?P<label>-?\d{1,18})"),
)


def _resolve(spelled: str, base: str, root: str | None) -> tuple[str, str | None]:
    """Return (absolute path or uri of an entry of a list, the folder that it was found through or None)."""
    if is_remote(spelled):
        return checked(pinned(spelled)), None
    spelled = local_path(spelled)
    top = base if root is None else root
    if is_remote(top) and not os.path.isabs(spelled):
        return checked(f"{top.rstrip('/')}/{spelled}"), None
    folders = [os.path.abspath(folder) for folder in ([root] if root is not None else [base, os.getcwd()])]
    paths = [os.path.abspath(os.path.join(folder, spelled)) for folder in folders]
    path = next((path for path in paths if os.path.lexists(path)), paths[0])
    return path, next((folder for folder in folders if is_below(path, folder)), None)


def read_list(path: Place, root: str | None) -> Iterator[NamedMedium]:
    """Read a text list: one path per line, or DALI's `path label [start end]`.

    Blank lines and # comments are ignored.
    """
    for line in _read_text(path).split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        yield _read_line(line, os.path.dirname(str(path)) or ".", root)


def _read_line(line: str, base: str, root: str | None) -> NamedMedium:
    """Return the first of a line's possible readings whose path exists.

    If none exists, return the reading with the most fields.
    """
    path, folder = _resolve(line, base, root)
    readings = [NamedMedium(path=path, spelled=line, folder=folder)]
    for pattern in DALI_LINES:
        if match := pattern.fullmatch(line):
            found = match.groupdict()
            columns: dict[str, Any] = {"label": int(found["label"])}
            columns |= {name: float(found[name]) for name in ("start", "end") if name in found}
            path, folder = _resolve(found["path"], base, root)
            readings.append(NamedMedium(path=path, spelled=found["path"], columns=columns, folder=folder))
    existing = [reading for reading in readings if os.path.lexists(reading.path)]
    return existing[0] if existing else readings[min(1, len(readings) - 1)]


def _read_text(path: Place) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, StorageError) as error:
        raise SourceError("the list cannot be read", where=str(path), found=error) from error


def read_table(path: Place, root: str | None, uri_column: str | None = None) -> list[NamedMedium]:
    """Read a CSV, JSON, JSONL or Parquet listing: a column that names the media, and the user's own columns.

    A row that names no medium becomes a medium that failed, `LISTING/row N`.

    Args:
        path: the listing.
        root: what relative paths in it are relative to. None: its folder, then the working directory.
        uri_column: the column that names the media. None: `uri`, or what the columns of a well-known dataset say.

    Raises:
        SourceError: the listing cannot be read, or none of its rows names a medium.
    """
    own = uri_column or "uri"
    found = read_rows(path, own)
    names = found.table.column_names
    if not found.wrong and not len(found.table):
        raise SourceError("the listing has no rows", where=str(path), found=f"columns {', '.join(names) or 'none'}")
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SourceError("the listing has two columns of one name", where=str(path), found=", ".join(sorted(repeated)))
    failed = {number: _failed_row(path, number, what, {}) for number, what in found.wrong.items()}
    rows = dict(zip(found.numbers, as_dicts(found.table, path), strict=True))
    if not rows:
        media = {}
    elif own in names:
        media = {number: _of_column(row, number, own, path, root) for number, row in rows.items()}
    elif uri_column is None and (kind := recognised(names)) is not None:
        media = _by_convention(rows, kind, path, root)
    else:
        raise SourceError(
            f"the listing has no {own} column",
            where=str(path),
            found=f"columns {', '.join(names)}",
            remedy="--uri-column names the column with the paths of the media",
        )
    media |= failed
    listed = [replace(media[number], row=number) for number in sorted(media)]
    if listed[0].error is not None and all(item.error is not None for item in listed):
        raise SourceError(
            "no row of the listing names a medium", where=str(path), found=f"the first row: {listed[0].error.what}"
        )
    return listed


def _failed_row(path: Place, number: int, what: str, columns: dict[str, Any], *, refused: bool = False) -> NamedMedium:
    """Return the medium that stands for a row which names none."""
    name = f"{path}/row {number}"
    error = MediaError(WRONG_ROW, f"row {number} of the listing: {what}", refused=refused)
    return NamedMedium(path=absolute(name), spelled=name, columns=columns, error=error)


def _of_column(row: dict[str, Any], number: int, own: str, path: Place, root: str | None) -> NamedMedium:
    """Return the medium that a column of a row names, with the row's other columns."""
    uri, columns = row[own], {name: value for name, value in row.items() if name != own}
    if isinstance(uri, bytes):  # some cells of the column are not valid UTF-8
        try:
            uri = uri.decode()
        except UnicodeDecodeError:
            return _failed_row(path, number, f"the {own} is not valid UTF-8: {uri[:80]!r}", columns)
    if not isinstance(uri, str) or not uri:
        return _failed_row(path, number, no_name(own, uri), columns)
    try:
        entry, folder = _resolve(uri, os.path.dirname(str(path)) or ".", root)
    except SourceError as error:
        return _failed_row(path, number, error.what, columns)
    return NamedMedium(path=entry, spelled=uri, columns=columns, folder=folder)


def _by_convention(
    rows: dict[int, dict[str, Any]], kind: Convention, path: Place, root: str | None
) -> dict[int, NamedMedium]:
    """Return the media of a listing of a well-known dataset. A file that is missing becomes a medium that failed.

    Raises:
        SourceError: no file of the listing exists, or the files would lie in object storage.
    """
    base = os.path.dirname(str(path)) or "."
    remedy = "--root names the folder of the videos; or add a column with their paths, and name it by --uri-column"
    if is_remote(base if root is None else root):
        raise SourceError(
            f"a listing with the columns of {kind.name} needs its videos on this machine",
            where=str(path),
            found=base if root is None else root,
            remedy="add a column with the uris of the videos, and name it by --uri-column",
        )

    @functools.cache
    def is_folder(name: str) -> bool:  # most rows share their folders
        return os.path.isdir(_resolve(name, base, root)[0])

    found, tried, there = dict[int, NamedMedium](), list[str](), 0
    for number, row in rows.items():
        columns = kind.own_columns(row)
        try:
            paths = kind.paths(row)
        except (TypeError, ValueError, OverflowError) as error:
            found[number] = _failed_row(path, number, f"it names no video of {kind.name}: {error}", columns)
            continue
        if outside := next((one for one in paths if leads_out(one)), None):
            what = f"its cells lead out of the folder of the videos: {outside[:80]!r}"
            found[number] = _failed_row(path, number, what, columns, refused=True)
            continue
        first = next((one for one in paths if is_folder(os.path.dirname(one)) and _exists(one, base, root)), None)
        spelled = paths[0] if first is None else first
        entry, folder = _resolve(spelled, base, root)
        there, tried = there + (first is not None), tried or paths
        found[number] = NamedMedium(path=entry, spelled=spelled, columns=columns, folder=folder)
    if tried and not there:
        raise SourceError(
            f"has the columns of {kind.name}, and none of its videos is there",
            where=str(path),
            found=f"tried for the first row: {', '.join(tried)}",
            remedy=remedy,
        )
    return found


def _exists(name: str, base: str, root: str | None) -> bool:
    """Return whether a file of this machine exists. A link that leads nowhere does not count."""
    return os.path.exists(_resolve(name, base, root)[0])
