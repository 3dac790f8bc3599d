"""What headers state of a stream's length and rate, as columns of `videos`, to be held against what its packets say."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

Row = dict[str, Any]

MOST_STATED_RATE = 1000  # frames a second; streams of variable rate state their clock, as 90 000


def stated_columns(frames: int | None, seconds: float | None, rate: Fraction | None) -> Row:
    """Return what a header states, as columns of `videos`; what cannot be is not stated."""
    return {
        "stated_frames": frames,
        "stated_duration_seconds": seconds if seconds is not None and seconds > 0 else None,
        "stated_rate": None if rate is None or not 0 < rate <= MOST_STATED_RATE else float(rate),
    }
