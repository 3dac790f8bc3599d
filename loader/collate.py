"""From clips to a batch."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from framedex.errors import FramedexError

Collate = Literal["error", "pad", "list"]
COLLATES: tuple[Collate, ...] = ("error", "pad", "list")
PADDINGS = {
    "pts": torch.iinfo(torch.int64).min,
    "seconds": float("nan"),
    "frame_index": -1,
    "mask": False,
    "audio_mask": False,
}


def collate_clips(items: list[dict[str, Any]], mode: Collate) -> dict[str, Any]:
    """Return one dict of batched values from the dicts of several clips, whose arrays are tensors already.

    Tensors are stacked along a new first axis; numbers become tensors, everything else lists. Where shapes differ,
    mode says what happens: "error" raises FramedexError, "pad" pads at the end of each axis (frames with zeros, mask
    with False), "list" leaves every tensor of the batch in a list.
    """
    return {name: _collate_column(name, [item.get(name) for item in items], mode) for name in items[0]}


def _collate_column(name: str, values: list[Any], mode: Collate) -> Any:
    if all(isinstance(value, Tensor) for value in values):
        if mode == "list":
            return values
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1 and mode == "error":
            raise FramedexError(
                f"clips of one batch differ in the shape of {name!r}",
                found=", ".join(str(shape) for shape in sorted(shapes)),
                remedy="give size=(height, width), clips of equal length (of audio: --audio-rate, --audio-channels, "
                "--audio-seconds), or collate='pad' or 'list'",
            )
        return torch.stack(values) if len(shapes) == 1 else _pad(values, PADDINGS.get(name, 0))
    if all(type(value) in (int, float, bool) for value in values):
        return torch.tensor(values)
    return values


def _pad(values: list[Tensor], fill: float) -> Tensor:
    """Return tensors of different shapes stacked, each padded at the end of its axes."""
    shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
    batch = torch.full([len(values), *shape], fill, dtype=values[0].dtype, device=values[0].device)
    for row, value in zip(batch, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return batch
