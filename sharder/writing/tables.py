"""The rows of a dataset that are collected until a checkpoint, and the Parquet parts that they become."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.files.parquet_parts import PartWriter, part_path, table_of
from framedex.sharder.schema import (
    CLIPS_FOLDER,
    CLIPS_PER_PART,
    CLIPS_PER_ROW_GROUP,
    DELTA_COLUMNS,
    MEDIA,
    MEDIA_FOLDER,
    MEDIA_PER_ROW_GROUP,
    RECIPES,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
)

Row = dict[str, Any]


class Rows:
    """Rows of a table in the order in which they are added, one by one or as tables."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._tables: list[pa.Table] = []
        self._single: list[Row] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, row: Row) -> None:
        """Add a row, given by its columns; absent ones are null."""
        self._single.append(row)
        self._count += 1

    def extend(self, table: pa.Table) -> None:
        """Add the rows of a table with this schema."""
        self._settle()
        self._tables.append(table)
        self._count += len(table)

    def table(self) -> pa.Table:
        """Return all rows, with each column in one piece."""
        self._settle()
        return pa.concat_tables([self._schema.empty_table(), *self._tables]).combine_chunks()

    def _settle(self) -> None:
        if self._single:
            self._tables.append(table_of(self._single, self._schema))
            self._single = []


class Tables:
    """Rows of media, and of clips with their recipes, in order.

    Args:
        clips: The schema of `clips`, with the user's columns.
    """

    def __init__(self, clips: pa.Schema) -> None:
        self.media, self.clips, self.recipes = Rows(MEDIA), Rows(clips), Rows(RECIPES)

    @property
    def parts(self) -> list[int]:
        """Number of clips in each part."""
        count = len(self.clips)
        return [min(CLIPS_PER_PART, count - first) for first in range(0, count, CLIPS_PER_PART)]

    def write(self, folder: Path, *, media_part: int, clips_part: int) -> list[bytes]:
        """Write the parts, numbered from the given numbers on, and return the digests of their content."""
        written = []
        if len(self.media):
            written.append(part_path(folder / MEDIA_FOLDER, media_part))
            _write_groups(written[-1], self.media.table(), MEDIA_PER_ROW_GROUP, ())
        clips, recipes = self.clips.table(), self.recipes.table()
        for number, first in enumerate(range(0, len(clips), CLIPS_PER_PART), clips_part):
            for name, table, delta in (
                (RECIPES_FOLDER, _without_empty(recipes.slice(first, CLIPS_PER_PART)), DELTA_COLUMNS),
                (CLIPS_FOLDER, clips.slice(first, CLIPS_PER_PART), ()),
            ):
                written.append(part_path(folder / name, number))
                _write_groups(written[-1], table, CLIPS_PER_ROW_GROUP, delta)
        return [_content_digest(path) for path in written]


def write_empty(folder: Path, clips_schema: pa.Schema) -> None:
    """Write tables without rows; they still have all their columns."""
    for name, schema in ((CLIPS_FOLDER, clips_schema), (RECIPES_FOLDER, RECIPES), (MEDIA_FOLDER, MEDIA)):
        _write_groups(part_path(folder / name, 0), schema.empty_table(), 1, ())


def _content_digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _without_empty(table: pa.Table) -> pa.Table:
    """Return a table without columns in which no row has a value: every column costs each read of a clip."""
    names = [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if not field.nullable or column.null_count < len(table)
    ]
    return table.select(names)


def _write_groups(path: Path, table: pa.Table, group: int, delta: tuple[str, ...]) -> None:
    delta = tuple(name for name in delta if name in table.schema.names)
    writer = PartWriter(path, table.schema, version=SCHEMA_VERSION, delta=delta)
    for at in range(0, len(table), group):
        writer.write(table.slice(at, group))
    writer.commit()
