"""Find the videos in a Parquet file: the values of a column of binaries, or of structs with `bytes` and `path`."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framedex.core.nesting import MOST_NESTED, type_depth
from framedex.errors import MediaError
from framedex.files.parquet_cells import cell_name, leaf_of
from framedex.files.parquet_pages import ScatteredError, value_ranges
from framedex.indexer.sources.file_member import MOST_MEDIA, FileContents, FileMember
from framedex.indexer.sources.sidecars import COLUMNS
from framedex.storage.ranges import ByteRange
from framedex.storage.reader import RangedFile, Read

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
    binary = [field.name for field in schema if leaf_of(field) is not None and kinds.get(field.name) not in OF_OTHERS]
    return [name for name in binary if kinds.get(name) == "Video"] or binary


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that Hugging Face's `datasets` wrote into a schema."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_parquet(read: Read, size_bytes: int) -> FileContents:
    """Find the videos of a Parquet file, with the other columns of their rows. The videos are not read.

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
        raise MediaError("empty", f"the Parquet file has more than {MOST_MEDIA} values", refused=True)
    videos: list[FileMember] = []
    damage = None
    row = 0
    for number in range(file.metadata.num_row_groups):
        try:
            rows = _other_columns(file, number, columns)
            for column in columns:
                videos += _of_column(read, file, number, column, row, rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            damage = f"row group {number} cannot be read: {error}"
        row += file.metadata.row_group(number).num_rows
    return FileContents(images=[], videos=sorted(videos, key=lambda video: _row_of(video.name)), damage=damage)


def _row_of(name: str) -> int:
    return int(name.rpartition("/")[2])


def _of_column(
    read: Read, file: pq.ParquetFile, row_group: int, column: str, first: int, rows: Sequence[dict[str, Any]]
) -> list[FileMember]:
    """Return the videos of one column in one row group.

    Args:
        read: reads ranges of the file.
        file: the open file.
        row_group: its number.
        column: its name.
        first: number of the first row.
        rows: the other columns of each row, and the paths beside the bytes.
    """
    leaf = leaf_of(file.schema_arrow.field(column))
    at = next(number for number in range(len(file.schema)) if file.schema.column(number).path == leaf)
    places: list[ByteRange | None] | None = None
    there: list[bool] = []
    try:
        places = value_ranges(read, file.metadata.row_group(row_group).column(at), file.schema.column(at))
    except ScatteredError:
        there = _are_there(file, row_group, column, leaf)
    members = []
    for number, row in enumerate(rows):
        part = None if places is None else places[number]
        missing = part is None if places is not None else not there[number]
        text = json.dumps({COLUMNS: _named_path(row, column)})
        error = _missing(row.get(f"{column}.path")) if missing else None
        if part is not None and not part.size_bytes:
            error = MediaError("empty", "the value is empty")
        name = cell_name(column, first + number)
        members.append(FileMember(name=name, part=part, sidecars=text, error=error))
    return members


def _are_there(file: pq.ParquetFile, row_group: int, column: str, leaf: str | None) -> list[bool]:
    """Return for each value of a column in a row group whether it is not null. This reads the values."""
    values = file.read_row_group(row_group, columns=[leaf])[column].combine_chunks()
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "bytes")
    found: list[bool] = values.is_valid().to_pylist()
    return found


def _missing(path: object) -> MediaError:
    hint = f", but the path {path}: index the file itself" if isinstance(path, str) and path else ""
    return MediaError("empty", f"the value holds no bytes{hint}", refused=True)


def _named_path(row: dict[str, Any], column: str) -> dict[str, Any]:
    """Return the user's columns of a video: those of its row, and `path` for the path beside its bytes."""
    own = {"path": row[f"{column}.path"]} if f"{column}.path" in row else {}
    return own | {name: value for name, value in row.items() if not name.endswith(".path") or name in own}


def _other_columns(file: pq.ParquetFile, row_group: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the columns beside the videos for each row of a row group, as values that JSON can hold.

    Columns with binaries are left out, and those that are nested too deeply.
    """
    schema = file.schema_arrow
    wanted = [field.name for field in schema if field.name not in columns and _is_plain(field.type)]
    paths = [
        f"{name}.path"
        for name in columns
        if pa.types.is_struct(schema.field(name).type) and schema.field(name).type.get_field_index("path") >= 0
    ]
    table = file.read_row_group(row_group, columns=[*wanted, *paths])
    found = {name: [_plain_value(value) for value in table[name].to_pylist()] for name in wanted}
    for path in paths:
        column = path.removesuffix(".path")
        found[path] = [None if value is None else value["path"] for value in table[column].to_pylist()]
    return [{name: values[row] for name, values in found.items()} for row in range(table.num_rows)]


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a type holds no binaries and is not nested too deeply."""
    if type_depth(kind) > MOST_NESTED:
        return False
    if kind.num_fields:
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    return not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


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
