"""Sequences of frames: windows at regular distances, and clips around each frame."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.configuration.parameters import (
    MANY,
    Count,
    Distance,
    Number,
    Rate,
    RefusedError,
    Seconds,
    Step,
    listed,
    parameter,
)
from framedex.sharder.policies.places import WantedFrames, consecutive, numbers, sample, times, times_from
from framedex.sharder.policies.policy import Terms
from framedex.sharder.policies.sampling import Sampling, Span, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsPolicy(Terms):
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
        by_number, by_time = ("stride", "step", "start"), ("step_seconds", "start_seconds")
        wrong = by_number if self.fps is not None else by_time
        given = [name for name in wrong if getattr(self, name) is not None]
        if given:
            raise RefusedError(
                "windows with fps go by time" if self.fps is not None else "windows without fps go by frame numbers",
                found=", ".join(given),
                allowed=", ".join(by_time if self.fps is not None else by_number),
            )
        Terms.__post_init__(self)

    @property
    def by_number(self) -> bool:
        return self.fps is None

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        if self.fps is None:
            stride, begin = self.stride or 1, self.start or 0
            step = self.step or stride * self.frames
            begin += span.first
            clips = consecutive(begin, step, stride * (self.frames - 1), span.stop)
            wanted = numbers(span, (begin, step, clips), range(0, stride * self.frames, stride))
        else:
            between = 1 / (self.fps * timeline.time_base)
            every = self.step_seconds / timeline.time_base if self.step_seconds else between * self.frames
            begin_at = span.start + (self.start_seconds or 0) / timeline.time_base
            windows = consecutive(begin_at, every, between * (self.frames - 1), span.end)
            wanted = times(span, (begin_at, every, windows), [(Fraction(0), between, self.frames)], grain=self.grain)
        return sample(timeline, span, wanted, self, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundPolicy(Terms):
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

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.frames is None):
            found = "neither" if self.seconds is None else "both"
            raise RefusedError("distances from the anchor are given by seconds or by frames", found=found)
        Terms.__post_init__(self)

    @property
    def by_number(self) -> bool:
        return self.frames is not None

    @property
    def length(self) -> int | None:
        return len(self.frames or self.seconds or ())

    @property
    def takes_seconds(self) -> bool:
        return self.seconds is not None

    @property
    def counts_by_pts(self) -> bool:
        # A clip whose places are all outside is not made, which depends on the timestamps.
        return True

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        anchors = np.arange(span.first, span.stop, self.every, dtype=np.int64)
        return sample(timeline, span, self._wanted(timeline, span, anchors), self, first=first, anchors=anchors)

    def _wanted(self, timeline: Timeline, span: Span, anchors: NDArray[np.int64]) -> WantedFrames:
        if self.frames is not None:
            return numbers(span, (span.first, self.every, len(anchors)), self.frames)
        assert self.seconds is not None  # one of the two, as checked above
        offsets = [Fraction(seconds) / timeline.time_base for seconds in self.seconds]
        return times_from(span, timeline.pts[anchors], offsets, grain=self.grain)
