"""Ranges that the listing names: annotated actions, shots between cuts, DALI's `path label start end`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framedex.sharder.configuration.checks import ColumnName, Count, Rate, RefusedError, YesNo
from framedex.sharder.configuration.parameters import parameter
from framedex.sharder.policies.by_number import at_stride
from framedex.sharder.policies.by_time import at_rate
from framedex.sharder.policies.evenly import By, evenly
from framedex.sharder.policies.places import sample
from framedex.sharder.policies.ranges import Places, Ranges, Unit, check_unit, range_columns
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Sampling, Timeline
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
        if self.range is not None:
            raise RefusedError(
                "per_row names its ranges without the key range", found="range", allowed="start and end, or cuts"
            )
        self.ranges(())  # raises for keys that contradict each other
        Terms.__post_init__(self)

    @property
    def names_ranges(self) -> bool:
        return True

    def ranges(self, names: Sequence[str]) -> Ranges:
        """Return the ranges that are sampled.

        If the policy names no columns, they are `start` and `end`, or else two columns that look like these.
        """
        how: dict[str, Any] = {"unit": self.unit, "include_end": self.include_end}
        if self.cuts is not None:
            return Ranges(start=self.start, end=self.end, cuts=self.cuts, **how)
        found = range_columns(tuple(names))
        if (self.start, self.end) == (None, None) and not {START, END} <= set(names) and found is not None:
            check_unit(found, self.unit)
            return Ranges(start=found[0], end=found[1], **how)
        return Ranges(start=self.start or START, end=self.end or END, **how)

    def _places(self, timeline: Timeline, row: Mapping[str, Any], ranges: Ranges) -> list[Places]:
        return ranges.places(timeline, row, whole_if_empty=False)

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

    def sample_span(self, timeline: Timeline, span: Span, first: int = 0) -> Sampling:
        if self.fps is not None:
            wanted = at_rate(timeline, span, self.fps, self.frames, grain=self.grain)
        elif self.stride is not None:
            wanted = at_stride(span, self.stride, self.frames)
        else:
            assert self.uniform is not None  # one of the three, as checked above
            by: By = "number" if self.by_number else "time"
            wanted = evenly(timeline, span, self.uniform, by, "centres", grain=self.grain)
        return sample(timeline, span, wanted, self, first=first)
