"""The frames that a view shows at the times of a clock, in exact arithmetic. Pure functions over numpy columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.sampling.frames_at import SAFE, Choose, common_denominator, differences, frames_at
from framedex.sharder.sampling.records import Timeline
from framedex.sharder.sampling.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a video, on the clock of the scene.

    Attributes:
        timeline: The video.
        span: The stretch of it.
        offset_seconds: The stretch's own time when the clock begins.
        rate: Seconds that pass in the stretch while the clock counts one.
    """

    timeline: Timeline
    span: Span
    offset_seconds: Fraction = Fraction(0)
    rate: Fraction = Fraction(1)

    @property
    def frame_seconds(self) -> Fraction:
        """How long a frame of the stretch lasts on average."""
        frames = self.span.stop - self.span.first
        return (self.span.end - self.span.start) * self.timeline.time_base / max(1, frames)

    @property
    def clock_seconds(self) -> Fraction:
        """What the clock shows when the stretch ends."""
        length = (self.span.end - self.span.start) * self.timeline.time_base
        return (length - self.offset_seconds) / self.rate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matched:
    """The frames of a view at some times.

    Attributes:
        frames: int64 [times], presentation numbers.
        close: bool [times], whether each lies close enough to its time.
        away_seconds: float64 [times], the frame's time minus the wanted one.
    """

    frames: NDArray[np.int64]
    close: NDArray[np.bool_]
    away_seconds: NDArray[np.float64]

    def of(self, some: slice) -> Matched:
        """Return what there is about some of the times."""
        return Matched(frames=self.frames[some], close=self.close[some], away_seconds=self.away_seconds[some])


def match(
    clock: Part, clock_frames: NDArray[np.int64], view: Part, choose: Choose, tolerance_seconds: Fraction | None
) -> Matched:
    """Return the frames of a view at the times of some frames of the clock.

    Args:
        clock: The stretch whose frames tell the time.
        clock_frames: int64 [times], presentation numbers in its video.
        view: A stretch that has a frame.
        choose: Which frame a time means, among those of the stretch.
        tolerance_seconds: How far a frame may lie from its time, in seconds of the view. None: less than the view's
            frames last on average.
    """
    own = view.timeline
    # A time in the view's own unit is first + step × pts of the clock, which may have an offset and a rate itself.
    rate = view.rate / clock.rate
    step = rate * clock.timeline.time_base / own.time_base
    offset = view.offset_seconds - rate * clock.offset_seconds
    first = view.span.start + offset / own.time_base - step * clock.span.start
    denominator = common_denominator([first, step])
    pts = clock.timeline.pts[clock_frames]
    factor, more = int(step * denominator), int(first * denominator)
    if int(np.abs(pts).max(initial=0)) * factor + abs(more) >= SAFE:
        pts = pts.astype(object)
    wanted = pts * factor + more
    frames = view.span.first + frames_at(own.pts[view.span.first : view.span.stop], wanted, denominator, choose)
    away = differences(own.pts, frames, wanted, denominator)
    if tolerance_seconds is None:
        limit = math.ceil(view.frame_seconds / own.time_base * denominator) - 1
    else:
        limit = math.floor(tolerance_seconds / own.time_base * denominator)
    return Matched(
        frames=frames,
        close=np.asarray(np.abs(away) <= limit, np.bool_),
        away_seconds=away.astype(np.float64) * float(own.time_base / denominator),
    )
