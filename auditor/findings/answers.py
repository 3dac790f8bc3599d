"""The answer to a query as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from framedex.auditor.findings.text import table
from framedex.auditor.tables.database import EXPLANATION, Result
from framedex.core.printing import TerminalBytes, echo, escaped_json, stdout_bytes
from framedex.errors import FramedexError, printable
from framedex.files.atomic import ASIDE

Format = Literal["table", "csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHOWN = 1000  # rows of a table on a terminal
MOST_SHOWN_BYTES = 16_000_000  # values of such a table


def print_table(answer: Result) -> None:
    """Print the first rows of an answer as a table, and whether there are more."""
    for line in _lines(answer.names, answer.rows[:SHOWN]):
        echo(line)
    if answer.cut or len(answer.rows) > SHOWN:
        echo("… and more rows (--format csv, or --out FILE, has all)")


def print_answer(answer: pa.RecordBatchReader, form: Format) -> None:
    """Print the answer to a query as CSV, JSON or Parquet.

    Raises:
        FramedexError: The answer contains a value that the format cannot hold, or is Parquet for a terminal.
    """
    if form == "parquet" and sys.stdout.isatty():
        raise FramedexError("Parquet is not for terminals", remedy="name a file with --out")
    with _held_by(form):
        _write(answer, form, stdout_bytes())


def write_answer(answer: pa.RecordBatchReader, form: Format, out: Path) -> int:
    """Write an answer to a file, completely or not at all. Return the number of rows. Raises FramedexError."""
    target = out.resolve()  # a symbolic link is kept
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(ASIDE + target.name)
    try:
        with open(aside, "wb") as file, _held_by(form):
            if form == "table":
                shown = list(_rows(answer))
                file.writelines(f"{line}\n".encode() for line in _lines(answer.schema.names, shown))
                rows = len(shown)
            else:
                rows = _write(answer, form, file)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return rows


def _lines(names: list[str], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """Yield the lines of a table. What EXPLAIN tells is drawn in lines, which are no cells."""
    if names == EXPLANATION:
        yield from (line for _, text in rows for line in printable(str(text), lines=True).splitlines())
    else:
        yield from table(names, rows)


@contextlib.contextmanager
def _held_by(form: Format) -> Iterator[None]:
    """Raise FramedexError for values that a format cannot hold."""
    try:
        yield
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise FramedexError(
            f"the answer holds a value that {form} cannot", found=error, remedy="cast it to VARCHAR in the query"
        ) from error


def _rows(answer: pa.RecordBatchReader) -> Iterator[tuple[object, ...]]:
    return (tuple(row.values()) for batch in answer for row in _records(batch))


def _distinct(names: list[str]) -> list[str]:
    """Return the names, with a number appended to each name that occurred before."""
    return [
        f"{name}_{names[:place].count(name)}" if name in names[:place] else name for place, name in enumerate(names)
    ]


def _records(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return the rows of a batch. Columns with the same name get keys of their own."""
    names = [f"{name} {place}" for place, name in enumerate(batch.schema.names)]
    return list(batch.rename_columns(names).to_pylist())


def _write(answer: pa.RecordBatchReader, form: Format, file: BinaryIO | TerminalBytes) -> int:
    rows = 0
    if form == "parquet":
        with pq.ParquetWriter(file, answer.schema, compression="zstd") as writer:
            for batch in answer:
                writer.write_batch(batch)
                rows += batch.num_rows
    elif form == "csv":
        with pyarrow.csv.CSVWriter(file, _flat(answer.schema)) as writer:
            for batch in answer:
                writer.write_batch(_flattened(batch))
                rows += batch.num_rows
    else:
        file.write(b"[")
        for batch in answer:
            for row in batch.rename_columns(_distinct(batch.schema.names)).to_pylist():
                file.write(b",\n" if rows else b"\n")
                file.write(
                    escaped_json(orjson.dumps(row, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()).encode()
                )
                rows += 1
        file.write(b"\n]\n")
    return rows


def _flat(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, pa.string() if _is_nested(field.type) else field.type) for field in schema])


def _flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that CSV can hold: lists as JSON texts, and bytes as hexadecimal texts."""
    columns = [
        pa.array([None if value is None else _as_text(value) for value in column.to_pylist()], pa.string())
        if _is_nested(column.type)
        else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, schema=_flat(batch.schema))


def _as_text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else orjson.dumps(value, default=_plain).decode()


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _plain(value: object) -> object:
    """Return a JSON value for a value whose type JSON lacks."""
    if isinstance(value, Decimal):  # the type of sums of whole numbers
        return int(value) if value == value.to_integral_value() and abs(value) < 1 << 63 else float(value)
    return value.hex() if isinstance(value, bytes) else str(value)
