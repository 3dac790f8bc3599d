"""Write the Parquet parts of a dataset, and the files that are written after all clips: tables, policy and header.

A part is one Parquet file of `clips`, `recipes` or `media`. For each part of `clips` and `media`, another file has the
same rows, from which readers read single rows. A row of `clips` has its row of `recipes` there. The tables `fields` and
`columns` repeat values from the parts: fields that every clip has, and the user's columns. They have large row groups,
so that one column of a million clips can be read at once.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from framedex.files.changes import log_change
from framedex.files.outputs import LOCK_NAME, Output, write_aside, write_json_aside
from framedex.files.parquet_parts import PartWriter, library_versions, part_path, table_of, write_part
from framedex.files.row_blocks import write_row_blocks
from framedex.indexer.parts.index import Index
from framedex.sharder.clips import clip_source
from framedex.sharder.layout import part_files
from framedex.sharder.schema import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    CLIPS,
    CLIPS_FOLDER,
    CLIPS_PER_PART,
    COLUMNS_NAME,
    DELTA_COLUMNS,
    FAILURES,
    FAILURES_NAME,
    FIELDS,
    FIELDS_NAME,
    FORMAT,
    HEADER,
    MEDIA,
    MEDIA_FOLDER,
    POLICY_NAME,
    RECIPES,
    SCHEMA_VERSION,
    SHARDS,
    SHARDS_NAME,
)
from framedex.sharder.writing.output import JOB_NAME, PROGRESS_NAME, Checkpoint

Row = dict[str, Any]

EARLIER_GROUP_ROWS = 32  # rows of a row group of datasets that have no files of rows
# Minimum number of clips in a row group of `fields` and `columns`. It is large, because readers read whole columns.
ROWS_AT_ONCE = 1 << 18


def write_columns(
    folder: Path, schema: pa.Schema, *, clips_parts: int, media_parts: int, first_medium: int = 0
) -> list[str]:
    """Write the tables `fields` and `columns` from the parts of an unfinished dataset.

    Args:
        folder: The folder of the dataset.
        schema: The schema of `clips`, including the user's columns.
        clips_parts: The number of parts of `clips`.
        media_parts: The number of parts of `media`.
        first_medium: The number of the first medium.

    Returns:
        The names of the user's columns in the table `columns`. Columns of lists, structs and bytes are only in the
            parts.
    """
    own = [field for field in schema if field.name not in CLIPS.names and _is_plain(field.type)]
    names = [*clip_source.MEDIA_FIELDS, *clip_source.DURATION_COLUMNS]
    paths = [part_path(folder / MEDIA_FOLDER, number) for number in range(media_parts)]
    rows = pa.concat_tables([pq.ParquetFile(path).read(names, use_threads=False) for path in paths])
    shared_fields = (*clip_source.MEDIA_FIELDS, clip_source.DURATION)  # the same for all clips of a medium
    media = pa.table({name: clip_source.media_field(name, rows) for name in shared_fields})
    writers = [_Grouped(folder / FIELDS_NAME, FIELDS)]
    if own:
        writers.append(_Grouped(folder / COLUMNS_NAME, pa.schema(own)))
    for number in range(clips_parts):
        part = pq.ParquetFile(part_path(folder / CLIPS_FOLDER, number))
        lists = dict.fromkeys(clip_source.FRAME_FIELDS.values())
        kept = [name for name in FIELDS.names if name in CLIPS.names]
        clips = part.read([*kept, *lists, *(field.name for field in own)], use_threads=False)
        frames = {name: clip_source.frame_field(name, clips[of]) for name, of in clip_source.FRAME_FIELDS.items()}
        shared = media.take(pc.subtract(clips["media_row"], first_medium))
        given = {name: clips[name] for name in kept} | frames | {name: shared[name] for name in shared.column_names}
        # If the user has no such columns, there is only one writer.
        for writer, table in zip(writers, (pa.table(given), clips), strict=False):
            writer.add(table)
    for writer in writers:
        writer.close()
    return [field.name for field in own]


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type are small enough to be stored in `columns` in addition to the parts."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


class _Grouped:
    """A writer of a Parquet file whose row groups, except the last one, have at least ROWS_AT_ONCE rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer, self._schema = PartWriter(path, schema, version=SCHEMA_VERSION), schema
        self._waiting: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Add the rows of a table. Columns that are not in the schema are ignored."""
        self._waiting.append(rows.select(self._schema.names).cast(self._schema))
        if sum(map(len, self._waiting)) >= ROWS_AT_ONCE:
            self._write()

    def close(self) -> None:
        """Write the last row group, and rename the file to its final name."""
        if self._waiting:
            self._write()
        self._writer.commit()

    def _write(self) -> None:
        self._writer.write(pa.concat_tables(self._waiting))
        self._waiting = []


class Rows:
    """A growing table in memory. Rows are added one by one, or as tables."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._tables: list[pa.Table] = []
        self._single: list[Row] = []

    def __len__(self) -> int:
        return sum(map(len, self._tables)) + len(self._single)

    def append(self, row: Row) -> None:
        """Add a row, given as a dict from column names to values. Missing columns are null."""
        self._single.append(row)

    def extend(self, table: pa.Table) -> None:
        """Add the rows of a table that has the same schema."""
        self._convert()
        self._tables.append(table)

    def table(self) -> pa.Table:
        """Return all rows as a table in which each column is one chunk."""
        self._convert()
        return pa.concat_tables([self._schema.empty_table(), *self._tables]).combine_chunks()

    def _convert(self) -> None:
        """Convert the rows that were added one by one to a table, so that a following table is added after them."""
        if self._single:
            self._tables.append(table_of(self._single, self._schema))
            self._single = []


