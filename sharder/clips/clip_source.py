"""The interface through which a loader gets clips, from a manifest or by planning them from an index.

In addition to the user's columns, clips have fields, such as the codec. A field has one value per clip. The argument
`where` of a loader selects clips by the values of columns and fields, or by an expression.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.column_rules import as_numpy, equal_values
from framedex.core.words import did_you_mean, no_clip_has, tally
from framedex.errors import FormatError, FramedexError
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import Clip, Medium, ViewsOfClips, quarter_turns
from framedex.sharder.clips.labels import Labels
from framedex.sharder.configuration.filters import columns_in, matches, parse_filter
from framedex.sharder.schema import MEDIUM_FIELDS
from framedex.storage.places import Place

# The columns of the table `clips` that are fields.
CLIP_FIELDS = ("clip_id", "multiview_id", "view_name")
# Fields that are computed from list columns of `clips`: {name as in `framedex audit`: list column}.
FRAME_FIELDS = {"wanted_frames": "frames", "begin_seconds": "seconds", "end_seconds": "seconds"}
DURATION, FRAME_RATE, ASPECT = "duration_seconds", "frame_rate", "sample_aspect_ratio"
MEDIA_FIELDS = (*MEDIUM_FIELDS, "frame_count", ASPECT)
SIZES = ("height", "width", "rotation_degrees")  # every medium has them
UPRIGHT = ("upright_width", "upright_height")  # the size of pictures that are turned as players turn them
# Fields of the medium that are computed from several columns of `media`.
DURATION_COLUMNS = ("duration_pts", "time_base_num", "time_base_den")
MADE_FIELDS = {
    DURATION: DURATION_COLUMNS,
    FRAME_RATE: ("frame_count", *DURATION_COLUMNS),
    **dict.fromkeys(UPRIGHT, SIZES),
}
FIELD_NAMES = (*CLIP_FIELDS, *FRAME_FIELDS, *MEDIA_FIELDS, *MADE_FIELDS)


def media_field(name: str, media: pa.Table) -> pa.ChunkedArray:
    """Return the values of a field of MEDIA_FIELDS or MADE_FIELDS for all media.

    The frame rate is the number of frames of the whole medium divided by its duration, or null if the medium has no
    duration.
    """
    if name not in MADE_FIELDS:
        return media[name]
    if name in UPRIGHT:
        height, width, degrees = (media[column].to_numpy() for column in SIZES)
        sides = (height, width) if name == "upright_height" else (width, height)
        return pa.chunked_array([pa.array(np.where(quarter_turns(degrees) % 2, sides[1], sides[0]), pa.int32())])
    pts, num, den = (pc.cast(media[column], pa.float64(), safe=False) for column in DURATION_COLUMNS)
    seconds = pc.divide(pc.multiply(pts, num), den)
    if name == DURATION:
        return seconds
    lasts = pc.if_else(pc.greater(seconds, 0), seconds, pa.scalar(None, pa.float64()))
    return pc.divide(pc.cast(media["frame_count"], pa.float64()), lasts)


def frame_field(name: str, lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a field of FRAME_FIELDS for all clips.

    Args:
        name: The name of the field.
        lists: The list column from which the field is computed.

    Returns:
        For `wanted_frames`, int32: the number of frames of each clip, including padding. For `begin_seconds` and
            `end_seconds`, float64: the earliest and the latest time of each clip's frames, null if all frames of a
            clip are padding.
    """
    if name == "wanted_frames":
        return pc.list_value_length(lists)
    nearest = np.fmin if name == "begin_seconds" else np.fmax
    return pa.chunked_array([_extremes(chunk, nearest) for chunk in lists.chunks], pa.float64())


