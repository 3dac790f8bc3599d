"""The rows of a dataset that are collected until a checkpoint, and the Parquet parts that they become."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
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


@dataclass(slots=True, kw_only=True)
class Tables:
    """Rows of media, and of clips with their recipes, in order."""

    media: list[Row] = field(default_factory=list)
    clips: list[Row] = field(default_factory=list)
    recipes: list[Row] = field(default_factory=list)

    @property
    def parts(self) -> list[int]:
        """Number of clips in each part."""
        count = len(self.clips)
        return [min(CLIPS_PER_PART, count - first) for first in range(0, count, CLIPS_PER_PART)]

    def write(self, folder: Path, clips_schema: pa.Schema, *, media_part: int, clips_part: int) -> list[bytes]:
        """Write the parts, numbered from the given numbers on, and return the digests of their content."""
        written = []
        if self.media:
            written.append(part_path(folder / MEDIA_FOLDER, media_part))
            _write_groups(written[-1], MEDIA, self.media, MEDIA_PER_ROW_GROUP, ())
        for number, first in enumerate(range(0, len(self.clips), CLIPS_PER_PART), clips_part):
            rows = slice(first, first + CLIPS_PER_PART)
            for name, schema, table, delta in (
                (RECIPES_FOLDER, _without_empty(RECIPES, self.recipes[rows]), self.recipes, DELTA_COLUMNS),
                (CLIPS_FOLDER, clips_schema, self.clips, ()),
            ):
                written.append(part_path(folder / name, number))
                _write_groups(written[-1], schema, table[rows], CLIPS_PER_ROW_GROUP, delta)
        return [_content_digest(path) for path in written]


def write_empty(folder: Path, clips_schema: pa.Schema) -> None:
    """Write tables without rows; they still have all their columns."""
    for name, schema in ((CLIPS_FOLDER, clips_schema), (RECIPES_FOLDER, RECIPES), (MEDIA_FOLDER, MEDIA)):
        _write_groups(part_path(folder / name, 0), schema, [], 1, ())


def _content_digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _without_empty(schema: pa.Schema, rows: list[Row]) -> pa.Schema:
    """Return a schema without columns in which no row has a value: every column costs each read of a clip."""
    return pa.schema(
        [field for field in schema if not field.nullable or any(row.get(field.name) is not None for row in rows)]
    )


def _write_groups(path: Path, schema: pa.Schema, rows: list[Row], group: int, delta: tuple[str, ...]) -> None:
    delta = tuple(name for name in delta if name in schema.names)
    writer = PartWriter(path, schema, version=SCHEMA_VERSION, delta=delta)
    for at in range(0, len(rows), group):
        writer.write(table_of(rows[at : at + group], schema))
    writer.commit()
