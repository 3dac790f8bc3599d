"""A clip as rows of `clips` and `recipes`, and back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.arrays import object_bytes
from framedex.core.column_rules import RowAt
from framedex.core.memory import usual_clip_bytes
from framedex.core.quantities import size_text
from framedex.errors import FormatError
from framedex.records.clip import ClipRecord
from framedex.records.columns import plain_value, row_of, values_of_row
from framedex.records.recipe import AUDIO, AudioFile, AudioRecipe, ClipAudioPlan, Recipe
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.clips.row_checks import check_audio_file, check_audio_packets, check_recipe, check_wanted

Row = dict[str, Any]


def clip_row(clip: Clip, *, media_row: int, shard: int | None) -> Row:
    """Return a clip's row of `clips`.

    Args:
        media_row: Row of the clip's medium in `media`.
        shard: Number of the clip's tar; None if its ranges point into the source.
    """
    return row_of(clip) | {"media_row": media_row, "shard": shard} | clip.columns


def recipe_row(clip: Clip) -> Row:
    """Return a clip's row of `recipes`."""
    row = {"clip_id": clip.clip_id} | row_of(clip.recipe)
    if clip.audio is None:
        return row
    return row | row_of(clip.audio, prefix=AUDIO) | row_of(clip.audio.recipe, prefix=AUDIO)


def clip_from(
    row: pa.RecordBatch,
    recipe: pa.RecordBatch,
    medium: Medium,
    source: ByteSource,
    at: RowAt,
    recipe_at: RowAt,
    own: Collection[str],
) -> Clip:
    """Return the clip of a row of `clips` and a row of `recipes`, given as batches of one row each.

    Args:
        source: The file that the recipe's ranges point into.
        at: Where the row of `clips` lies, for errors.
        recipe_at: Where the row of `recipes` lies, for errors.
        own: The columns of `clips` that are not the user's.

    Raises:
        FormatError: A column is wrong.
    """
    wanted = values_of_row(ClipRecord, row, at, names=own)
    check_wanted(wanted, medium, at)
    return Clip(
        **wanted,
        medium=medium,
        columns={name: plain_value(row, name, at) for name in row.schema.names if name not in own},
        recipe=_recipe(recipe, wanted["frames"], medium, source, recipe_at),
        source=source,
        audio=_audio(recipe, medium, source, recipe_at),
    )


def is_heavy(rows: pa.RecordBatch) -> bool:
    """Return whether some row of `clips` may take more memory as Python objects than a clip may."""
    try:
        return sum(map(object_bytes, rows.columns)) > usual_clip_bytes()
    except (ValueError, TypeError, pa.ArrowException):
        return True


def check_objects(row: pa.RecordBatch, at: RowAt) -> None:
    """Raise FormatError if the values of a row would take more memory as Python objects than a clip may."""
    try:
        sizes = {name: object_bytes(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise FormatError("cannot be read", where=f"{at.file}, row {at.row}", found=error, remedy=at.remedy) from error
    need, most = sum(sizes.values()), usual_clip_bytes()
    if need > most:
        largest = max(sizes, key=sizes.__getitem__)
        raise at.wrong(largest, f"{size_text(need)} of memory in all columns", f"at most {size_text(most)} for a clip")


def _recipe(row: pa.RecordBatch, frames: NDArray[np.int64], medium: Medium, source: ByteSource, at: RowAt) -> Recipe:
    columns = values_of_row(Recipe, row, at)
    check_recipe(columns, frames, medium, source, at)
    return Recipe(**columns)


def _audio(row: pa.RecordBatch, medium: Medium, source: ByteSource, at: RowAt) -> ClipAudioPlan | None:
    """Return the plan of a clip's audio, or None if the dataset has no audio."""
    if not any(name.startswith(AUDIO) and not row[name].null_count for name in row.schema.names):
        return None
    plan = values_of_row(ClipAudioPlan, row, at, prefix=AUDIO)
    is_packets = "audio_packet_size" in row.schema.names and not row["audio_packet_size"].null_count
    recipe = values_of_row(AudioRecipe if is_packets else AudioFile, row, at, prefix=AUDIO)
    if is_packets:
        check_audio_packets(_prefixed(plan | recipe), medium, source, at)
        return ClipAudioPlan(**plan, recipe=AudioRecipe(**recipe))
    check_audio_file(_prefixed(plan | recipe), source, at)
    return ClipAudioPlan(**plan, recipe=AudioFile(**recipe))


def _prefixed(row: Row) -> Row:
    return {AUDIO + name: value for name, value in row.items()}
