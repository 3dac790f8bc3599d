"""CONTRACT: a clip as rows of `clips` and `recipes`, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.indexer.timeline import NO_PTS
from framedex.sharder.audio import AudioFile, AudioRecipe, ClipAudioPlan
from framedex.sharder.clip import Clip
from framedex.sharder.media import Medium
from framedex.sharder.recipe import Recipe
from framedex.sharder.schema import CLIPS, PAD, RECIPES
from framedex.sharder.sources import ByteSource

Row = dict[str, Any]

AUDIO = "audio_"  # what the columns of `recipes` on audio begin with
VIDEO_COLUMNS = tuple(name for name in RECIPES.names if name != "clip_id" and not name.startswith(AUDIO))
PLAIN = frozenset({"damaged", "range_path"})  # those of them that are no numpy columns
PLAN_FIELDS = ("rate", "channels", "first", "count")
AUDIO_RECIPE_FIELDS = tuple(field.name for field in fields(AudioRecipe))
AUDIO_LISTS = frozenset(name for name in AUDIO_RECIPE_FIELDS if pa.types.is_list(RECIPES.field(AUDIO + name).type))


def clip_row(clip: Clip, *, media_row: int, shard: int | None) -> Row:
    """Return a clip's row of `clips`. media_row: of its medium in `media`. shard: the number of its tar."""
    padded = clip.frame_index == PAD
    return {
        "clip_id": clip.clip_id,
        "media_row": media_row,
        "frames": clip.frame_index,
        "mask": clip.mask,
        "pts": _null_where(padded, clip.pts),
        "seconds": _null_where(padded, clip.seconds),
        "md5": clip.md5,
        "shard": shard,
        **clip.columns,
    }


def recipe_row(clip: Clip) -> Row:
    """Return a clip's row of `recipes`."""
    own = {name: getattr(clip.recipe, name) for name in VIDEO_COLUMNS}
    return {"clip_id": clip.clip_id} | own | _audio_columns(clip.audio)


def clip_from(row: pa.RecordBatch, recipe: pa.RecordBatch, medium: Medium, source: ByteSource) -> Clip:
    """Return the clip of a row of `clips` and one of `recipes`, batches of one row each.

    source: the file that the recipe's ranges point into.
    """
    return Clip(
        clip_id=row["clip_id"][0].as_py(),
        medium=medium,
        frame_index=_values(row, "frames").astype(np.int64),
        pts=_values(row, "pts", NO_PTS),
        seconds=_values(row, "seconds", float("nan")),
        mask=_values(row, "mask"),
        md5=row["md5"][0].as_py(),
        columns={name: row[name][0].as_py() for name in row.schema.names if name not in CLIPS.names},
        recipe=_recipe(recipe),
        source=source,
        audio=_audio(recipe),
    )


def _null_where(padded: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
    return np.ma.masked_array(values, padded) if padded.any() else values


def _audio_columns(audio: ClipAudioPlan | None) -> Row:
    """Return the columns of `recipes` that say what a clip's audio is."""
    if audio is None:
        return {}
    row = {AUDIO + name: getattr(audio, name) for name in PLAN_FIELDS}
    if isinstance(audio.recipe, AudioFile):
        return row | {
            "audio_range_offset": np.array([audio.recipe.offset], np.int64),
            "audio_range_length": np.array([audio.recipe.length], np.int64),
            "audio_present": audio.recipe.present,
        }
    return row | {AUDIO + name: getattr(audio.recipe, name) for name in AUDIO_RECIPE_FIELDS}


def _recipe(row: pa.RecordBatch) -> Recipe:
    columns: Row = {name: _value(row, name) if _has(row, name) else None for name in VIDEO_COLUMNS}
    return Recipe(**columns)


def _has(row: pa.RecordBatch, name: str) -> bool:
    """Return whether a row of `recipes` has a value; a part leaves out columns of which none of its rows has one."""
    return name in row.schema.names and bool(row[name][0].is_valid)


def _value(row: pa.RecordBatch, name: str) -> Any:
    return row[name][0].as_py() if name in PLAIN else _values(row, name)


def _audio(row: pa.RecordBatch) -> ClipAudioPlan | None:
    """Return what a clip's audio is; None where the dataset has none."""
    if not _has(row, "audio_rate"):
        return None
    recipe: AudioRecipe | AudioFile
    if _has(row, "audio_packet_size"):
        columns: Row = {
            name: _values(row, AUDIO + name) if name in AUDIO_LISTS else row[AUDIO + name][0].as_py()
            for name in AUDIO_RECIPE_FIELDS
        }
        recipe = AudioRecipe(**columns)
    else:
        offset, length = _values(row, "audio_range_offset"), _values(row, "audio_range_length")
        recipe = AudioFile(offset=int(offset[0]), length=int(length[0]), present=_values(row, "audio_present"))
    return ClipAudioPlan(recipe=recipe, **{name: row[AUDIO + name][0].as_py() for name in PLAN_FIELDS})


def _values(row: pa.RecordBatch, name: str, null: object = None) -> NDArray[Any]:
    """Return a list column's elements of a one-row batch as numpy."""
    values = row[name].flatten()
    if null is not None and values.null_count:
        values = values.fill_null(null)
    column: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return column
