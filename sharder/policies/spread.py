"""A few frames or clips of every video, regardless of its duration: spread evenly, or drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from framedex.sharder.configuration.checks import Count, Rate, RefusedError
from framedex.sharder.configuration.parameters import parameter
from framedex.sharder.policies.draws import below, draws
from framedex.sharder.policies.places import WantedFrames, numbers, sample, times
from framedex.sharder.policies.records import Sampling, Timeline
from framedex.sharder.policies.spans import Span, whole
from framedex.sharder.policies.terms import GRAIN, Terms

By = Literal["time", "number"]
Spread = Literal["centres", "ends"]


def evenly(timeline: Timeline, span: Span, count: int, by: By, spread: Spread, *, grain: int = 1) -> WantedFrames:
    """Return one clip of `count` places over a span.

    Args:
        spread: `centres` takes the middles of `count` equal parts (TSN, Wang et al. 2016). `ends` takes equally spaced
            places from the first frame to the last (DALI's uniform_sample: halves are rounded up); a single place is
            the first frame.
        grain: As for `times`.
    """
    if by == "number":
        frames = span.stop - span.first
        if spread == "centres":
            chosen = [(2 * part + 1) * frames // (2 * count) for part in range(count)]
        else:
            gaps = max(1, count - 1)
            chosen = [(2 * part * (frames - 1) + gaps) // (2 * gaps) for part in range(count)]
        return numbers(span, (span.first, 1, min(1, frames)), chosen)
    if spread == "centres" or span.is_empty:
        part = (span.end - span.start) / count
        first, step = part / 2, part
    else:
        first = Fraction(int(timeline.pts[span.first])) - span.start
        step = Fraction(int(timeline.pts[span.stop - 1] - timeline.pts[span.first])) / max(1, count - 1)
    clips = int(not span.is_empty)
    return times(span, (span.start, Fraction(0), clips), [(first, step, count)], grain=grain)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPolicy(Terms):
    """`frames` frames over the whole video, as one clip. If the video has fewer frames, some are repeated."""

    frames: Count = parameter("frames of the one clip")
    by: By = parameter("equal parts of the time, or of the number of frames", "time")
    spread: Spread = parameter("the middles of equal parts, or from the first frame to the last", "centres")

    @property
    def counts_by_pts(self) -> bool:
        by_pts = self.tolerance_seconds is not None or self.range is not None
        return by_pts or (self.spread == "ends" and not self.by_number)

    @property
    def by_number(self) -> bool:
        return self.by == "number"

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span) -> Sampling:
        return sample(timeline, span, evenly(timeline, span, self.frames, self.by, self.spread, grain=self.grain), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy(Terms):
    """`clips` clips of `frames` frames, at `fps` or every `stride`-th one, that begin at random where they fit.

    Clip n of a video depends only on the seed, the video's name and n. If no clip fits, there is one clip that begins
    with the video.
    """

    clips: Count = parameter("clips a video")
    frames: Count = parameter("frames a clip")
    fps: Rate | None = parameter("samples a second; or stride", None)
    stride: Count | None = parameter("distance between frames by number; or fps", None)

    @property
    def is_random(self) -> bool:
        return True

    def __post_init__(self) -> None:
        if (self.fps is None) == (self.stride is None):
            found = "neither" if self.fps is None else "both"
            raise RefusedError("random clips have either fps or stride", found=found)
        Terms.__post_init__(self)

    @property
    def by_number(self) -> bool:
        return self.fps is None

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span) -> Sampling:
        return sample(timeline, span, self._wanted(timeline, span), self)

    def _wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        if self.fps is None:
            assert self.stride is not None  # one of the two, as checked above
            offsets = range(0, self.stride * self.frames, self.stride)
            one = numbers(span, (span.first, 1, int(not span.is_empty)), offsets)
            several = numbers(span, (0, 0, self.clips), offsets)
        else:
            step = 1 / (self.fps * timeline.time_base)
            pieces = [(Fraction(0), step, self.frames)]
            zero = Fraction(0)
            one = times(span, (span.start, zero, int(span.end > span.start)), pieces, grain=GRAIN)
            several = times(span, (span.start, zero, self.clips), pieces, grain=GRAIN)
        room = one.limit - one.low - int(one.offsets.max())  # how many places there are to begin at
        if room <= 0:
            return one
        # Each range of a video has draws of its own.
        which = "start" if span == whole(timeline) else f"start in frames {span.first} to {span.stop}"
        drawn = draws(self.seed, timeline.name, which, first=0, count=self.clips, epoch=timeline.epoch)
        return replace(several, starts=below(drawn, room) + several.low)
