"""Values that clips have beside the user's columns, by name: one value for each clip."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framedex.core.arrays import as_numpy
from framedex.core.hints import did_you_mean
from framedex.errors import FramedexError

# Columns of `clips` with one value for each clip.
CLIP_FIELDS = ("clip_id", "multiview_id", "view_name")
# Made of list columns of `clips`. The names are those of `framedex audit`.
FRAME_FIELDS = {"wanted_frames": "frames", "begin_seconds": "seconds", "end_seconds": "seconds"}
# Columns of `media`, which all clips of a medium share.
MEDIA_FIELDS = (
    "media_id",
    "uri",
    "member",
    "kind",
    "codec",
    "width",
    "height",
    "rotation_degrees",
    "color_transfer",
    "frame_count",
)
DURATION, FRAME_RATE = "duration_seconds", "frame_rate"
# Fields of the medium that are made of several columns of `media`.
DURATION_COLUMNS = ("duration_pts", "time_base_num", "time_base_den")
MADE_FIELDS = {DURATION: DURATION_COLUMNS, FRAME_RATE: ("frame_count", *DURATION_COLUMNS)}
FIELD_NAMES = (*CLIP_FIELDS, *FRAME_FIELDS, *MEDIA_FIELDS, *MADE_FIELDS)


def media_columns_of(name: str) -> tuple[str, ...]:
    """Return the columns of `media` that a field of MEDIA_FIELDS or MADE_FIELDS is made of."""
    return MADE_FIELDS.get(name, (name,))


def media_field(name: str, media: pa.Table) -> pa.ChunkedArray:
    """Return a field of MEDIA_FIELDS or MADE_FIELDS for each medium. `media` has its `media_columns_of`.

    The frame rate is that of the whole medium: its number of frames by its duration, or null if it has no duration.
    """
    if name not in MADE_FIELDS:
        return media[name]
    pts, num, den = (pc.cast(media[column], pa.float64(), safe=False) for column in DURATION_COLUMNS)
    seconds = pc.divide(pc.multiply(pts, num), den)
    if name == DURATION:
        return seconds
    lasts = pc.if_else(pc.greater(seconds, 0), seconds, pa.scalar(None, pa.float64()))
    return pc.divide(pc.cast(media["frame_count"], pa.float64()), lasts)


def frame_field(name: str, lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a field of FRAME_FIELDS for each clip.

    Args:
        lists: the list column that it is made of.

    Returns:
        `wanted_frames`: int32, how many frames a clip has, padding included. `begin_seconds` and `end_seconds`:
            float64, the least and the greatest time of its frames, null where all of them are padding.
    """
    if name == "wanted_frames":
        return pc.list_value_length(lists)
    nearest = np.fmin if name == "begin_seconds" else np.fmax
    return pa.chunked_array([_reduced(chunk, nearest) for chunk in lists.chunks], pa.float64())


def _reduced(lists: pa.ListArray, nearest: np.ufunc) -> pa.Array:
    """Return the least or greatest number of each list; null for lists without numbers."""
    lengths = as_numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    values = as_numpy(lists.flatten().fill_null(np.nan)).astype(np.float64)
    found = np.full(len(lists), np.nan)
    filled = lengths > 0
    if len(values):
        found[filled] = nearest.reduceat(values, (np.cumsum(lengths) - lengths)[filled])
    return pa.array(found, from_pandas=True)


def check_column_name(name: object) -> None:
    """Raise FramedexError if the name of a column is no text."""
    if not isinstance(name, str):
        raise FramedexError("the name of a column is a text", found=repr(name)[:80], allowed="such as 'label'")


def no_such_column(name: str, own: Iterable[str], path: object) -> FramedexError:
    """Return the error for a column that clips do not have.

    Args:
        own: the user's columns.
        path: the path of the dataset or index.
    """
    columns = list(own)
    return FramedexError(
        "the clips have no such column",
        where=str(path),
        found=name,
        allowed=f"your columns: {', '.join(columns) or 'none'}; of every clip: {', '.join(FIELD_NAMES)}",
        remedy=did_you_mean(name, [*columns, *FIELD_NAMES]),
    )
