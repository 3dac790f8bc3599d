"""Parquet parts: checked against their schema, stamped with versions, written under another name and renamed."""

from __future__ import annotations

import functools
import json
import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from framedex.core.version import __version__
from framedex.files.atomic import ASIDE
from framedex.storage.places import Place, Stored, names_in

Folder = TypeVar("Folder", Path, Stored, Place)

PART_NAME = re.compile(r"part-(\d{6,})\.parquet")
# The errors of pyarrow for values that no column can hold: mixed types, numbers too large, lone surrogates.
UNSTORABLE = (pa.ArrowException, ValueError, OverflowError, TypeError)
LIBRARIES = ("av", "pyarrow", "numpy")
_installed_version = functools.cache(metadata.version)  # searches folders for a millisecond


def library_versions() -> dict[str, str]:
    """Return the versions that are written into every file."""
    from framedex.core.pyav import ffmpeg_version  # importing PyAV is slow, and readers do without

    versions = {name: _installed_version(name) for name in LIBRARIES}
    return {"framedex": __version__} | versions | {"ffmpeg": ffmpeg_version()}


def ffmpeg_of(schema: pa.Schema) -> set[str]:
    """Return the FFmpeg version in a part's metadata. The set is empty if the part is older than that entry."""
    stamp = json.loads((schema.metadata or {}).get(b"framedex.libraries", b"{}"))
    return {stamp["ffmpeg"]} if "ffmpeg" in stamp else set()


def part_path(folder: Folder, number: int) -> Folder:
    """Return the path of part `number` of a table folder."""
    return folder / f"part-{number:06d}.parquet"


def part_numbers(folder: Place) -> list[int]:
    """Return the numbers of the visible parts of a table folder, ascending."""
    return sorted(int(match[1]) for name in names_in(folder) if (match := PART_NAME.fullmatch(name)))


class PartWriter:
    """A writer of one Parquet file with a fixed schema. The file gets its name on `commit`.

    Args:
        path: The path of the file after `commit`.
        schema: The columns of the file.
        version: The schema version that is written into the metadata.
        delta: Names of list columns whose elements are stored as differences (Parquet's DELTA_BINARY_PACKED).
    """

    def __init__(self, path: Path, schema: pa.Schema, *, version: str, delta: tuple[str, ...] = ()) -> None:
        self._path = path
        self._aside = path.with_name(ASIDE + path.name)
        stamp = {"framedex.schema_version": version, "framedex.libraries": json.dumps(library_versions())}
        self._schema = schema.with_metadata(stamp)
        path.parent.mkdir(parents=True, exist_ok=True)
        leaves = [f"{name}.list.element" for name in delta]
        plain = [name for name in schema.names if name not in delta]
        self._writer = pq.ParquetWriter(
            self._aside,
            self._schema,
            compression="zstd",
            use_dictionary=plain if delta else True,
            column_encoding=dict.fromkeys(leaves, "DELTA_BINARY_PACKED") or None,
            store_schema=True,
        )

    def write(self, table: pa.Table) -> None:
        """Append a table as one row group. Raises ValueError if it does not fit the schema."""
        self._writer.write_table(table.cast(self._schema), row_group_size=max(1, table.num_rows))

    def commit(self) -> None:
        """Close the file, flush it to disk and give it its name."""
        self._writer.close()
        descriptor = os.open(self._aside, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.replace(self._aside, self._path)


def write_part(path: Path, table: pa.Table, *, version: str) -> None:
    """Write a table as a file with one row group."""
    writer = PartWriter(path, table.schema, version=version)
    writer.write(table)
    writer.commit()


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as a table with this schema. Absent keys become null.

    Args:
        rows: Values by column. Lists may be numpy arrays; masked elements become null.
        schema: The columns of the table.

    Raises:
        ValueError: A required column has a null.
    """
    columns = [_column([row.get(field.name) for row in rows], field.type) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name!r} must not be null")
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind) or not any(isinstance(value, np.ndarray) for value in values):
        return pa.array(values, kind)
    lists = [_elements(value, kind.value_type) for value in values]
    ends = np.cumsum([0, *(len(elements) for elements in lists)])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.concat_arrays(lists),
        type=kind,
        mask=pa.array([value is None for value in values]),
    )


def _elements(value: Any, kind: pa.DataType) -> pa.Array:
    if value is None:
        return pa.array([], kind)
    masked = isinstance(value, np.ma.MaskedArray)
    return pa.array(np.ma.getdata(value) if masked else value, kind, mask=np.ma.getmaskarray(value) if masked else None)
