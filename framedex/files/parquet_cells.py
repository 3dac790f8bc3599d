"""Reads single values of a binary column of a Parquet file. At most one row group of the column is in memory."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from framedex.core.memory import machine_bytes
from framedex.errors import StorageError
from framedex.files.row_groups import read_group
from framedex.storage.places import FOOTER_BYTES, Place, Stored, state_of
from framedex.storage.reader import ObjectFile, ObjectReader


def cell_name(column: str, row: int) -> str:
    """Return the name of a value among those of its file: `video/12`."""
    return f"{column}/{row}"


def cell_of(name: str) -> tuple[str, int]:
    """Return (column, row) of a name that `cell_name` made. Raises ValueError."""
    column, _, row = name.rpartition("/")
    return column, int(row)


def leaf_of(field: pa.Field) -> str | None:
    """Return the path of the bytes of a column of binaries, or of structs with `bytes`; None for other columns."""
    kind = field.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return f"{field.name}.bytes" if is_binary(kind.field("bytes").type) else None
    return field.name if is_binary(kind) else None


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is that of binaries of any length."""
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def read_cell(where: Place, name: str, *, tag: str | None = None) -> memoryview:
    """Return a value of a column.

    Args:
        where: the file.
        name: of the value, as `cell_name` returns it.
        tag: of an object, the tag that it must have.

    Raises:
        ValueError: the file is no Parquet file, or has no such value.
        StorageError: the store does not deliver the object, or it has another tag.
        OSError: the file cannot be read.
    """
    column, row = cell_of(name)
    state = tag if isinstance(where, Stored) else state_of(where)
    file = _opened(where, state)
    first = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if row < first + rows:
            value = _column(where, state, column, number)[row - first]
            if value.is_valid and isinstance(value, pa.StructScalar):
                value = value["bytes"]
            if not value.is_valid:
                raise ValueError(f"{name} is null")
            return memoryview(value.as_buffer())
        first += rows
    raise ValueError(f"the file has {first} rows, and no row {row}")


@functools.lru_cache(maxsize=1)
def _opened(where: Place, state: str | None) -> pq.ParquetFile:
    """Return an open Parquet file. `state`: the tag of an object, or what tells states of a file apart."""
    if not isinstance(where, Stored):
        return pq.ParquetFile(where)
    reader = ObjectReader.from_end(where.uri, FOOTER_BYTES)
    if state is not None and reader.facts.tag != state:
        raise StorageError("the object was replaced", kind="changed", where=where.uri, found=reader.facts.tag)
    return pq.ParquetFile(ObjectFile(reader))


@functools.lru_cache(maxsize=1)
def _column(where: Place, state: str | None, column: str, row_group: int) -> Any:
    """Return the values of a column in one row group."""
    file = _opened(where, state)
    index = file.schema_arrow.get_field_index(column)
    leaf = leaf_of(file.schema_arrow.field(index)) if index >= 0 else None
    if leaf is None:
        raise ValueError(f"the file has no column {column} of binaries")
    # In chunks: one array holds up to 2 GiB. Videos are large, so that they may take all memory.
    return read_group(file, row_group, [leaf], most_bytes=machine_bytes(), threads=True)[column]
