"""Policies by time: a fixed rate, several rates in one clip, explicit times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from framedex.sharder.configuration.checks import MANY, Count, Rate, RefusedError, Seconds, listed
from framedex.sharder.configuration.parameters import Record, parameter
from framedex.sharder.policies.counted import CountedTerms
from framedex.sharder.policies.evenly import last_time, spread_times
from framedex.sharder.policies.places import WantedFrames, consecutive, sample, times
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Sampling, Timeline
from framedex.sharder.sampling.spans import Span


def at_rate(
    timeline: Timeline, span: Span, fps: Fraction, length: int | None, *, start: Fraction = Fraction(0), grain: int = 1
) -> WantedFrames:
    """Return consecutive clips of times 1 / fps apart through a span.

    Args:
        length: Number of times per clip; None for one clip of all times.
        start: Begin of the first clip, in seconds from the span's start.
        grain: As for `times`.
    """
    step = 1 / (fps * timeline.time_base)
    begin = span.start + start / timeline.time_base
    if length is None:
        length = max(0, math.ceil((span.end - begin) / step))
        clips = min(length, 1)
    else:
        clips = consecutive(begin, step * length, step * (length - 1), span.end)
    return times(span, (begin, step * length, clips), [(Fraction(0), step, length)], grain=grain)


@dataclass(frozen=True, slots=True, kw_only=True)
class FpsPolicy(CountedTerms):
    """A fixed rate over the whole video, cut into consecutive clips of `frames` samples.

    Sample k of a video is the frame at start_seconds + k / fps. The real timestamps are used, not a nominal rate.
    Without `frames`, all samples are one clip. If they are fewer than `least_frames` or more than `max_frames`, that
    many frames are spread evenly instead, from the first sample to the video's last frame.
    """

    fps: Rate = parameter("samples a second")
    frames: Count | None = parameter("samples a clip; without it, one clip a video", None)
    start_seconds: Seconds = parameter("where the first clip begins", Fraction(0))

    def __post_init__(self) -> None:
        self.check_counts(has_length=self.frames is not None)
        CountedTerms.__post_init__(self)

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        if self.frames is None:
            wanted = self._one_clip(timeline, span)
        else:
            wanted = at_rate(timeline, span, self.fps, self.frames, start=self.start_seconds, grain=self.grain)
        return sample(timeline, span, wanted, self, first=first)

    def _one_clip(self, timeline: Timeline, span: Span) -> WantedFrames:
        """Return one clip of all samples, or of as many frames as the bounds allow."""
        begin = span.start + self.start_seconds / timeline.time_base
        step = 1 / (self.fps * timeline.time_base)
        samples = max(0, math.ceil((span.end - begin) / step))
        bounded = self.bounded(samples)
        frames = self.rounded(bounded)
        if samples and not span.is_empty and bounded != samples:
            _, step = spread_times(frames, max(Fraction(0), last_time(timeline, span) - begin), "ends")
        return times(span, (begin, step, min(samples, 1)), [(Fraction(0), step, frames)], grain=self.grain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Record):
    """A stretch of one rate in a clip: `frames` samples, or those within `seconds`, from `offset` seconds on.

    Without an offset, a segment begins where the previous one ends.
    """

    fps: Rate = parameter("samples a second")
    frames: Count | None = parameter("how many samples; or seconds", None)
    seconds: Rate | None = parameter("for how long; or frames", None)
    offset: Seconds | None = parameter("from the clip's start; without it, where the segment before ends", None)

    def __post_init__(self) -> None:
        if (self.frames is None) == (self.seconds is None):
            found = "neither" if self.frames is None else "both"
            raise RefusedError("a segment has either frames or seconds", found=found)

    def count(self) -> int:
        """Return the number of samples of the segment."""
        if self.frames is not None:
            return self.frames
        assert self.seconds is not None  # one of the two, as checked above
        return math.ceil(self.seconds * self.fps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsPolicy(Terms):
    """Several rates in one clip, such as 8 frames at 1 fps and then 8 at 2 fps.

    One clip begins at `start_seconds`. With `every_seconds`, further clips follow at that distance.
    """

    segments: Annotated[tuple[Segment, ...], MANY, listed("- {fps: 1, frames: 8}")] = parameter(
        "the stretches of a clip, such as [{fps: 1, frames: 8}, {fps: 2, frames: 8}]"
    )
    start_seconds: Seconds = parameter("where the first clip begins", Fraction(0))
    every_seconds: Rate | None = parameter("another clip at that distance; without it, one clip a video", None)

    @property
    def length(self) -> int | None:
        return sum(segment.count() for segment in self.segments)

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        unit = timeline.time_base
        pieces, following = [], Fraction(0)
        for segment in self.segments:
            offset = following if segment.offset is None else segment.offset
            pieces.append((offset / unit, 1 / (segment.fps * unit), segment.count()))
            following = offset + segment.count() / segment.fps
        start = span.start + self.start_seconds / unit
        every = (self.every_seconds or Fraction(1)) / unit
        clips = max(0, math.ceil((span.end - start) / every))
        clips = clips if self.every_seconds else min(clips, 1)
        wanted = times(span, (start, every, clips), pieces, grain=self.grain)
        return sample(timeline, span, wanted, self, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsPolicy(Terms):
    """The same times in every video: one clip, in the order of the list, including repeats."""

    seconds: Annotated[tuple[Seconds, ...], MANY, listed("[0, 0.5, 1.25]")] = parameter(
        "times from the first frame, in any order, with repeats, such as [0, 0.5, 1.25]"
    )

    @property
    def length(self) -> int | None:
        return len(self.seconds)

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        zero = Fraction(0)
        pieces = [(time / timeline.time_base, zero, 1) for time in self.seconds]
        wanted = times(span, (span.start, zero, 1), pieces, grain=self.grain)
        return sample(timeline, span, wanted, self, first=first)
