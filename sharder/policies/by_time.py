"""Policies whose clips follow a fixed pattern of times or frame numbers.

By time: a fixed rate, several rates in one clip, explicit times. By frame number: a stride, explicit numbers, random
access points. By either: ranges that the listing names (annotated actions, shots between cuts, DALI's
`path label start end`), windows at regular distances, and clips around each frame.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from framedex.sharder.configuration.parameters import (
    MANY,
    ColumnName,
    Count,
    Distance,
    Number,
    Rate,
    Record,
    RefusedError,
    Seconds,
    Step,
    YesNo,
    listed,
    parameter,
)
from framedex.sharder.policies.policy import Policy
from framedex.sharder.policies.ranges import Places, Ranges, Unit, check_unit, range_columns
from framedex.sharder.policies.sampling import (
    Sampling,
    Span,
    Timeline,
    WantedFrames,
    count_consecutive,
    numbers,
    times,
    times_from,
)
from framedex.sharder.policies.spread import By, FixedCountPolicy, last_time, spread_evenly, spread_times


def at_rate(
    timeline: Timeline,
    span: Span,
    fps: Fraction,
    length: int | None,
    *,
    start: Fraction = Fraction(0),
    every: Fraction | None = None,
    time_step: int = 1,
) -> WantedFrames:
    """Return consecutive clips of times 1 / fps apart through a span.

    Args:
        timeline: The video.
        span: The span.
        fps: Times per second.
        length: Number of times per clip. If None, all times are one clip.
        start: Begin of the first clip, in seconds from the span's start.
        every: Seconds from the begin of a clip to the begin of the next one. If None, `length` / `fps`.
        time_step: As for `times`.
    """
    step = 1 / (fps * timeline.time_base)
    begin = span.start + start / timeline.time_base
    if length is None:
        length = max(0, math.ceil((span.end - begin) / step))
        apart, clips = step * length, min(length, 1)
    else:
        apart = step * length if every is None else every / timeline.time_base
        clips = count_consecutive(begin, apart, step * (length - 1), span.end)
    return times(span, (begin, apart, clips), [(Fraction(0), step, length)], time_step=time_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class FpsPolicy(FixedCountPolicy):
    """A fixed rate over the whole video, cut into consecutive clips of `frames` samples.

    Sample k of a video is the frame at start_seconds + k / fps. The real timestamps are used, not a nominal rate.
    Without `frames`, all samples are one clip. If they are fewer than `least_frames` or more than `max_frames`, that
    many frames are spread evenly instead, from the first sample to the video's last frame.
    """

    fps: Rate = parameter("samples a second")
    frames: Count | None = parameter("samples a clip; without it, one clip a video", None)
    start_seconds: Seconds = parameter("where the first clip begins", Fraction(0))

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        if self.frames is not None:
            return at_rate(timeline, span, self.fps, self.frames, start=self.start_seconds, time_step=self.time_step)
        begin = span.start + self.start_seconds / timeline.time_base
        step = 1 / (self.fps * timeline.time_base)
        samples = max(0, math.ceil((span.end - begin) / step))
        bounded = self.bounded(samples)
        frames = self.rounded(bounded)
        if samples and not span.is_empty and bounded != samples:
            _, step = spread_times(frames, max(Fraction(0), last_time(timeline, span) - begin), "ends")
        return times(span, (begin, step, min(samples, 1)), [(Fraction(0), step, frames)], time_step=self.time_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Record):
    """A stretch of one rate in a clip: `frames` samples, or those within `seconds`, from `offset` seconds on.

    Without an offset, a segment begins where the previous one ends.
    """

    fps: Rate = parameter("samples a second")
    frames: Count | None = parameter("number of samples; or seconds", None)
    seconds: Rate | None = parameter("duration of the segment; or frames", None)
    offset: Seconds | None = parameter("from the clip's start; by default, the end of the previous segment", None)

    def __post_init__(self) -> None:
        self.check_one_of("a segment has either frames or seconds", "frames", "seconds")

    def count(self) -> int:
        """Return the number of samples of the segment."""
        return self.frames or math.ceil((self.seconds or 0) * self.fps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsPolicy(Policy):
    """Several rates in one clip, such as 8 frames at 1 fps and then 8 at 2 fps.

    One clip begins at `start_seconds`. With `every_seconds`, further clips follow at that distance.
    """

    segments: Annotated[tuple[Segment, ...], MANY, listed("- {fps: 1, frames: 8}")] = parameter(
        "the stretches of a clip, such as [{fps: 1, frames: 8}, {fps: 2, frames: 8}]"
    )
    start_seconds: Seconds = parameter("where the first clip begins", Fraction(0))
    every_seconds: Rate | None = parameter("distance between clips; without it, one clip a video", None)

    @property
    def length(self) -> int | None:
        return sum(segment.count() for segment in self.segments)

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        unit = timeline.time_base
        pieces, following = [], Fraction(0)
        for segment in self.segments:
            offset = following if segment.offset is None else segment.offset
            pieces.append((offset / unit, 1 / (segment.fps * unit), segment.count()))
            following = offset + segment.count() / segment.fps
        start = span.start + self.start_seconds / unit
        every = (self.every_seconds or Fraction(1)) / unit  # with one clip, the distance does not matter
        clips = max(0, math.ceil((span.end - start) / every))
        clips = clips if self.every_seconds else min(clips, 1)
        return times(span, (start, every, clips), pieces, time_step=self.time_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsPolicy(Policy):
    """The same times in every video: one clip, in the order of the list, including repeats."""

    seconds: Annotated[tuple[Seconds, ...], MANY, listed("[0, 0.5, 1.25]")] = parameter(
        "times from the first frame, in any order, with repeats, such as [0, 0.5, 1.25]"
    )

    @property
    def length(self) -> int | None:
        return len(self.seconds)

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        zero = Fraction(0)
        pieces = [(time / timeline.time_base, zero, 1) for time in self.seconds]
        return times(span, (span.start, zero, 1), pieces, time_step=self.time_step)


def at_stride(span: Span, stride: int, length: int | None, *, start: int = 0, every: int | None = None) -> WantedFrames:
    """Return consecutive clips of every stride-th frame through a span.

    Args:
        span: The span.
        stride: Distance between frames, by number.
        length: Frames per clip. If None, all frames are one clip.
        start: First frame of the first clip, counted from the span's first frame.
        every: Frames from the begin of a clip to the begin of the next one. If None, `length` * `stride`.
    """
    begin = span.first + start
    if length is None:
        length = max(0, -(-(span.stop - begin) // stride))
        apart, clips = stride * length, min(length, 1)
    else:
        apart = every or stride * length
        clips = count_consecutive(begin, apart, stride * (length - 1), span.stop)
    return numbers(span, (begin, apart, clips), range(0, stride * length, stride))


@dataclass(frozen=True, slots=True, kw_only=True)
class StridePolicy(Policy):
    """Every `stride`-th frame by number from frame `start` on, cut into clips of `frames` samples."""

    stride: Count = parameter("distance between frames, by number")
    frames: Count | None = parameter("frames a clip; without it, one clip a video", None)
    start: Number = parameter("the first clip's first frame", 0)
    by_number = True

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        return at_stride(span, self.stride, self.frames, start=self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesPolicy(Policy):
    """The same frame numbers in every video: one clip, in the order of the list, including repeats."""

    frames: Annotated[tuple[Number, ...], MANY, listed("[0, 7, 3, 3]")] = parameter(
        "frame numbers from 0, in any order, with repeats, such as [0, 7, 3, 3]"
    )
    by_number = True

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        return numbers(span, (span.first, 1, 1), self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyframesPolicy(Policy):
    """Frames where decoding may start: every `every`-th of them, cut into clips of `frames` frames."""

    every: Count = parameter("distance between the random access points that are taken, by number", 1)
    frames: Count | None = parameter("frames a clip; without it, one clip a video", None)
    by_number = needs_video = counts_by_pts = True

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        begin, stop = np.searchsorted(timeline.starts, (span.first, span.stop)).tolist()
        starts = replace(span, first=begin, stop=stop)
        wanted = at_stride(starts, self.every, self.frames)
        return self.clips_of(timeline, starts, wanted, first, among=timeline.starts, stretch=span)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRowPolicy(Policy):
    """Clips of the ranges that a row of the listing holds. Each range is sampled as if it were a video of its own.

    Either `start` and `end` are the columns that hold a range [start, end), or `cuts` is the column that holds a list
    of times between which the ranges lie. `unit` is the unit of these values. With `include_end`, a range of frames
    includes its last frame. One of `fps`, `stride` and `uniform` (that many frames, spread over the range) determines
    how a range is sampled. `frames` is the length of a clip.
    """

    fps: Rate | None = parameter("samples a second; or stride, or uniform", None)
    stride: Count | None = parameter("every n-th frame; or fps, or uniform", None)
    uniform: Count | None = parameter("number of frames, spread over the range; or fps, or stride", None)
    frames: Count | None = parameter("with fps or stride: frames a clip; without it, one clip a range", None)
    start: ColumnName | None = parameter(
        "the listing's column with the start of a range; by default `start`, or one like start_sec", None
    )
    end: ColumnName | None = parameter(
        "the listing's column with the end of a range; by default `end`, or one like end_sec", None
    )
    cuts: ColumnName | None = parameter("instead: the column with a list of ascending places between ranges", None)
    unit: Unit = parameter("unit of the columns: seconds from the first frame, or frame numbers", "seconds")
    include_end: YesNo = parameter("with unit: frames, whether the end belongs to the range", False)
    names_ranges = needs_video = counts_by_pts = True

    def __post_init__(self) -> None:
        self.check_one_of("a range is sampled by one of fps, stride and uniform", "fps", "stride", "uniform")
        if self.uniform is not None and self.frames is not None:
            raise RefusedError("uniform already determines the number of frames of a clip", found="frames as well")
        if self.range is not None:
            allowed = "start and end, or cuts"
            raise RefusedError("per_row has its own keys for ranges", found="range", allowed=allowed)
        self.ranges(())  # to raise for keys that contradict each other
        Policy.__post_init__(self)

    def ranges(self, names: Sequence[str]) -> Ranges:
        """Return the ranges that are sampled.

        If the policy names no columns, they are `start` and `end`, or else two columns that look like these.
        """
        how: dict[str, Any] = {"unit": self.unit, "include_end": self.include_end}
        if self.cuts is not None:
            return Ranges(start=self.start, end=self.end, cuts=self.cuts, **how)
        found = range_columns(tuple(names))
        if (self.start, self.end) == (None, None) and not {"start", "end"} <= set(names) and found is not None:
            check_unit(found, self.unit)
            return Ranges(start=found[0], end=found[1], **how)
        return Ranges(start=self.start or "start", end=self.end or "end", **how)

    def _places(self, timeline: Timeline, row: Mapping[str, Any], ranges: Ranges) -> list[Places]:
        return ranges.places(timeline, row, whole_if_empty=False)

    @property
    def by_number(self) -> bool:
        return self.stride is not None or (self.uniform is not None and self.unit == "frames")

    @property
    def length(self) -> int | None:
        return self.frames if self.uniform is None else self.uniform

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        if self.uniform is not None:
            by: By = "number" if self.by_number else "time"
            return spread_evenly(timeline, span, self.uniform, by, "centres", time_step=self.time_step)
        if self.fps is not None:
            return at_rate(timeline, span, self.fps, self.frames, time_step=self.time_step)
        return at_stride(span, self.stride or 1, self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsPolicy(Policy):
    """Sequences of `frames` frames that begin at regular distances, and one that the end cuts short.

    By number: every `stride`-th frame, with a window every `step` frames from frame `start` on. With `fps`, by time: a
    window every `step_seconds` from `start_seconds` on. Without a step, windows are consecutive.
    """

    frames: Count = parameter("frames a window")
    stride: Count | None = parameter("distance between the frames of a window; 1 by default", None)
    step: Count | None = parameter("distance between windows, in frames; frames * stride by default", None)
    start: Number | None = parameter("the first window's first frame; 0 by default", None)
    fps: Rate | None = parameter("by time: samples a second, instead of stride", None)
    step_seconds: Rate | None = parameter("with fps: distance between windows; frames / fps by default", None)
    start_seconds: Seconds | None = parameter("with fps: where the first window begins; 0 by default", None)

    def __post_init__(self) -> None:
        right, wrong = ["stride", "step", "start"], ["step_seconds", "start_seconds"]
        what = "windows without fps go by frame numbers"
        if self.fps is not None:
            right, wrong, what = wrong, right, "windows with fps go by time"
        if given := [name for name in wrong if getattr(self, name) is not None]:
            raise RefusedError(what, found=", ".join(given), allowed=", ".join(right))
        Policy.__post_init__(self)

    @property
    def by_number(self) -> bool:
        return self.fps is None

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        if self.fps is None:
            return at_stride(span, self.stride or 1, self.frames, start=self.start or 0, every=self.step)
        start = self.start_seconds or Fraction(0)
        return at_rate(
            timeline, span, self.fps, self.frames, start=start, every=self.step_seconds, time_step=self.time_step
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundPolicy(Policy):
    """For each anchor, the frames at `seconds` from its time, or at `frames` from its number.

    Every `every`-th frame is an anchor. LeRobot calls such a list `delta_timestamps`. What lies before the first frame
    or after the last one is padding; `pad: ends` repeats that frame, as LeRobot does.
    """

    seconds: Annotated[tuple[Distance, ...], MANY, listed("[-0.1, 0, 0.1]")] | None = parameter(
        "times from the anchor's, in any order, with repeats, such as [-0.1, 0, 0.1]; or frames", None
    )
    frames: Annotated[tuple[Step, ...], MANY, listed("[-2, -1, 0]")] | None = parameter(
        "numbers of frames from the anchor, in any order, with repeats, such as [-2, -1, 0]; or seconds", None
    )
    every: Count = parameter("every n-th frame is an anchor", 1)
    counts_by_pts = True  # timestamps decide whether all places of a clip lie outside, and then it is not made

    def __post_init__(self) -> None:
        self.check_one_of("distances from the anchor are given by seconds or by frames", "seconds", "frames")
        Policy.__post_init__(self)

    @property
    def by_number(self) -> bool:
        return self.frames is not None

    @property
    def length(self) -> int | None:
        return len(self.frames or self.seconds or ())

    @property
    def takes_seconds(self) -> bool:
        return self.seconds is not None

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        anchors = np.arange(span.first, span.stop, self.every, dtype=np.int64)
        if self.frames is not None:
            wanted = numbers(span, (span.first, self.every, len(anchors)), self.frames)
        else:
            offsets = [seconds / timeline.time_base for seconds in self.seconds or ()]
            wanted = times_from(span, timeline.pts[anchors], offsets, time_step=self.time_step)
        return self.clips_of(timeline, span, wanted, first, anchors=anchors)
