"""The clips of a source that pass a loader's filter, with their labels, and functions that make items of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.printing import user_line, warn_at
from framedex.core.pyav import ffmpeg_version, other_major_versions
from framedex.core.words import check_choices, did_you_mean
from framedex.errors import FramedexError, printable
from framedex.execution.spawning import SharedNumber
from framedex.loader.batches.faults import OnError
from framedex.loader.batches.fetch import Decode, describe, picture, pictures_together, sound
from framedex.loader.dataset.frame_tables import FrameColumns, FrameTables
from framedex.loader.pixels.framing import Framing, Rotation
from framedex.loader.pixels.options import Layout, PixelOptions, Transform
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
from framedex.sharder.decoding.video import Dtype, Size
from framedex.sharder.reading import HeldBytes, SourceFiles
from framedex.storage.reader import DiskCache

LOG = logging.getLogger("framedex.loader")
MAX_BITS = 8  # number of bits of a uint8 sample; video with more bits loses its lower bits


class PixelArguments(TypedDict, total=False):
    """Keyword arguments for decoding and delivering frames, which all loaders share. See ClipDataset."""

    size: Size | None
    framing: Framing | None
    rotation: Rotation | None
    layout: Layout | None
    dtype: Dtype
    transform: Transform | None
    threads: int
    clip_bytes: int | None


class ItemArguments(PixelArguments, total=False):
    """Keyword arguments of loaders that make items: PixelArguments, the decoder, and per-frame columns."""

    decode: Decode
    frame_columns: FrameColumns | None


def check_arguments(given: Mapping[str, object], known: type[TypedDict], called: str) -> None:  # type: ignore[valid-type]
    """Raise TypeError for an unknown keyword argument, like Python, and suggest a similar name."""
    for name in given:
        if name not in known.__annotations__:
            near = did_you_mean(name, known.__annotations__)
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}" + (f"; {near}" if near else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOptions:
    """Options for making items of clips.

    The fields are the arguments of ClipDataset with the same names.

    Raises:
        FramedexError: A value is not allowed.
    """

    decode: Decode
    pixels: PixelOptions
    frame_columns: FrameColumns | None
    on_error: OnError

    def __post_init__(self) -> None:
        check_choices(decode=(self.decode, ("cpu", "movie")))
        if self.decode == "movie" and not (self.pixels.is_plain and self.pixels.rotation == "stored"):
            raise FramedexError(
                "decode='movie' does not decode frames, so these options cannot be applied",
                found="framing, rotation, layout, dtype or transform",
                remedy="use decode='cpu', or apply the same operations after your own decoder",
            )

    @classmethod
    def of(cls, called: str, on_error: OnError, seed: int, items: Mapping[str, Any]) -> Self:
        """Return the options for the ItemArguments that a function received. Raises FramedexError, TypeError.

        Args:
            called: The name of the function, for error texts.
            on_error: The reaction to a clip that is not available, as for ClipDataset.
            seed: The seed, as for ClipDataset.
            items: The function's ItemArguments by name.
        """
        check_arguments(items, ItemArguments, called)
        own = {name: items[name] for name in items if name in PixelArguments.__annotations__}
        decode = items.get("decode", "cpu")
        if decode == "movie" and own.get("rotation") is None:
            own["rotation"] = "stored"
        return cls(
            decode=decode,
            pixels=PixelOptions.of(seed=seed, **own),
            frame_columns=items.get("frame_columns"),
            on_error=on_error,
        )


class ChosenClips:
    """The clips of a source that pass a filter, numbered from 0, with their labels. Picklable.

    Args:
        source: The source of clips: a manifest, or the plans for an index.
        options: The options for making items.
        where: The filter, as for ClipDataset.
        labels: The numbers of labels, as for ClipDataset.
        cache: The cache for object storage, as for ClipDataset.
        repeat: The number of times that each clip occurs, as for `ClipDataset.from_index`.

    Attributes:
        source: The source of clips.
        options: The options for making items.
        files: The files from which packets are read.
        numbers: The numbers in the source of the clips that pass the filter, int64, ascending. None if there is no
            filter and no repetition. With `repeat`, each number occurs so many times.
        repeat: The number of times that each clip occurs.
        labels: The column of labels, and the numbers assigned to them. None if there are no labels.

    Raises:
        FramedexError: `where` or `labels` is not allowed for this source.
    """

    def __init__(
        self,
        source: ClipSource,
        options: ItemOptions,
        *,
        where: Where | None = None,
        labels: LabelsArgument | None = None,
        cache: DiskCache | None = None,
        repeat: int = 1,
    ) -> None:
        warn_of_other_ffmpeg(str(source.path), tuple(source.ffmpeg))
        self.source, self.options, self.files = source, options, SourceFiles(cache)
        wanted = options.frame_columns
        self._tables = None if wanted is None else FrameTables(wanted, source.locate, cache)
        self.numbers = None if where is None else clips_where(source, where, str(source.path))
        self.repeat = repeat
        if repeat > 1:
            self.numbers = np.repeat(np.arange(len(source)) if self.numbers is None else self.numbers, repeat)
        self.labels = self._numbered_labels(labels)
        # All copies share `_has_warned`. A warning shows the line of the user's code that opened the dataset. This line
        # is recorded here, because it cannot be found in a worker process.
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
        """Return a clip, with numbers in place of labels. Raises the exceptions of `ClipSource.clip`."""
        clip = self.source.clip(self.number(place), epoch)
        if self.options.decode == "cpu" and self.options.pixels.dtype == "uint8":
            self._warn_of_lost_bits(clip.medium)
        if self.labels is None:
            return clip
        return replace(clip, columns=self.labels.applied(clip.columns, f"clip {clip.clip_id}"))

    def item(self, clip: Clip, epoch: int, files: SourceFiles | HeldBytes | None = None) -> dict[str, Any]:
        """Return a clip's item, as described for `ClipDataset.__getitem__`.

        Args:
            clip: The clip.
            epoch: The epoch of random crops and of the transform.
            files: The files or bytes from which packets are read. Defaults to the attribute `files`.

        Raises:
            StaleError, DecodeError, TransformError, FramedexError: As for `ClipDataset.__getitem__`.
        """
        files = files or self.files
        shown = picture(clip, files, decode=self.options.decode, pixels=self.options.pixels, epoch=epoch)
        return shown | self.extra_values(clip, files) | describe(clip)

    def items_together(
        self, clips: Sequence[Clip], epochs: Sequence[int], files: SourceFiles
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (the index of a clip, its item) for clips of one medium that share pictures, which are decoded once.

        Nothing is yielded for clips that cannot be decoded together with others. `epochs` has the epoch of each clip's
        random draws.

        Raises:
            StaleError, DecodeError, TransformError, FramedexError: As for `item`, for any of the clips.
        """
        for number, shown in pictures_together(clips, files, pixels=self.options.pixels, epochs=epochs):
            yield number, shown | self.extra_values(clips[number], files) | describe(clips[number])

    def extra_values(self, clip: Clip, files: SourceFiles | HeldBytes | None = None) -> dict[str, Any]:
        """Return an item's audio and its `frame_columns`.

        Raises:
            FramedexError: The clip has no per-frame table, or the table lacks a column.
            FormatError: The table is damaged, or its rows do not correspond to the clip's frames.
        """
        columns = {} if self._tables is None else self._tables(clip)
        return columns | sound(clip, files or self.files)

    def _numbered_labels(self, labels: LabelsArgument | None) -> Labels | None:
        """Return the numbers assigned to labels.

        These are the recorded numbers if `labels` is None, or if it is the name of the recorded column.

        Raises:
            FramedexError: `labels` is malformed, there is no such column, or a clip that passes the filter has no
                label.
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
        """Warn if a medium has more than MAX_BITS bits per sample. All copies together warn once."""
        if medium.bits > MAX_BITS and self._has_warned.claim():
            message = (
                f"{self.source.path}: the samples of {medium.uri} have more than {MAX_BITS} bits "
                f"({medium.bits}, {medium.pixel_format}); frames are uint8, and the lower bits are lost. "
                "ClipDataset(dtype='uint16') keeps them. `framedex audit --check more_than_8_bits` lists all such media"
            )
            warn_at(self._user_line, message)


class ColumnsOfClips:
    """A base class of ClipDataset and ClipStream with the properties for columns and labels."""

    _clips: ChosenClips

    @property
    def columns(self) -> list[str]:
        """The names of the user's columns, which come from a listing, from explicit clips and from a split.

        With labels, the column that contains the labels themselves follows at the end.
        """
        labels = self._clips.labels
        return [*self._clips.source.columns, *([] if labels is None else [labels.name_column])]

    @property
    def label_column(self) -> str | None:
        """The column whose values are the labels. None if there are no labels."""
        return None if self._clips.labels is None else self._clips.labels.column

    @property
    def classes(self) -> list[str]:
        """The labels, in the order of their numbers: `classes[number]` is the label with this number.

        Raises:
            FramedexError: There are no labels.
        """
        if self._clips.labels is None:
            raise FramedexError(
                "the dataset has no labels",
                where=str(self._clips.source.path),
                remedy=f"{type(self).__name__}(…, labels='label') assigns numbers to the values of the column label",
            )
        return self._clips.labels.classes


@functools.cache
def warn_of_other_ffmpeg(place: str, versions: tuple[str, ...]) -> None:
    """Log a warning if PyAV uses another major version of FFmpeg than an index. Warn only once in this process.

    Args:
        place: The path of the index, or of a dataset that was made from the index.
        versions: The versions of FFmpeg that probed the media of the index.
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
