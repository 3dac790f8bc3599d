"""Convert planned clips to manifest rows, which one process passes to another directly or in a file.

Each slice of a run (`--task`) writes such files, and the last step (`--finish`) reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import FormatError, FramedexError
from framedex.files.parquet_parts import table_of, write_part
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import Medium
from framedex.sharder.clips.rows import clip_row, recipe_row
from framedex.sharder.clips.samples import Step
from framedex.sharder.schema import MEDIA, RECIPES, SCHEMA_VERSION
from framedex.storage.places import Place, parquet_file

Row = dict[str, Any]

ENDING = (FramedexError, OSError, MemoryError)  # errors that end a run; all of them can be pickled


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRows:
    """Consecutive items of a plan (clips and failures) in the form of manifest rows.

    Attributes:
        clips: The rows of `clips`. Their column `media_row` refers to `media` of this record.
        recipes: The rows of `recipes` for the same clips.
        frames: int64 [clips], the number of frames of each clip.
        media: The rows of `media`, in the order in which the clips first use them.
        failures: The failures, in the order of the plan.
        is_clip: bool [items], in the order of the plan: True for a clip, False for a failure.
        done: The value of the progress bar after these items. The bar counts media or scenes, or explicit clips.
        error: The error that ends the run after these items. None if the run continues.
    """

    clips: pa.Table
    recipes: pa.Table
    frames: NDArray[np.int64]
    media: list[Row]
    failures: list[Failure]
    is_clip: NDArray[np.bool_]
    done: int
    error: Exception | None = None

    def behind(self, count: int) -> PlannedRows:
        """Return a copy of the record without the first `count` items."""
        clips = int(np.count_nonzero(self.is_clip[:count]))
        return replace(
            self,
            clips=self.clips.slice(clips),
            recipes=self.recipes.slice(clips),
            frames=self.frames[clips:],
            failures=self.failures[count - clips :],
            is_clip=self.is_clip[count:],
        )


def media_columns(medium: Medium) -> Row:
    """Return the row of `media` for a medium."""
    return {name: getattr(medium, name) for name in MEDIA.names}


def planned_rows(steps: Iterable[Step], schema: pa.Schema) -> PlannedRows:
    """Convert steps to rows, up to the first error.

    Args:
        steps: The steps of a plan. They have no members, because their clips are not packed.
        schema: The schema of `clips`, including the user's columns.
    """
    clips: list[Row] = []
    recipes: list[Row] = []
    media: list[Row] = []
    media_rows: dict[str, int] = {}
    failures: list[Failure] = []
    is_clip: list[bool] = []
    done = 0
    stopped: Exception | None = None
    try:
        for step in steps:
            done, clip = step.done, step.outcome
            is_clip.append(not isinstance(clip, Failure))
            if isinstance(clip, Failure):
                failures.append(clip)
                continue
            row = media_rows.setdefault(clip.medium.media_id, len(media))
            if row == len(media):
                media.append(media_columns(clip.medium))
            clips.append(clip_row(clip, media_row=row, shard=None))
            recipes.append(recipe_row(clip))
    except ENDING as error:
        stopped = error
    return PlannedRows(
        clips=table_of(clips, schema),
        recipes=table_of(recipes, RECIPES),
        frames=np.array([len(clip["frames"]) for clip in clips], np.int64),
        media=media,
        failures=failures,
        is_clip=np.array(is_clip, np.bool_),
        done=done,
        error=stopped,
    )


# Schema of a file of planned rows. The file has one row per `PlannedRows` record. Tables within a row are stored as
# bytes in Arrow's IPC streaming format, which keeps their schemas.
PLANNED = pa.schema(
    [
        ("clips", pa.large_binary()),
        ("recipes", pa.large_binary()),
        ("media", pa.large_binary()),
        ("frames", pa.large_list(pa.int64())),
        ("failures", pa.large_string()),
        ("is_clip", pa.large_list(pa.bool_())),
        ("done", pa.int64()),
    ]
)


def write_planned(path: Path, several: Sequence[PlannedRows]) -> None:
    """Write records of planned rows into a file. Raises OSError."""
    rows = [
        {
            "clips": _stream(one.clips),
            "recipes": _stream(one.recipes),
            "media": _stream(table_of(one.media, MEDIA)),
            "frames": one.frames,
            "failures": json.dumps([asdict(failure) for failure in one.failures]),
            "is_clip": one.is_clip,
            "done": one.done,
        }
        for one in several
    ]
    write_part(path, pa.Table.from_pylist(rows, PLANNED), version=SCHEMA_VERSION)


def read_planned(path: Place) -> list[PlannedRows]:
    """Read the records of planned rows from a file. Raises FormatError, OSError, StorageError."""
    try:
        return [
            PlannedRows(
                clips=_table(row["clips"]),
                recipes=_table(row["recipes"]),
                media=_table(row["media"]).to_pylist(),
                frames=np.array(row["frames"], np.int64),
                failures=[Failure(**failure) for failure in json.loads(row["failures"])],
                is_clip=np.array(row["is_clip"], np.bool_),
                done=row["done"],
            )
            for row in parquet_file(path).read().to_pylist()
        ]
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            "a file of a slice is damaged",
            where=str(path),
            found=error,
            remedy="delete the file, and run the slice again",
        ) from error


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
