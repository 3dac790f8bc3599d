"""Ranges that the listing names: annotated actions, shots between cuts, DALI's `path label start end`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from framedex.errors import PolicyError
from framedex.sharder import checks
from framedex.sharder.checks import as_fraction, did_you_mean, one_of, shown
from framedex.sharder.parameters import parameter
from framedex.sharder.policies.by_number import at_stride
from framedex.sharder.policies.by_time import at_rate
from framedex.sharder.policies.places import Span, sample, whole
from framedex.sharder.policies.records import Missed, Sampled, Sampling, Track
from framedex.sharder.policies.spread import By, evenly
from framedex.sharder.policies.terms import Terms

Unit = Literal["seconds", "frames"]
START, END = "start", "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRowPolicy(Terms):
    """Clips of the ranges that a listing's row names, each range sampled as if it were a video of its own.

    start, end: the columns that hold a range [start, end); or cuts: the column that holds a list of times between which
    the ranges lie. unit: what they count. include_end: a range of frames has its last one, too. fps, stride or uniform
    (that many frames, spread over the range) says how a range is sampled; frames: how long a clip is.
    """

    fps: Fraction | None = parameter(checks.rate, None)
    stride: int | None = parameter(checks.count, None)
    uniform: int | None = parameter(checks.count, None)
    frames: int | None = parameter(checks.count, None)
    start: str | None = parameter(checks.column_name, None)
    end: str | None = parameter(checks.column_name, None)
    cuts: str | None = parameter(checks.column_name, None)
    unit: Unit = parameter(one_of(("seconds", "frames")), "seconds")
    include_end: bool = parameter(checks.boolean, False)

    def __post_init__(self) -> None:
        ways = [name for name in ("fps", "stride", "uniform") if getattr(self, name) is not None]
        if len(ways) != 1:
            found = ", ".join(ways) or "none of them"
            raise PolicyError("a range is sampled by one of fps, stride and uniform", found=found)
        if self.uniform is not None and self.frames is not None:
            raise PolicyError("uniform says how many frames a clip has", found="frames as well")
        if self.cuts is not None and (self.start, self.end) != (None, None):
            raise PolicyError("ranges are given by start and end, or by cuts", found="both")
        if self.include_end and (self.unit == "seconds" or self.cuts is not None):
            raise PolicyError(
                "include_end is for start and end in frames", found=f"unit: {self.unit}, cuts: {self.cuts}"
            )
        Terms.__post_init__(self)

    @property
    def counts_by_pts(self) -> bool:
        return True

    @property
    def by_number(self) -> bool:
        return self.stride is not None or (self.uniform is not None and self.unit == "frames")

    @property
    def length(self) -> int | None:
        return self.frames if self.uniform is None else self.uniform

    def sample(self, track: Track, row: Mapping[str, Any]) -> Sampling:
        try:
            ends = self._ends(track, row)
        except PolicyError as error:
            return Sampling(clips=[], missed=[Missed(kind="row", message=error.text(), counts=True)])
        clips: list[Sampled] = []
        missed: list[Missed] = []
        following = 0
        for start, end in ends:
            try:
                span = self._span(track, start, end)
            except PolicyError as error:
                missed.append(Missed(kind="row", message=error.text(), counts=True))
                continue
            of_range = self._sample(track, span, following)
            known = [clip.number for clip in of_range.clips] + [miss.number for miss in of_range.missed]
            following = 1 + max((number for number in known if number is not None), default=following - 1)
            clips += of_range.clips
            missed += of_range.missed
        return Sampling(clips=clips, missed=missed)

    def _sample(self, track: Track, span: Span, first: int) -> Sampling:
        if self.fps is not None:
            wanted = at_rate(track, span, self.fps, self.frames, grain=self.grain)
        elif self.stride is not None:
            wanted = at_stride(span, self.stride, self.frames)
        else:
            assert self.uniform is not None  # one of the three, as checked above
            by: By = "number" if self.by_number else "time"
            wanted = evenly(track, span, self.uniform, by, "centres", grain=self.grain)
        return sample(track, span, wanted, self, first=first)

    def _ends(self, track: Track, row: Mapping[str, Any]) -> list[tuple[Fraction, Fraction]]:
        """Return the (start, end) of a row's ranges, in its unit and not negative. Raises PolicyError for nonsense."""
        if self.cuts is None:
            start, end = (self._place(track, cell(row, name), name) for name in (self.start or START, self.end or END))
            return [(start, end + self.include_end)]
        value = cell(row, self.cuts)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) < 2:
            raise PolicyError(
                "cuts are a list of two or more numbers", where=f"column {self.cuts!r}", found=shown(value)
            )
        cuts = [self._place(track, item, f"{self.cuts}[{number}]") for number, item in enumerate(value)]
        if any(after <= before for before, after in itertools.pairwise(cuts)):
            raise PolicyError(
                "cuts must ascend", where=f"column {self.cuts!r}", found=str([float(cut) for cut in cuts])[:80]
            )
        return list(itertools.pairwise(cuts))

    def _place(self, track: Track, value: object, name: str) -> Fraction:
        """Return one end of a range. A negative frame number counts from the end, as in DALI's file lists."""
        place = as_fraction(value)
        if place is None:
            raise PolicyError("must be a number", where=f"column {name!r}", found=shown(value))
        if self.unit == "frames":
            if place.denominator != 1:
                raise PolicyError("a frame number must be whole", where=f"column {name!r}", found=shown(value))
            place += len(track.pts) if place < 0 else 0
        if place < 0:
            allowed = f"-{len(track.pts)} or more" if self.unit == "frames" else "0 or more"
            raise PolicyError("lies before the video", where=f"column {name!r}", found=shown(value), allowed=allowed)
        return place

    def _span(self, track: Track, start: Fraction, end: Fraction) -> Span:
        """Return the stretch of a video between two places; what lies past its end is left out.

        A range of seconds has the frames whose timestamps lie in it. Raises PolicyError for one without any.
        """
        video = whole(track)
        if start >= end:
            raise PolicyError(
                "a range must end after it starts", found=f"{float(start):g} to {float(end):g} {self.unit}"
            )
        if self.unit == "frames":
            first, stop = min(int(start), video.stop), min(int(end), video.stop)
            from_, to = (self._shown_at(track, number) for number in (first, stop))
        else:
            from_, to = (min(video.start + place / track.time_base, video.end) for place in (start, end))
            first, stop = (int(np.searchsorted(track.pts, math.ceil(place), side="left")) for place in (from_, to))
        if first >= stop:
            raise PolicyError(
                "no frame lies in the range",
                found=f"{float(start):g} to {float(end):g} {self.unit}",
                allowed=f"{video.stop} frames in {float(track.seconds):g} s",
            )
        return replace(video, first=first, stop=stop, start=from_, end=to)

    @staticmethod
    def _shown_at(track: Track, frame: int) -> Fraction:
        """Return when a frame begins; for the one after the last, when the video ends."""
        return Fraction(int(track.pts[frame])) if frame < len(track.pts) else whole(track).end


def cell(row: Mapping[str, Any], name: str) -> object:
    """Return what a row holds in a column. Raises PolicyError where there is no such column or nothing in it."""
    if name not in row:
        raise PolicyError(
            "the listing has no such column",
            found=repr(name),
            allowed=", ".join(map(str, row)) or "it has no columns for this medium",
            remedy=did_you_mean(name, map(str, row)),
        )
    value = row[name]
    if value is None or value != value:  # NaN
        raise PolicyError("the row says nothing", where=f"column {name!r}", found=shown(value))
    return value
