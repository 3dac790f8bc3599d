"""Read lists and listings: text files that name media, and tables that name media with the user's columns.

Listings are CSV, JSON, JSON Lines and Parquet files. Listings of some well-known datasets name videos by ids. A
convention recognises such a listing by its columns, and has the possible names of the files.
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
from framedex.files.csv_tables import read_csv
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.sources.folders import is_below
from framedex.indexer.sources.named_medium import NamedMedium
from framedex.storage.hub import pinned
from framedex.storage.places import Place, opened
from framedex.storage.uris import absolute, checked, is_remote, leads_out, local_path

Row = Mapping[str, Any]

TRIMMED = (".mp4", ".mkv", ".webm", ".avi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A kind of listing.

    Attributes:
        name: The dataset.
        columns: A listing is of this kind if it has all of these.
        texts: Columns that are texts, even if all of their values are numbers.
        paths: Returns the possible files of a row, relative to the root, in the order in which they are tried.
        renamed: (Old name, new name) of columns whose own names have another meaning in listings.
    """

    name: str
    columns: frozenset[str]
    texts: tuple[str, ...]
    paths: Callable[[Row], list[str]]
    renamed: Mapping[str, str] = field(default_factory=dict)


def recognise(names: Iterable[str]) -> Convention | None:
    """Return the kind of a listing with these columns, or None."""
    return next((kind for kind in CONVENTIONS if kind.columns <= {*names}), None)


def _paths_of(folders: Iterable[str], stem: str, endings: Iterable[str]) -> list[str]:
    """Return a path for each folder and ending, without repeats. The folder "" is the root itself."""
    pairs = itertools.product(dict.fromkeys(folders), endings)
    return [f"{folder}/{stem}{ending}" if folder else f"{stem}{ending}" for folder, ending in pairs]


def _id(row: Row, column: str) -> str:
    """Return the id of a row's video. Raises ValueError if it is empty."""
    if row[column] in (None, ""):
        raise ValueError(f"{column} is empty")
    return str(row[column])


def _kinetics_paths(row: Row) -> list[str]:
    """Return the names that downloaders of Kinetics give to cut videos, in folders by label, by split, or both."""
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
        # The files are cut already. With their own names, these columns would be taken for ranges of the files.
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


def captions_as_rows(content: Any) -> list[dict[str, Any]] | None:
    """Return the captions of HowTo100M's JSON, {video_id: {"start": […], "end": […], "text": […]}}, one row each.

    Returns:
        The rows, or None if the content has another form.
    """
    lists = ("start", "end", "text")
    if not isinstance(content, dict) or not content:
        return None
    rows: list[dict[str, Any]] = []
    for video, captions in content.items():
        if not isinstance(captions, dict) or not all(isinstance(captions.get(name), list) for name in lists):
            return None
        if len({len(captions[name]) for name in lists}) > 1:
            return None
        columns = zip(*(captions[name] for name in lists), strict=True)
        rows += [{"video_id": video} | dict(zip(lists, values, strict=True)) for values in columns]
    return rows


