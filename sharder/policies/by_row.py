"""Ranges that the listing names: annotated actions, shots between cuts, DALI's `path label start end`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from framedex.errors import PolicyError
from framedex.sharder.configuration.checks import ColumnName, Count, Rate, RefusedError, YesNo, shown
from framedex.sharder.configuration.parameters import parameter
from framedex.sharder.policies.by_number import at_stride
from framedex.sharder.policies.by_time import at_rate
from framedex.sharder.policies.evenly import By, evenly
from framedex.sharder.policies.places import sample
from framedex.sharder.policies.ranges import Unit, check_unit, held, place_of, range_columns, span_between
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Missed, Sampled, Sampling, Timeline
from framedex.sharder.sampling.spans import Span

START, END = "start", "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRowPolicy(Terms):
    """Clips of the ranges that a listing's row names. Each range is sampled as if it were a video of its own.

    Either `start` and `end` are the columns that hold a range [start, end), or `cuts` is the column that holds a list
    of times between which the ranges lie. `unit` is the unit of these values. With `include_end`, a range of frames
    includes its last frame. One of `fps`, `stride` and `uniform` (that many frames, spread over the range) determines
    how a range is sampled. `frames` is the length of a clip.
    """

    fps: Rate | None = parameter("samples a second; or stride, or uniform", None)
    stride: Count | None = parameter("every n-th frame; or fps, or uniform", None)
    uniform: Count | None = parameter("so many frames spread over the range; or fps, or stride", None)
    frames: Count | None = parameter("with fps or stride: frames a clip; without it, one clip a range", None)
    start: ColumnName | None = parameter(
        "the listing's column with the start of a range; by default `start`, or one like start_sec", None
    )
    end: ColumnName | None = parameter(
        "the listing's column with the end of a range; by default `end`, or one like end_sec", None
    )
    cuts: ColumnName | None = parameter("instead: a column with a list of ascending places between ranges", None)
    unit: Unit = parameter("what places are: seconds from the first frame, or numbers of frames", "seconds")
    include_end: YesNo = parameter("with unit: frames, the end belongs to the range", False)

    def __post_init__(self) -> None:
        ways = [name for name in ("fps", "stride", "uniform") if getattr(self, name) is not None]
        if len(ways) != 1:
            found = ", ".join(ways) or "none of them"
            raise RefusedError("a range is sampled by one of fps, stride and uniform", found=found)
        if self.uniform is not None and self.frames is not None:
            raise RefusedError("uniform says how many frames a clip has", found="frames as well")
        if self.cuts is not None and (self.start, self.end) != (None, None):
            raise RefusedError("ranges are given by start and end, or by cuts", found="both")
        if self.range is not None:
            raise RefusedError(
                "per_row names its ranges without the key range", found="range", allowed="start and end, or cuts"
            )
        if self.include_end and (self.unit == "seconds" or self.cuts is not None):
            raise RefusedError(
                "include_end is for start and end in frames", found=f"unit: {self.unit}, cuts: {self.cuts}"
            )
        Terms.__post_init__(self)

    @property
    def names_ranges(self) -> bool:
        return True

    def range_columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns with the ranges.

        If the policy names none, they are `start` and `end`, or else two columns that look like these.
        """
        if self.cuts is not None:
            return [self.cuts]
        found = range_columns(tuple(names))
        if (self.start, self.end) == (None, None) and not {START, END} <= set(names) and found is not None:
            check_unit(found, self.unit)
            return list(found)
        return [self.start or START, self.end or END]

    @property
    def counts_by_pts(self) -> bool:
        return True

    @property
    def needs_video(self) -> bool:
        return True

    @property
    def by_number(self) -> bool:
        return self.stride is not None or (self.uniform is not None and self.unit == "frames")

    @property
    def length(self) -> int | None:
        return self.frames if self.uniform is None else self.uniform

    def span_of(self, timeline: Timeline, row: Mapping[str, Any]) -> Span:
        """Return the stretch from the first range of a row to its last one. Raises PolicyError."""
        ends = self._ends(timeline, row)
        return span_between(timeline, ends[0][0], ends[-1][1], self.unit)

    def sample_row(self, timeline: Timeline, row: Mapping[str, Any]) -> Sampling:
        try:
            ends = self._ends(timeline, row)
        except PolicyError as error:
            return Sampling(clips=[], missed=[Missed(kind="row", message=error.text(), counts=True)])
        clips: list[Sampled] = []
        missed: list[Missed] = []
        following = 0
        for start, end in ends:
            try:
                span = span_between(timeline, start, end, self.unit)
            except PolicyError as error:
                missed.append(Missed(kind="row", message=error.text(), counts=True))
                continue
            of_range = self._sample(timeline, span, following)
            following = of_range.following
            clips += of_range.clips
            missed += of_range.missed
        return Sampling(clips=clips, missed=missed)

    def _sample(self, timeline: Timeline, span: Span, first: int) -> Sampling:
        span = self.limited(timeline, span)
        if self.fps is not None:
            wanted = at_rate(timeline, span, self.fps, self.frames, grain=self.grain)
        elif self.stride is not None:
            wanted = at_stride(span, self.stride, self.frames)
        else:
            assert self.uniform is not None  # one of the three, as checked above
            by: By = "number" if self.by_number else "time"
            wanted = evenly(timeline, span, self.uniform, by, "centres", grain=self.grain)
        return sample(timeline, span, wanted, self, first=first)

    def _ends(self, timeline: Timeline, row: Mapping[str, Any]) -> list[tuple[Fraction, Fraction]]:
        """Return the (start, end) of a row's ranges, in its unit and not negative. Raises PolicyError."""
        if self.cuts is None:
            start, end = (
                place_of(timeline, cell(row, name), name, self.unit) for name in self.range_columns(list(row))
            )
            return [(start, end + self.include_end)]
        value = cell(row, self.cuts)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) < 2:
            raise PolicyError(
                "cuts are a list of two or more numbers", where=f"column {self.cuts!r}", found=shown(value)
            )
        cuts = [place_of(timeline, item, f"{self.cuts}[{number}]", self.unit) for number, item in enumerate(value)]
        if any(after <= before for before, after in itertools.pairwise(cuts)):
            raise PolicyError(
                "cuts must ascend", where=f"column {self.cuts!r}", found=str([float(cut) for cut in cuts])[:80]
            )
        return list(itertools.pairwise(cuts))


def cell(row: Mapping[str, Any], name: str) -> object:
    """Return a row's value in a column. Raises PolicyError if there is no such column or the cell is empty."""
    value = held(row, name)
    if value is None or value != value:  # NaN
        raise PolicyError("the row says nothing", where=f"column {name!r}", found=shown(value))
    return value
