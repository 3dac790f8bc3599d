"""The answer to a query, as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import click
import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from framedex.audit.text import table
from framedex.errors import FramedexError
from framedex.indexer.parts import ASIDE

Format = Literal["table", "csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHOWN = 1000  # rows of a table on a terminal


def print_answer(answer: pa.RecordBatchReader, form: Format) -> None:
    """Print an answer. Raises FramedexError for Parquet on a terminal."""
    if form == "parquet" and sys.stdout.isatty():
        raise FramedexError("Parquet is not for terminals", remedy="name a file with --out")
    if form == "table":
        for line in _table(answer):
            click.echo(line)
    else:
        _write(answer, form, sys.stdout.buffer)


def write_answer(answer: pa.RecordBatchReader, form: Format, out: Path) -> int:
    """Write an answer to a file, wholly or not at all; return its rows."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(ASIDE + out.name)
    try:
        with open(aside, "wb") as file:
            if form == "table":
                lines = list(_table(answer))
                file.writelines(f"{line}\n".encode() for line in lines)
                rows = len(lines) - 1
            else:
                rows = _write(answer, form, file)
        os.replace(aside, out)
    finally:
        aside.unlink(missing_ok=True)
    return rows


def _table(answer: pa.RecordBatchReader) -> Iterator[str]:
    names = answer.schema.names
    rows = (tuple(row.values()) for batch in answer for row in _records(batch))
    shown = list(itertools.islice(rows, SHOWN))
    yield from table(names, shown)
    more = sum(1 for _ in rows)
    if more:
        yield f"… and {more:,} more rows (--format csv has all)"


def _records(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return a batch's rows; of columns that share a name, each under its own."""
    names = [f"{name} {place}" for place, name in enumerate(batch.schema.names)]
    return list(batch.rename_columns(names).to_pylist())


def _write(answer: pa.RecordBatchReader, form: Format, file: BinaryIO) -> int:
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
            for row in batch.to_pylist():
                file.write(b",\n" if rows else b"\n")
                file.write(orjson.dumps(row, default=_plain, option=orjson.OPT_NON_STR_KEYS))
                rows += 1
        file.write(b"\n]\n")
    return rows


def _flat(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, pa.string() if _is_nested(field.type) else field.type) for field in schema])


def _flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose lists and bytes are JSON texts, which CSV can hold."""
    columns = [
        pa.array(
            [None if value is None else orjson.dumps(value, default=_plain).decode() for value in column.to_pylist()],
            pa.string(),
        )
        if _is_nested(column.type)
        else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, schema=_flat(batch.schema))


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _plain(value: object) -> object:
    """Return what JSON has for a value that it has no type for."""
    return value.hex() if isinstance(value, bytes) else str(value)
