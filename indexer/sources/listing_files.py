"""Read lists and listings: text files that name media, and tables that name media with the user's columns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from framedex.core.nesting import MOST_NESTED, json_depth, type_depth
from framedex.errors import SourceError, StorageError
from framedex.indexer.sources.folders import is_below
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.storage.hub import pinned
from framedex.storage.places import Place, opened
from framedex.storage.uris import checked, is_remote, local_path

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


def read_table(path: Place, root: str | None) -> Iterator[NamedMedium]:
    """Read a CSV, JSONL or Parquet listing: a `uri` column, and the user's own columns."""
    readers = {".csv": pyarrow.csv.read_csv, ".parquet": pq.read_table}
    read = readers.get(os.path.splitext(path.name)[1].lower(), pyarrow.json.read_json)
    try:
        with opened(path) as file:
            if read is pyarrow.json.read_json:
                _check_lines(file, str(path))
                file.seek(0)
            table: pa.Table = read(file)
        for field in table.schema:
            if type_depth(field.type) > MOST_NESTED:
                raise _too_deep(f"{path}, column {field.name}", type_depth(field.type))
        names, rows = table.column_names, table.to_pylist()
    except (
        OSError,
        ValueError,
        OverflowError,
        pa.ArrowException,
        StorageError,
    ) as error:  # for instance strings that are not UTF-8
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error
    if "uri" not in names:
        raise SourceError("the listing has no uri column", where=str(path), found=f"columns {', '.join(names)}")
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SourceError("the listing has two columns of one name", where=str(path), found=", ".join(sorted(repeated)))
    for number, row in enumerate(rows):
        uri = row.pop("uri")
        if not isinstance(uri, str) or not uri:
            raise SourceError("a uri must be a non-empty string", where=f"{path}, row {number}", found=repr(uri))
        entry, folder = _resolve(uri, os.path.dirname(str(path)) or ".", root)
        yield NamedMedium(path=entry, spelled=uri, columns=row, folder=folder)
