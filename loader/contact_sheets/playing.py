"""The time at which each place of a clip is shown when the clip plays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from framedex.loader.contact_sheets.sheet import ShownFrame

FALLBACK_SECONDS = 0.1  # of a place, where no two frames of a clip have ascending times


def begins(frames: Sequence[ShownFrame]) -> NDArray[np.float64]:
    """Return float64 [F + 1], in seconds from the first place on: when each place is shown, and when the last one ends.

    A place lasts until the time of the next one. Where that is not later, or not known, it lasts as long as the median
    of the others.
    """
    gaps = np.array([frame.gap_seconds or 0.0 for frame in frames[1:]])
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else FALLBACK_SECONDS
    lengths = np.append(np.where(gaps > 0, gaps, usual), usual) if frames else np.zeros(0)
    return np.concatenate([[0.0], np.cumsum(lengths)])


def ascends(frames: Sequence[ShownFrame]) -> bool:
    """Return whether the times of all frames ascend, apart from padding."""
    return all(frame.padding or (frame.gap_seconds or 0.0) > 0 for frame in frames[1:])
