"""Find the videos in a Parquet file: the values of a column of binaries, or of structs with `bytes` and `path`."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framedex.core.memory import machine_bytes
from framedex.core.nesting import MOST_NESTED, type_depth
from framedex.errors import MediaError
from framedex.files.parquet_cells import cell_name, is_binary, leaf_of
from framedex.files.parquet_pages import value_ranges
from framedex.files.row_groups import checked_group, read_group
from framedex.indexer.sources.file_member import MOST_MEDIA, FileContents, FileMember
from framedex.indexer.sources.sidecars import COLUMNS
from framedex.storage.ranges import ByteRange
from framedex.storage.reader import RangedFile, Read

# What reading a column may raise: for values out of the range of Python's types, texts that are not UTF-8, unknown
# time zones.
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError, TypeError)
OF_OTHERS = frozenset({"Image", "Audio", "Pdf", "Nifti", "Mesh"})  # features of Hugging Face's datasets with `bytes`


def holds_videos(schema: pa.Schema) -> bool:
    """Return whether a Parquet file with this schema holds videos, and is no listing."""
    return "uri" not in schema.names and bool(video_columns(schema))


def video_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file that hold videos.

    Where the schema has the features of Hugging Face's `datasets`, these are the features of type Video. Otherwise, or
    if there is none, they are all columns of binaries.
    """
    features = _features(schema)
    kinds = {name: str(one.get("_type")) for name, one in features.items() if isinstance(one, dict)}
    binary = [one.name for one in schema if leaf_of(one) is not None and kinds.get(one.name) not in OF_OTHERS]
    return [name for name in binary if kinds.get(name) == "Video"] or binary


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that Hugging Face's `datasets` wrote into a schema."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_parquet(read: Read, size_bytes: int) -> FileContents:
    """Find the videos of a Parquet file, with the other columns of their rows. Uncompressed videos are not read.

    Args:
        read: reads ranges of the file.
        size_bytes: of the file.

    Raises:
        MediaError: the file is no Parquet file, or holds no videos.
    """
    try:
        file = pq.ParquetFile(RangedFile(read, size_bytes, "parquet"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MediaError("not_media", f"is no Parquet file, or is cut short: {error}") from error
    schema = file.schema_arrow
    columns = video_columns(schema)
    if not columns:
        said = "it is a listing: name it as a source" if "uri" in schema.names else f"columns {', '.join(schema.names)}"
        raise MediaError("empty", f"no column of the Parquet file holds videos ({said})", refused=True)
    if file.metadata.num_rows * len(columns) > MOST_MEDIA:
        raise MediaError("too_large", f"the Parquet file has more than {MOST_MEDIA} values", refused=True)
    leaves = {column: _leaf(file, column) for column in columns}
    videos: list[FileMember] = []
    first = 0
    for number in range(file.metadata.num_row_groups):
        rows = _other_columns(file, number, columns)
        for column in columns:
            videos += _of_column(read, file, number, leaves[column], first, rows)
        first += file.metadata.row_group(number).num_rows
    return FileContents(images=[], videos=videos, damage=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A column of videos.

    Attributes:
        column: its name.
        path: of its bytes in the file's schema.
        number: of its bytes among all leaves of the schema.
        beside: the path of the paths beside the bytes. None: there are none.
    """

    column: str
    path: str
    number: int
    beside: str | None


def _leaf(file: pq.ParquetFile, column: str) -> _Leaf:
    """Return where the bytes of a column are. Raises MediaError if several columns have its name."""
    own = file.schema_arrow.field(column) if file.schema_arrow.names.count(column) == 1 else None
    path = None if own is None else leaf_of(own)
    numbers = [number for number in range(len(file.schema)) if file.schema.column(number).path == path]
    if own is None or path is None or len(numbers) != 1:
        raise MediaError("columns", f"several columns are called {path or column}; rename one", refused=True)
    has_paths = pa.types.is_struct(own.type) and own.type.get_field_index("path") >= 0
    return _Leaf(column=column, path=path, number=numbers[0], beside=f"{column}.path" if has_paths else None)


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The columns beside the videos in a row group.

    Attributes:
        count: rows.
        values: the values of each column, as JSON can hold them.
        unread: by row, the columns whose values cannot be read.
    """

    count: int
    values: dict[str, list[Any]] = field(default_factory=dict)
    unread: dict[int, list[str]] = field(default_factory=dict)


def _of_column(
    read: Read, file: pq.ParquetFile, row_group: int, leaf: _Leaf, first: int, rows: _Rows
) -> list[FileMember]:
    """Return the videos of one column in one row group.

    Args:
        read: reads ranges of the file.
        file: the open file.
        row_group: its number.
        leaf: the column.
        first: number of the first row.
        rows: the columns beside it.
    """
    chunk = checked_group(file, row_group).column(leaf.number)
    places: list[ByteRange | None] = [None] * rows.count
    there = [True] * rows.count
    try:
        places = value_ranges(read, chunk, file.schema.column(leaf.number))
        there = [place is not None for place in places]
    except (ValueError, MemoryError):  # compressed or in lists; or damaged, which is said where a value is read
        there = _are_there(file, row_group, leaf, chunk, rows.count)
    if len(places) != rows.count:
        places, there = [None] * rows.count, [True] * rows.count
    paths = [None] * rows.count if leaf.beside is None else _values(file, row_group, leaf.column, leaf.beside, rows)
    members = []
    for row in range(rows.count):
        own = {name: values[row] for name, values in rows.values.items()}
        if leaf.beside is not None:
            own = {"path": paths[row]} | own
        place = places[row]
        error = None if there[row] else _missing(paths[row])
        if place is not None and not place.size_bytes:
            error = MediaError("empty", "the value is empty")
        unread = rows.unread.get(row)
        members.append(
            FileMember(
                name=cell_name(leaf.column, first + row),
                part=place,
                sidecars=json.dumps({COLUMNS: own}),
                remark=None if unread is None else f"values that cannot be read: column {', '.join(unread)}",
                error=error,
            )
        )
    return members


def _are_there(
    file: pq.ParquetFile, row_group: int, leaf: _Leaf, chunk: pq.ColumnChunkMetaData, count: int
) -> list[bool]:
    """Return for each value of a column whether it is not null. This reads the values if some may be null."""
    counts_nulls = chunk.is_stats_set and chunk.statistics is not None and chunk.statistics.has_null_count
    if counts_nulls and not chunk.statistics.null_count:
        return [True] * count
    try:
        values = read_group(file, row_group, [leaf.path], most_bytes=machine_bytes(), threads=True)[leaf.column]
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, "bytes")
        found: list[bool] = values.is_valid().to_pylist()
    except UNREADABLE:
        return [True] * count  # reading one of them says what is wrong
    return found if len(found) == count else [True] * count


def _missing(path: object) -> MediaError:
    hint = f", but the path {path}: index the file itself" if isinstance(path, str) and path else ""
    return MediaError("empty", f"the value holds no bytes{hint}", refused=True)


def _other_columns(file: pq.ParquetFile, row_group: int, columns: Sequence[str]) -> _Rows:
    """Return the columns beside the videos in a row group.

    Columns with binaries are left out, those that are nested too deeply, and those that share a name.
    """
    schema = file.schema_arrow
    rows = _Rows(count=file.metadata.row_group(row_group).num_rows)
    for one in schema:
        if one.name in columns or schema.names.count(one.name) > 1 or not _is_plain(one.type):
            continue
        rows.values[one.name] = _values(file, row_group, one.name, one.name, rows)
    return rows


def _values(file: pq.ParquetFile, row_group: int, column: str, path: str, rows: _Rows) -> list[Any]:
    """Return the values of a column, or of the field `path` of a column of structs, as JSON can hold them.

    A value that cannot be read is None, and noted in `rows`.
    """
    values: list[Any] | pa.ChunkedArray = [None] * rows.count
    with contextlib.suppress(*UNREADABLE):
        values = read_group(file, row_group, [path], threads=True)[column]
        if path != column:
            values = pc.struct_field(values, path.removeprefix(f"{column}."))
    return [_value(value, path, row, rows) for row, value in enumerate(values)]


def _value(scalar: pa.Scalar | None, column: str, row: int, rows: _Rows) -> Any:
    """Return a value as JSON can hold it, or None if it cannot be read, which is noted in `rows`."""
    with contextlib.suppress(*UNREADABLE):
        if scalar is not None:
            return _plain_value(scalar.as_py())
    rows.unread.setdefault(row, []).append(column)
    return None


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a type holds no binaries and is not nested too deeply."""
    if type_depth(kind) > MOST_NESTED:
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _is_plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if kind.num_fields:
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    return not (is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _plain_value(value: Any) -> Any:
    """Return a value as JSON can hold it: dates and times as ISO 8601 texts, decimals as texts, NaN as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
