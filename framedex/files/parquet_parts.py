"""Parquet files: parts of tables that are written completely or not at all, and reading within a memory limit.

Parts are checked against their schema and record the versions of libraries. Reading checks first how much memory the
columns need, since a file of a few kilobytes may state billions of values.
"""

import functools
import json
import os
import re
import weakref
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from framedex.core.column_rules import encoded_bytes
from framedex.core.limits import usual_clip_bytes
from framedex.core.version import __version__
from framedex.core.words import size_text
from framedex.files.outputs import ASIDE
from framedex.storage.places import Place, Stored, names_in, parquet_file
from framedex.storage.reader import RangedFile

Folder = TypeVar("Folder", Path, Stored, Place)

PART_NAME = re.compile(r"part-(\d{6,})\.parquet")
# The errors of pyarrow for values that no column can hold: mixed types, numbers too large, lone surrogates.
UNSTORABLE = (pa.ArrowException, ValueError, OverflowError, TypeError)
LIBRARIES = ("av", "pyarrow", "numpy")
_installed_version = functools.cache(metadata.version)  # each call searches folders for a millisecond


def library_versions() -> dict[str, str]:
    """Return the versions that are written into every file."""
    from framedex.core.pyav import ffmpeg_version  # importing PyAV is slow, and readers do not need it

    versions = {name: _installed_version(name) for name in LIBRARIES}
    return {"framedex": __version__} | versions | {"ffmpeg": ffmpeg_version()}


def ffmpeg_of(schema: pa.Schema) -> set[str]:
    """Return the FFmpeg version in a part's metadata, or an empty set if an older framedex wrote the part."""
    stamp = json.loads((schema.metadata or {}).get(b"framedex.libraries", b"{}"))
    return {stamp["ffmpeg"]} if "ffmpeg" in stamp else set()


def part_path(folder: Folder, number: int) -> Folder:
    """Return the path of a part of a table folder."""
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
    lists = [pa.array([] if value is None else value, kind.value_type) for value in values]
    ends = np.cumsum([0, *(len(elements) for elements in lists)])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.concat_arrays(lists),
        type=kind,
        mask=pa.array([value is None for value in values]),
    )


LARGE = 1 << 60  # bytes, more than any offset in metadata
OFFSET_BYTES = 4
# Encodings that store each occurrence of a text. Others may store a text once and refer to it.
WHOLE_TEXTS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
VALUE_BYTES = 8  # the memory of a number, which may take only a few bits in the file

_checked: weakref.WeakKeyDictionary[pq.ParquetFile, set[int]] = weakref.WeakKeyDictionary()  # row groups by file


def checked_group(file: pq.ParquetFile, number: int) -> pq.RowGroupMetaData:
    """Return the metadata of a row group after checking that they are valid.

    If the metadata of a column are damaged, pyarrow ends the process when they are accessed. Only its reader of batches
    raises an error: it parses the metadata of all columns before it reads the first byte. So it reads an empty file
    here, which is large enough for all offsets.

    Raises:
        OSError: The metadata are damaged.
        pa.ArrowException: The metadata are damaged.
    """
    group = file.metadata.row_group(number)
    known = _checked.setdefault(file, set())
    if number not in known:
        offsets: list[int] = []  # an exception instead would stay in pyarrow, with all objects of its frames

        def read_nothing(offset: int, _length: int) -> bytes:
            offsets.append(offset)
            return b""

        try:
            empty = RangedFile(read_nothing, LARGE, "")
            with pq.ParquetFile(empty, metadata=file.metadata, buffer_size=1) as reader:
                for _ in reader.iter_batches(1, row_groups=[number], use_threads=False):
                    pass
        except (OSError, pa.ArrowException):
            if not offsets:
                raise
        for column in range(group.num_columns):
            if group.column(column).physical_type != file.metadata.schema.column(column).physical_type:
                raise OSError(f"column {column} of row group {number} has a type of its own")
        known.add(number)
    return group


