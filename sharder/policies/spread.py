"""Policies that take a fixed number of frames or clips from every video, regardless of the video's duration.

The frames or clips are spread evenly over the video, or drawn at random. `FixedCountPolicy` has the keys that bound a
clip's number of frames if this number follows from the video's duration and a rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from framedex.sharder.configuration.parameters import Count, Rate, RefusedError, parameter
from framedex.sharder.policies.policy import TIME_STEP, Policy
from framedex.sharder.policies.sampling import Span, Timeline, WantedFrames, below, draws, numbers, times, whole

By = Literal["time", "number"]
Spread = Literal["centres", "ends", "starts"]
Rounding = Literal["half_up", "half_even", "down"]


def spread_numbers(count: int, total: int, spread: Spread, rounding: Rounding = "half_up") -> list[int]:
    """Return `count` evenly spread numbers from 0 to `total` - 1, ascending. Numbers repeat if `total` is too small.

    Args:
        count: The number of returned numbers.
        total: The number of numbers to choose from.
        spread: The rule for the positions. `centres` takes the middles of `count` equal parts (TSN, Wang et al. 2016).
            `starts` takes the beginnings of these parts. `ends` takes equally spaced numbers from 0 to `total` - 1, or
            only 0 if `count` is 1.
        rounding: The rounding of fractions with `ends`: `half_up` as in DALI's uniform_sample, `half_even` as in
            torch.round, or `down` as in int().
    """
    if spread == "centres":
        return [(2 * part + 1) * total // (2 * count) for part in range(count)]
    if spread == "starts":
        return [part * total // count for part in range(count)]
    gaps = max(1, count - 1)
    if rounding == "half_even":
        return [round(Fraction(part * (total - 1), gaps)) for part in range(count)]
    half = gaps if rounding == "half_up" else 0
    return [(2 * part * (total - 1) + half) // (2 * gaps) for part in range(count)]


def spread_times(count: int, length: Fraction, spread: Spread) -> tuple[Fraction, Fraction]:
    """Return (first, step) of a series of `count` times that are spread evenly over the interval from 0 to `length`.

    Args:
        count: The number of times.
        length: The length of the interval.
        spread: The rule for the positions, as in `spread_numbers`. With `ends`, the last time is `length`.
    """
    if spread == "ends":
        return Fraction(0), length / max(1, count - 1)
    part = length / count
    return (part / 2 if spread == "centres" else Fraction(0)), part


def spread_evenly(
    timeline: Timeline,
    span: Span,
    count: int,
    by: By,
    spread: Spread,
    *,
    rounding: Rounding = "half_up",
) -> WantedFrames:
    """Return the wanted places of one clip that is spread evenly over a span, or no clip if the span is empty.

    Args:
        timeline: The times of the video.
        span: The span.
        count: The number of wanted places.
        by: Whether equal parts of the span have equal durations or equal numbers of frames.
        spread: The rule for the positions, as in `spread_numbers`. If `by` is "time", `ends` spreads from the first
            frame's timestamp to the last frame's timestamp.
        rounding: The rounding of `spread_numbers`. Used only if `by` is "number".
    """
    if by == "number":
        frames = span.stop - span.first
        return numbers(span, (span.first, 1, min(1, frames)), spread_numbers(count, frames, spread, rounding))
    if spread == "ends" and not span.is_empty:
        begin = Fraction(int(timeline.pts[span.first]))
        length = last_time(timeline, span) - begin
    else:
        begin, length = span.start, span.end - span.start
    first, step = spread_times(count, length, spread)
    starts = (span.start, Fraction(0), int(not span.is_empty))
    return times(span, starts, [(begin - span.start + first, step, count)])


def last_time(timeline: Timeline, span: Span) -> Fraction:
    """Return the timestamp of the last frame of a span. The span must not be empty."""
    return Fraction(int(timeline.pts[span.stop - 1]))


def clips_by_number(
    span: Span, clips: int, offsets: Sequence[int], spread: Spread, *, rounding: Rounding = "half_up"
) -> WantedFrames:
    """Return clips of given frame numbers, spread evenly over the frames at which a whole clip can begin.

    If the span is too short for a whole clip, one clip begins at the start of the span.

    Args:
        span: The span.
        clips: The number of clips.
        offsets: The frames of a clip, as distances from its first frame, ascending from 0.
        spread: The rule for the positions, as in `spread_numbers`.
        rounding: The rounding of `spread_numbers`.
    """
    room = span.stop - span.first - offsets[-1]
    if room <= 0:
        return numbers(span, (span.first, 1, int(not span.is_empty)), offsets)
    several = numbers(span, (span.first, 0, clips), offsets)
    return replace(several, starts=several.starts + spread_numbers(clips, room, spread, rounding))


def clips_by_time(
    timeline: Timeline, span: Span, clips: int, frames: int, step: Fraction, spread: Spread
) -> WantedFrames:
    """Return clips of given times, spread evenly over the times at which a whole clip can begin.

    With `ends`, the last clip ends with the span's last frame. If the span is too short for a whole clip, one clip
    begins at the start of the span.

    Args:
        timeline: The times of the video.
        span: The span.
        clips: The number of clips.
        frames: The number of frames per clip.
        step: The time between successive frames of a clip, in time base units.
        spread: The rule for the positions, as in `spread_numbers`.
    """
    length = step * (frames - 1)
    room = span.end - span.start - length
    if room <= 0:
        clips, room = int(not span.is_empty), Fraction(0)
    elif spread == "ends":
        last = span.start if span.is_empty else last_time(timeline, span)
        room = max(Fraction(0), last - span.start - length)
    first, apart = spread_times(max(1, clips), room, spread)
    return times(span, (span.start + first, apart, clips), [(Fraction(0), step, frames)])


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCountPolicy(Policy):
    """Base class of policies that can make one clip per video, with duration × rate frames."""

    least_frames: Count | None = parameter("without `frames`: minimum number of frames of a clip", None)
    max_frames: Count | None = parameter("without `frames`: maximum number of frames of a clip", None)
    multiple: Count | None = parameter(
        "without `frames`: the number of frames of a clip is a multiple of this number", None
    )

    def __post_init__(self) -> None:
        given = [name for name in ("least_frames", "max_frames", "multiple") if getattr(self, name) is not None]
        if given and self.length is not None:
            raise RefusedError(
                "these keys can only be used if the number of frames of a clip follows from fps",
                found=f"{', '.join(given)} and frames",
                remedy="leave out frames; to bound the number of clips, use max_clips",
            )
        if self.max_frames is not None and self._least > self._most(self.max_frames):
            found = f"least_frames: {self.least_frames}, max_frames: {self.max_frames}, multiple: {self.multiple}"
            raise RefusedError("no number of frames is between the bounds", found=found)
        if self.max_frames is not None and self.min_frames > self._most(self.max_frames):
            raise RefusedError("min_frames is greater than max_frames allows", found=self.min_frames)
        Policy.__post_init__(self)

    @property
    def _least(self) -> int:
        """The minimum number of frames, rounded up to a multiple of `multiple`."""
        multiple = self.multiple or 1
        return multiple * -(-(self.least_frames or 1) // multiple)

    def _most(self, frames: int) -> int:
        """Round a number of frames down to a multiple of `multiple`."""
        multiple = self.multiple or 1
        return frames // multiple * multiple

    def bounded(self, samples: int) -> int:
        """Limit a number of samples to the bounds. The result is not yet rounded to a multiple of `multiple`."""
        samples = max(samples, self._least)
        return samples if self.max_frames is None else min(samples, self._most(self.max_frames))

    def rounded(self, frames: int) -> int:
        """Round a number of frames down to a multiple of `multiple`, but at least to `multiple` itself."""
        return max(self._most(frames), self.multiple or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPolicy(FixedCountPolicy):
    """Frames or clips that are spread evenly over the whole video.

    With `frames` alone, a video gives one clip of this number of frames. If the video has fewer frames, some frames are
    repeated. With `clips`, a video gives this number of clips, as in the evaluation of models. Each of these clips has
    `frames` frames, sampled at `fps` or by taking every `stride`-th frame. With `fps` and without `frames`, a video
    gives one clip. Its number of frames is duration × fps, limited by `least_frames`, `max_frames` and the number of
    frames of the video.
    """

    frames: Count | None = parameter("frames per clip; by default, duration of the video × fps", None)
    clips: Count | None = parameter(
        "number of clips, spread evenly; by default, one clip whose frames are spread evenly", None
    )
    fps: Rate | None = parameter("samples per second, with `clips` or without `frames`", None)
    stride: Count | None = parameter("with clips: difference of successive frame numbers (instead of fps)", None)
    by: By = parameter("without `clips`: whether equal parts have equal durations or numbers of frames", "time")
    spread: Spread = parameter("centres or starts of equal parts, or from the first to the last frame", "centres")
    rounding: Rounding | None = parameter(
        "with `by: number` and `spread: ends`: how fractions are rounded to frame numbers; half_up by default", None
    )

    def __post_init__(self) -> None:
        rates = [name for name in ("fps", "stride") if getattr(self, name) is not None]
        if self.clips is None and self.stride is not None:
            raise RefusedError("stride requires clips", found="stride without clips", allowed="clips and frames")
        if self.clips is not None and (len(rates) != 1 or self.frames is None):
            found = ", ".join(["clips", *rates]) + (" without frames" if self.frames is None else "")
            raise RefusedError("uniform with clips needs frames, and either fps or stride", found=found)
        if self.clips is None and (self.frames is None) == (self.fps is None):
            found = "frames and fps" if self.fps is not None else "neither"
            remedy = None if self.fps is None else "to make one clip at that rate, add `clips: 1`"
            raise RefusedError("uniform without clips needs either frames or fps", found=found, remedy=remedy)
        if self.clips is not None and self.by == "number":
            raise RefusedError("by cannot be used with clips; use stride to select by number", found="by: number")
        if self.rounding is not None and not (self.by_number and self.spread == "ends"):
            raise RefusedError(
                "rounding requires frame numbers that are spread from the first to the last frame",
                found=f"by: {self.by}, spread: {self.spread}",
                allowed="spread: ends, and by: number or stride",
            )
        FixedCountPolicy.__post_init__(self)

    @property
    def counts_by_pts(self) -> bool:
        return self.shared_keys_need_pts or (self.spread == "ends" and not self.by_number)

    @property
    def by_number(self) -> bool:
        return self.by == "number" or self.stride is not None

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        rounding, frames, fps = self.rounding or "half_up", self.frames, self.fps or Fraction(0)
        if frames is None:
            samples = math.floor((span.end - span.start) * timeline.time_base * fps)
            frames = self.rounded(min(self.bounded(samples), span.stop - span.first))
        if self.clips is None:
            return spread_evenly(timeline, span, frames, self.by, self.spread, rounding=rounding)
        if self.stride is not None:
            offsets = range(0, self.stride * frames, self.stride)
            return clips_by_number(span, self.clips, offsets, self.spread, rounding=rounding)
        between = 1 / (fps * timeline.time_base)
        return clips_by_time(timeline, span, self.clips, frames, between, self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy(Policy):
    """Clips at random places of the video. Each clip has `frames` frames, at `fps` or with every `stride`-th frame.

    The begin of a clip is drawn from all places at which a whole clip can begin. Clip n of a video depends only on the
    seed, the video's name, the epoch and n. A video that is too short for a whole clip gives one clip from its start.
    """

    clips: Count = parameter("clips per video")
    frames: Count = parameter("frames per clip")
    fps: Rate | None = parameter("samples per second (instead of stride)", None)
    stride: Count | None = parameter("difference between successive frame numbers (instead of fps)", None)
    is_random, time_step = True, TIME_STEP

    def __post_init__(self) -> None:
        self.check_one_of("random needs either fps or stride", "fps", "stride")
        Policy.__post_init__(self)

    @property
    def by_number(self) -> bool:
        return self.fps is None

    def wanted(self, timeline: Timeline, span: Span) -> WantedFrames:
        if self.fps is None:
            stride = self.stride or 1
            several = numbers(span, (span.first, 0, self.clips), range(0, stride * self.frames, stride))
        else:
            zero = Fraction(0)
            pieces = [(zero, 1 / (self.fps * timeline.time_base), self.frames)]
            several = times(span, (span.start, zero, self.clips), pieces)
        places = several.limit - several.low - int(several.offsets.max())  # number of places for begins of whole clips
        if places <= 0:
            return replace(several, starts=several.starts[: int(several.limit > several.low)])
        # Each range of a video has a separate random stream.
        is_whole = replace(span, time_step=1) == whole(timeline)
        which = "start" if is_whole else f"start in frames {span.first} to {span.stop}"
        drawn = draws(self.seed, timeline.name, which, first=0, count=self.clips, epoch=timeline.epoch)
        return replace(several, starts=below(drawn, places) + several.low)
