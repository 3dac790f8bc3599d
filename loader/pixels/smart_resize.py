"""The sizes that vision-language models want: multiples of a patch, with bounded pixels per frame and per clip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError

# Of qwen-vl-utils 0.0.14, in pixels of `factor` × `factor`.
LEAST_TOKENS, MOST_TOKENS = 128, 768  # of a frame
MOST_TOKENS_OF_CLIP, SHARE_FOR_VIDEO = 128_000, 0.9
LEAST_ROOM = 1.05  # the limit of a frame is at least this many times `min_pixels`
MOST_RATIO = 200  # of the longer side to the shorter one


@dataclass(frozen=True, slots=True, kw_only=True)
class SmartResize:
    """Sizes as Qwen2-VL, Qwen2.5-VL and Qwen3-VL want them: proportions are kept as nearly as the multiples allow.

    Both sides are multiples of `factor`, and the pixels of a frame lie between two limits, the upper one of which
    becomes smaller for long clips. The numbers are those of `qwen_vl_utils.fetch_video` (0.0.14). The one exception are
    long, thin pictures, of which that function makes pictures without rows: they keep a side of `factor`, and may have
    more pixels than the limit.

    Attributes:
        factor: sides are multiples of it: the patch times the patches that are merged. 28 for Qwen2-VL and Qwen2.5-VL,
            32 for Qwen3-VL, 14 for patches that are not merged.
        min_pixels: least pixels of a frame. None: 128 × factor².
        max_pixels: most pixels of a frame. None: 768 × factor². It has no effect above the limit that `total_pixels`
            sets.
        total_pixels: most pixels of a clip, where `frames_merged` frames count as one. None: 115,200 × factor². A
            frame always has room for 1.05 × `min_pixels`, so that long clips may have more.
        frames_merged: how many frames in a row the model merges.

    Raises:
        FramedexError: a value is not allowed.
    """

    factor: int = 28
    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    frames_merged: int = 2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            is_default = value is None and name not in ("factor", "frames_merged")
            if not is_default and (type(value) is not int or value < 1):
                raise FramedexError(f"{name} is out of range", found=repr(value), allowed="1 or more")
        least, most = self.least_pixels, self.max_pixels
        if most is not None and most < least:
            raise FramedexError(
                "max_pixels is below min_pixels",
                found=most,
                allowed=f"{least} or more",
                remedy="set min_pixels, too; without it, it is 128 × factor²",
            )

    @property
    def least_pixels(self) -> int:
        """Least pixels of a frame."""
        return LEAST_TOKENS * self.factor**2 if self.min_pixels is None else self.min_pixels

    def most_pixels(self, frames: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64 [clips]: the most pixels that each frame of a clip of so many frames may have."""
        area = self.factor**2
        total = MOST_TOKENS_OF_CLIP * area * SHARE_FOR_VIDEO if self.total_pixels is None else self.total_pixels
        limit = np.minimum(float(MOST_TOKENS * area), total / frames * self.frames_merged)
        limit = np.maximum(limit, int(self.least_pixels * LEAST_ROOM))
        return limit if self.max_pixels is None else np.minimum(limit, self.max_pixels)


def smart_sizes(
    rule: SmartResize, heights: NDArray[np.int64], widths: NDArray[np.int64], frames: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (heights, widths), int64 [clips] each, to which the frames of clips are scaled.

    Args:
        rule: the limits.
        heights: int64 [clips], of the pictures.
        widths: int64 [clips], of the pictures.
        frames: int64 [clips], the frames of each clip, padding included.

    Raises:
        FramedexError: a picture is more than 200 times as long as it is wide.
    """
    longer, shorter = np.maximum(heights, widths), np.minimum(heights, widths)
    too_thin = np.flatnonzero(longer > MOST_RATIO * shorter)
    if len(too_thin):
        first = too_thin[0]
        raise FramedexError(
            "smart_resize does not take pictures of these proportions",
            found=f"{widths[first]} × {heights[first]}",
            allowed=f"a longer side of at most {MOST_RATIO} times the shorter one",
        )
    factor, least, most = rule.factor, rule.least_pixels, rule.most_pixels(frames)
    # `rint` rounds halves to even, as Python's `round` does in qwen-vl-utils.
    sides = [np.maximum(factor, np.rint(side / factor) * factor) for side in (heights, widths)]
    area, pixels = sides[0] * sides[1], heights * widths
    is_large, is_small = area > most, (area < least) & (area <= most)
    down, up = np.sqrt(pixels / most), np.sqrt(least / pixels)
    found = []
    for side, rounded in zip((heights, widths), sides, strict=True):
        smaller = np.maximum(factor, np.floor(side / down / factor) * factor)
        larger = np.ceil(side * up / factor) * factor
        found.append(np.where(is_large, smaller, np.where(is_small, larger, rounded)).astype(np.int64))
    return found[0], found[1]
