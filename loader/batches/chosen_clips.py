"""The clips that a loader takes from a source, with their labels, and the way in which items are made of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.printing import user_line, warn_at
from framedex.core.pyav import ffmpeg_version, other_major_versions
from framedex.core.words import check_choices, did_you_mean
from framedex.errors import FramedexError, printable
from framedex.execution.spawning import SharedNumber
from framedex.loader.batches.faults import OnError
from framedex.loader.batches.fetch import Decode, describe, picture, sound
from framedex.loader.dataset.frame_tables import FrameColumns, FrameTables
from framedex.loader.pixels.framing import Framing, Rotation
from framedex.loader.pixels.options import Dtype, Layout, PixelOptions, Transform
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.clips.clip_source import ClipSource, Where, clips_where
from framedex.sharder.clips.labels import (
    Labels,
    LabelsArgument,
    check_is_own,
    check_name_is_free,
    made_labels,
    wanted_labels,
)
from framedex.sharder.decoding.video import Size
from framedex.sharder.reading import HeldBytes, SourceFiles
from framedex.storage.reader import DiskCache

LOG = logging.getLogger("framedex.loader")
MAX_BITS = 8  # the bits of a uint8 sample, which lack the lower bits of deeper video


class PixelArguments(TypedDict, total=False):
    """Keyword arguments of all loaders: how frames are decoded and delivered. ClipDataset explains them."""

    size: Size | None
    framing: Framing | None
    rotation: Rotation
    layout: Layout | None
    dtype: Dtype
    transform: Transform | None
    threads: int
    clip_bytes: int | None


class ItemArguments(PixelArguments, total=False):
    """Keyword arguments of loaders that make items: also where frames are decoded, and columns of their table."""

    decode: Decode
    frame_columns: FrameColumns | None


def check_arguments(given: Mapping[str, object], known: type[TypedDict], called: str) -> None:  # type: ignore[valid-type]
    """Raise TypeError for a keyword argument that a function does not have, as Python does, with a name like it."""
    for name in given:
        if name not in known.__annotations__:
            near = did_you_mean(name, known.__annotations__)
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}" + (f"; {near}" if near else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOptions:
    """The contents of items, and how they are made.

    The fields have the names of ClipDataset's arguments.

    Raises:
        FramedexError: a value is not allowed.
    """

    decode: Decode
    pixels: PixelOptions
    frame_columns: FrameColumns | None
    on_error: OnError

    def __post_init__(self) -> None:
        check_choices(decode=(self.decode, ("cpu", "movie")))
        if self.decode == "movie" and not (self.pixels.is_plain and self.pixels.rotation == "stored"):
            raise FramedexError(
                "decode='movie' leaves frames to another decoder",
                found="framing, rotation, layout, dtype or transform",
                remedy="decode='cpu', or do the same with the other decoder's frames",
            )

    @classmethod
    def of(cls, called: str, on_error: OnError, seed: int, items: Mapping[str, Any]) -> Self:
        """Return the options that the ItemArguments of a function mean. Raises FramedexError, TypeError.

        Args:
            called: the function, for errors.
            on_error: as for ClipDataset.
            seed: as for ClipDataset.
            items: the arguments by name.
        """
        check_arguments(items, ItemArguments, called)
        own = {name: items[name] for name in items if name in PixelArguments.__annotations__}
        return cls(
            decode=items.get("decode", "cpu"),
            pixels=PixelOptions.of(seed=seed, **own),
            frame_columns=items.get("frame_columns"),
            on_error=on_error,
        )


class ChosenClips:
    """The clips that a loader takes from a source, numbered from 0, with their labels. Picklable.

    Args:
        source: all clips.
        options: how items are made.
        where: as for ClipDataset.
        labels: as for ClipDataset.
        cache: as for ClipDataset.

    Attributes:
        source: all clips.
        options: how items are made.
        files: where packets are read from.
        numbers: int64, ascending, the numbers of the clips in the source. If None, all clips are taken.
        labels: the numbers of a column's values. If None, there are no labels.

    Raises:
        FramedexError: `where` or `labels` is wrong.
    """

    def __init__(
        self,
        source: ClipSource,
        options: ItemOptions,
        *,
        where: Where | None = None,
        labels: LabelsArgument | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        warn_of_other_ffmpeg(str(source.path), tuple(source.ffmpeg))
        self.source, self.options, self.files = source, options, SourceFiles(cache)
        wanted = options.frame_columns
        self._tables = None if wanted is None else FrameTables(wanted, source.locate, cache)
        self.numbers = None if where is None else clips_where(source, where, str(source.path))
        self.labels = self._numbered_labels(labels)
        # Shared by all copies, and with the line that opened the dataset: a worker process has no line of the user.
        self._has_warned, self._user_line = SharedNumber(), user_line()

    def __len__(self) -> int:
        return len(self.source) if self.numbers is None else len(self.numbers)

    def taken(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of these clips, from the values of all clips of the source."""
        return values if self.numbers is None else values[self.numbers]

    def number(self, place: int) -> int:
        """Return the number of a clip in the source."""
        return place if self.numbers is None else int(self.numbers[place])

    def clip(self, place: int, epoch: int = 0) -> Clip:
        """Return a clip, with numbers in place of labels. Raises as `ClipSource.clip`."""
        clip = self.source.clip(self.number(place), epoch)
        if self.options.decode == "cpu" and self.options.pixels.dtype == "uint8":
            self._warn_of_lost_bits(clip.medium)
        if self.labels is None:
            return clip
        return replace(clip, columns=self.labels.applied(clip.columns, f"clip {clip.clip_id}"))

    def item(self, clip: Clip, epoch: int, files: SourceFiles | HeldBytes | None = None) -> dict[str, Any]:
        """Return a clip's item, as `ClipDataset.__getitem__` describes it.

        Args:
            clip: the clip.
            epoch: the epoch of random crops and of the transform.
            files: where its packets are read from. If None, `files` of these clips.

        Raises:
            StaleError, DecodeError, TransformError, FramedexError: as `ClipDataset.__getitem__`.
        """
        files = files or self.files
        shown = picture(clip, files, decode=self.options.decode, pixels=self.options.pixels, epoch=epoch)
        return shown | self.extra_values(clip, files) | describe(clip)

    def extra_values(self, clip: Clip, files: SourceFiles | HeldBytes | None = None) -> dict[str, Any]:
        """Return the entries of an item that are not read from its pictures: audio, and columns of the frames' table.

        Raises:
            FramedexError: the clip has no table of its frames, or the table lacks a column.
            FormatError: the table is damaged, or its rows do not belong to the clip's frames.
        """
        columns = {} if self._tables is None else self._tables(clip)
        return columns | sound(clip, files or self.files)

    def _numbered_labels(self, labels: LabelsArgument | None) -> Labels | None:
        """Return the numbers of labels; as recorded if `labels` is None or asks for the recorded column.

        Raises:
            FramedexError: `labels` is wrong, there is no such column, or a clip that is taken has no label.
        """
        source, where = self.source, str(self.source.path)
        if labels is None:
            return source.labels
        wanted = wanted_labels(labels)
        if source.labels is not None and wanted.numbers is None and wanted.column == source.labels.column:
            return source.labels
        check_is_own(wanted, source.columns, where)
        found = made_labels(wanted, source.label_values(wanted.column), where)
        check_name_is_free(found, source.columns, where)
        values = source.column(wanted.column)
        found.numbered(values if self.numbers is None else values.take(pa.array(self.numbers)), where)
        return found

    def _warn_of_lost_bits(self, medium: Medium) -> None:
        """Warn of the first medium whose samples have more bits than frames, once for all copies of these clips."""
        if medium.bits > MAX_BITS and self._has_warned.claim():
            message = (
                f"{self.source.path}: the samples of {medium.uri} have more than {MAX_BITS} bits "
                f"({medium.bits}, {medium.pixel_format}); frames are uint8, and the lower bits are lost. "
                "ClipDataset(dtype='uint16') keeps them. `framedex audit --check more_than_8_bits` lists all such media"
            )
            warn_at(self._user_line, message)


