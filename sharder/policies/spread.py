"""Policies that take a few frames or clips of every video, regardless of its duration.

They are spread evenly or drawn at random. `FixedCountPolicy` bounds the number of frames of a clip that a rate gives.
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
    """Return `count` evenly spread numbers from 0 to `total` - 1, ascending. Some repeat if there are fewer.

    Args:
        count: How many numbers.
        total: How many numbers there are to choose from.
        spread: `centres` takes the middles of `count` equal parts (TSN, Wang et al. 2016), `starts` their beginnings.
            `ends` takes equally spaced numbers from the first to the last; a single one is the first.
        rounding: With `ends`, how fractions become numbers: `half_up` is DALI's uniform_sample, `half_even` is
            torch.round, `down` is int().
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
    """Return (first, step) of `count` times that are evenly spread over a length of time, from 0 on.

    Args:
        spread: As for `spread_numbers`. `ends` includes both ends.
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
    time_step: int = 1,
) -> WantedFrames:
    """Return one clip of `count` places over a span; none if the span is empty.

    Args:
        timeline: The video.
        span: The span.
        count: How many places.
        by: Whether to divide the time or the number of frames.
        spread: As for `spread_numbers`. By time, `ends` reaches from the first frame's time to the last one's.
        rounding: As for `spread_numbers`.
        time_step: As for `times`.
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
    return times(span, starts, [(begin - span.start + first, step, count)], time_step=time_step)


def last_time(timeline: Timeline, span: Span) -> Fraction:
    """Return the timestamp of the last frame of a span that has one."""
    return Fraction(int(timeline.pts[span.stop - 1]))


def clips_by_number(
    span: Span, clips: int, offsets: Sequence[int], spread: Spread, *, rounding: Rounding = "half_up"
) -> WantedFrames:
    """Return clips whose beginnings are spread evenly over the frames where a whole clip may begin.

    If no clip fits, there is one that begins with the span.

    Args:
        offsets: Frames of a clip, as distances from its first one, ascending from 0.
        rounding: As for `spread_numbers`.
    """
    room = span.stop - span.first - offsets[-1]
    if room <= 0:
        return numbers(span, (span.first, 1, int(not span.is_empty)), offsets)
    several = numbers(span, (span.first, 0, clips), offsets)
    return replace(several, starts=several.starts + spread_numbers(clips, room, spread, rounding))


