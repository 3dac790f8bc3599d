"""Policies by frame number: a stride, explicit numbers, key frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from framedex.sharder.configuration.checks import MANY, Count, Number, listed
from framedex.sharder.configuration.parameters import parameter
from framedex.sharder.policies.places import WantedFrames, consecutive, numbers, sample
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Sampling, Timeline
from framedex.sharder.sampling.spans import Span


def at_stride(span: Span, stride: int, length: int | None, *, start: int = 0) -> WantedFrames:
    """Return consecutive clips of every stride-th frame through a span.

    Args:
        length: Frames per clip; None for one clip of all frames.
        start: First frame of the first clip, counted from the span's first frame.
    """
    begin = span.first + start
    if length is None:
        length = max(0, -(-(span.stop - begin) // stride))
        clips = min(length, 1)
    else:
        clips = consecutive(begin, stride * length, stride * (length - 1), span.stop)
    return numbers(span, (begin, stride * length, clips), range(0, stride * length, stride))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByNumber(Terms):
    """The terms of a policy whose places are frame numbers."""

    @property
    def by_number(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StridePolicy(ByNumber):
    """Every `stride`-th frame by number from frame `start` on, cut into clips of `frames` samples."""

    stride: Count = parameter("distance between frames, by number")
    frames: Count | None = parameter("frames a clip; without it, one clip a video", None)
    start: Number = parameter("the first clip's first frame", 0)

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        return sample(timeline, span, at_stride(span, self.stride, self.frames, start=self.start), self, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesPolicy(ByNumber):
    """The same frame numbers in every video: one clip, in the order of the list, including repeats."""

    frames: Annotated[tuple[Number, ...], MANY, listed("[0, 7, 3, 3]")] = parameter(
        "frame numbers from 0, in any order, with repeats, such as [0, 7, 3, 3]"
    )

    @property
    def length(self) -> int | None:
        return len(self.frames)

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        return sample(timeline, span, numbers(span, (span.first, 1, 1), self.frames), self, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyframesPolicy(ByNumber):
    """Frames where decoding may start: every `every`-th of them, cut into clips of `frames` frames."""

    every: Count = parameter("every n-th start point", 1)
    frames: Count | None = parameter("frames a clip; without it, one clip a video", None)

    @property
    def needs_video(self) -> bool:
        return True

    @property
    def counts_by_pts(self) -> bool:
        return True

    @property
    def length(self) -> int | None:
        return self.frames

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        begin, stop = np.searchsorted(timeline.starts, (span.first, span.stop)).tolist()
        starts = replace(span, first=begin, stop=stop)
        wanted = at_stride(starts, self.every, self.frames)
        return sample(timeline, starts, wanted, self, first=first, among=timeline.starts, stretch=span)
