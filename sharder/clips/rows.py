"""A clip as rows of `clips` and `recipes`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.arrays import as_numpy, object_bytes
from framedex.core.column_rules import RowAt, check_row
from framedex.core.memory import usual_clip_bytes
from framedex.core.quantities import size_text
from framedex.errors import FormatError
from framedex.files.headers import is_since
from framedex.indexer.timeline import NO_PTS
from framedex.sharder.clips.audio import AudioFile, AudioRecipe, ClipAudioPlan
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.clip import Clip, MultiView
from framedex.sharder.clips.medium import Medium
from framedex.sharder.clips.recipe import Recipe
from framedex.sharder.clips.row_checks import check_audio_file, check_audio_packets, check_recipe, check_wanted
from framedex.sharder.schema import (
    AUDIO_FILE_RULES,
    AUDIO_PACKET_RULES,
    AUDIO_PLAN_RULES,
    CLIP_RULES,
    CLIPS,
    PAD,
    RECIPE_RULES,
    RECIPES,
    VIEW_COLUMNS,
    VIEWS_SINCE,
)

Row = dict[str, Any]

STRETCH = ("stretch_first", "stretch_stop")
MULTIVIEW = ("multiview_id", "view_name")
OPTIONAL = ("md5", *STRETCH, "anchor_frame", *MULTIVIEW)  # columns that earlier versions, or some parts, do not have
AUDIO = "audio_"  # prefix of the audio columns of `recipes`
VIDEO_COLUMNS = tuple(name for name in RECIPES.names if name != "clip_id" and not name.startswith(AUDIO))
PLAIN = frozenset({"damaged", "range_path"})  # video columns that are not numpy columns
PLAN_FIELDS = ("rate", "channels", "first", "count")
AUDIO_RECIPE_FIELDS = tuple(field.name for field in fields(AudioRecipe))


def clip_row(clip: Clip, *, media_row: int, shard: int | None) -> Row:
    """Return a clip's row of `clips`.

    Args:
        media_row: Row of the clip's medium in `media`.
        shard: Number of the clip's tar; None if its ranges point into the source.
    """
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
        **dict(zip(STRETCH, clip.stretch or (None, None), strict=True)),
        "anchor_frame": clip.anchor,
        **_multiview_columns(clip.multiview),
        **clip.columns,
    }


def _multiview_columns(multiview: MultiView | None) -> Row:
    if multiview is None:
        return {}
    away = multiview.away_seconds
    return {
        "multiview_id": multiview.multiview_id,
        "view_name": multiview.view,
        "view_away_seconds": _null_where(np.isnan(away), away),
    }


def recipe_row(clip: Clip) -> Row:
    """Return a clip's row of `recipes`."""
    own = {name: getattr(clip.recipe, name) for name in VIDEO_COLUMNS}
    return {"clip_id": clip.clip_id} | own | _audio_columns(clip.audio)


def own_columns(version: str) -> list[str]:
    """Return framedex's own columns of `clips` in a version of the format. Users' columns could have later names."""
    has_views = is_since(version, VIEWS_SINCE)
    return [name for name in CLIPS.names if has_views or name not in VIEW_COLUMNS]