class Tables:
    """The rows of `media`, `clips` and `recipes` that are collected between two checkpoints.

    Args:
        clips: The schema of `clips`, including the user's columns.
    """

    def __init__(self, clips: pa.Schema) -> None:
        self.media, self.clips, self.recipes = Rows(MEDIA), Rows(clips), Rows(RECIPES)

    @property
    def parts(self) -> list[int]:
        """The number of clips in each part that `write` writes."""
        count = len(self.clips)
        return [min(CLIPS_PER_PART, count - first) for first in range(0, count, CLIPS_PER_PART)]

    def write(self, folder: Path, *, media_part: int, clips_part: int) -> list[bytes]:
        """Write the rows as parts, and return the digest of each part's content.

        Args:
            folder: The folder of the unfinished dataset.
            media_part: The number of the part of `media`.
            clips_part: The number of the first part of `clips` and `recipes`.
        """
        written: list[Path] = []
        if len(self.media):
            written += write_media(folder, media_part, self.media.table())
        clips, recipes = self.clips.table(), self.recipes.table()
        for number, first in enumerate(range(0, len(clips), CLIPS_PER_PART), clips_part):
            here = slice(first, first + CLIPS_PER_PART)
            written += write_clips(folder, number, clips[here], recipes[here])
        return [hashlib.blake2b(path.read_bytes()).digest() for path in written]


def write_clips(folder: Path, number: int, clips: pa.Table, recipes: pa.Table, *, has_rows: bool = True) -> list[Path]:
    """Write a part of `clips`, the part of `recipes` and the file of their rows. Return the paths.

    Args:
        folder: The folder of the dataset.
        number: The number of the part.
        clips: The rows of `clips`.
        recipes: The rows of `recipes` for the same clips.
        has_rows: Whether the dataset has files of rows. If not, single rows are read from row groups of Parquet.
    """
    recipes = _without_empty(recipes)
    delta = tuple(name for name in DELTA_COLUMNS if name in recipes.column_names)
    paths = [folder / path for path in part_files(CLIPS_FOLDER, number)]
    group = None if has_rows else EARLIER_GROUP_ROWS
    write_part(paths[0], recipes, version=SCHEMA_VERSION, delta=delta, rows=group)
    write_part(paths[1], clips, version=SCHEMA_VERSION, rows=group)
    if not has_rows:
        return paths[:2]
    both = {"clip": _structs(clips), "recipe": _structs(recipes.drop_columns("clip_id"))}
    write_row_blocks(paths[2], pa.table(both), block_rows(clips, recipes))
    return paths


def write_media(folder: Path, number: int, media: pa.Table, *, has_rows: bool = True) -> list[Path]:
    """Write a part of `media` and the file of its rows. For arguments and result, see `write_clips`."""
    paths = [folder / path for path in part_files(MEDIA_FOLDER, number)]
    write_part(paths[0], media, version=SCHEMA_VERSION, rows=None if has_rows else EARLIER_GROUP_ROWS)
    if not has_rows:
        return paths[:1]
    write_row_blocks(paths[1], media, block_rows(media))
    return paths


def _structs(table: pa.Table) -> pa.StructArray:
    """Return the rows of a table as a column."""
    return table.combine_chunks().to_struct_array().combine_chunks()


def _without_empty(table: pa.Table) -> pa.Table:
    """Remove nullable columns that have only nulls from a table, because every column makes reading slower."""
    schema = table.schema
    kept = [name for name in schema.names if not schema.field(name).nullable or table[name].null_count < len(table)]
    return table.select(kept)