def clips_by_time(
    timeline: Timeline, span: Span, clips: int, frames: int, step: Fraction, spread: Spread, *, time_step: int = 1
) -> WantedFrames:
    """Return clips whose beginnings are spread evenly over the times where a whole clip may begin.

    With `ends`, the last clip ends with the span's last frame. If no clip fits, there is one that begins with the span.

    Args:
        frames: Frames per clip.
        step: Time between them, in time base units.
        time_step: As for `times`.
    """
    length = step * (frames - 1)
    room = span.end - span.start - length
    if room <= 0:
        clips, room = int(not span.is_empty), Fraction(0)
    elif spread == "ends":
        last = span.start if span.is_empty else last_time(timeline, span)
        room = max(Fraction(0), last - span.start - length)
    first, apart = spread_times(max(1, clips), room, spread)
    return times(span, (span.start + first, apart, clips), [(Fraction(0), step, frames)], time_step=time_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCountPolicy(Policy):
    """The keys of a policy that may make one clip per video, with as many frames as a rate gives."""

    least_frames: Count | None = parameter("without `frames`: the least number of frames of a clip", None)
    max_frames: Count | None = parameter("without `frames`: the greatest number of frames of a clip", None)
    multiple: Count | None = parameter("without `frames`: the number of frames is a multiple of this", None)

    def __post_init__(self) -> None:
        given = [name for name in ("least_frames", "max_frames", "multiple") if getattr(self, name) is not None]
        if given and self.length is not None:
            raise RefusedError(
                "these keys are for clips whose number of frames follows from fps",
                found=f"{', '.join(given)} and frames",
                remedy="leave out frames; `max_clips` bounds the number of clips",
            )
        if self.max_frames is not None and self._least > self._most(self.max_frames):
            found = f"least_frames: {self.least_frames}, max_frames: {self.max_frames}, multiple: {self.multiple}"
            raise RefusedError("no number of frames is between the bounds", found=found)
        if self.max_frames is not None and self.min_frames > self._most(self.max_frames):
            raise RefusedError("min_frames is more than max_frames allows", found=self.min_frames)
        Policy.__post_init__(self)

    @property
    def _least(self) -> int:
        """The least number of frames, a multiple."""
        multiple = self.multiple or 1
        return multiple * -(-(self.least_frames or 1) // multiple)

    def _most(self, frames: int) -> int:
        """Return a number of frames, rounded down to a multiple."""
        multiple = self.multiple or 1
        return frames // multiple * multiple

    def bounded(self, samples: int) -> int:
        """Return the number of frames for a number of samples, within the bounds but not yet rounded to a multiple."""
        samples = max(samples, self._least)
        return samples if self.max_frames is None else min(samples, self._most(self.max_frames))

    def rounded(self, frames: int) -> int:
        """Return a number of frames, rounded down to a multiple; at least one multiple."""
        return max(self._most(frames), self.multiple or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPolicy(FixedCountPolicy):
    """Frames, or clips, that are spread evenly over the whole video.

    `frames` alone: one clip of so many frames. If the video has fewer frames, some are repeated. With `clips`: so many
    clips of `frames` frames, at `fps` or every `stride`-th one, as models are evaluated. `fps` without `frames`: one
    clip of as many frames as the rate gives over the video, within `least_frames` and `max_frames`, but no more than
    the video has.
    """

    frames: Count | None = parameter("frames a clip; without it, as many as fps gives over the video", None)
    clips: Count | None = parameter("number of clips, spread evenly; without it, one clip of spread frames", None)
    fps: Rate | None = parameter("samples a second: with `clips`, or without `frames`", None)
    stride: Count | None = parameter("with clips: distance between frames by number; or fps", None)
    by: By = parameter("without `clips`: whether parts are equal by time or by number of frames", "time")
    spread: Spread = parameter("middles or beginnings of equal parts, or first frame to last", "centres")
    rounding: Rounding | None = parameter(
        "by number, with `spread: ends`: how fractions become frame numbers; half_up by default", None
    )

    def __post_init__(self) -> None:
        rates = [name for name in ("fps", "stride") if getattr(self, name) is not None]
        if self.clips is None and self.stride is not None:
            raise RefusedError("stride is for several clips", found="stride without clips", allowed="clips and frames")
        if self.clips is not None and (len(rates) != 1 or self.frames is None):
            found = ", ".join(["clips", *rates]) + (" without frames" if self.frames is None else "")
            raise RefusedError("uniform clips have frames, and either fps or stride", found=found)
        if self.clips is None and (self.frames is None) == (self.fps is None):
            found = "frames and fps" if self.fps is not None else "neither"
            remedy = None if self.fps is None else "`clips: 1` makes one clip at that rate"
            raise RefusedError("the one clip has either frames or fps", found=found, remedy=remedy)
        if self.clips is not None and self.by == "number":
            raise RefusedError("several clips go by time with fps, and by number with stride", found="by: number")
        if self.rounding is not None and not (self.by_number and self.spread == "ends"):
            raise RefusedError(
                "rounding is for frame numbers from the first to the last",
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
            by, step = self.by, self.time_step
            return spread_evenly(timeline, span, frames, by, self.spread, rounding=rounding, time_step=step)
        if self.stride is not None:
            offsets = range(0, self.stride * frames, self.stride)
            return clips_by_number(span, self.clips, offsets, self.spread, rounding=rounding)
        between = 1 / (fps * timeline.time_base)
        return clips_by_time(timeline, span, self.clips, frames, between, self.spread, time_step=self.time_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy(Policy):
    """`clips` clips of `frames` frames, at `fps` or every `stride`-th one, that begin at random where they fit.

    Clip n of a video depends only on the seed, the video's name and n. If no clip fits, there is one clip that begins
    with the video.
    """

    clips: Count = parameter("clips a video")
    frames: Count = parameter("frames a clip")
    fps: Rate | None = parameter("samples a second; or stride", None)
    stride: Count | None = parameter("distance between frames by number; or fps", None)
    is_random = True

    def __post_init__(self) -> None:
        self.check_one_of("random clips have either fps or stride", "fps", "stride")
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
            several = times(span, (span.start, zero, self.clips), pieces, time_step=TIME_STEP)
        places = several.limit - several.low - int(several.offsets.max())  # where a whole clip may begin
        if places <= 0:
            return replace(several, starts=several.starts[: int(several.limit > several.low)])
        # Each range of a video has draws of its own.
        which = "start" if span == whole(timeline) else f"start in frames {span.first} to {span.stop}"
        drawn = draws(self.seed, timeline.name, which, first=0, count=self.clips, epoch=timeline.epoch)
        return replace(several, starts=below(drawn, places) + several.low)
