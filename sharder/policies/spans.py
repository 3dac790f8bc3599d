"""A stretch of a video, by frame numbers and by time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from framedex.sharder.policies.records import Track


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a video: frames [first, stop) and times [start, end), in time base units on the clock of pts."""

    first: int
    stop: int
    start: Fraction
    end: Fraction

    @property
    def is_empty(self) -> bool:
        """Whether it holds no frame."""
        return self.first >= self.stop


def whole(track: Track) -> Span:
    """Return the span of a whole video."""
    start = Fraction(int(track.pts[0]) if len(track.pts) else 0)
    return Span(first=0, stop=len(track.pts), start=start, end=start + track.duration_pts)
