"""Collates clips into a batch of numpy arrays: everything in a batch except frames on a GPU.

Joins the clips of several views into one item, or into one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.batches.faults import Fetched
from framedex.records.clip import ClipRecord
from framedex.records.columns import keys_of
from framedex.records.medium import ITEM_KEYS

Collate = Literal["error", "pad", "list"]
COLLATES: tuple[Collate, ...] = ("error", "pad", "list")
PADDINGS = {key: column.padding for key, column in keys_of(ClipRecord).items() if column.dtype is not None} | {
    "positions": -1,
    "audio_mask": False,
}


def collate_clips(items: list[dict[str, Any]], mode: Collate, as_lists: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return one dict of batched values from the dicts of several clips.

    Arrays are stacked along a new first axis. Numbers become an array. Everything else becomes a list.

    Args:
        items: one dict per clip.
        mode: what to do if shapes differ. "error" raises FramedexError. "pad" pads at the end of each axis (frames with
            zeros, mask with False). "list" leaves all arrays of the batch in lists.
        as_lists: names whose values become a list, whatever they are.

    Raises:
        FramedexError: shapes differ, and `mode` is "error"; or clips differ in which values they have.
    """
    _check_names(items)
    found: dict[str, Any] = {}
    for name in items[0]:
        values = [item[name] for item in items]
        found[name] = values if name in as_lists else _collate_column(name, values, mode)
    return found


def _check_names(items: list[dict[str, Any]]) -> None:
    """Raise FramedexError if clips differ in which values they have, such as clips with audio beside others."""
    counts = Counter(name for item in items for name in item)
    some = {name: count for name, count in counts.items() if count < len(items)}
    if some:
        raise FramedexError(
            "clips of one batch differ in which values they have",
            found=", ".join(f"{name} of {count} of {len(items)} clips" for name, count in some.items()),
            remedy="join datasets that are alike: all of them with audio, or none; all of several views, or none",
        )


def _collate_column(name: str, values: list[Any], mode: Collate) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        if mode == "list":
            return values
        if len(values) == 1:
            return values[0][None]  # without a copy
        return np.stack(values) if have_one_shape(name, [v.shape for v in values], mode) else _pad(name, values)
    if all(type(value) in (int, float, bool) for value in values):
        return np.array(values)
    return values


def have_one_shape(name: str, shapes: list[tuple[int, ...]], mode: Collate) -> bool:
    """Return whether a batch's arrays can be stacked. Raises FramedexError if they differ and `mode` is "error"."""
    different = sorted(set(shapes))
    if len(different) > 1 and mode == "error":
        raise FramedexError(
            f"clips of one batch differ in the shape of {name!r}",
            found=", ".join(str(shape) for shape in different),
            remedy="give size=(height, width), clips of equal length (of audio: --audio-rate, --audio-channels, "
            "--audio-seconds), or collate='pad' or 'list'",
        )
    return len(different) == 1


def greatest_shape(shapes: list[tuple[int, ...]]) -> list[int]:
    """Return the smallest shape into which all of these fit."""
    return [max(sizes) for sizes in zip(*shapes, strict=True)]


def _pad(name: str, values: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of different shapes stacked, each padded at the end of its axes."""
    shape = greatest_shape([value.shape for value in values])
    batch = np.full((len(values), *shape), PADDINGS.get(name, 0), dtype=np.result_type(*values))
    for row, value in zip(batch, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return batch


NAME_KEY = "view_name"  # becomes the key of dicts by view
CLIP_KEYS = keys_of(ClipRecord)
# Keys of an item whose values are of one view; those of all others are shared, and are those of the view that leads.
PER_VIEW = ITEM_KEYS - {"multiview_id", NAME_KEY}
PER_FRAME = {key for key, column in CLIP_KEYS.items() if column.dtype is not None} | {"positions"}
NAMES = frozenset(["clip_id", "uri"])
Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioShape:
    """The audio of a view's clips. `rate`: in Hz."""

    rate: int
    channels: int


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

    def join(self, of_view: dict[str, Item], shared: Item) -> Item:
        """Return one batch of what each view has for itself, and of what views have in common."""
        ...


def own_of(item: Item) -> Item:
    """Return what a view has for itself."""
    return {key: value for key, value in item.items() if key in PER_VIEW}


def shared_of(item: Item) -> Item:
    """Return what a view's item has in common with the other views of the clip."""
    return {key: value for key, value in item.items() if key not in PER_VIEW and key != NAME_KEY}


def joined(views: Mapping[str, Item], shared: Item, *, axis: int | None) -> Item:
    """Return one item, or one batch, of what several views have for themselves and in common.

    Args:
        views: each view's own, in the order of the views.
        shared: what they have in common.
        axis: where arrays get an axis of the views: 0 in an item, 1 in a batch. None: dicts by view instead.

    Raises:
        FramedexError: views are to be stacked and differ in shape.
    """
    found: Item = {}
    for key in next(iter(views.values())):
        own = {view: item[key] for view, item in views.items()}
        found[key] = own if axis is None else _stacked(key, own, axis)
    return found | shared


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


def blank(example: Item, frames: int, audio: AudioShape | None) -> Item:
    """Return what an item has for a view that it lacks: padding alone, and empty names.

    Args:
        example: what the item has for another view, without pictures.
        frames: how many frames the view has.
        audio: the view's audio; None if clips have none.
    """
    found = dict(example)
    for key in PER_FRAME & example.keys():
        found[key] = np.full(frames, PADDINGS[key], example[key].dtype)
    found |= dict.fromkeys(NAMES & example.keys(), "")
    if audio is not None:
        count = example["audio"].shape[1]
        samples = count if audio.rate == example["audio_rate"] else round(count / example["audio_rate"] * audio.rate)
        found |= {
            "audio": np.zeros((audio.channels, samples), np.float32),
            "audio_mask": np.zeros(samples, np.bool_),
            "audio_rate": audio.rate,
        }
    return found