def clip_from(
    row: pa.RecordBatch,
    recipe: pa.RecordBatch,
    medium: Medium,
    source: ByteSource,
    at: RowAt,
    recipe_at: RowAt,
    own: Sequence[str],
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
    wanted = _wanted(row, at, own)
    check_wanted(wanted, medium, at)
    return Clip(
        clip_id=wanted["clip_id"],
        medium=medium,
        frame_index=wanted["frames"],
        pts=wanted["pts"],
        seconds=wanted["seconds"],
        mask=wanted["mask"],
        md5=wanted["md5"],
        columns={name: _plain(row, name, at) for name in row.schema.names if name not in own},
        recipe=_recipe(recipe, wanted["frames"], medium, source, recipe_at),
        source=source,
        stretch=None if wanted["stretch_first"] is None else (wanted["stretch_first"], wanted["stretch_stop"]),
        anchor=wanted["anchor_frame"],
        multiview=_multiview(row, wanted, at),
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


def _multiview(row: pa.RecordBatch, wanted: Row, at: RowAt) -> MultiView | None:
    """Return what a clip is of a clip of several views, or None if it stands alone. Raises FormatError."""
    if wanted["multiview_id"] is None:
        return None
    if wanted["view_name"] is None:
        raise at.wrong("view_name", "null", "the name of a view")
    away = _values(row, "view_away_seconds", at, float("nan"))
    if len(away) != len(wanted["frames"]):
        raise at.wrong("view_away_seconds", f"{len(away)} values", f"{len(wanted['frames'])}")
    return MultiView(multiview_id=wanted["multiview_id"], view=wanted["view_name"], away_seconds=away)


def _wanted(row: pa.RecordBatch, at: RowAt, own: Sequence[str]) -> Row:
    """Return the columns of a row of `clips`, checked against `CLIP_RULES`."""
    wanted: Row = {
        "clip_id": _plain(row, "clip_id", at),
        "media_row": _plain(row, "media_row", at),
        "frames": _values(row, "frames", at).astype(np.int64),
        "mask": _values(row, "mask", at),
        "pts": _values(row, "pts", at, NO_PTS),
        "seconds": _values(row, "seconds", at, float("nan")),
        **{name: _plain(row, name, at) if name in row.schema.names and name in own else None for name in OPTIONAL},
    }
    check_row(wanted, CLIP_RULES, at)
    return wanted


def _null_where(padded: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
    return np.ma.masked_array(values, padded) if padded.any() else values


def _audio_columns(audio: ClipAudioPlan | None) -> Row:
    """Return the columns of `recipes` that describe a clip's audio."""
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


def _recipe(row: pa.RecordBatch, frames: NDArray[np.int64], medium: Medium, source: ByteSource, at: RowAt) -> Recipe:
    columns: Row = {name: _value(row, name, at) if _has(row, name) else None for name in VIDEO_COLUMNS}
    check_row(columns, RECIPE_RULES, at)
    check_recipe(columns, frames, medium, source, at)
    return Recipe(**columns)


def _has(row: pa.RecordBatch, name: str) -> bool:
    """Return whether a row of `recipes` has a value. A part omits a column if none of its rows has a value there."""
    return name in row.schema.names and not row[name].null_count


def _value(row: pa.RecordBatch, name: str, at: RowAt) -> Any:
    return _plain(row, name, at) if name in PLAIN else _values(row, name, at)


def _plain(row: pa.RecordBatch, name: str, at: RowAt) -> Any:
    """Return a value as a Python object.

    Raises:
        FormatError: Python cannot represent it: text that is not UTF-8, a time in the year 10 000.
    """
    try:
        return row[name][0].as_py()
    except (ValueError, OverflowError, TypeError, RecursionError, pa.ArrowException) as error:
        raise at.wrong(name, error, "a value that Python has") from error


def _audio(row: pa.RecordBatch, medium: Medium, source: ByteSource, at: RowAt) -> ClipAudioPlan | None:
    """Return the plan of a clip's audio, or None if the dataset has no audio."""
    own: Row = {
        name: _audio_value(row, name, at) for name in RECIPES.names if name.startswith(AUDIO) and _has(row, name)
    }
    if not own:
        return None
    check_row(own, AUDIO_PLAN_RULES, at)
    recipe: AudioRecipe | AudioFile
    if "audio_packet_size" in own:
        check_row(own, AUDIO_PACKET_RULES, at)
        check_audio_packets(own, medium, source, at)
        recipe = AudioRecipe(**{name: own[AUDIO + name] for name in AUDIO_RECIPE_FIELDS})
    else:
        check_row(own, AUDIO_FILE_RULES, at)
        check_audio_file(own, source, at)
        offset, length = own["audio_range_offset"], own["audio_range_length"]
        recipe = AudioFile(offset=int(offset[0]), length=int(length[0]), present=own["audio_present"])
    return ClipAudioPlan(recipe=recipe, **{name: own[AUDIO + name] for name in PLAN_FIELDS})


def _audio_value(row: pa.RecordBatch, name: str, at: RowAt) -> Any:
    return _values(row, name, at) if pa.types.is_list(RECIPES.field(name).type) else _plain(row, name, at)


def _values(row: pa.RecordBatch, name: str, at: RowAt, null: object = None) -> NDArray[Any]:
    """Return a list column's elements of a one-row batch as numpy.

    Args:
        null: Replacement for null elements; None if null elements are not allowed.
    """
    if row[name].null_count:
        raise at.wrong(name, "null", "a list")
    values = row[name].flatten()
    if values.null_count:
        if null is None:
            raise at.wrong(name, "null", "a value at each place")
        values = values.fill_null(null)
    return as_numpy(values)
