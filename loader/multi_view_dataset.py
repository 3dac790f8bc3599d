"""MultiViewDataset: clips of several views, by number, for any DataLoader and Sampler."""

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
    """Clips of several views by number: map-style and picklable. The policy's `views` determines which clips join.

    Args:
        clips: a dataset that a policy with `views` made, or `ClipDataset.from_index` with such a policy. Its options
            hold for each view.
        stack: whether the values of the views are stacked to arrays with an axis of the views, whose frames must then
            have the same shape. If False, they are dicts by view.

    Raises:
        FramedexError: each clip of the dataset stands alone.
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
        # By view, added when a clip lacks the view: one clip of the view, and whether its number of frames is its own,
        # and not that of the leading view.
        self._shapes: dict[str, tuple[Clip, bool]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        """Return a description: the number of clips, their views and where they come from."""
        return f"<MultiViewDataset {self.clips.origin.path}: {counted(len(self), 'clip')} of {', '.join(self.views)}>"

    @property
    def epoch(self) -> int:
        """The epoch whose random draws are used."""
        return self.clips.epoch

    @property
    def classes(self) -> list[str]:
        """The names of the labels, by their numbers, as `ClipDataset.classes`."""
        return self.clips.classes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of random draws, as `ClipDataset.set_epoch`."""
        self.clips.set_epoch(epoch)

    def numbers(self, number: int) -> dict[str, int]:
        """Return the numbers of the clips of each view of a clip, in `clips`. Views that it lacks are left out.

        Args:
            number: negative numbers count from the end.

        Raises:
            IndexError: there is no such clip.
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
        """Return a value of each clip, in the order of the clips, as `ClipDataset.column` does.

        Args:
            name: as for `ClipDataset.column`.
            view: a view, whose values are null for clips that lack it. Defaults to the view whose columns items have.
            as_arrow: return Arrow's array.

        Raises:
            FramedexError: the view does not exist; or as `ClipDataset.column`.
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
        """Return int64 [clips, 3]: frames, height and width of the first view of each clip, as `ClipDataset.shapes`."""
        return self.clips.shapes()[self._first_views()]

    def places(self, kind: Any) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar or medium that the first view of each clip is read from.

        Raises:
            FramedexError: as `ClipDataset.places`.
        """
        return self.clips.places(kind)[self._first_views()]

    def _first_views(self) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the clip of the first view that each clip has."""
        first = np.argmax(self._table != ABSENT, axis=1)
        return np.asarray(self._table[np.arange(len(self)), first], np.int64)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return clip `number` of all views. Negative numbers count from the end.

        Returns:
            The keys of `ClipDataset.__getitem__`. `frames`, `pts`, `seconds`, `frame_index`, `mask`, `clip_id`, `uri`,
            `rotation_degrees`, `color_transfer`, `view_away_seconds` and audio are dicts by view, or arrays [V, …] with
            `stack`, in the order of `views`. `multiview_id`, the user's columns and the `frame_columns` come from the
            view that is the clock, or from the first view. A view that the clip lacks has frames of zeros and a mask
            that is False, with an empty `clip_id`.

        Raises:
            FramedexError: views are to be stacked and differ in shape; or as `ClipDataset.__getitem__`.
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
        """Return the view whose shared entries count: the first one in the dataset, which is the clock if there is one.

        Args:
            numbers: as `numbers` returns them.
        """
        return min(numbers, key=numbers.__getitem__)

    def blank(
        self, view: str, leading: dict[str, Any], pixels: PixelOptions
    ) -> tuple[dict[str, Any], NDArray[Any], Draw]:
        """Return padding for a view that a clip lacks.

        Args:
            view: the view.
            leading: the item of the clip's leading view.
            pixels: how frames are delivered.

        Returns:
            The item without pictures, zeros as decoded frames, and the source of the clip's random numbers.
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
    """Joins the views of a MultiViewDataset in batches (`batches.frames.JoinsViews`).

    Args:
        dataset: the clips.
        options: how frames are delivered.
    """

    def __init__(self, dataset: MultiViewDataset, options: LoaderOptions) -> None:
        self._dataset, self._pixels = dataset, options.pixels
        self.views, self.count, self.numbers = dataset.views, len(dataset), dataset.numbers

    def blank(self, view: str, leading: Fetched) -> Fetched:
        """Return a clip of padding alone, for a view that an item lacks."""
        item, frames, draw = self._dataset.blank(view, leading.item, self._pixels)
        if self._pixels.transform is not None:
            frames = sendable(self._pixels.finished(frames, draw))
        return Fetched(number=ABSENT, item=item, cost=leading.cost, frames=frames)

    def join(self, of_view: dict[str, dict[str, Any]], shared: dict[str, Any]) -> dict[str, Any]:
        """Return one batch of the views' own values and of their common values."""
        return joined(of_view, shared, axis=1 if self._dataset.stack else None)
