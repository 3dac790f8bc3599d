"""Framing and the sizes of many clips' pictures → the sizes of what is delivered, without reading any clip."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framedex.loader.pixels.framing import Framing
from framedex.loader.pixels.smart_resize import smart_sizes
from framedex.sharder.decoding.video import Size

Sides = NDArray[np.int64]


def delivered_sizes(framing: Framing, heights: Sides, widths: Sides, frames: Sides) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each, of the frames that are delivered.

    Args:
        framing: the user's choice.
        heights: int64 [clips], of the clips' pictures, turned upright if they are delivered so.
        widths: int64 [clips], of the same.
        frames: int64 [clips], the frames of each clip, padding included.

    Raises:
        FramedexError: `smart_resize` does not take the proportions of a picture.
    """
    if framing.fixed_size is not None:
        height, width = framing.fixed_size
        return np.full_like(heights, height), np.full_like(widths, width)
    return scaled_sizes(framing, heights, widths, frames)


def scaled_sizes(
    framing: Framing, heights: Sides, widths: Sides, frames: Sides, *, short_side: int | None = None
) -> tuple[Sides, Sides]:
    """Return (heights, widths), int64 [clips] each, to which whole frames are scaled before they are cut.

    Args:
        framing: the user's choice, without random-resized crops.
        heights: as for `delivered_sizes`.
        widths: as for `delivered_sizes`.
        frames: as for `delivered_sizes`.
        short_side: the length that was drawn, if `framing` has a range of them.

    Raises:
        FramedexError: as `delivered_sizes`.
    """
    if framing.smart_resize is not None:
        return smart_sizes(framing.smart_resize, heights, widths, frames)
    if framing.size is not None:
        height, width = (np.full_like(heights, side) for side in framing.size)
        if framing.resize == "stretch":
            return height, width
        is_wider = widths * height > heights * width
        keeps_width = is_wider if framing.resize == "fit" else ~is_wider
        return (
            np.where(keeps_width, np.maximum(1, _rounded(heights * width, widths)), height),
            np.where(keeps_width, width, np.maximum(1, _rounded(widths * height, heights))),
        )
    side = short_side or framing.short_side or framing.long_side
    if side is None:
        return heights, widths
    assert isinstance(side, int)  # the length that was drawn is given for a range
    reference = np.maximum(heights, widths) if framing.long_side is not None else np.minimum(heights, widths)
    return np.maximum(1, heights * side // reference), np.maximum(1, widths * side // reference)


def scaled_size(framing: Framing, size: Size, frames: int, *, short_side: int | None) -> Size:
    """Return (height, width) to which the frames of one clip are scaled: `scaled_sizes` of one clip."""
    one = [np.array([value], np.int64) for value in (*size, frames)]
    heights, widths = scaled_sizes(framing, one[0], one[1], one[2], short_side=short_side)
    return int(heights[0]), int(widths[0])


def _rounded(numerator: Sides, denominator: Sides) -> Sides:
    """Return quotients of whole numbers, rounded to the nearest one, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)
