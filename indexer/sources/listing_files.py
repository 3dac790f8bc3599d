"""Read lists and listings: text files that name media, and tables that name media with the user's columns."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from framedex.core.nesting import MOST_NESTED, json_depth, type_depth
from framedex.errors import SourceError, StorageError
from framedex.files.csv_tables import read_csv
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.listings.conventions import Convention, captions_as_rows, recognised
from framedex.indexer.sources.folders import is_below
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.storage.hub import pinned
from framedex.storage.places import Place, opened
from framedex.storage.uris import checked, is_remote, local_path

UNREADABLE = (OSError, ValueError, OverflowError, csv.Error, pa.ArrowException, StorageError)

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


def _check_lines(file: BinaryIO, where: str) -> None:
    """Raise SourceError for a line of JSON that is nested too deeply. pyarrow's reader would end the process."""
    for number, line in enumerate(file, 1):
        depth = json_depth(line.decode("utf-8", "replace"))
        if depth > MOST_NESTED + 1:  # the row itself is one
            raise _too_deep(f"{where}:{number}", depth - 1)


def _too_deep(where: str, levels: int) -> SourceError:
    return SourceError(
        "a user column is nested too deeply",
        where=where,
        found=f"{levels} levels",
        allowed=f"up to {MOST_NESTED}",
        remedy="store it as a text, or as columns of its own",
    )


def read_table(path: Place, root: str | None, uri_column: str | None = None) -> Iterator[NamedMedium]:
    """Read a CSV, JSON, JSONL or Parquet listing: a column that names the media, and the user's own columns.

    Args:
        path: the listing.
        root: what relative paths in it are relative to. None: its folder, then the working directory.
        uri_column: the column that names the media. None: `uri`, or what the columns of a well-known dataset say.
    """
    own = uri_column or "uri"
    table = _table(path, own)
    names, rows = table.column_names, _rows(table, path)
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SourceError("the listing has two columns of one name", where=str(path), found=", ".join(sorted(repeated)))
    if own not in names:
        kind = recognised(names) if uri_column is None else None
        if kind is None:
            raise SourceError(
                f"the listing has no {own} column",
                where=str(path),
                found=f"columns {', '.join(names)}",
                remedy="--uri-column names the column with the paths of the media",
            )
        yield from _by_convention(rows, kind, path, root)
        return
    for number, row in enumerate(rows):
        uri = row.pop(own)
        if not isinstance(uri, str) or not uri:
            raise SourceError(f"a {own} must be a non-empty string", where=f"{path}, row {number}", found=repr(uri))
        entry, folder = _resolve(uri, os.path.dirname(str(path)) or ".", root)
        yield NamedMedium(path=entry, spelled=uri, columns=row, folder=folder)


def _by_convention(
    rows: list[dict[str, Any]], kind: Convention, path: Place, root: str | None
) -> Iterator[NamedMedium]:
    """Yield the media of a listing of a well-known dataset. A file that is missing becomes a medium that failed.

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
    found, last, tried = list[NamedMedium](), 0, list[str]()
    there = 0
    for number, row in enumerate(rows):
        try:
            paths = kind.paths(row)
        except (TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"a row names no video of {kind.name}", where=f"{path}, row {number}", found=error
            ) from error
        last = min(last, len(paths) - 1)
        for place in (last, *range(len(paths))):  # most files lie where the file of the row before lies
            entry, folder = _resolve(paths[place], base, root)
            if os.path.lexists(entry):
                last, there = place, there + 1
                break
        else:
            place = last
            entry, folder = _resolve(paths[place], base, root)
        tried = tried or paths
        found.append(NamedMedium(path=entry, spelled=paths[place], columns=kind.own_columns(row), folder=folder))
    if rows and not there:
        raise SourceError(
            f"has the columns of {kind.name}, and none of its videos is there",
            where=str(path),
            found=f"tried for the first row: {', '.join(tried)}",
            remedy=remedy,
        )
    yield from found


def _table(path: Place, own: str) -> pa.Table:
    """Read a listing as a table. `own`: the column that names the media. Raises SourceError."""
    ending = os.path.splitext(path.name)[1].lower()
    try:
        with opened(path) as file:
            if ending == ".csv":
                found = read_csv(file, _text_columns(file, own))
                if found.wrong:
                    raise ValueError(f"rows {', '.join(map(str, found.wrong))} have too few or too many cells")
                return found.table
            if ending == ".parquet":
                return _deep_checked(pq.read_table(file), path)
            if ending == ".json" and (rows := _json_rows(file.read().decode("utf-8-sig"), str(path))) is not None:
                return _deep_checked(_table_of(rows, path), path)
            file.seek(0)
            _check_lines(file, str(path))
            file.seek(0)
            return _deep_checked(pyarrow.json.read_json(file), path)
    except UNREADABLE as error:  # for instance strings that are not UTF-8
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error


def _rows(table: pa.Table, path: Place) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except UNREADABLE as error:
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error
    return rows


def _text_columns(file: BinaryIO, own: str) -> list[str]:
    """Return the columns of a CSV file that are texts, even if all of their cells are numbers."""
    file.seek(0)
    names = next(csv.reader([file.readline().decode("utf-8-sig")]), [])
    kind = None if own in names else recognised(names)
    return [own] if kind is None else list(kind.texts)


def _json_rows(text: str, where: str) -> list[dict[str, Any]] | None:
    """Return the rows of a JSON list of objects, or of HowTo100M's captions; None for JSON Lines."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if (depth := json_depth(text)) > MOST_NESTED + 2:
        raise _too_deep(where, depth - 2)
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return content
    return captions_as_rows(content)


def _table_of(rows: list[dict[str, Any]], path: Place) -> pa.Table:
    """Return rows as a table with all keys of all rows, in order of appearance. Missing values are null."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except UNSTORABLE as error:
            raise SourceError(
                f"column {name!r} cannot be read",
                where=str(path),
                found=error,
                allowed="values of one type",
                remedy="give it one plain type",
            ) from error
    return pa.table(columns)


def _deep_checked(table: pa.Table, path: Place) -> pa.Table:
    for field in table.schema:
        if type_depth(field.type) > MOST_NESTED:
            raise _too_deep(f"{path}, column {field.name}", type_depth(field.type))
    return table