UNREADABLE = (OSError, ValueError, OverflowError, csv.Error, pa.ArrowException, StorageError)
MAX_HEADER_BYTES = 1 << 20  # bytes of a CSV file that are searched for a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a listing.

    Attributes:
        table: The readable rows.
        numbers: The number of each row of `table` in the listing, from 0.
        wrong: The problems of the other rows, by their numbers.
    """

    table: pa.Table
    numbers: Sequence[int]
    wrong: dict[int, str]


def read_rows(path: Place, own: str) -> Rows:
    """Read a listing. `own` is the column that names the media. Raises SourceError."""
    ending = os.path.splitext(path.name)[1].lower()
    try:
        with opened(path) as file:
            if ending == ".csv":
                return _read_csv(file, own)
            if ending == ".parquet":
                opened_file = pq.ParquetFile(file)
                # Before any column is read: at an error, the threads that read columns may outlive the interpreter.
                _check_types(opened_file.schema_arrow, path)
                return _rows_of(opened_file.read(), path)
            if ending == ".json" and (rows := _read_json(file.read().decode("utf-8-sig"), path, own)) is not None:
                return rows
            return _read_json_lines(file, path, own)
    except UNREADABLE as error:  # for instance strings that are not UTF-8
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error


def _rows_of(table: pa.Table, path: Place) -> Rows:
    """Return the rows of a table, after a check of its columns. Raises SourceError."""
    _check_types(table.schema, path)
    return Rows(table=table, numbers=range(len(table)), wrong={})


def _check_types(schema: pa.Schema, path: Place) -> None:
    """Raise SourceError if an index cannot store a column: it is nested too deeply, or has empty objects."""
    for column in schema:
        check_depth(type_depth(column.type), f"{path}, column {column.name}", SourceError)
        if _has_empty_objects(column.type):
            raise SourceError(
                "a column has objects without any key, which Parquet cannot store",
                where=f"{path}, column {column.name}",
                found="{} in all rows",
                remedy="leave the column out, or write null",
            )


def _has_empty_objects(kind: pa.DataType) -> bool:
    parts = [kind.field(place).type for place in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not parts) or any(map(_has_empty_objects, parts))


def _read_csv(file: BinaryIO, own: str) -> Rows:
    text = file.read(MAX_HEADER_BYTES).decode("utf-8-sig", "replace").rstrip()
    lines = csv.reader(io.StringIO(text, newline=""))
    names = next(lines, [])
    if next(lines, None) is None and len(text) < MAX_HEADER_BYTES:  # without rows, pyarrow fails for `own`
        return Rows(table=pa.table({name: pa.nulls(0) for name in names}), numbers=[], wrong={})
    kind = None if own in names else recognise(names)
    found = read_csv(file, [own] if kind is None else kind.texts)
    return Rows(table=found.table, numbers=found.numbers, wrong=found.wrong)


def _read_json(text: str, path: Place, own: str) -> Rows | None:
    """Return the rows of a JSON list of objects, or of HowTo100M's captions; None for JSON Lines."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    check_depth(json_depth(text) - 2, str(path), SourceError)  # without the list and the row
    if not isinstance(content, list):
        captions = captions_as_rows(content)
        return None if captions is None else _rows_of(_table_of(captions, path), path)
    if content and not any(isinstance(row, dict) for row in content):
        raise SourceError("the listing is a list without objects", where=str(path), found=repr(content[0])[:80])
    wrong = {number: problem for number, row in enumerate(content) if (problem := _problem_of(row, own)) is not None}
    numbers = [number for number in range(len(content)) if number not in wrong]
    found = _rows_of(_table_of([content[number] for number in numbers], path), path)
    return replace(found, numbers=numbers, wrong=wrong)


def _problem_of(row: object, own: str) -> str | None:
    """Return why a value of JSON is not a row, or None if it is one. `own` is the column that names the media."""
    if not isinstance(row, dict):
        return f"it is not an object: {row!r}"[:200]
    return None if row.get(own) is None or isinstance(row[own], str) else _name_problem(own, row[own])


def _name_problem(own: str, found: object) -> str:
    """Return the problem of a cell of the column that names the media."""
    return f"a {own} must be a non-empty string: {found!r}"[:200]


def _read_json_lines(file: BinaryIO, path: Place, own: str) -> Rows:
    """Return the rows of JSON Lines, and the problems of lines that are not rows.

    Raises:
        SourceError: A line is nested too deeply.
        pa.ArrowException: No line is a row, an object covers several lines, or a column has values of several types.
    """
    file.seek(0)
    lines = []
    for number, line in enumerate(file, 1):
        # pyarrow's reader would end the process at an object that is nested too deeply. The row itself does not count.
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
            b"".join(lines).decode()  # pyarrow does not check this
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
    """Return whether an object begins at a line and ends at a later one."""
    text = b"".join(lines[first:]).decode("utf-8", "replace").lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return "\n" in text[:end]


def _wrong_lines(lines: Sequence[bytes], own: str) -> dict[int, str]:
    """Return the problems of lines that are not rows, by their numbers."""
    wrong: dict[int, str] = {}
    for number, line in enumerate(lines):
        try:
            problem = _problem_of(json.loads(line), own)
        except ValueError as error:
            problem = f"it is not JSON: {error}"
        if problem is not None:
            wrong[number] = problem
    return wrong