def _extremes(lists: pa.ListArray, nearest: np.ufunc) -> pa.Array:
    """Return the minimum (with `np.fmin`) or maximum (with `np.fmax`) of each list. Null for a list without numbers."""
    lengths = as_numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    values = as_numpy(lists.flatten().fill_null(np.nan)).astype(np.float64)
    found = np.full(len(lists), np.nan)
    filled = lengths > 0
    if len(values):
        found[filled] = nearest.reduceat(values, (np.cumsum(lengths) - lengths)[filled])
    return pa.array(found, from_pandas=True)


def check_column_name(name: object) -> None:
    """Raise FramedexError if the name of a column is not a string."""
    if not isinstance(name, str):
        raise FramedexError("the name of a column must be a text", found=repr(name)[:80], allowed="such as 'label'")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredShapes:
    """The numbers of frames of clips, and the pictures of their media as they are stored.

    Attributes:
        frames: int64 [clips], padding included.
        heights: int64 [clips].
        widths: int64 [clips].
        turns: int64 [clips]: the quarter turns counterclockwise, 0 to 3, by which players turn the pictures.
        aspects: float64 [clips]: the width of a sample over its height, 1 if it is not stated.
    """

    frames: NDArray[np.int64]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]
    turns: NDArray[np.int64]
    aspects: NDArray[np.float64]

    @classmethod
    def of(cls, medium: Medium, frames: int) -> Self:
        """Return the shape of one clip with a number of frames."""
        numbers = (frames, medium.height, medium.width, medium.turns)
        shape = (np.array([number], np.int64) for number in numbers)
        return cls(**dict(zip(cls.__slots__, (*shape, np.array([medium.aspect])), strict=True)))

    def take(self, places: NDArray[np.int64]) -> Self:
        """Return the shapes of some clips."""
        return type(self)(**{name: getattr(self, name)[places] for name in self.__slots__})


