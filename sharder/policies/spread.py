"""A few frames or clips of every video, regardless of its duration: spread evenly, or drawn at random."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from framedex.sharder.configuration.checks import Count, Rate, RefusedError
from framedex.sharder.configuration.parameters import parameter
from framedex.sharder.policies.counted import CountedTerms
from framedex.sharder.policies.evenly import By, Rounding, Spread, clips_by_number, clips_by_time, evenly
from framedex.sharder.policies.places import WantedFrames, numbers, sample, times
from framedex.sharder.policies.terms import GRAIN, Terms
from framedex.sharder.sampling.draws import below, draws
from framedex.sharder.sampling.records import Sampling, Timeline
from framedex.sharder.sampling.spans import Span, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPolicy(CountedTerms):
    """Frames, or clips, that are spread evenly over the whole video.

    `frames` alone: one clip of so many frames. If the video has fewer frames, some are repeated. With `clips`: so many
    clips of `frames` frames, at `fps` or every `stride`-th one, as models are evaluated. `fps` without `frames`: one
    clip of as many frames as the rate gives over the video, within `least_frames` and `max_frames`, but no more than
    the video has.
    """

    frames: Count | None = parameter("frames a clip; without it, as many as fps gives over the video", None)
    clips: Count | None = parameter("so many clips, spread evenly; without it, the frames of one are", None)
    fps: Rate | None = parameter("with clips: samples a second; without frames: how many frames", None)
    stride: Count | None = parameter("with clips: distance between frames by number; or fps", None)
    by: By = parameter("of one clip: equal parts of the time, or of the number of frames", "time")
    spread: Spread = parameter("the middles of equal parts, their beginnings, or from the first to the last", "centres")
    rounding: Rounding | None = parameter(
        "by number, with ends: how fractions become frame numbers; half_up by default", None
    )

    def __post_init__(self) -> None:
        rates = [name for name in ("fps", "stride") if getattr(self, name) is not None]
        if self.clips is None and self.stride is not None:
            raise RefusedError("stride is for several clips", found="stride without clips", allowed="clips and frames")
        if self.clips is not None and (len(rates) != 1 or self.frames is None):
            found = ", ".join(["clips", *rates]) + (" without frames" if self.frames is None else "")
            raise RefusedError("uniform clips have frames, and either fps or stride", found=found)
        if self.clips is None and (self.frames is None) == (self.fps is None):
            found = "both" if self.fps is not None else "neither"
            remedy = None if self.fps is None else "`clips: 1` makes one clip at that rate"
            raise RefusedError("the one clip has either frames or fps", found=found, remedy=remedy)
        if self.clips is not None and self.by == "number":
            raise RefusedError("clips go by time with fps, and by number with stride", found="by: number")
        if self.rounding is not None and not (self.by_number and self.spread == "ends"):
            raise RefusedError(
                "rounding is for frame numbers from the first to the last",
                found=f"by: {self.by}, spread: {self.spread}",
                allowed="spread: ends, and by: number or stride",
            )
        self.check_counts(has_length=self.frames is not None)
        CountedTerms.__post_init__(self)

    @property
    def counts_by_pts(self) -> bool:
        return self.terms_go_by_pts or (self.spread == "ends" and not self.by_number)

    @property
    def by_number(self) -> bool:
        return self.by == "number" or self.stride is not None

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        return sample(timeline, span, self._wanted(timeline, span), self, first=first)

    def _wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        rounding = self.rounding or "half_up"
        if self.clips is None:
            count = self._count(timeline, span) if self.frames is None else self.frames
            return evenly(timeline, span, count, self.by, self.spread, rounding=rounding, grain=self.grain)
        assert self.frames is not None  # as checked above
        if self.stride is not None:
            offsets = range(0, self.stride * self.frames, self.stride)
            return clips_by_number(span, self.clips, offsets, self.spread, rounding=rounding)
        assert self.fps is not None  # one of the two, as checked above
        step = 1 / (self.fps * timeline.time_base)
        return clips_by_time(timeline, span, self.clips, self.frames, step, self.spread, grain=self.grain)

    def _count(self, timeline: Timeline, span: Span) -> int:
        """Return how many frames a span gives at the rate."""
        assert self.fps is not None  # it is given where frames are not
        samples = math.floor((span.end - span.start) * timeline.time_base * self.fps)
        return self.rounded(min(self.bounded(samples), span.stop - span.first))


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

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        return sample(timeline, span, self._wanted(timeline, span), self, first=first)

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
