"""Collates clips into a batch of numpy arrays: everything in a batch except frames on a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.records.clip import ClipRecord
from framedex.records.columns import keys_of

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