def block_rows(*tables: pa.Table) -> int:
    """Return the number of rows of each block of a file of rows.

    It is the largest power of 2 at which blocks take at most BLOCK_BYTES on average, within BLOCK_ROWS. The values are
    counted, not their buffers in memory, so that equal rows have equal blocks. If a column has a type whose values are
    not counted, blocks have at most UNCOUNTED_ROWS.

    Args:
        tables: Tables of equally many rows, which are joined in the file.
    """
    least, most = BLOCK_ROWS
    sizes = [_value_bytes(column) for table in tables for column in table.columns]
    if None in sizes:
        most = UNCOUNTED_ROWS
    rows = BLOCK_BYTES * len(tables[0]) // max(1, sum(size for size in sizes if size is not None))
    return max(least, min(most, 1 << max(0, rows.bit_length() - 1)))


UNCOUNTED_ROWS = 32
# Tests for types whose values are texts or bytes.
OF_BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def _value_bytes(column: pa.ChunkedArray) -> int | None:
    """Return the bytes of a column's values, without offsets and marks for null. Return None for rare types."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _value_bytes(pc.list_flatten(column))
    if any(is_of_bytes(kind) for is_of_bytes in OF_BYTES):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    if pa.types.is_null(kind):
        return 0
    is_plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return len(column) * max(1, kind.bit_width // 8) if is_plain else None


def write_whole(
    folder: Path,
    done: list[Checkpoint],
    schema: pa.Schema,
    *,
    index: Index,
    resolved: Row,
    facts: Row,
    job: Row,
    first_medium: int = 0,
) -> None:
    """Complete a dataset whose parts are written: write all other files, and remove the checkpoints and the job.

    Args:
        folder: The folder of the unfinished dataset.
        done: The checkpoints of the dataset, in order.
        schema: The schema of `clips`, including the user's columns.
        index: The index from which the clips were planned.
        resolved: The policy, with all defaults filled in.
        facts: The options of packing, and other keys of the header.
        job: The values that identify the job. A run with equal values writes the same dataset.
        first_medium: The number of the first medium.
    """
    shards = [row for checkpoint in done for row in checkpoint.shards]
    write_part(folder / FAILURES_NAME, table_of(failures_of(done), FAILURES), version=SCHEMA_VERSION)
    if shards:
        write_part(folder / SHARDS_NAME, table_of(shards, SHARDS), version=SCHEMA_VERSION)
    write_aside(folder / POLICY_NAME, yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).encode())
    clips = [count for checkpoint in done for count in checkpoint.parts]
    media = [checkpoint.media for checkpoint in done if checkpoint.media]
    if not clips:  # readers expect at least one part of each table, with all columns
        write_clips(folder, 0, schema.empty_table(), RECIPES.empty_table())
        write_media(folder, 0, MEDIA.empty_table())
        clips, media = [0], [0]
    names = write_columns(folder, schema, clips_parts=len(clips), media_parts=len(media), first_medium=first_medium)
    digests = "".join(checkpoint.digest for checkpoint in done)
    header = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "root": index.root,
        "index_generation": index.generation,
        "index_ffmpeg": index.ffmpeg,
        **facts,
        "job": job_digest(job, index),
        "clips_per_part": clips,
        "media_per_part": media,
        "columns": names,
        "build": hashlib.blake2b(digests.encode(), digest_size=16).hexdigest(),
        "libraries": library_versions(),
    }
    counts = {"clips": sum(clips), "media": sum(media), "tars": len(shards), "failures": len(failures_of(done))}
    log_change(Output(folder), 1, "shard", logged(index, job), {name: count for name, count in counts.items() if count})
    write_json_aside(folder / HEADER, header)
    for name in (JOB_NAME, PROGRESS_NAME, LOCK_NAME):
        (folder / name).unlink(missing_ok=True)


def logged(index: Index, job: Row) -> Row:
    """Return the options of a job for the log: the index and its generation, the policy and the options of packing."""
    pack = job["pack"] if job.get("pack", {}).get("pack") is not None else {}
    keeps = {"keep_damaged": True} if job.get("keep_damaged") else {}
    policy = {"policy": job["policy"]["policy"]} if "policy" in job else {}
    return {"index": str(index.path), "index_generation": index.generation} | policy | keeps | pack


def job_digest(job: Row, index: Index) -> str:
    """Return a digest of a job, as 32 hex digits. Jobs that write different datasets have different digests.

    Unlike the job itself, the digest does not depend on the path of the index or on the time when it was written.
    """
    own = job | {"index": index.content(), "root": index.root}
    return hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16).hexdigest()


def failures_of(done: list[Checkpoint]) -> list[Row]:
    """Return the rows of `failures` from all given checkpoints."""
    return [row for checkpoint in done for row in checkpoint.failures]
