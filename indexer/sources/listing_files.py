"""Read lists (text files with the paths of media) and listings (tables with the paths of media and user columns).

Listings are CSV, JSON, JSON Lines or Parquet files. The listings of some well-known datasets have ids of videos instead
of paths. A `Convention` recognises such a listing by its columns, and derives possible paths from the ids.
"""

import contextlib
import csv
import functools
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from framedex.core.limits import check_depth, json_depth, type_depth
from framedex.errors import MediaError, SourceError, StorageError
from framedex.files.csv_tables import Rows, read_csv
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.records.columns import Row
from framedex.storage.hub import pinned
from framedex.storage.places import Place, opened
from framedex.storage.uris import absolute, checked, is_inside, is_remote, leads_out, local_path

TRIMMED = (".mp4", ".mkv", ".webm", ".avi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """The format of the listings of a well-known dataset.

    Attributes:
        name: The name of the dataset.
        columns: The columns by which a listing is recognised. The listing must have all of them.
        texts: The columns that are read as text, even if all of their values look like numbers.
        paths: The function that returns the possible paths of a row's video, relative to the root, in the order in
            which they are tried.
        renamed: The new names, by old name, of columns whose names would have another meaning in framedex's listings.
    """

    name: str
    columns: frozenset[str]
    texts: tuple[str, ...]
    paths: Callable[[Row], list[str]]
    renamed: Mapping[str, str] = field(default_factory=dict)


def recognise(names: Iterable[str]) -> Convention | None:
    """Return the convention of a listing with these columns, or None if no convention applies."""
    return next((kind for kind in CONVENTIONS if kind.columns <= {*names}), None)


def _paths_of(folders: Iterable[str], stem: str, endings: Iterable[str]) -> list[str]:
    """Return a path for each pair of a folder and a filename extension.

    Repeated folders are ignored. The folder "" stands for the root.
    """
    pairs = itertools.product(dict.fromkeys(folders), endings)
    return [f"{folder}/{stem}{ending}" if folder else f"{stem}{ending}" for folder, ending in pairs]


def _id(row: Row, column: str) -> str:
    """Return the id of a row's video as text. Raises ValueError if the id is empty."""
    if row[column] in (None, ""):
        raise ValueError(f"{column} is empty")
    return str(row[column])


def _kinetics_paths(row: Row) -> list[str]:
    """Return the paths at which downloaders of Kinetics store trimmed videos.

    Some downloaders use folders named after the label, the split, or both.
    """
    stem = f"{_id(row, 'youtube_id')}_{int(row['time_start']):06d}_{int(row['time_end']):06d}"
    label, split = str(row.get("label") or ""), str(row.get("split") or "")
    labels = [label, label.replace(" ", "_")]
    in_split = [f"{split}/{name}".strip("/") for name in labels]
    return _paths_of(["", *labels, split, *in_split], stem, TRIMMED)


def _webvid_paths(row: Row) -> list[str]:
    page = str(row["page_dir"] or "")
    return _paths_of([page, f"videos/{page}".rstrip("/"), ""], _id(row, "videoid"), (".mp4",))


CONVENTIONS = (
    Convention(
        name="Kinetics",
        columns=frozenset({"youtube_id", "time_start", "time_end"}),
        texts=("youtube_id", "label", "split"),
        paths=_kinetics_paths,
        # The files are already trimmed. Without renaming, these columns would select a part of each trimmed file.
        renamed={"time_start": "youtube_time_start", "time_end": "youtube_time_end"},
    ),
    Convention(
        name="Something-Something",
        columns=frozenset({"id", "template", "placeholders"}),
        texts=("id",),
        paths=lambda row: _paths_of(["", "videos", "20bn-something-something-v2"], _id(row, "id"), (".webm", ".mp4")),
    ),
    Convention(
        name="WebVid",
        columns=frozenset({"videoid", "page_dir", "contentUrl"}),
        texts=("videoid", "page_dir", "name"),
        paths=_webvid_paths,
    ),
    Convention(
        name="HowTo100M",
        columns=frozenset({"video_id", "start", "end", "text"}),
        texts=("video_id", "text"),
        paths=lambda row: _paths_of(["", "videos"], _id(row, "video_id"), (".mp4", ".webm", ".mkv")),
    ),
)


def captions_as_rows(content: Any) -> list[Row] | None:
    """Convert HowTo100M's JSON, {video_id: {"start": […], "end": […], "text": […]}}, into one row for each caption.

    Returns:
        The rows, or None if the content has another structure.
    """
    lists = ("start", "end", "text")
    if not isinstance(content, dict) or not content:
        return None
    rows: list[Row] = []
    for video, captions in content.items():
        if not isinstance(captions, dict) or not all(isinstance(captions.get(name), list) for name in lists):
            return None
        if len({len(captions[name]) for name in lists}) > 1:
            return None
        columns = zip(*(captions[name] for name in lists), strict=True)
        rows += [{"video_id": video} | dict(zip(lists, values, strict=True)) for values in columns]
    return rows


UNREADABLE = (OSError, ValueError, OverflowError, csv.Error, pa.ArrowException, StorageError)
MAX_HEADER_BYTES = 1 << 20  # size of the beginning of a CSV file in which the header and the first row are looked for


def read_rows(path: Place, own: str) -> Rows:
    """Read the rows of a listing.

    Args:
        path: The listing.
        own: The column with the paths of the media.

    Raises:
        SourceError: The listing cannot be read.
    """
    ending = os.path.splitext(path.name)[1].lower()
    try:
        with opened(path) as file:
            if ending == ".csv":
                return _read_csv(file, own)
            if ending == ".parquet":
                opened_file = pq.ParquetFile(file)
                # The types are checked before any column is read. If the error were raised later, pyarrow's threads
                # that read columns could still run when the interpreter exits.
                _check_types(opened_file.schema_arrow, path)
                return _rows_of(opened_file.read(), path)
            if ending == ".json" and (rows := _read_json(file.read().decode("utf-8-sig"), path, own)) is not None:
                return rows
            return _read_json_lines(file, path, own)
    except UNREADABLE as error:  # for instance because a string is not valid UTF-8
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error


def _rows_of(table: pa.Table, path: Place) -> Rows:
    """Convert a table into rows, and check the types of its columns. Raises SourceError."""
    _check_types(table.schema, path)
    return Rows(table=table, numbers=range(len(table)), wrong={})


def _check_types(schema: pa.Schema, path: Place) -> None:
    """Raise SourceError if a column is nested too deeply or has empty objects, so that an index cannot store it."""
    for column in schema:
        check_depth(type_depth(column.type), f"{path}, column {column.name}", SourceError)
        if _has_empty_objects(column.type):
            raise SourceError(
                "a column has objects without keys, which Parquet cannot store",
                where=f"{path}, column {column.name}",
                found="{} in all rows",
                remedy="remove the column, or write null",
            )


def _has_empty_objects(kind: pa.DataType) -> bool:
    parts = [kind.field(place).type for place in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not parts) or any(map(_has_empty_objects, parts))


def _read_csv(file: BinaryIO, own: str) -> Rows:
    text = file.read(MAX_HEADER_BYTES).decode("utf-8-sig", "replace").rstrip()
    lines = csv.reader(io.StringIO(text, newline=""))
    names = next(lines, [])
    if next(lines, None) is None and len(text) < MAX_HEADER_BYTES:  # pyarrow raises an error if there are no rows
        return Rows(table=pa.table({name: pa.nulls(0) for name in names}), numbers=[], wrong={})
    kind = None if own in names else recognise(names)
    return read_csv(file, [own] if kind is None else kind.texts)


def _read_json(text: str, path: Place, own: str) -> Rows | None:
    """Return the rows of a JSON file: of a list of objects, or of HowTo100M's captions. Return None for JSON Lines."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    check_depth(json_depth(text) - 2, str(path), SourceError)  # the levels of the list and of the row do not count
    if not isinstance(content, list):
        captions = captions_as_rows(content)
        return None if captions is None else _rows_of(_table_of(captions, path), path)
    if content and not any(isinstance(row, dict) for row in content):
        raise SourceError("the listing is a JSON list without any object", where=str(path), found=repr(content[0])[:80])
    wrong = {number: problem for number, row in enumerate(content) if (problem := _problem_of(row, own)) is not None}
    numbers = [number for number in range(len(content)) if number not in wrong]
    found = _rows_of(_table_of([content[number] for number in numbers], path), path)
    return replace(found, numbers=numbers, wrong=wrong)


def _problem_of(row: object, own: str) -> str | None:
    """Return the reason why a JSON value is not a row, or None if it is a row.

    Args:
        row: The value.
        own: The column with the paths of the media.
    """
    if not isinstance(row, dict):
        return f"it is not a JSON object: {row!r}"[:200]
    return None if row.get(own) is None or isinstance(row[own], str) else _name_problem(own, row[own])


def _name_problem(own: str, found: object) -> str:
    """Return the problem of a value that is not a path, in the column with the paths of the media.

    Args:
        own: The name of the column.
        found: The value.
    """
    return f"a {own} must be a non-empty string: {found!r}"[:200]


def _read_json_lines(file: BinaryIO, path: Place, own: str) -> Rows:
    """Return the rows of a JSON Lines file, and the problems of lines that are not rows.

    Raises:
        SourceError: A line is nested too deeply.
        pa.ArrowException: No line is a row, an object extends over several lines, or a column has values of several
            types.
    """
    file.seek(0)
    lines = []
    for number, line in enumerate(file, 1):
        # An object that is nested too deeply would crash the process in pyarrow's reader. The level of the row itself
        # does not count.
        check_depth(json_depth(line.decode("utf-8", "replace")) - 1, f"{path}:{number}", SourceError)
        if line.strip():
            lines.append(line)
    if not lines:
        return Rows(table=pa.table({}), numbers=[], wrong={})
    wrong: dict[int, str] = {}
    try:
        file.seek(0)
        found = _rows_of(pyarrow.json.read_json(file), path)
        with contextlib.suppress(UnicodeDecodeError):
            b"".join(lines).decode()  # checks that the lines are valid UTF-8, which pyarrow does not check
            return found
    except pa.ArrowInvalid:
        wrong = _wrong_lines(lines, own)
        if not wrong or len(wrong) == len(lines) or _spans_lines(lines, min(wrong)):
            raise
    wrong = wrong or _wrong_lines(lines, own)
    numbers = [number for number in range(len(lines)) if number not in wrong]
    table = pyarrow.json.read_json(io.BytesIO(b"\n".join(lines[number].rstrip(b"\r\n") for number in numbers)))
    return replace(_rows_of(table, path), numbers=numbers, wrong=wrong)


def _spans_lines(lines: Sequence[bytes], first: int) -> bool:
    """Return whether an object begins in the line `first` and ends in a later line."""
    text = b"".join(lines[first:]).decode("utf-8", "replace").lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return "\n" in text[:end]


def _wrong_lines(lines: Sequence[bytes], own: str) -> dict[int, str]:
    """Return the problem of each line that is not a row, by the number of the line."""
    wrong: dict[int, str] = {}
    for number, line in enumerate(lines):
        try:
            problem = _problem_of(json.loads(line), own)
        except ValueError as error:
            problem = f"it is not JSON: {error}"
        if problem is not None:
            wrong[number] = problem
    return wrong


def _table_of(rows: list[Row], path: Place) -> pa.Table:
    """Convert rows into a table. Its columns are the keys of all rows, in order of appearance. Missing values are null.

    Raises:
        SourceError: The values of a column cannot be stored in one Arrow array.
    """
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except UNSTORABLE as error:
            raise SourceError(
                f"column {name!r} cannot be read",
                where=str(path),
                found=error,
                remedy="write values of the same simple type in all rows",
            ) from error
    return pa.table(columns)


WRONG_ROW = "listing_row"  # the error kind of a row of a listing without a usable path

# The formats of lines of DALI's file lists, in the order in which they are tried: `path label start end`, and `path
# label`. Paths may contain spaces.
DALI_LINES = (
    re.compile(
        r"(?P<path>.*\S)\s+(?P<label>-?\d{1,18})\s+(?P<start>-?\d{1,18}(?:\.\d*)?)\s+(?P<end>-?\d{1,18}(?:\.\d*)?)"
    ),
    re.compile(r"(?P<path>.*\S)\s+(?P<label>-?\d{1,18})"),
)


def _resolve(spelled: str, base: str, root: str | None) -> tuple[str, str | None]:
    """Resolve an entry of a list or a listing.

    Args:
        spelled: The path or uri in the entry.
        base: The folder of the list.
        root: The base folder of relative paths. If None, relative paths are tried in `base`, then in the working
            directory.

    Returns:
        (absolute path or uri, the folder out of which links must not lead or None).
    """
    if is_remote(spelled):
        return checked(pinned(spelled)), None
    spelled = local_path(spelled)
    top = base if root is None else root
    if is_remote(top) and not os.path.isabs(spelled):
        return checked(f"{top.rstrip('/')}/{spelled}"), None
    folders = [os.path.abspath(folder) for folder in ([root] if root is not None else [base, os.getcwd()])]
    paths = [os.path.abspath(os.path.join(folder, spelled)) for folder in folders]
    path = next((path for path in paths if os.path.lexists(path)), paths[0])
    return path, next((folder for folder in folders if is_inside(path, folder)), None)


def read_list(path: Place, root: str | None) -> Iterator[NamedMedium]:
    """Read a text list with one path per line, or with lines in DALI's format `path label [start end]`.

    Blank lines, and comments that begin with #, are ignored.

    Args:
        path: The list.
        root: The base folder of relative paths. If None, relative paths are tried in the folder of the list, then in
            the working directory.

    Raises:
        SourceError: The list cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, StorageError) as error:
        raise SourceError("the list cannot be read", where=str(path), found=error) from error
    for line in map(str.strip, text.split("\n")):
        if line and not line.startswith("#"):
            yield _read_line(line, os.path.dirname(str(path)) or ".", root)


