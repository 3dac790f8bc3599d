"""Files with one value for each clip of a dataset: the user's columns, and fields that all clips have.

They repeat what the parts of `clips` and `media` hold. Parts have small row groups, so that one clip is one small read;
here, one column of a million clips is one read.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from framedex.files.parquet_parts import PartWriter, part_path
from framedex.sharder.clips.fields import (
    DURATION,
    DURATION_COLUMNS,
    FRAME_FIELDS,
    MEDIA_FIELDS,
    frame_field,
    media_field,
)
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    COLUMNS_NAME,
    FIELDS,
    FIELDS_NAME,
    MEDIA_FOLDER,
    SCHEMA_VERSION,
)

ROWS_AT_ONCE = 1 << 18  # clips in a row group


def write_columns(folder: Path, schema: pa.Schema, *, clips_parts: int, media_parts: int) -> list[str]:
    """Write both files from the parts of an unfinished dataset.

    Args:
        folder: Folder of the dataset.
        schema: Schema of the table of clips.

    Returns:
        The user's columns that have a file. Columns of lists, records and bytes have none: they are read
            from the parts.
    """
    own = [field for field in schema if field.name not in CLIPS.names and _is_plain(field.type)]
    media = _media_fields(folder, media_parts)
    writers = [_Grouped(folder / FIELDS_NAME, FIELDS)]
    if own:
        writers.append(_Grouped(folder / COLUMNS_NAME, pa.schema(own)))
    for number in range(clips_parts):
        part = pq.ParquetFile(part_path(folder / CLIPS_FOLDER, number))
        lists = dict.fromkeys(FRAME_FIELDS.values())
        kept = [name for name in FIELDS.names if name in CLIPS.names]
        clips = part.read([*kept, *lists, *(field.name for field in own)], use_threads=False)
        frames = {name: frame_field(name, clips[of]) for name, of in FRAME_FIELDS.items()}
        shared = media.take(clips["media_row"])
        given = {name: clips[name] for name in kept} | frames | {name: shared[name] for name in shared.column_names}
        writers[0].add(pa.table([given[name] for name in FIELDS.names], FIELDS.names))
        if own:
            writers[1].add(clips.select([field.name for field in own]))
    for writer in writers:
        writer.close()
    return [field.name for field in own]


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a column is small enough to be stored twice."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _media_fields(folder: Path, parts: int) -> pa.Table:
    """Return the fields that the clips of a medium share, one row per medium."""
    names = [*MEDIA_FIELDS, *DURATION_COLUMNS]
    tables = [
        pq.ParquetFile(part_path(folder / MEDIA_FOLDER, number)).read(names, use_threads=False)
        for number in range(parts)
    ]
    media = pa.concat_tables(tables)
    return pa.table({name: media_field(name, media) for name in (*MEDIA_FIELDS, DURATION)})


class _Grouped:
    """Writes rows in groups of ROWS_AT_ONCE."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer, self._schema = PartWriter(path, schema, version=SCHEMA_VERSION), schema
        self._waiting: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows.cast(self._schema))
        if sum(map(len, self._waiting)) >= ROWS_AT_ONCE:
            self._write()

    def close(self) -> None:
        """Write what waits, and give the file its name."""
        if self._waiting:
            self._write()
        self._writer.commit()

    def _write(self) -> None:
        self._writer.write(pa.concat_tables(self._waiting))
        self._waiting = []