class ColumnsOfClips:
    """The columns and labels of ClipDataset and ClipStream."""

    _clips: ChosenClips

    @property
    def columns(self) -> list[str]:
        """The user's columns, from a listing, explicit clips and a split, and the column of labels' names."""
        labels = self._clips.labels
        return [*self._clips.source.columns, *([] if labels is None else [labels.name_column])]

    @property
    def label_column(self) -> str | None:
        """The column whose values are numbered, or None without labels."""
        return None if self._clips.labels is None else self._clips.labels.column

    @property
    def classes(self) -> list[str]:
        """The names of the labels, by their numbers.

        Raises:
            FramedexError: there are no labels.
        """
        if self._clips.labels is None:
            raise FramedexError(
                "the dataset has no labels",
                where=str(self._clips.source.path),
                remedy=f"{type(self).__name__}(…, labels='label') numbers the values of the column label",
            )
        return self._clips.labels.classes


@functools.cache
def warn_of_other_ffmpeg(place: str, versions: tuple[str, ...]) -> None:
    """Log a warning, once in this process, if PyAV has another major version of FFmpeg than an index.

    Args:
        place: the place of the index, or of a dataset that was made from it.
        versions: the versions of FFmpeg that probed its media.
    """
    others = other_major_versions(versions)
    if others:
        LOG.warning(
            "%s was indexed with FFmpeg %s, and FFmpeg %s decodes it now. `framedex verify` compares the frames of a "
            "dataset; docs/exactness.md says what was tested",
            printable(place),
            printable(", ".join(others)),
            ffmpeg_version(),
        )
