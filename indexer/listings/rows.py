"""Read the rows of listings: CSV, JSON, JSON Lines and Parquet files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from framedex.core.nesting import check_depth, json_depth, type_depth
from framedex.errors import SourceError, StorageError
from framedex.files.csv_tables import read_csv
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.listings.conventions import captions_as_rows, recognised
from framedex.storage.places import Place, opened

UNREADABLE = (OSError, ValueError, OverflowError, csv.Error, pa.ArrowException, StorageError)
MOST_OF_A_HEADER = 1 << 20  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a listing.

    Attributes:
        table: The rows that could be read.
        numbers: The number of each row of `table` in the listing, from 0.
        wrong: What is wrong with the other rows, by their numbers.
    """

    table: pa.Table
    numbers: Sequence[int]
    wrong: dict[int, str]


def read_rows(path: Place, own: str) -> Rows:
    """Read a listing. `own`: the column that names the media. Raises SourceError."""
    ending = os.path.splitext(path.name)[1].lower()
    try:
        with opened(path) as file:
            if ending == ".csv":
                return _csv_rows(file, own)
            if ending == ".parquet":
                opened_file = pq.ParquetFile(file)
                # Before any column is read: at an error, the threads that read columns may outlive the interpreter.
                _check_types(opened_file.schema_arrow, path)
                return _all_of(opened_file.read(), path)
            if ending == ".json" and (rows := _json_rows(file.read().decode("utf-8-sig"), path, own)) is not None:
                return rows
            return _json_lines(file, path, own)
    except UNREADABLE as error:  # for instance strings that are not UTF-8
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error


def _all_of(table: pa.Table, path: Place) -> Rows:
    """Return the rows of a table, checked for columns that are nested too deeply. Raises SourceError."""
    _check_types(table.schema, path)
    return Rows(table=table, numbers=range(len(table)), wrong={})


def _check_types(schema: pa.Schema, path: Place) -> None:
    for field in schema:
        check_depth(type_depth(field.type), f"{path}, column {field.name}", SourceError)
        if _has_empty_objects(field.type):
            raise SourceError(
                "a column has objects without any key, which Parquet cannot hold",
                where=f"{path}, column {field.name}",
                found="{} in all rows",
                remedy="leave the column out, or write null",
            )


def _has_empty_objects(kind: pa.DataType) -> bool:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not fields) or any(_has_empty_objects(field.type) for field in fields)


def as_dicts(table: pa.Table, path: Place) -> list[dict[str, Any]]:
    """Return the rows of a table. Raises SourceError for values that Python does not have."""
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except UNREADABLE as error:
        raise SourceError("the listing cannot be read", where=str(path), found=error) from error
    return rows


def _csv_rows(file: BinaryIO, own: str) -> Rows:
    text = file.read(MOST_OF_A_HEADER).decode("utf-8-sig", "replace").rstrip()
    lines = csv.reader(io.StringIO(text, newline=""))
    names = next(lines, [])
    if next(lines, None) is None and len(text) < MOST_OF_A_HEADER:  # pyarrow says that columns are unknown
        return Rows(table=pa.table({name: pa.nulls(0) for name in names}), numbers=[], wrong={})
    kind = None if own in names else recognised(names)
    found = read_csv(file, [own] if kind is None else kind.texts)
    return Rows(table=found.table, numbers=found.numbers, wrong=found.wrong)


def _json_rows(text: str, path: Place, own: str) -> Rows | None:
    """Return the rows of a JSON list of objects, or of HowTo100M's captions; None for JSON Lines."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    check_depth(json_depth(text) - 2, str(path), SourceError)  # without the list and the row
    if not isinstance(content, list):
        captions = captions_as_rows(content)
        return None if captions is None else _all_of(_table_of(captions, path), path)
    if content and not any(isinstance(row, dict) for row in content):
        raise SourceError(
            "the listing is a list of something else than objects", where=str(path), found=repr(content[0])[:80]
        )
    wrong = {number: what for number, row in enumerate(content) if (what := _problem_of(row, own)) is not None}
    numbers = [number for number in range(len(content)) if number not in wrong]
    found = _all_of(_table_of([content[number] for number in numbers], path), path)
    return replace(found, numbers=numbers, wrong=wrong)


def _problem_of(row: object, own: str) -> str | None:
    """Return why a value of JSON is no row; None if it is one. `own`: the column that names the media."""
    if not isinstance(row, dict):
        return f"it is no object: {row!r}"[:200]
    return None if row.get(own) is None or isinstance(row[own], str) else no_name(own, row[own])


def no_name(own: str, found: object) -> str:
    """Return what is wrong with a cell of the column that names the media."""
    return f"a {own} must be a non-empty string: {found!r}"[:200]


def _json_lines(file: BinaryIO, path: Place, own: str) -> Rows:
    """Return the rows of JSON Lines. Lines that are no rows are wrong, unless all lines are.

    Raises:
        SourceError: a line is nested too deeply.
        pa.ArrowException: no line is a row, a wrong one is part of an object on several lines, or a column has values
            of several types.
    """
    file.seek(0)
    lines = [line for line in _checked_lines(file, str(path)) if line.strip()]
    if not lines:
        return Rows(table=pa.table({}), numbers=[], wrong={})
    wrong: dict[int, str] = {}
    try:
        file.seek(0)
        found = _all_of(pyarrow.json.read_json(file), path)
        if all(map(_is_utf8, lines)):
            return found
    except pa.ArrowInvalid:
        wrong = _wrong_lines(lines, own)
        if not wrong or len(wrong) == len(lines) or _spans_lines(lines, min(wrong)):
            raise
    wrong = wrong or _wrong_lines(lines, own)
    numbers = [number for number in range(len(lines)) if number not in wrong]
    table = pyarrow.json.read_json(io.BytesIO(b"\n".join(lines[number].rstrip(b"\r\n") for number in numbers)))
    return replace(_all_of(table, path), numbers=numbers, wrong=wrong)


def _spans_lines(lines: Sequence[bytes], first: int) -> bool:
    """Return whether an object begins at a line and ends at a later one."""
    text = b"".join(lines[first:]).decode("utf-8", "replace").lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return "\n" in text[:end]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _wrong_lines(lines: Sequence[bytes], own: str) -> dict[int, str]:
    """Return why lines are no rows, by their numbers."""
    wrong: dict[int, str] = {}
    for number, line in enumerate(lines):
        try:
            what = _problem_of(json.loads(line), own)
        except ValueError as error:
            what = f"it is not JSON: {error}"
        if what is not None:
            wrong[number] = what
    return wrong


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


def _checked_lines(file: BinaryIO, where: str) -> Iterator[bytes]:
    """Yield lines. Raises SourceError for one that is nested too deeply: pyarrow's reader would end the process."""
    for number, line in enumerate(file, 1):
        check_depth(
            json_depth(line.decode("utf-8", "replace")) - 1, f"{where}:{number}", SourceError
        )  # without the row
        yield line