def _read_line(line: str, base: str, root: str | None) -> NamedMedium:
    """Parse a line of a text list.

    The formats `path`, `path label start end` and `path label` are tried in this order. The first format that yields an
    existing path is used. If no path exists, the format with the most fields is used.
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


def read_table(path: Place, root: str | None, uri_column: str | None = None) -> list[NamedMedium]:
    """Read a CSV, JSON, JSONL or Parquet listing, which has a column with paths or uris of media, and user columns.

    A row without a usable path becomes a failed medium with the uri `LISTING/row N`.

    Args:
        path: The listing.
        root: The base folder of relative paths. If None, relative paths are tried in the folder of the listing, then in
            the working directory.
        uri_column: The column with the paths or uris of the media. If None, the column is `uri`, or the paths are made
            from the columns of a well-known dataset.

    Raises:
        SourceError: The listing cannot be read, or none of its rows has a usable path.
    """
    own = uri_column or "uri"
    found = read_rows(path, own)
    names = found.table.column_names
    if not found.wrong and not len(found.table):
        raise SourceError("the listing has no rows", where=str(path), found=f"columns {', '.join(names) or 'none'}")
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SourceError(
            "several columns of the listing have the same name", where=str(path), found=", ".join(sorted(repeated))
        )
    try:
        rows: dict[int, Row] = dict(zip(found.numbers, found.table.to_pylist(), strict=True))
    except UNREADABLE as error:  # for instance a date outside of the range of Python's dates
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error
    if not rows:
        media = {}
    elif own in names:
        media = {number: _of_column(row, number, own, path, root) for number, row in rows.items()}
    elif uri_column is None and (kind := recognise(names)) is not None:
        media = _find_by_convention(rows, kind, path, root)
    else:
        raise SourceError(
            f"the listing has no {own} column",
            where=str(path),
            found=f"columns {', '.join(names)}",
            remedy="pass the name of the column with the paths of the media by --uri-column",
        )
    media |= {number: _failed_row(path, number, problem, {}) for number, problem in found.wrong.items()}
    listed = [replace(media[number], row=number) for number in sorted(media)]
    if listed[0].error is not None and all(item.error is not None for item in listed):
        raise SourceError(
            "no row of the listing has the path of a medium",
            where=str(path),
            found=f"the first row: {listed[0].error.what}",
        )
    return listed


def _failed_row(path: Place, number: int, problem: str, columns: Row, *, refused: bool = False) -> NamedMedium:
    """Return the mention for a wrong row of a listing, with an error that describes the problem."""
    name = f"{path}/row {number}"
    error = MediaError(WRONG_ROW, f"row {number} of the listing: {problem}", refused=refused)
    return NamedMedium(path=absolute(name), spelled=name, columns=columns, error=error)


def _of_column(row: Row, number: int, own: str, path: Place, root: str | None) -> NamedMedium:
    """Return the mention of the medium whose path is in a column of a row. The other columns become user columns.

    Args:
        row: The row.
        number: The number of the row in the listing.
        own: The column with the paths of the media.
        path: The listing.
        root: The base folder of relative paths, or None (see `_resolve`).
    """
    uri, columns = row[own], {name: value for name, value in row.items() if name != own}
    if isinstance(uri, bytes):  # the reader returns bytes if a value of the column is not valid UTF-8
        try:
            uri = uri.decode()
        except UnicodeDecodeError:
            return _failed_row(path, number, f"the {own} is not valid UTF-8: {uri[:80]!r}", columns)
    if not isinstance(uri, str) or not uri:
        return _failed_row(path, number, _name_problem(own, uri), columns)
    try:
        entry, folder = _resolve(uri, os.path.dirname(str(path)) or ".", root)
    except SourceError as error:
        return _failed_row(path, number, error.what, columns)
    return NamedMedium(path=entry, spelled=uri, columns=columns, folder=folder)


def _find_by_convention(
    rows: dict[int, Row], kind: Convention, path: Place, root: str | None
) -> dict[int, NamedMedium]:
    """Return the mentions of a listing of a well-known dataset, by the number of the row.

    A row without an existing file is mentioned with its first possible path, so that it becomes a failed medium.

    Raises:
        SourceError: No file of the listing exists, or the base folder is in object storage, where files are not looked
            for.
    """
    base = os.path.dirname(str(path)) or "."
    if is_remote(base if root is None else root):
        raise SourceError(
            f"a listing with the columns of {kind.name} requires that its videos are on this machine",
            where=str(path),
            found=base if root is None else root,
            remedy="add a column with the uris of the videos, and pass its name by --uri-column",
        )

    # cached, because most rows share folders with other rows
    is_folder = functools.cache(lambda name: os.path.isdir(_resolve(name, base, root)[0]))
    found, tried, there = dict[int, NamedMedium](), list[str](), 0
    for number, row in rows.items():
        columns = {kind.renamed.get(name, name): value for name, value in row.items()}
        try:
            paths = kind.paths(row)
        except (TypeError, ValueError, OverflowError) as error:
            found[number] = _failed_row(path, number, f"it does not identify a video of {kind.name}: {error}", columns)
            continue
        if outside := next((one for one in paths if leads_out(one)), None):
            problem = f"its path leads out of the folder of the videos: {outside[:80]!r}"
            found[number] = _failed_row(path, number, problem, columns, refused=True)
            continue
        existing = (
            one for one in paths if is_folder(os.path.dirname(one)) and os.path.exists(_resolve(one, base, root)[0])
        )
        first = next(existing, None)
        spelled = paths[0] if first is None else first
        entry, folder = _resolve(spelled, base, root)
        there, tried = there + (first is not None), tried or paths
        found[number] = NamedMedium(path=entry, spelled=spelled, columns=columns, folder=folder)
    if tried and not there:
        raise SourceError(
            f"the listing has the columns of {kind.name}, but none of its videos exists",
            where=str(path),
            found=f"tried for the first row: {', '.join(tried)}",
            remedy="pass the folder of the videos by --root, or the name of a column with their paths by --uri-column",
        )
    return found
