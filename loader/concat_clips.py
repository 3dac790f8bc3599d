"""ConcatClips: a concatenation of ClipDatasets, as one dataset for any DataLoader and Sampler."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, get_args, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import column_as_numpy
from framedex.core.words import check_choices, counted, named
from framedex.errors import FramedexError
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.pixels.framing import Framing, Rotation
from framedex.loader.pixels.options import PixelOptions
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.clip_source import FIELD_NAMES, check_column_name
from framedex.sharder.decoding.video import Size
from framedex.sharder.reading import SourceFiles

NUMBER = "dataset_number"  # the key under which an item has the number of its dataset
Columns = Literal["all", "common"]


class ConcatClips:
    """A concatenation of ClipDatasets. It is map-style and picklable, and does not need torch.

    Clips are numbered as in torch's `ConcatDataset`. Each item has the additional key `dataset_number`, the index of
    the item's dataset in `datasets`.

    Args:
        datasets: The ClipDatasets. A ConcatClips or a torch ConcatDataset among them is replaced by its datasets.
        columns: The user's columns that items have. With "all", every item has the columns of all datasets. The value
            is None in items whose dataset lacks the column. With "common", items have only the columns that all
            datasets share.

    Attributes:
        datasets: The ClipDatasets.
        cumulative_sizes: For each dataset, the number of clips in this dataset and all datasets before it.
        sources: The files from which packets are read, with their cache.

    Raises:
        FramedexError: An element of `datasets` is not a dataset, or the datasets cannot be joined.
    """

    def __init__(self, datasets: Iterable[Any], *, columns: Columns = "all") -> None:
        check_choices(columns=(columns, get_args(Columns)))
        self.datasets = list(_flattened(datasets))
        if not self.datasets:
            raise FramedexError("there is no dataset to join", allowed="at least one ClipDataset")
        self._columns = columns
        self.cumulative_sizes: list[int] = np.cumsum([len(dataset) for dataset in self.datasets]).tolist()
        for option in ("decode", "frame_columns"):
            _shared_value(self.datasets, option, f"open all datasets with the same {option}")
        self._check_labels()
        # Datasets without clips are ignored, because they have no record of their columns.
        filled = [dataset for dataset in self.datasets if len(dataset)] or self.datasets
        names = [dataset.columns for dataset in filled]
        if any(NUMBER in own for own in names):
            raise FramedexError(
                f"a dataset has a column {NUMBER}, a name reserved by ConcatClips", remedy="rename the column"
            )
        every = dict.fromkeys(name for own in names for name in own)
        self._partial = frozenset(name for name in every if any(name not in own for own in names))
        self._names = [name for name in every if columns == "all" or name not in self._partial]
        caches = [dataset.sources.cache for dataset in self.datasets if dataset.sources.cache is not None]
        if len({cache.folder for cache in caches}) > 1:
            found = ", ".join(str(cache.folder) for cache in caches)
            raise FramedexError(
                "joined datasets have different caches", found=found, remedy="open all datasets with the same DiskCache"
            )
        self.sources = SourceFiles(caches[0] if caches else None)

    def _check_labels(self) -> None:
        """Raise FramedexError if two datasets map the labels of a column to different numbers."""
        classes: dict[str, tuple[int, list[str]]] = {}
        for place, dataset in enumerate(self.datasets):
            if dataset.label_column is None:
                continue
            first, own = classes.setdefault(dataset.label_column, (place, dataset.classes))
            if own != dataset.classes:
                shown = [named(names, len(names)) for names in (own, dataset.classes)]
                raise FramedexError(
                    f"joined datasets assign different numbers to the labels of column {dataset.label_column!r}",
                    found=f"{shown[0]} of dataset {first}, {shown[1]} of dataset {place}",
                    remedy="give all datasets the same numbers, such as labels={'run': 0, 'walk': 1}",
                )

    @property
    def classes(self) -> list[str]:
        """The labels, in the order of their numbers: `classes[number]` is the label with this number.

        Raises:
            FramedexError: The datasets have no labels, or their labels are in different columns.
        """
        labelled = {dataset.label_column: dataset for dataset in self.datasets if dataset.label_column is not None}
        if len(labelled) > 1:
            raise FramedexError("joined datasets have labels in different columns", found=", ".join(map(str, labelled)))
        return (next(iter(labelled.values())) if labelled else self.datasets[0]).classes

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __repr__(self) -> str:
        """Return a description with the number of clips in all and of each dataset."""
        parts = ", ".join(counted(len(dataset), "clip") for dataset in self.datasets)
        return f"<ConcatClips: {counted(len(self), 'clip')} of {counted(len(self.datasets), 'dataset')} ({parts})>"

    @property
    def columns(self) -> list[str]:
        """The user's columns that items have, without `dataset_number`."""
        return list(self._names)

    @property
    def uneven_columns(self) -> frozenset[str]:
        """The columns of items that some datasets lack, or whose types differ among the datasets.

        In batches of ClipLoader, the values of such a column are always a list, even if they could form an array.
        """
        return frozenset(
            name
            for name in self._names
            if name in self._partial
            or len({_kind(dataset.column_types[name]) for dataset in self.datasets if len(dataset)}) > 1
        )

    @property
    def size(self) -> Size | None:
        """(height, width) to which frames are stretched, or None if frames are not stretched to a size.

        Raises:
            FramedexError: The datasets have different sizes.
        """
        size: Size | None = _shared_value(self.datasets, "size", "give ClipLoader size=(height, width)")
        return size

    def pixels_with(self, size: Size | None, framing: Framing | None, rotation: Rotation | None) -> list[PixelOptions]:
        """Return the options for the frames of each dataset in ClipLoader. They differ at most in their framing.

        Args:
            size: The size that replaces the datasets' own size or framing, if given.
            framing: The framing that replaces the datasets' own size or framing, if given.
            rotation: The rotation that replaces the datasets' own rotation, if given.

        Raises:
            FramedexError: The other options of the datasets differ.
        """
        found = [dataset.pixels.changed(size, framing, rotation) for dataset in self.datasets]
        for field in fields(PixelOptions):
            if field.name != "framing":
                _shared_value(found, field.name, f"open all datasets with the same {field.name}")
        return found

    @property
    def epoch(self) -> int:
        """The current epoch, which determines random draws."""
        return self.datasets[0].epoch

    def epoch_of(self, number: int) -> int:
        """Return the epoch that determines the random draws of a clip, like `ClipDataset.epoch_of`."""
        part, own = self.locate(number)
        return self.datasets[part].epoch_of(own)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the random draws of all datasets, like `ClipDataset.set_epoch`."""
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    def failures(self) -> Iterator[Failure]:
        """Yield the failures of all datasets, like `ClipDataset.failures`."""
        for dataset in self.datasets:
            yield from dataset.failures()

    def locate(self, number: int) -> tuple[int, int]:
        """Return the index of the dataset that contains a clip, and the clip's number in that dataset.

        Args:
            number: The number of the clip. Negative numbers count from the end.

        Raises:
            IndexError: The clip does not exist.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        place = number % len(self)
        part = int(np.searchsorted(self.cumulative_sizes, place, side="right"))
        return part, place - self._first(part)

    def _first(self, part: int) -> int:
        return self.cumulative_sizes[part - 1] if part else 0

    def replacements(self, number: int, count: int) -> list[int]:
        """Return clips with which ClipLoader may replace a clip. They are drawn from the clip's own dataset.

        Args:
            number: The number of the clip, which is also the seed of the draw.
            count: The number of clips to draw.
        """
        part, _ = self.locate(number)
        bounds = self._first(part), self.cumulative_sizes[part]
        drawn: list[int] = np.random.default_rng(number % len(self)).integers(*bounds, count).tolist()
        return drawn

    @property
    def on_error(self) -> Any:
        """The reaction to a clip that is not available. Raises FramedexError if it differs among the datasets."""
        return _shared_value(self.datasets, "on_error", "give ClipLoader on_error")

    def fitted(self, error: FramedexError, number: int) -> FramedexError:
        """Return a clip's error with a fitting remedy, like `ClipDataset.fitted`."""
        part, own = self.locate(number)
        return self.datasets[part].fitted(error, own)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return clip `number`, as the item of its ClipDataset with the additional key `dataset_number` (an int).

        Negative numbers count from the end. The exceptions are those of `ClipDataset.__getitem__`.
        """
        part, own = self.locate(number)
        item = dict(self.datasets[part][own])
        own_columns = {name: item.pop(name) for name in self.datasets[part].columns}
        return item | self._row(own_columns, part)

    def clip(self, number: int, *, epoch: int | None = None) -> Clip:
        """Return the record of clip `number`, like `ClipDataset.clip`, with `dataset_number` among the columns.

        Raises:
            IndexError: The clip does not exist.
        """
        part, own = self.locate(number)
        clip = self.datasets[part].clip(own, epoch=epoch)
        return replace(clip, columns=self._row(clip.columns, part))

    def _row(self, columns: dict[str, Any], part: int) -> dict[str, Any]:
        """Return the user's columns and `dataset_number`, as the item of a clip of dataset `part` has them."""
        left_out = self._partial if self._columns == "common" else frozenset()
        own = {name: value for name, value in columns.items() if name not in left_out}
        return dict.fromkeys(self._names) | own | {NUMBER: part}

    def extra_values(self, clip: Clip) -> dict[str, Any]:
        """Return an item's audio and `frame_columns`, like `ClipDataset.extra_values`.

        Args:
            clip: A clip of this dataset.
        """
        return self.datasets[int(clip.columns[NUMBER])].extra_values(clip)

    @overload
    def column(self, name: str, *, as_arrow: Literal[False] = False) -> NDArray[Any]: ...

    @overload
    def column(self, name: str, *, as_arrow: Literal[True]) -> pa.ChunkedArray: ...

    def column(self, name: str, *, as_arrow: bool = False) -> NDArray[Any] | pa.ChunkedArray:
        """Return one value for each clip, like `ClipDataset.column`. Clips whose dataset lacks the column have null.

        Args:
            name: A name that `ClipDataset.column` accepts, or `dataset_number`.
            as_arrow: Whether to return an Arrow array instead of a numpy array.

        Raises:
            FramedexError: No dataset has the column, or its types in the datasets cannot be unified.
        """
        check_column_name(name)
        if name == NUMBER:
            numbers = np.repeat(np.arange(len(self.datasets)), [len(dataset) for dataset in self.datasets])
            return pa.chunked_array([pa.array(numbers)]) if as_arrow else numbers
        has = [name in dataset.columns or name in FIELD_NAMES for dataset in self.datasets]
        if not any(has):
            has[0] = True  # the first dataset then raises an error that lists the existing columns
        own = [
            dataset.column(name, as_arrow=True) if there else pa.chunked_array([pa.nulls(len(dataset))])
            for dataset, there in zip(self.datasets, has, strict=True)
        ]
        try:
            tables = [pa.table([column], [name]) for column in own]
            found = pa.concat_tables(tables, promote_options="permissive")[name]
        except pa.ArrowException as error:
            raise FramedexError(f"datasets differ in the type of column {name!r}", found=error) from error
        return found if as_arrow else column_as_numpy(found, name)

    @property
    def version(self) -> str | None:
        """The versions of the datasets, as `ClipDataset.version`. None if none of them was changed."""
        versions = [getattr(dataset, "version", None) for dataset in self.datasets]
        return "; ".join(version or "not changed" for version in versions) if any(versions) else None

    def places(self, kind: Literal["tar", "medium"]) -> NDArray[np.int64]:
        """Return int64 [clips]: the tar or medium that contains each clip, numbered across all datasets.

        Raises:
            FramedexError: `kind` is "tar", and a dataset has no tars.
        """
        found, first = [], 0
        for dataset in self.datasets:
            own = dataset.places(kind)
            found.append(own + first)
            first += int(own.max(initial=-1)) + 1
        return np.concatenate(found)

    def shapes(self) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames, height and width of each clip, as `ClipDataset.shapes`."""
        return np.concatenate([dataset.shapes() for dataset in self.datasets])


def _shared_value(owners: Sequence[object], name: str, remedy: str) -> Any:
    """Return the value of an attribute that must be equal in all `owners`. Raises FramedexError if values differ."""
    values = [getattr(owner, name) for owner in owners]
    if any(value != values[0] for value in values):
        found = ", ".join(f"{value!r} of dataset {number}" for number, value in enumerate(values))
        raise FramedexError(f"joined datasets differ in {name}", found=found, remedy=remedy)
    return values[0]


def is_joined(dataset: object) -> bool:
    """Return whether an object is a concatenation of datasets (a ConcatClips, or a torch ConcatDataset)."""
    return hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes")


def _flattened(datasets: Iterable[Any]) -> Iterator[ClipDataset]:
    """Yield the ClipDatasets of all datasets, even of joined ones, in order. Raises FramedexError for other objects."""
    for dataset in datasets:
        if isinstance(dataset, ClipDataset):
            yield dataset
        elif is_joined(dataset):
            yield from _flattened(dataset.datasets)
        else:
            raise FramedexError(
                "only ClipDatasets can be joined",
                found=type(dataset).__name__,
                allowed="ClipDataset, ConcatClips, torch's ConcatDataset",
                remedy="for clips of several views, index all of their listings together",
            )


@functools.cache
def _kind(kind: pa.DataType) -> str:
    """Return the kind of an Arrow type. Values of the same kind become arrays of the same dtype in batches."""
    return "integer" if pa.types.is_integer(kind) else "float" if pa.types.is_floating(kind) else str(kind)
