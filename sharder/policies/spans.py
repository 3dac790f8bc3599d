"""A stretch of a video, by frame numbers and by time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from framedex.sharder.policies.records import Timeline


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