def read_group(
    file: pq.ParquetFile,
    number: int,
    columns: Sequence[str] | None = None,
    *,
    most_bytes: int | None = None,
    kept: int = 1,
    threads: bool = False,
) -> pa.Table:
    """Return a row group of a file, or some of its columns.

    Args:
        file: An open file.
        number: The number of the row group.
        columns: The names of columns, or the paths of their parts. Defaults to all columns.
        most_bytes: The maximum memory of the columns. Defaults to the limit for a clip, divided by `kept`.
        kept: The number of row groups that the caller keeps in memory.
        threads: Whether columns are read in parallel.

    Raises:
        ValueError: The columns would take more memory.
        OSError: The row group cannot be read.
        pa.ArrowException: The row group cannot be read.
    """
    most = usual_clip_bytes() // kept if most_bytes is None else most_bytes
    group = checked_group(file, number)
    need, texts = _group_bytes(group, file.metadata.schema, columns)
    check_bytes(need, most, f"row group {number}")
    names = None if columns is None else list(columns)
    if need + texts <= most:
        return file.read_row_group(number, columns=names, use_threads=threads)
    # In the worst case, each text is as long as the whole column in the file. Read as many rows as then fit.
    rows = max(1, group.num_rows * most // (need + texts))
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in file.iter_batches(rows, row_groups=[number], columns=names, use_threads=threads):
        batches.append(batch)
        size += batch.nbytes
        check_bytes(size, most, f"row group {number}")
    return pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()


def read_all(
    where: Place, columns: Sequence[str] | None = None, *, row_bytes: int = 0, threads: bool = True
) -> pa.Table:
    """Return all rows of a file, or some of its columns. For arguments and errors, see `read_file`."""
    with parquet_file(where) as file:
        return read_file(file, where, columns, row_bytes=row_bytes, threads=threads)


def read_file(
    file: pq.ParquetFile,
    where: Place,
    columns: Sequence[str] | None = None,
    *,
    row_bytes: int = 0,
    threads: bool = True,
) -> pa.Table:
    """Return all rows of an open file, or some of its columns.

    Args:
        file: The open file.
        where: Its place. The file is opened again if its texts may not fit into memory.
        columns: The names of columns. Missing columns are ignored. Defaults to all columns.
        row_bytes: The memory that the caller needs for each row in addition.
        threads: Whether columns are read in parallel.

    Raises:
        ValueError: The columns would take more memory than a clip may.
        FileNotFoundError: And other file errors, StorageError, pa.ArrowException.
    """
    most, wanted = usual_clip_bytes(), None if columns is None else list(columns)
    need, repeated = check_file(file, columns, row_bytes=row_bytes)
    if need + repeated <= most:
        return file.read(columns=wanted, use_threads=threads)
    # Read each distinct text once. Repeat the texts only if all of them fit into memory.
    names = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    texts = [name for name in names if wanted is None or name in wanted]
    with parquet_file(where, read_dictionary=texts) as encoded:
        table = encoded.read(columns=wanted, use_threads=threads)
    encoded_chunks = (chunk for name in texts for chunk in table[name].chunks if pa.types.is_dictionary(chunk.type))
    check_bytes(need + sum(map(encoded_bytes, encoded_chunks)), most, "it")
    for name in texts:
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name).with_type(pa.string()), table[name].cast(pa.string()))
    return table


def check_file(file: pq.ParquetFile, columns: Sequence[str] | None = None, *, row_bytes: int = 0) -> tuple[int, int]:
    """Return the memory that columns of a file take in bytes, and the most that repeated texts may take in addition.

    Args:
        file: An open file.
        columns: The names of columns. Defaults to all columns.
        row_bytes: The memory that the caller needs for each row in addition.

    Raises:
        ValueError: The columns take more memory than a clip may, without what texts may take in addition.
        OSError: The metadata are damaged.
        pa.ArrowException: The metadata are damaged.
    """
    groups = [checked_group(file, number) for number in range(file.metadata.num_row_groups)]
    sizes = [_group_bytes(group, file.metadata.schema, columns) for group in groups]
    need = sum(size for size, _ in sizes) + file.metadata.num_rows * row_bytes
    check_bytes(need, usual_clip_bytes(), "it")
    return need, sum(texts for _, texts in sizes)


def check_bytes(need: int, most: int, what: str) -> None:
    """Raise ValueError if more memory is needed than is allowed.

    Args:
        need: The needed memory in bytes.
        most: The allowed memory in bytes.
        what: The part of a file that needs the memory, for the message.
    """
    if need > most:
        raise ValueError(f"{what} takes {size_text(need)} of memory; {size_text(most)} are allowed")


def _group_bytes(
    group: pq.RowGroupMetaData, schema: pq.ParquetSchema, columns: Sequence[str] | None
) -> tuple[int, int]:
    """Return the memory that columns of a row group take according to the file's footer, in bytes.

    The second number is the most that repeated texts may take in addition: a file may store a text once and refer to
    it often.
    """
    need = texts = 0
    for number in range(group.num_columns):
        chunk, leaf = group.column(number), schema.column(number)
        path = f"{chunk.path_in_schema}."
        if columns is None or any(path.startswith(f"{name}.") for name in columns):
            value_bytes = max(VALUE_BYTES, leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0)
            # Lists in lists have an offset for each value, and each level that may be null a bit.
            value_bytes += OFFSET_BYTES * max(0, leaf.max_repetition_level - 1) + leaf.max_definition_level // 8
            need += max(chunk.total_uncompressed_size, chunk.num_values * value_bytes)
            shares = chunk.has_dictionary_page or not WHOLE_TEXTS.issuperset(chunk.encodings)
            if chunk.physical_type == "BYTE_ARRAY" and shares:
                texts += chunk.num_values * chunk.total_uncompressed_size
    return need, texts
