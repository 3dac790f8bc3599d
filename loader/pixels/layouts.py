"""The order of the axes of frames."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Layout = Literal["FHWC", "FCHW", "CFHW"]
# Where the channels go, which lie in the last axis of decoded frames: its number, counted from the end.
CHANNEL_AXIS: dict[Layout, int] = {"FHWC": -1, "FCHW": -3, "CFHW": -4}


def laid_out(frames: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return decoded frames, [F, H, W, C] with any axes in front, in another layout, contiguous."""
    return frames if layout == "FHWC" else np.ascontiguousarray(np.moveaxis(frames, -1, CHANNEL_AXIS[layout]))