class ClipSource(ABC):
    """Base class of clip sources. A source returns a single clip by its number, and the columns of all clips.

    This module does not import the planner, so that worker processes that read a manifest start faster.

    Attributes:
        path: The path of the dataset or of the index.
        ffmpeg: The versions of FFmpeg's libraries with which the index was made.
        labels: The labels that the dataset records. None if it records none.
    """

    path: Place
    ffmpeg: Sequence[str]
    labels: Labels | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return the clip with a number. The random draws of a policy depend on `epoch`."""

    @abstractmethod
    def locate(self, uri: str) -> str:
        """Return the location of the source with a uri. Raises StorageError if the source must not be read."""

    @property
    @abstractmethod
    def column_types(self) -> Mapping[str, pa.DataType]:
        """The type of each of the user's columns, by name."""

    @property
    def columns(self) -> list[str]:
        """The names of the user's columns."""
        return list(self.column_types)

    @abstractmethod
    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: for each clip, the row of its medium in `_media`."""

    @abstractmethod
    def views(self) -> ViewsOfClips | None:
        """Return the assignment of clips to views and items, or None if each clip is an item of its own."""

    def failures(self) -> Iterator[Failure]:
        """Yield a `Failure` for each clip that cannot be planned. The failures of a dataset are in failures.parquet."""
        return iter(())

    @abstractmethod
    def _user_column(self, name: str) -> pa.ChunkedArray:
        """Return the values of one of the user's columns, for all clips."""

    @abstractmethod
    def _clip_field(self, name: str) -> pa.ChunkedArray:
        """Return the values of a field of CLIP_FIELDS or FRAME_FIELDS, for all clips."""

    @abstractmethod
    def _media(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of `media`. The numbers of `media_rows` are indices of the returned rows."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return the values of one of the user's columns or of FIELD_NAMES, for all clips.

        Texts may be dictionary-encoded. Only the columns from which the result is computed are read. Clips are not
        planned. A source that plans from an index samples all clips of the first epoch for CLIP_FIELDS and
        FRAME_FIELDS. This reads the packets of all media.

        Raises:
            FramedexError: The clips do not have the column.
            FormatError: A file is missing or damaged, or was changed in the meantime.
        """
        if name in self.column_types:
            return self._user_column(name)
        if name in FIELD_NAMES:
            return self._field(name)
        own = self.columns
        raise FramedexError(
            "the clips have no such column",
            where=str(self.path),
            found=name,
            allowed=f"your columns: {', '.join(own) or 'none'}; fields of every clip: {', '.join(FIELD_NAMES)}",
            remedy=did_you_mean(name, [*own, *FIELD_NAMES]),
        )

    def _field(self, name: str) -> pa.ChunkedArray:
        """Return the values of a field of FIELD_NAMES, for all clips."""
        if name in CLIP_FIELDS or name in FRAME_FIELDS:
            return self._clip_field(name)
        media = self._media(MADE_FIELDS.get(name, (name,)))
        return media_field(name, media).take(pa.array(self.media_rows()))

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column of labels before they are replaced by numbers. Raises FramedexError."""
        return self.column(name)

    def frame_counts(self) -> pa.ChunkedArray:
        """Return the number of frames of each clip, including padding."""
        return self._field("wanted_frames")

    def _sizes(self) -> list[pa.ChunkedArray]:
        """Return the columns SIZES of the media of all clips, with one value per clip."""
        media, rows = self._media(SIZES), pa.array(self.media_rows())
        return [media[name].take(rows) for name in SIZES]

    def shapes(self, *, with_aspects: bool) -> StoredShapes:
        """Return the shapes of all clips.

        Args:
            with_aspects: Whether to read `aspects`, which takes time. If not, they are 1.

        Raises:
            FormatError: A file is missing or damaged, or was changed in the meantime.
        """
        numbers = self.frame_counts(), *self._sizes()
        if any(column.null_count for column in numbers):
            raise FormatError(
                "a clip has no shape", where=str(self.path), found="null", remedy="shard or download the dataset again"
            )
        frames, heights, widths, degrees = (column.to_numpy().astype(np.int64) for column in numbers)
        aspects = np.ones(len(frames))
        if with_aspects:
            stated = self._field(ASPECT).to_numpy().astype(np.float64)  # NaN for null
            aspects = np.where(stated > 0, stated, aspects)
        return StoredShapes(
            frames=frames,
            heights=heights,
            widths=widths,
            turns=quarter_turns(degrees),
            aspects=aspects,
        )


Where: TypeAlias = Mapping[str, object] | str


def clips_where(clips: ClipSource, where: object, path: str) -> NDArray[np.int64]:
    """Return int64, ascending: the numbers of the clips that `where` selects. Only the columns in `where` are read.

    Args:
        clips: All clips.
        where: A mapping from columns to an allowed value or a list of allowed values. Or an expression, in the syntax
            of a policy's `filter`.
        path: The path of the dataset or index, for errors.

    Raises:
        FramedexError: `where` is neither a mapping nor an expression, a column does not exist, no clip has a given
            value in its column, or no clip is selected.
    """
    asked: Mapping[str, object]
    if isinstance(where, str):
        expression, asked = parse_filter(where), {"where": where}
        columns = {name: clips.column(name) for name in columns_in(where)}
        everything = pa.table({**columns, "": pa.nulls(len(clips))})  # the extra column keeps the number of rows
        kept = matches(everything, expression, path)
    else:
        if not isinstance(where, Mapping) or not all(isinstance(name, str) for name in where):
            raise FramedexError(
                "where must be a mapping of columns to values, or an expression",
                found=repr(where)[:80],
                allowed="such as {'split': 'train'}, {'codec': ['h264', 'hevc']} or "
                "\"frame_rate > 20 and codec != 'av1'\"",
            )
        asked = where
        columns = {name: clips.column(name) for name in asked}
        kept = np.ones(len(clips), np.bool_)
        for name, value in asked.items():
            several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
            kept &= equal_values(columns[name], several, name, path)
    found = np.flatnonzero(kept)
    if asked and not len(found):
        raise no_clip_has(asked, {name: tally(column.chunks) for name, column in columns.items()}, path)
    return found
