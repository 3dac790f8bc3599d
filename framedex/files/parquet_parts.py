"""Functions that write the Parquet files of a table (parts), and that read Parquet files within a memory limit.

Readers never see an incomplete part. The columns of a part must match a schema, and the metadata of a part records the
versions of libraries. Before a file is read, the memory of its columns is computed from the file's metadata, since a
file of a few kilobytes may declare billions of values.
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
from framedex.storage.places import Place, Stored, names_in, parquet_file
from framedex.storage.reader import ASIDE, RangedFile

Folder = TypeVar("Folder", Path, Stored, Place)

PART_NAME = re.compile(r"part-(\d{6,})\.parquet")
# The errors that pyarrow raises for values that it cannot store: mixed types, too large numbers, lone surrogates.
UNSTORABLE = (pa.ArrowException, ValueError, OverflowError, TypeError)
LIBRARIES = ("av", "pyarrow", "numpy")
_installed_version = functools.cache(metadata.version)  # cached, since each call searches folders for a millisecond


def library_versions() -> dict[str, str]:
    """Return library → version for framedex and the libraries whose versions are written into every part."""
    from framedex.core.pyav import ffmpeg_version  # imported here, since readers do not need PyAV, which is slow

    versions = {name: _installed_version(name) for name in LIBRARIES}
    return {"framedex": __version__} | versions | {"ffmpeg": ffmpeg_version()}


def ffmpeg_of(schema: pa.Schema) -> set[str]:
    """Return a set with the FFmpeg version in a part's metadata. It is empty if an older framedex wrote the part."""
    stamp = json.loads((schema.metadata or {}).get(b"framedex.libraries", b"{}"))
    return {stamp["ffmpeg"]} if "ffmpeg" in stamp else set()


def part_path(folder: Folder, number: int) -> Folder:
    """Return the path of a part in the folder of a table."""
    return folder / f"part-{number:06d}.parquet"


def part_numbers(folder: Place) -> list[int]:
    """Return the numbers of the complete parts in the folder of a table, ascending."""
    return sorted(int(match[1]) for name in names_in(folder) if (match := PART_NAME.fullmatch(name)))


class PartWriter:
    """A writer of one Parquet file with a fixed schema. `commit` makes the file visible to readers.

    Args:
        path: The path of the file after `commit`.
        schema: The columns of the file.
        version: The schema version that is written into the metadata of the file.
        delta: The names of list columns whose elements are encoded as differences (Parquet's DELTA_BINARY_PACKED).
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
        """Append a table as one row group. Raises ValueError if the table does not match the schema."""
        self._writer.write_table(table.cast(self._schema), row_group_size=max(1, table.num_rows))

    def commit(self) -> None:
        """Close the file, flush it to disk, and rename it to its final name."""
        self._writer.close()
        descriptor = os.open(self._aside, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.replace(self._aside, self._path)


def write_part(
    path: Path, table: pa.Table, *, version: str, delta: tuple[str, ...] = (), rows: int | None = None
) -> None:
    """Write a table as a part.

    Args:
        path: The path of the part.
        table: The table. The part has the same schema.
        version: The schema version that is written into the metadata of the part.
        delta: As in `PartWriter`.
        rows: The number of rows of each row group. If None, the part has one row group.
    """
    writer = PartWriter(path, table.schema, version=version, delta=delta)
    for first in range(0, max(1, len(table)), rows or max(1, len(table))):
        writer.write(table.slice(first, rows))
    writer.commit()


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Convert rows to a table.

    Args:
        rows: Column name → value for each row. The value of a missing key is null. Lists may be numpy arrays. Masked
            elements of such arrays become null.
        schema: The columns of the table.

    Raises:
        ValueError: A row has null in a column that must not be null.
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


LARGE = 1 << 60  # size of a file in bytes that is larger than any offset in metadata
OFFSET_BYTES = 4  # memory of an offset of an Arrow list
# Encodings that store each occurrence of a text. Other encodings may store a text once and refer to it several times.
WHOLE_TEXTS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
VALUE_BYTES = 8  # maximum memory of a number in bytes; in the file, the number may take only a few bits

# File → numbers of the row groups whose metadata were checked.
_checked: weakref.WeakKeyDictionary[pq.ParquetFile, set[int]] = weakref.WeakKeyDictionary()


def checked_group(file: pq.ParquetFile, number: int) -> pq.RowGroupMetaData:
    """Check the metadata of a row group, and return the metadata.

    If the metadata of a column are damaged, an access to the metadata makes pyarrow end the process. Only pyarrow's
    `iter_batches` raises an error instead: it parses the metadata of all columns before it reads the first byte. So
    this function calls `iter_batches` with the same metadata and with a dummy file. The dummy file claims a size that
    is larger than all offsets, but reads from it return no bytes.

    Raises:
        OSError: The metadata are damaged.
        pa.ArrowException: The metadata are damaged.
    """
    group = file.metadata.row_group(number)
    known = _checked.setdefault(file, set())
    if number not in known:
        # The offsets at which pyarrow reads. If `read_nothing` raised an exception instead of returning no bytes,
        # pyarrow would keep the exception, and with it all objects in the frames of its traceback.
        offsets: list[int] = []

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
                raise OSError(f"column {column} of row group {number} has another type than in the schema")
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
    """Read a row group of a file, or some columns of the row group.

    Args:
        file: The open file.
        number: The number of the row group.
        columns: The names of the columns to read, or the paths of nested columns. If None, all columns are read.
        most_bytes: The maximum memory of the columns. If None, the limit for a clip divided by `kept`.
        kept: The number of row groups that the caller keeps in memory at the same time.
        threads: Whether columns are read in parallel.

    Raises:
        ValueError: The columns would take more than the maximum memory.
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
    # In the worst case, each text is as long as the whole column in the file. Read the row group in batches of as many
    # rows as would fit into the limit in this case, and check the limit after each batch.
    rows = max(1, group.num_rows * most // (need + texts))
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in file.iter_batches(rows, row_groups=[number], columns=names, use_threads=threads):
        batches.append(batch)
        size += batch.nbytes
        check_bytes(size, most, f"row group {number}")
    return pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()


def read_all(where: Place, columns: Sequence[str] | None = None, *, row_bytes: int = 0) -> pa.Table:
    """Open a file and read all rows. For arguments and errors, see `read_file`."""
    with parquet_file(where) as file:
        return read_file(file, where, columns, row_bytes=row_bytes)


def read_file(
    file: pq.ParquetFile,
    where: Place,
    columns: Sequence[str] | None = None,
    *,
    row_bytes: int = 0,
    threads: bool = True,
) -> pa.Table:
    """Read all rows of an open file.

    Args:
        file: The open file.
        where: The path or uri of the file. The file is opened again if the texts in it may not fit into memory.
        columns: The names of the columns to read. Names that the file does not have are ignored. If None, all columns
            are read.
        row_bytes: The additional memory in bytes that the caller needs per row.
        threads: Whether columns are read in parallel.

    Raises:
        ValueError: The columns would take more memory than the limit for a clip.
        OSError: The file cannot be read.
        StorageError: A request failed.
        pa.ArrowException: The file is damaged.
    """
    most, wanted = usual_clip_bytes(), None if columns is None else list(columns)
    need, repeated = check_file(file, columns, row_bytes=row_bytes)
    if need + repeated <= most:
        return file.read(columns=wanted, use_threads=threads)
    # Read the texts as dictionary-encoded arrays, with each distinct text once. Decode them only if the result fits.
    names = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    texts = [name for name in names if wanted is None or name in wanted]
    with parquet_file(where, read_dictionary=texts) as encoded:
        table = encoded.read(columns=wanted, use_threads=threads)
    encoded_chunks = (chunk for name in texts for chunk in table[name].chunks if pa.types.is_dictionary(chunk.type))
    check_bytes(need + sum(map(encoded_bytes, encoded_chunks)), most, "the file")
    for name in texts:
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name).with_type(pa.string()), table[name].cast(pa.string()))
    return table


