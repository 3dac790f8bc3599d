"""CONTRACT: a clip as planned, or as a manifest says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.media import Medium
from framedex.sharder.recipe import Recipe
from framedex.sharder.sources import ByteSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A clip as planned: what is wanted, and the recipe for it.

    frame_index: int64 [F], -1 where padded. pts: int64 [F], `NO_PTS` where padded. seconds: float64 [F], NaN where
    padded. mask: bool [F], False where padded. md5: the hash of each frame's native planes, None where padded; None for
    all where the index has none. columns: the user's.
    """

    clip_id: str
    medium: Medium
    frame_index: NDArray[np.int64]
    pts: NDArray[np.int64]
    seconds: NDArray[np.float64]
    mask: NDArray[np.bool_]
    md5: list[str | None] | None
    columns: dict[str, Any]
    recipe: Recipe

    @property
    def source(self) -> ByteSource:
        """The file that the recipe's ranges point into."""
        return self.medium.packets
