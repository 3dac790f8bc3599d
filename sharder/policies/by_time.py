"""Policies whose clips follow a fixed pattern of times or frame numbers.

Some policies select by time: a fixed rate, several rates in one clip, explicit times. Others select by frame number: a
stride, explicit numbers, random access points. The other policies can select by time or by number: ranges from the
listing (annotated actions, shots between cuts, DALI's `path label start end`), windows at regular distances, and clips
around each frame.
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
) -> WantedFrames:
    """Return the wanted times of consecutive clips in a span. Within a clip, times are 1 / fps seconds apart.

    Args:
        timeline: The times of the video.
        span: The span.
        fps: The number of wanted times per second.
        length: The number of wanted times per clip. If None, one clip has all times.
        start: The begin of the first clip, in seconds from the span's start.
        every: The number of seconds from the begin of a clip to the begin of the next clip. If None, `length` / `fps`.
    """
    step = 1 / (fps * timeline.time_base)
    begin = span.start + start / timeline.time_base
    if length is None:
        length = max(0, math.ceil((span.end - begin) / step))
        apart, clips = step * length, min(length, 1)
    else:
        apart = step * length if every is None else every / timeline.time_base
        clips = count_consecutive(begin, apart, step * (length - 1), span.end)
    return times(span, (begin, apart, clips), [(Fraction(0), step, length)])


@dataclass(frozen=True, slots=True, kw_only=True)
class FpsPolicy(FixedCountPolicy):
    """Samples at a fixed rate over the whole video, divided into consecutive clips of `frames` samples.

    Sample k of a video is the frame at start_seconds + k / fps. The frames' timestamps are used, not a nominal rate.
    Without `frames`, a video is one clip with all samples. If there are fewer than `least_frames` or more than
    `max_frames` samples, the clip instead has `least_frames` or `max_frames` frames, spread evenly from the first
    sample to the video's last frame.
    """

    fps: Rate = parameter("samples per second")
    frames: Count | None = parameter("samples per clip; by default, each video is one clip", None)
    start_seconds: Seconds = parameter("time at which the first clip begins", Fraction(0))

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        if self.frames is not None:
            return at_rate(timeline, span, self.fps, self.frames, start=self.start_seconds)
        begin = span.start + self.start_seconds / timeline.time_base
        step = 1 / (self.fps * timeline.time_base)
        samples = max(0, math.ceil((span.end - begin) / step))
        bounded = self.bounded(samples)
        frames = self.rounded(bounded)
        if samples and not span.is_empty and bounded != samples:
            _, step = spread_times(frames, max(Fraction(0), last_time(timeline, span) - begin), "ends")
        return times(span, (begin, step, min(samples, 1)), [(Fraction(0), step, frames)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Record):
    """A part of a clip with a rate of its own. It begins `offset` seconds after the clip's start.

    A segment has `frames` samples, or all samples within `seconds`. Without `offset`, the segment begins at the end of
    the previous segment.
    """

    fps: Rate = parameter("samples per second")
    frames: Count | None = parameter("number of samples (instead of seconds)", None)
    seconds: Rate | None = parameter("duration of the segment (instead of frames)", None)
    offset: Seconds | None = parameter(
        "time from the clip's start to the segment's start; by default, the end of the previous segment", None
    )

    def __post_init__(self) -> None:
        self.check_one_of("a segment needs either frames or seconds", "frames", "seconds")

    def count(self) -> int:
        """Return the number of samples of the segment."""
        return self.frames or math.ceil((self.seconds or 0) * self.fps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsPolicy(Policy):
    """Clips that each have several rates, such as 8 frames at 1 fps followed by 8 frames at 2 fps.

    The first clip begins at `start_seconds`. With `every_seconds`, another clip begins after every interval of this
    length. Otherwise, a video has one clip.
    """

    segments: Annotated[tuple[Segment, ...], MANY, listed("- {fps: 1, frames: 8}")] = parameter(
        "the parts of a clip, each with one rate, such as [{fps: 1, frames: 8}, {fps: 2, frames: 8}]"
    )
    start_seconds: Seconds = parameter("time at which the first clip begins", Fraction(0))
    every_seconds: Rate | None = parameter(
        "time between the beginnings of clips; by default, each video has one clip", None
    )

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
        every = (self.every_seconds or Fraction(1)) / unit  # any value is right if there is only one clip
        clips = max(0, math.ceil((span.end - start) / every))
        return times(span, (start, every, clips if self.every_seconds else min(clips, 1)), pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsPolicy(Policy):
    """One clip per video, with the frames at the same times in each video, in the order of the list `seconds`."""

    seconds: Annotated[tuple[Seconds, ...], MANY, listed("[0, 0.5, 1.25]")] = parameter(
        "times from the first frame, in any order, repeats allowed, such as [0, 0.5, 1.25]"
    )

    @property
    def length(self) -> int | None:
        return len(self.seconds)

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        zero = Fraction(0)
        pieces = [(time / timeline.time_base, zero, 1) for time in self.seconds]
        return times(span, (span.start, zero, 1), pieces)


def at_stride(span: Span, stride: int, length: int | None, *, start: int = 0, every: int | None = None) -> WantedFrames:
    """Return the wanted frame numbers of consecutive clips that consist of every stride-th frame of a span.

    Args:
        span: The span.
        stride: The difference between the numbers of successive wanted frames.
        length: The number of frames per clip. If None, one clip has all wanted frames.
        start: The first frame of the first clip, counted from the span's first frame.
        every: The number of frames from the begin of a clip to the begin of the next clip. If None,
            `length` * `stride`.
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
    """Every `stride`-th frame by number, from frame `start` on, divided into consecutive clips of `frames` frames."""

    stride: Count = parameter("difference between the numbers of successive frames")
    frames: Count | None = parameter("frames per clip; by default, each video is one clip", None)
    start: Number = parameter("number of the first clip's first frame", 0)
    by_number = True

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        return at_stride(span, self.stride, self.frames, start=self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesPolicy(Policy):
    """One clip per video, with the same frame numbers in each video, in the order of the list `frames`."""

    frames: Annotated[tuple[Number, ...], MANY, listed("[0, 7, 3, 3]")] = parameter(
        "frame numbers from 0, in any order, repeats allowed, such as [0, 7, 3, 3]"
    )
    by_number = True

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        return numbers(span, (span.first, 1, 1), self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyframesPolicy(Policy):
    """Frames at which a decoder may start (random access points), divided into consecutive clips of `frames` frames.

    Only every `every`-th random access point is taken.
    """

    every: Count = parameter("every n-th random access point is taken", 1)
    frames: Count | None = parameter("frames per clip; by default, each video is one clip", None)
    by_number = needs_video = counts_by_pts = True

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        begin, stop = np.searchsorted(timeline.starts, (span.first, span.stop)).tolist()
        starts = replace(span, first=begin, stop=stop)
        wanted = at_stride(starts, self.every, self.frames)
        return self.clips_of(timeline, starts, wanted, first, among=timeline.starts, stretch=span)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRowPolicy(Policy):
    """Clips of the ranges that each row of the listing specifies. Each range is sampled as if it were a whole video.

    Either the columns `start` and `end` contain a range [start, end), or the column `cuts` contains a list of bounds,
    and each two successive bounds form a range. `unit` is the unit of these values. With `include_end`, the range
    includes the frame `end`. One of `fps`, `stride` and `uniform` determines how a range is sampled. `uniform` is a
    number of frames that are spread evenly over the range. `frames` is the number of frames of a clip.
    """

    fps: Rate | None = parameter("samples per second (instead of stride or uniform)", None)
    stride: Count | None = parameter("every n-th frame is a sample (instead of fps or uniform)", None)
    uniform: Count | None = parameter(
        "number of frames per clip, spread evenly over the range (instead of fps or stride)", None
    )
    frames: Count | None = parameter("with fps or stride: frames per clip; by default, each range is one clip", None)
    start: ColumnName | None = parameter(
        "the listing's column with the start of a range; by default `start`, or a similar name like start_sec", None
    )
    end: ColumnName | None = parameter(
        "the listing's column with the end of a range; by default `end`, or a similar name like end_sec", None
    )
    cuts: ColumnName | None = parameter(
        "the column with an ascending list of the bounds of successive ranges (instead of start and end)", None
    )
    unit: Unit = parameter("unit of the columns: seconds from the first frame, or frame numbers", "seconds")
    include_end: YesNo = parameter("with `unit: frames`: whether the range includes the frame `end`", False)
    names_ranges = needs_video = counts_by_pts = True

    def __post_init__(self) -> None:
        self.check_one_of("per_row needs one of fps, stride and uniform", "fps", "stride", "uniform")
        if self.uniform is not None and self.frames is not None:
            raise RefusedError("uniform already determines the number of frames of a clip", found="uniform and frames")
        if self.range is not None:
            allowed = "start and end, or cuts"
            raise RefusedError("the policy per_row has other keys for ranges", found="range", allowed=allowed)
        self.ranges(())  # raises RefusedError if keys contradict each other
        Policy.__post_init__(self)

    def ranges(self, names: Sequence[str]) -> Ranges:
        """Return the columns of a listing that contain the ranges to sample.

        By default, these are the columns `start` and `end`. If they do not exist, two columns with similar names are
        taken, such as `start_sec` and `end_sec`.
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
            return spread_evenly(timeline, span, self.uniform, by, "centres")
        if self.fps is not None:
            return at_rate(timeline, span, self.fps, self.frames)
        return at_stride(span, self.stride or 1, self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsPolicy(Policy):
    """Windows (clips) of `frames` frames that begin at regular distances. The end of the video may cut the last window.

    Without `fps`, windows are selected by frame number: a window begins every `step` frames, from frame `start` on, and
    consists of every `stride`-th frame. With `fps`, windows are selected by time: a window begins every `step_seconds`,
    from `start_seconds` on. Without a step, windows are consecutive.
    """

    frames: Count = parameter("frames per window")
    stride: Count | None = parameter("difference between the numbers of a window's frames; 1 by default", None)
    step: Count | None = parameter(
        "frames from the begin of a window to the begin of the next one; frames * stride by default", None
    )
    start: Number | None = parameter("number of the first window's first frame; 0 by default", None)
    fps: Rate | None = parameter("to select by time: samples per second (instead of stride)", None)
    step_seconds: Rate | None = parameter(
        "with fps: seconds from the begin of a window to the begin of the next one; frames / fps by default", None
    )
    start_seconds: Seconds | None = parameter("with fps: time at which the first window begins; 0 by default", None)

    def __post_init__(self) -> None:
        right, wrong = ["stride", "step", "start"], ["step_seconds", "start_seconds"]
        what = "windows without fps select by frame number"
        if self.fps is not None:
            right, wrong, what = wrong, right, "windows with fps select by time"
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
        return at_rate(timeline, span, self.fps, self.frames, start=start, every=self.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundPolicy(Policy):
    """One clip for each anchor frame, with the frames at fixed distances from the anchor.

    Every `every`-th frame is an anchor. The distances are listed either by `seconds`, as differences of time (LeRobot
    calls this list `delta_timestamps`), or by `frames`, as differences of frame numbers. Where a distance leads outside
    of the video, the clip has padding. With `pad: ends`, the padding repeats the first or last frame of the video, as
    in LeRobot.
    """

    seconds: Annotated[tuple[Distance, ...], MANY, listed("[-0.1, 0, 0.1]")] | None = parameter(
        "seconds from the anchor, in any order, repeats allowed, such as [-0.1, 0, 0.1] (instead of frames)", None
    )
    frames: Annotated[tuple[Step, ...], MANY, listed("[-2, -1, 0]")] | None = parameter(
        "frames from the anchor, in any order, repeats allowed, such as [-2, -1, 0] (instead of seconds)", None
    )
    every: Count = parameter("every n-th frame is an anchor", 1)
    counts_by_pts = True  # a clip is left out if all its places are outside of the video, which depends on timestamps

    def __post_init__(self) -> None:
        self.check_one_of("around needs either seconds or frames", "seconds", "frames")
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
            wanted = times_from(span, timeline.pts[anchors], offsets)
        return self.clips_of(timeline, span, wanted, first, anchors=anchors)
