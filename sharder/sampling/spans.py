"""A stretch of a video, by frame numbers and by time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from framedex.sharder.sampling.records import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a video: frames [first, stop) and times [start, end), in time base units on the clock of pts."""

    first: int
    stop: int
    start: Fraction
    end: Fraction

    @property
    def is_empty(self) -> bool:
        """Whether it contains no frame."""
        return self.first >= self.stop


def whole(timeline: Timeline) -> Span:
    """Return the span of a whole video."""
    start = Fraction(int(timeline.pts[0]) if len(timeline.pts) else 0)
    return Span(first=0, stop=len(timeline.pts), start=start, end=start + timeline.duration_pts)


def beginning(timeline: Timeline, span: Span, seconds: Fraction) -> Span:
    """Return the first seconds of a span; all of it if it is not longer."""
    end = span.start + seconds / timeline.time_base
    if end >= span.end:
        return span
    before_end = np.searchsorted(timeline.pts[span.first : span.stop], math.ceil(end), side="left")
    return Span(first=span.first, stop=span.first + int(before_end), start=span.start, end=end)
