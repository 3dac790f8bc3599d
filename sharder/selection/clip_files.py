"""Reads the rows of a file of explicit clips: JSON Lines, or JSON, CSV and Parquet as `framedex audit` writes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from framedex.core.nesting import check_depth, json_depth, type_depth
from framedex.errors import PolicyError
from framedex.files.csv_tables import read_csv

ROWS_AT_ONCE = 1024  # of a Parquet file
BYTES_AT_ONCE = 1 << 20
LISTS = ("frames", "seconds")  # keys whose values are lists; in CSV, they are JSON
NAMES = ("uri", "clip_id", "outside")  # keys whose values are texts, even if all of them are digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRow:
    """A row of a file of clips.

    Attributes:
        number: Number of the line or row, from 1.
        where: The row, for errors.
        content: What it holds: a mapping, unless a line of JSON holds something else.
    """

    number: int
    where: str
    content: Any


def clip_rows(path: Path, own: frozenset[str], note: Callable[[bytes], None]) -> Iterator[ClipRow]:
    """Yield the rows of a file of clips.

    The ending says what the file is: `.csv`, `.parquet`, `.json` (a list of objects, or one object per line), and one
    JSON object per line with any other ending. In tables, an empty cell of a key of framedex's means that the key is
    absent.

    Args:
        own: The keys that are not the user's columns.
        note: Called with all bytes of the file, in order.

    Raises:
        PolicyError: The file, or a row, cannot be read.
    """
    try:
        ending = path.suffix.lower()
        if ending in (".csv", ".parquet"):
            _note_all(path, note)
            rows = _csv_rows(path) if ending == ".csv" else _parquet_rows(path)
            for number, row in enumerate(rows, 1):
                yield ClipRow(number=number, where=f"{path}, row {number}", content=_of_table(row, own))
        elif ending == ".json" and _begins_with_bracket(path):
            _note_all(path, note)
            yield from _list_rows(path)
        else:
            yield from _line_rows(path, note)
    except (OSError, UnicodeDecodeError, pa.ArrowException, OverflowError, csv.Error) as error:
        raise PolicyError("the clips file cannot be read", where=str(path), found=error) from error


def _line_rows(path: Path, note: Callable[[bytes], None]) -> Iterator[ClipRow]:
    with open(path, "rb") as file:  # lines end at \n alone: JSON strings may hold U+2028
        for number, line in enumerate(file, 1):
            note(line)
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if text.strip():
                where = f"{path}:{number}"
                yield ClipRow(number=number, where=where, content=_parsed(text, where, levels=1))


def _list_rows(path: Path) -> Iterator[ClipRow]:
    content = _parsed(path.read_text(encoding="utf-8-sig"), str(path), levels=2)
    for number, row in enumerate(content, 1):
        yield ClipRow(number=number, where=f"{path}, row {number}", content=row)


def _parsed(text: str, where: str, *, levels: int) -> Any:
    """Return JSON as Python values. `levels`: how deep the clip itself lies."""
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PolicyError("holds a lone surrogate", where=where, found=error) from error
    except (ValueError, RecursionError) as error:
        raise PolicyError("is not JSON", where=where, found=error) from error
    check_depth(json_depth(text) - levels, where, PolicyError)
    return content


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:  # at once: the types of the columns depend on all rows
        found = read_csv(file, (*LISTS, *NAMES))
    _check_names(found.table.schema, path)
    if found.wrong:
        number, what = min(found.wrong.items())
        raise PolicyError(
            "a row has a cell for each column, and numbers in columns of numbers",
            where=f"{path}, row {number + 1}",
            found=what,
        )
    for number, row in enumerate(found.table.to_pylist(), 1):
        where = f"{path}, row {number}"
        yield row | {name: _list_of(row[name], name, where) for name in LISTS if row.get(name)}


def _list_of(text: str, name: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PolicyError(
            f"{name} is no list", where=where, found=text[:80], allowed='a JSON list in the cell: "[0, 7, 3]"'
        ) from error


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    _check_names(file.schema_arrow, path)
    for batch in file.iter_batches(ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _check_names(schema: pa.Schema, path: Path) -> None:
    """Raise PolicyError for two columns of one name, and for columns that are nested too deeply."""
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise PolicyError("the file has two columns of one name", where=str(path), found=field.name)
        check_depth(type_depth(field.type), f"{path}, column {field.name}", PolicyError)


def _of_table(row: dict[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """Return a row of a table as a JSON object would say it."""
    return {
        name: [_number(element) for element in value] if name in LISTS and isinstance(value, list) else _number(value)
        for name, value in row.items()
        if name not in own or value not in (None, "")
    }


def _number(value: Any) -> Any:
    """Return a decimal, which SQL makes of 0.5 and of sums, as a number of JSON."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def _begins_with_bracket(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(BYTES_AT_ONCE).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _note_all(path: Path, note: Callable[[bytes], None]) -> None:
    with open(path, "rb") as file:
        while block := file.read(BYTES_AT_ONCE):
            note(block)
