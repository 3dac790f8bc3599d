"""Reads row groups of Parquet files that fit into memory. A file of a few kilobytes may state billions of values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from framedex.core.memory import usual_clip_bytes
from framedex.core.quantities import size_text

VALUE_BYTES = 8  # a number takes so many in memory, however few bits it takes in the file


def read_group(
    file: pq.ParquetFile,
    group: int,
    columns: Sequence[str] | None = None,
    *,
    most_bytes: int | None = None,
    threads: bool = False,
) -> pa.Table:
    """Return a row group of a file, or some of its columns.

    Args:
        file: An open file.
        group: The number of the row group.
        columns: The names of columns, or the paths of their parts. Defaults to all columns.
        most_bytes: The memory that the columns may take, which defaults to the limit of a clip.
        threads: Whether columns are read in parallel.

    Raises:
        ValueError: The columns would take more memory.
        pa.ArrowException: The row group cannot be read.
    """
    most = usual_clip_bytes() if most_bytes is None else most_bytes
    _check(group_bytes(file.metadata.row_group(group), columns), most, f"row group {group}")
    return file.read_row_group(group, columns=None if columns is None else list(columns), use_threads=threads)


def read_all(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of a file, or some of its columns. Raises as `read_group` does."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    _check(sum(group_bytes(group, columns) for group in groups), usual_clip_bytes(), "it")
    return file.read(columns=None if columns is None else list(columns))


def _check(need: int, most: int, what: str) -> None:
    if need > most:
        raise ValueError(f"{what} takes {size_text(need)} of memory; {size_text(most)} are allowed")


def group_bytes(group: pq.RowGroupMetaData, columns: Sequence[str] | None = None) -> int:
    """Return the memory that columns of a row group take, in bytes, by what the file's footer states."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    return sum(
        max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES)
        for chunk in chunks
        if columns is None or any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns)
    )