def _table_of(rows: list[dict[str, Any]], path: Place) -> pa.Table:
    """Return rows as a table with all keys of all rows, in order of appearance. Missing values are null."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except UNSTORABLE as error:
            raise SourceError(
                f"column {name!r} cannot be read", where=str(path), found=error, remedy="give it one plain type"
            ) from error
    return pa.table(columns)


WRONG_ROW = "listing_row"  # the error kind of a row that does not name a medium

# DALI's file lists: path label start end, or path label. Tried in this order. Paths may contain spaces.
DALI_LINES = (
    re.compile(
        r"(?P<path>.*\S)\s+(?P<label>-?\d{1,18})\s+(?P<start>-?\d{1,18}(?:\.\d*)?)\s+(?P<end>-?\d{1,18}(?:\.\d*)?)"
    ),
    re.compile(r"(?P<path>.*\S)\s+(?P<label>-?\d{1,18})"),
)


def _resolve(spelled: str, base: str, root: str | None) -> tuple[str, str | None]:
    """Return (absolute path or uri of an entry of a list, the folder that it was found through, or None).

    Args:
        spelled: The entry.
        base: The folder of the list.
        root: The folder for relative paths. If None, `base`, then the working directory.
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
    return path, next((folder for folder in folders if is_below(path, folder)), None)


def read_list(path: Place, root: str | None) -> Iterator[NamedMedium]:
    """Read a text list: one path per line, or DALI's `path label [start end]`.

    Blank lines and # comments are ignored.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, StorageError) as error:
        raise SourceError("the list cannot be read", where=str(path), found=error) from error
    for line in map(str.strip, text.split("\n")):
        if line and not line.startswith("#"):
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


def read_table(path: Place, root: str | None, uri_column: str | None = None) -> list[NamedMedium]:
    """Read a CSV, JSON, JSONL or Parquet listing: a column that names the media, and the user's own columns.

    A row that does not name a medium becomes a failed medium `LISTING/row N`.

    Args:
        path: The listing.
        root: The folder for relative paths. If None, the folder of the listing, then the working directory.
        uri_column: The column that names the media. If None, `uri`, or the columns of a well-known dataset.

    Raises:
        SourceError: The listing cannot be read, or none of its rows names a medium.
    """
    own = uri_column or "uri"
    found = read_rows(path, own)
    names = found.table.column_names
    if not found.wrong and not len(found.table):
        raise SourceError("the listing has no rows", where=str(path), found=f"columns {', '.join(names) or 'none'}")
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SourceError("the listing has two columns of one name", where=str(path), found=", ".join(sorted(repeated)))
    try:
        rows: dict[int, dict[str, Any]] = dict(zip(found.numbers, found.table.to_pylist(), strict=True))
    except UNREADABLE as error:  # for instance dates that Python does not have
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
            remedy="--uri-column names the column with the paths of the media",
        )
    media |= {number: _failed_row(path, number, problem, {}) for number, problem in found.wrong.items()}
    listed = [replace(media[number], row=number) for number in sorted(media)]
    if listed[0].error is not None and all(item.error is not None for item in listed):
        raise SourceError(
            "no row of the listing names a medium", where=str(path), found=f"the first row: {listed[0].error.what}"
        )
    return listed


def _failed_row(
    path: Place, number: int, problem: str, columns: dict[str, Any], *, refused: bool = False
) -> NamedMedium:
    """Return a mention with an error for a wrong row."""
    name = f"{path}/row {number}"
    error = MediaError(WRONG_ROW, f"row {number} of the listing: {problem}", refused=refused)
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
        return _failed_row(path, number, _name_problem(own, uri), columns)
    try:
        entry, folder = _resolve(uri, os.path.dirname(str(path)) or ".", root)
    except SourceError as error:
        return _failed_row(path, number, error.what, columns)
    return NamedMedium(path=entry, spelled=uri, columns=columns, folder=folder)


def _find_by_convention(
    rows: dict[int, dict[str, Any]], kind: Convention, path: Place, root: str | None
) -> dict[int, NamedMedium]:
    """Return the media of a listing of a well-known dataset. A missing file becomes a failed medium.

    Raises:
        SourceError: No file of the listing exists, or the files would lie in object storage.
    """
    base = os.path.dirname(str(path)) or "."
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
        columns = {kind.renamed.get(name, name): value for name, value in row.items()}
        try:
            paths = kind.paths(row)
        except (TypeError, ValueError, OverflowError) as error:
            found[number] = _failed_row(path, number, f"it does not name a video of {kind.name}: {error}", columns)
            continue
        if outside := next((one for one in paths if leads_out(one)), None):
            problem = f"its cells lead out of the folder of the videos: {outside[:80]!r}"
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
            f"has the columns of {kind.name}, and none of its videos exists",
            where=str(path),
            found=f"tried for the first row: {', '.join(tried)}",
            remedy="--root names the folder of the videos; or name a column with their paths by --uri-column",
        )
    return found
