"""What a ClipDataset reads its clips from: a manifest, or plans made from an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.sharder.clips.clip import Clip, Failure
from framedex.sharder.clips.labels import Labels
from framedex.sharder.clips.multiview import ViewsOfClips
from framedex.storage.places import Stored


class Origin(Protocol):
    """Clips by number. `Manifest` and `ClipPlans` have these members.

    This module does not import the planner, so workers that read a manifest start faster.
    """

    path: Path | Stored

    @property
    def ffmpeg(self) -> Sequence[str]:
        """The versions of FFmpeg's libraries that made the index."""
        ...

    @property
    def columns(self) -> list[str]:
        """The user's columns."""
        ...

    def locate(self, uri: str) -> str:
        """Return where a source lies. Raises StorageError if it must not be read."""
        ...

    def __len__(self) -> int: ...

    def clip(self, number: int, epoch: int = 0) -> Clip:
        """Return a clip. `epoch` is that of random draws."""
        ...

    @property
    def column_types(self) -> Mapping[str, pa.DataType]:
        """The types of the user's columns."""
        ...

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the user's, or a field of `sharder.clips.fields`, of all clips. Raises FramedexError."""
        ...

    def shapes(self, *, upright: bool) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames (padding included), height and width, as stored or as turned upright."""
        ...

    @property
    def labels(self) -> Labels | None:
        """The labels that a dataset records; None if it records none."""
        ...

    def label_values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column that are numbered, whatever clips are chosen. Raises FramedexError."""
        ...

    def media_rows(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of each clip's medium."""
        ...

    def views(self) -> ViewsOfClips | None:
        """Return which clips are views of one clip of several views; None if each clip stands alone."""
        ...

    def failures(self) -> Iterator[Failure]:
        """Yield the clips that cannot be planned."""
        ...
