"""Joins the clips of several views into one item, or into one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from framedex.errors import FramedexError
from framedex.loader.batches.collate import PADDINGS
from framedex.loader.batches.fetched import Fetched

# What each view has for itself; everything else in an item is shared, and is that of the view that leads.
PER_VIEW = frozenset(
    [
        "frames",
        "movie",
        "positions",
        "pts",
        "seconds",
        "frame_index",
        "mask",
        "clip_id",
        "uri",
        "rotation_degrees",
        "color_transfer",
        "view_away_seconds",
        "audio",
        "audio_mask",
        "audio_rate",
    ]
)
NAME_KEY = "view_name"  # becomes the key of dicts by view
Item = dict[str, Any]


class DrawsItems(Protocol):
    """Clips of several views by number."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def numbers(self, number: int) -> dict[str, int]:
        """Return the numbers of the clips of each view that an item has."""
        ...


class JoinsViews(DrawsItems, Protocol):
    """Joins the views of items into batches. `views`: their names."""

    views: list[str]

    def blank(self, view: str, leading: Fetched) -> Fetched:
        """Return padding alone, for a view that an item lacks."""
        ...

    def join(self, of_view: dict[str, Item], leading: list[str]) -> Item:
        """Return one batch of the batches of all views.

        Args:
            leading: for each item, the view whose shared entries are taken.
        """
        ...


def joined(views: Mapping[str, Item], leading: str, *, axis: int | None) -> Item:
    """Return one item, or one batch, of the items or batches of several views.

    Args:
        views: each view's own, in the order of the views.
        leading: the view whose shared entries are taken.
        axis: where arrays get an axis of the views: 0 in an item, 1 in a batch. None: dicts by view instead.

    Raises:
        FramedexError: views are to be stacked and differ in shape.
    """
    found: Item = {}
    for key, value in views[leading].items():
        if key in PER_VIEW:
            own = {view: item[key] for view, item in views.items()}
            found[key] = own if axis is None else _stacked(key, own, axis)
        elif key != NAME_KEY:
            found[key] = value
    return found


def _stacked(key: str, own: Mapping[str, Any], axis: int) -> Any:
    """Return the values of several views as one array, or as lists of the views' values."""
    values = list(own.values())
    if isinstance(values[0], list):  # of a batch
        return [list(of_clip) for of_clip in zip(*values, strict=True)]
    if not hasattr(values[0], "shape"):
        return values if isinstance(values[0], str) else np.array(values)
    if len({tuple(value.shape) for value in values}) > 1:
        raise FramedexError(
            f"views differ in the shape of {key!r}",
            found=", ".join(f"{view}: {tuple(value.shape)}" for view, value in own.items()),
            remedy="give size=(height, width), or stack=False for a dict by view",
        )
    if isinstance(values[0], np.ndarray):
        return np.stack(values, axis)
    import torch  # the values are its tensors

    return torch.stack(values, axis)


def blank(example: Item, frames: int) -> Item:
    """Return what an item has for a view that it lacks: padding alone, and empty names.

    Args:
        example: what the item has for another view, without pictures.
        frames: how many frames the view has.
    """
    old = len(example["mask"])
    found = dict(example)
    for key in PER_VIEW & example.keys():
        value = example[key]
        if isinstance(value, np.ndarray):
            shape = (frames, *value.shape[1:]) if value.shape[:1] == (old,) else value.shape
            found[key] = np.full(shape, PADDINGS.get(key, 0), value.dtype)
        elif isinstance(value, str):
            found[key] = ""
    return found