def check_file(file: pq.ParquetFile, columns: Sequence[str] | None = None, *, row_bytes: int = 0) -> tuple[int, int]:
    """Return (memory of columns of a file, maximum additional memory of repeated texts), both in bytes.

    Args:
        file: The open file.
        columns: The names of the columns. If None, all columns.
        row_bytes: The additional memory in bytes that the caller needs per row.

    Raises:
        ValueError: The columns take more memory than the limit for a clip, even without repeated texts.
        OSError: The metadata are damaged.
        pa.ArrowException: The metadata are damaged.
    """
    groups = [checked_group(file, number) for number in range(file.metadata.num_row_groups)]
    sizes = [_group_bytes(group, file.metadata.schema, columns) for group in groups]
    need = sum(size for size, _ in sizes) + file.metadata.num_rows * row_bytes
    check_bytes(need, usual_clip_bytes(), "the file")
    return need, sum(texts for _, texts in sizes)


def check_bytes(need: int, most: int, what: str) -> None:
    """Raise ValueError if more memory is needed than is allowed.

    Args:
        need: The needed memory in bytes.
        most: The allowed memory in bytes.
        what: The file or the part of a file that needs the memory, for the message.
    """
    if need > most:
        raise ValueError(f"{what} takes {size_text(need)} of memory; {size_text(most)} are allowed")


def _group_bytes(
    group: pq.RowGroupMetaData, schema: pq.ParquetSchema, columns: Sequence[str] | None
) -> tuple[int, int]:
    """Return (memory of columns of a row group, maximum additional memory of repeated texts), both in bytes.

    The numbers are computed from the file's metadata. Repeated texts take more memory than in the file, since the file
    may store a text once and refer to it several times.
    """
    need = texts = 0
    for number in range(group.num_columns):
        chunk, leaf = group.column(number), schema.column(number)
        path = f"{chunk.path_in_schema}."
        if columns is None or any(path.startswith(f"{name}.") for name in columns):
            value_bytes = max(VALUE_BYTES, leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0)
            # In memory, each level of lists in lists adds an offset per value, and each level that may be null adds a
            # bit per value.
            value_bytes += OFFSET_BYTES * max(0, leaf.max_repetition_level - 1) + leaf.max_definition_level // 8
            need += max(chunk.total_uncompressed_size, chunk.num_values * value_bytes)
            shares = chunk.has_dictionary_page or not WHOLE_TEXTS.issuperset(chunk.encodings)
            if chunk.physical_type == "BYTE_ARRAY" and shares:
                texts += chunk.num_values * chunk.total_uncompressed_size
    return need, texts
