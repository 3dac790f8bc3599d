"""MultiViewDataset: a map-style dataset whose items have several views (cameras), for any DataLoader and Sampler."""

from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import column_as_numpy
from framedex.core.words import counted
from framedex.errors import FramedexError
from framedex.loader.batches.faults import Fetched, read_or_replaced
from framedex.loader.batches.frames import LoaderOptions, blank, common, joined, per_view
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.pixels.framing import Draw
from framedex.loader.pixels.options import PixelOptions, sendable
from framedex.sharder.clips.clip import ABSENT, Clip


class MultiViewDataset:
    """A map-style, picklable dataset whose items have several views. The policy defines which clips form an item.

    Args:
        clips: A dataset made with a policy that has `views`, or `ClipDataset.from_index` with such a policy. Its
            options, such as `framing`, apply to each view.
        stack: Whether the arrays of the views are stacked along a new axis. The frames of all views must then have the
            same shape. If False, the values are dicts {view: value}.

    Raises:
        FramedexError: The dataset was made without `views`, so its clips cannot be joined.
    """

    def __init__(self, clips: ClipDataset, *, stack: bool = False) -> None:
        if not isinstance(clips, ClipDataset):
            raise FramedexError("MultiViewDataset joins the views of a ClipDataset", found=type(clips).__name__)
        self.clips, self.stack = clips, stack
        views = clips.views()
        self.views, self._table, self._examples = views.names, views.table, views.examples
        if len(clips) and not len(self._table):
            raise FramedexError(
                "no clip has all of its views",
                where=str(clips.origin.path),
                found=counted(len(clips), "clip") + " of single views",
                remedy="choose clips by columns that all views share, or `missing: mask` in the policy's `views`",
            )
        # For each view that some item lacks: an example clip of the view, and whether clips of this view have
        # another number of frames than clips of the leading view. Entries are added on first use.
        self._shapes: dict[str, tuple[Clip, bool]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        """Return a description with the path of the dataset, the number of clips, and their views."""
        return f"<MultiViewDataset {self.clips.origin.path}: {counted(len(self), 'clip')} of {', '.join(self.views)}>"

    @property
    def epoch(self) -> int:
        """The current epoch, which determines random draws."""
        return self.clips.epoch

    @property
    def classes(self) -> list[str]:
        """The labels, in the order of their numbers, like `ClipDataset.classes`."""
        return self.clips.classes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the random draws, like `ClipDataset.set_epoch`."""
        self.clips.set_epoch(epoch)

    def numbers(self, number: int) -> dict[str, int]:
        """Return, for each view of item `number`, the number of its clip in `clips`. Missing views are left out.

        Args:
            number: The number of the item. Negative numbers count from the end.

        Raises:
            IndexError: The item does not exist.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        own = zip(self.views, self._table[number].tolist(), strict=True)
        return {view: clip for view, clip in own if clip != ABSENT}

    @overload
    def column(self, name: str, *, view: str | None = None, as_arrow: Literal[False] = False) -> NDArray[Any]: ...

    @overload
    def column(self, name: str, *, view: str | None = None, as_arrow: Literal[True]) -> pa.ChunkedArray: ...

    def column(self, name: str, *, view: str | None = None, as_arrow: bool = False) -> NDArray[Any] | pa.ChunkedArray:
        """Return one value for each item, in the order of the items, like `ClipDataset.column`.

        Args:
            name: A name that `ClipDataset.column` accepts.
            view: The view whose values are returned. Items without this view have null. By default, the values come
                from the view that also provides the user's columns of an item.
            as_arrow: Whether to return an Arrow array instead of a numpy array.

        Raises:
            FramedexError: The view or the column does not exist.
        """
        if view is None:
            clips = np.where(self._table == ABSENT, len(self.clips), self._table).min(axis=1, initial=len(self.clips))
        elif view in self.views:
            clips = self._table[:, self.views.index(view)]
        else:
            raise FramedexError("there is no such view", found=repr(view), allowed=", ".join(self.views))
        found = self.clips.column(name, as_arrow=True).take(pa.array(clips, mask=clips == ABSENT))
        return found if as_arrow else column_as_numpy(found, name)

    def shapes(self) -> NDArray[np.int64]:
        """Return int64 [items, 3]: frames, height and width of each item's first view, like `ClipDataset.shapes`."""
        return self.clips.shapes()[self._first_views()]

    @property
    def version(self) -> str | None:
        """The version of the dataset, as `ClipDataset.version`."""
        return self.clips.version

    def places(self, kind: Any) -> NDArray[np.int64]:
        """Return int64 [items]: the number of the tar or medium that contains the first view of each item.

        Raises:
            FramedexError: `kind` is "tar", and the dataset has no tars.
        """
        return self.clips.places(kind)[self._first_views()]

    def _first_views(self) -> NDArray[np.int64]:
        """Return int64 [items]: the number in `clips` of the first view that each item has."""
        first = np.argmax(self._table != ABSENT, axis=1)
        return np.asarray(self._table[np.arange(len(self)), first], np.int64)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return item `number` with all of its views. Negative numbers count from the end.

        Returns:
            The keys of `ClipDataset.__getitem__`. `frames`, `pts`, `seconds`, `frame_index`, `mask`, `clip_id`, `uri`,
            `rotation_degrees`, `color_transfer`, `view_away_seconds` and audio are dicts {view: value}, or with
            `stack`, arrays [V, …] in the order of `views`. `multiview_id`, the user's columns and the `frame_columns`
            come from the leading view: the view that the policy's `views` makes the clock of the scene, or otherwise
            the first view. For a missing view, all frames are zeros, the mask is False everywhere, and `clip_id` is
            empty.

        Raises:
            FramedexError: The views have different shapes and cannot be stacked. Other exceptions are those of
                `ClipDataset.__getitem__`.
        """
        return read_or_replaced(self._item, number, count=len(self), on_error=self.clips.on_error)

    def _item(self, number: int) -> dict[str, Any]:
        numbers = self.numbers(number)
        there = {view: self.clips.item(clip) for view, clip in numbers.items()}
        leading = there[self.leading(numbers)]
        own = {view: per_view(there[view] if view in there else self._blank_item(view, leading)) for view in self.views}
        return joined(own, common(leading), axis=0 if self.stack else None)

    @staticmethod
    def leading(numbers: dict[str, int]) -> str:
        """Return the leading view, from which an item takes its shared entries (the user's columns, for example).

        It is the view whose clip comes first in the dataset. If one of the views is the clock of the scene, it is this
        view.

        Args:
            numbers: The number of the clip of each view, as the method `numbers` returns it.
        """
        return min(numbers, key=numbers.__getitem__)

    def blank(
        self, view: str, leading: dict[str, Any], pixels: PixelOptions
    ) -> tuple[dict[str, Any], NDArray[Any], Draw]:
        """Return the padding that stands for a missing view.

        Args:
            view: the view.
            leading: the item of the clip's leading view.
            pixels: the options for the frames.

        Returns:
            The view's item without frames, its decoded frames (all zeros), and the seeds of the clip's random draws.
        """
        if view not in self._shapes:
            own, other = (self.clips.origin.clip(number) for number in self._examples[view])
            self._shapes[view] = own, len(own.frames) != len(other.frames)
        example, has_own_length = self._shapes[view]
        count = len(example.frames if has_own_length else leading["mask"])
        draw = Draw(seed=pixels.seed, epoch=self.epoch, name=leading["multiview_id"])
        return blank(leading, count, example.audio), pixels.blank(example.medium, count, draw), draw

    def _blank_item(self, view: str, leading: dict[str, Any]) -> dict[str, Any]:
        item, frames, draw = self.blank(view, leading, self.clips.pixels)
        if "movie" in leading:
            return item | {"movie": np.zeros(0, np.uint8)}
        return item | {"frames": self.clips.pixels.finished(frames, draw)}


class ViewJoiner:
    """Joins the views of a MultiViewDataset into batches. It implements `batches.frames.JoinsViews`.

    Args:
        dataset: The dataset with the views.
        options: The options of ClipLoader.
    """

    def __init__(self, dataset: MultiViewDataset, options: LoaderOptions) -> None:
        self._dataset, self._pixels = dataset, options.pixels
        self.views, self.count, self.numbers = dataset.views, len(dataset), dataset.numbers

    def blank(self, view: str, leading: Fetched) -> Fetched:
        """Return a clip that consists of padding, for a view that an item lacks."""
        item, frames, draw = self._dataset.blank(view, leading.item, self._pixels)
        if self._pixels.transform is not None:
            frames = sendable(self._pixels.finished(frames, draw))
        return Fetched(
            number=ABSENT, item=item, cost=leading.cost, stored=leading.stored, size=leading.size, frames=frames
        )

    def join(self, of_view: dict[str, dict[str, Any]], shared: dict[str, Any]) -> dict[str, Any]:
        """Return one batch from the values of each view and the values that all views share."""
        return joined(of_view, shared, axis=1 if self._dataset.stack else None)
