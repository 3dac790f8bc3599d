"""Where a loader's clips come from: a manifest, or plans that are made from an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import FormatError
from framedex.records.dataset import Failure
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.fields import (
    CLIP_FIELDS,
    FIELD_NAMES,
    FRAME_FIELDS,
    media_columns_of,
    media_field,
    no_such_column,
)
from framedex.sharder.clips.labels import Labels
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.storage.places import Place

SIZES = ("height", "width", "rotation_degrees")  # of a clip's medium, never null


class ClipSource(ABC):
    """Clips by number, and columns of all clips.

    This module does not import the planner, so workers that read a manifest start faster.

    Attributes:
        path: the dataset or the index.
        ffmpeg: the versions of FFmpeg's libraries that made the index.
        labels: the labels that a dataset records; None if it records none.
    """

    path: Place
    ffmpeg: Sequence[str]
    labels: Labels | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return a clip. `epoch`: that of random draws."""

    @abstractmethod
    def locate(self, uri: str) -> str:
        """Return where a source lies. Raises StorageError if it must not be read."""

    @property
    @abstractmethod
    def column_types(self) -> Mapping[str, pa.DataType]:
        """The user's columns and their types."""

    @property
    def columns(self) -> list[str]:
        """The user's columns."""
        return list(self.column_types)

    @abstractmethod
    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of each clip's medium."""

    @abstractmethod
    def views(self) -> ViewsOfClips | None:
        """Return which clips are views of one clip of several views; None if each clip stands alone."""

    @abstractmethod
    def failures(self) -> Iterator[Failure]:
        """Yield the clips that cannot be planned."""

    @abstractmethod
    def _user_column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the user's, of all clips."""

    @abstractmethod
    def _clip_field(self, name: str) -> pa.ChunkedArray:
        """Return one of CLIP_FIELDS and FRAME_FIELDS, of all clips."""

    @abstractmethod
    def _media(self, names: Sequence[str]) -> pa.Table:
        """Return columns of `media`, one row for each number of `media_rows`."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the user's, or a field of `sharder.clips.fields`, of all clips. Texts may be encoded.

        Reads only what it is made of. Plans no clip; but plans of an index sample all clips for CLIP_FIELDS and
        FRAME_FIELDS, in their first epoch, which reads the packets of all media.

        Raises:
            FramedexError: the clips have no such column.
            FormatError: a file is missing or damaged, or was changed in the meantime.
        """
        own = self.column_types
        if name in own:
            return self._user_column(name)
        if name not in FIELD_NAMES:
            raise no_such_column(name, own, self.path)
        return self._field(name)

    def _field(self, name: str) -> pa.ChunkedArray:
        """Return a field of `sharder.clips.fields` of all clips."""
        if name in CLIP_FIELDS or name in FRAME_FIELDS:
            return self._clip_field(name)
        return media_field(name, self._media(media_columns_of(name))).take(pa.array(self.media_rows()))

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column that are numbered, whatever clips are chosen. Raises FramedexError."""
        return self.column(name)

    def frame_counts(self) -> pa.ChunkedArray:
        """Return how many frames each clip has, padding included."""
        return self._field("wanted_frames")

    def _sizes(self) -> list[pa.ChunkedArray]:
        """Return SIZES of all clips."""
        media, rows = self._media(SIZES), pa.array(self.media_rows())
        return [media[name].take(rows) for name in SIZES]

    def shapes(self, *, upright: bool) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames (padding included), height and width of each clip, as they are stored.

        Args:
            upright: whether sizes are those of pictures that are turned as a player turns them, to a quarter turn.

        Raises:
            FormatError: a file is missing or damaged, or was changed in the meantime.
        """
        frames, height, width, degrees = (self.frame_counts(), *self._sizes())
        if any(column.null_count for column in (frames, height, width, degrees)):
            raise FormatError(
                "a clip has no shape", where=str(self.path), found="null", remedy="shard again, or fetch it again"
            )
        shapes = np.stack([column.to_numpy().astype(np.int64) for column in (frames, height, width)], axis=1)
        if upright:
            turned = np.rint(degrees.to_numpy() / 90).astype(np.int64) % 2 == 1
            shapes[turned, 1:] = shapes[turned, :0:-1]
        return shapes
