"""Read the ranges of a video from a row of the listing. Every policy can sample ranges instead of whole videos."""

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from framedex.errors import PolicyError
from framedex.sharder.configuration.filters import no_column
from framedex.sharder.configuration.parameters import (
    ColumnName,
    Record,
    RefusedError,
    Seconds,
    YesNo,
    as_fraction,
    parameter,
    shown,
)
from framedex.sharder.policies.sampling import Span, Timeline, whole

Unit = Literal["seconds", "frames"]
Places = tuple[Fraction, Fraction] | None  # (start, end) of a range, in the range's unit; None means the whole video

# Patterns for names of columns such as start, begin_time, StartSeconds, frame_end or stop: a word for the start or the
# end of a range, alone or with a unit.
UNIT_WORDS = "seconds|second|secs|sec|s|time|frames|frame|pts|ms"
STARTS, ENDS = (
    re.compile(rf"(?:(?P<before>{UNIT_WORDS})[_ ]?)?(?:{words})(?:[_ ]?(?P<after>{UNIT_WORDS}))?", re.IGNORECASE)
    for words in ("start|begin", "end|stop")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Record):
    """The columns of a listing that specify one or several ranges of each row's video.

    The columns `start` and `end` specify a range [start, end). One of these columns may be missing. Alternatively, the
    column `cuts` contains an ascending list of bounds, and each two successive bounds form a range. `unit` is the unit
    of all these values: seconds from the first frame, or frame numbers. With `include_end`, the range includes the
    frame `end`. Because times in listings are often rounded, a start or end in seconds is replaced by the timestamp of
    the nearest frame if the difference is at most `tolerance_seconds`. `frames` is the column with the number of frames
    that the range must have.
    """

    start: ColumnName | None = parameter(
        "the listing's column with the start of the range; an empty cell means the start of the video", None
    )
    end: ColumnName | None = parameter(
        "the listing's column with the end of the range; an empty cell means the end of the video", None
    )
    cuts: ColumnName | None = parameter(
        "the column with an ascending list of the bounds of successive ranges (instead of start and end)", None
    )
    unit: Unit = parameter("unit of the columns: seconds from the first frame, or frame numbers", "seconds")
    include_end: YesNo = parameter("with `unit: frames`: whether the range includes the frame `end`", False)
    tolerance_seconds: Seconds = parameter(
        "a start or end that is at most this far from a frame's time is replaced by that time", Fraction(0)
    )
    frames: ColumnName | None = parameter("the listing's column with the number of frames that a range must have", None)

    def __post_init__(self) -> None:
        if self.start is None and self.end is None and self.cuts is None:
            raise RefusedError(
                "a range needs the name of a column",
                allowed="{start: start, end: end}, or {cuts: cuts}",
                remedy="write `range: null` to sample whole videos",
            )
        if self.cuts is not None and (self.start, self.end, self.frames) != (None, None, None):
            found = ", ".join(name for name in ("start", "end", "frames") if getattr(self, name) is not None)
            raise RefusedError("ranges must be given either by start and end, or by cuts", found=f"cuts and {found}")
        if self.include_end and (self.unit == "seconds" or self.end is None):
            raise RefusedError(
                "include_end requires a column end, in frames", found=f"unit: {self.unit}, end: {self.end}"
            )
        if self.tolerance_seconds and self.unit == "frames":
            raise RefusedError("tolerance_seconds requires a range in seconds", found=f"unit: {self.unit}")

    @property
    def columns(self) -> list[str]:
        """The names of the listing's columns that are read."""
        return [name for name in (self.start, self.end, self.cuts, self.frames) if name is not None]

    def places(self, timeline: Timeline, row: Mapping[str, Any], *, whole_if_empty: bool = True) -> list[Places]:
        """Return the ranges that a row specifies.

        Args:
            timeline: The times of the video.
            row: The values of the row, by column.
            whole_if_empty: Whether an empty start means the start of the video, and an empty end the end of the video.
                If False, empty cells are errors.

        Raises:
            PolicyError: The row lacks a column, or a cell does not contain a valid start, end or list.
        """
        if self.cuts is not None:
            cells, where = _filled_cell(row, self.cuts), f"column {self.cuts!r}"
            if not isinstance(cells, Sequence) or isinstance(cells, str | bytes) or len(cells) < 2:
                raise PolicyError("cuts must be a list of two or more numbers", where=where, found=shown(cells))
            named = ((cell, f"{self.cuts}[{number}]") for number, cell in enumerate(cells))
            cuts = [_place_of(timeline, cell, name, self.unit) for cell, name in named]
            if any(after <= before for before, after in itertools.pairwise(cuts)):
                raise PolicyError("cuts must ascend", where=where, found=str([float(cut) for cut in cuts])[:80])
            return list(itertools.pairwise(cuts))
        start, end = (
            None
            if name is None or (whole_if_empty and is_empty(cell_of(row, name)))
            else _place_of(timeline, _filled_cell(row, name), name, self.unit)
            for name in (self.start, self.end)
        )
        if start is None and end is None:
            return [None]
        if end is None:
            length = len(timeline.pts) if self.unit == "frames" else timeline.seconds
            # A start after the end of the video must not be reported as a range that ends before it starts.
            end = max(Fraction(length), Fraction(0) if start is None else start + 1)
        elif self.include_end:
            end += 1
        return [(start or Fraction(0), end)]

    def span(self, timeline: Timeline, row: Mapping[str, Any], places: Places) -> Span:
        """Return the span of a video for a range of a row. The part after the end of the video is cut off.

        Raises:
            PolicyError: The range contains no frame, or its number of frames differs from the number in the row.
        """
        if places is None:
            span = whole(timeline)
        else:
            start, end = places
            if self.tolerance_seconds:
                start, end = (_snapped(timeline, place, self.tolerance_seconds) for place in (start, end))
            span = span_between(timeline, start, end, self.unit)
        if self.frames is not None:
            expected, found = cell_of(row, self.frames), span.stop - span.first
            if expected != found:
                raise PolicyError(
                    "the number of frames in the range differs from the number that the row states",
                    where=f"column {self.frames!r}",
                    found=f"{found} frames, in a video of {len(timeline.pts)} frames",
                    allowed=shown(expected),
                    remedy="correct the row (a range that ends after the video is cut at the end of the video)",
                )
        return span


def cell_of(row: Mapping[str, Any], name: str) -> object:
    """Return a row's value in a column, even if it is empty. Raises PolicyError if the column does not exist."""
    if name not in row:
        raise no_column("listing", name, map(str, row), none="the listing has no columns for this medium")
    return row[name]


def is_empty(value: object) -> bool:
    """Return whether a cell is empty."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # NaN does not equal NaN


def _filled_cell(row: Mapping[str, Any], name: str) -> object:
    """Return a row's value in a column. Raises PolicyError if the column does not exist or the cell is empty."""
    value = cell_of(row, name)
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if value is None or value != value:  # an empty text is refused later, because it is not a number
        raise PolicyError("the cell is empty", where=f"column {name!r}", found=shown(value))
    return value


def _place_of(timeline: Timeline, value: object, name: str, unit: Unit) -> Fraction:
    """Return the start or end of a range as a number.

    A negative frame number counts from the end of the video, as in DALI's file lists.

    Args:
        timeline: The times of the video.
        value: The value in the listing.
        name: The name of the column, for errors.
        unit: The unit of the value.

    Raises:
        PolicyError: The value is not a number, not a whole number of frames, or before the start of the video.
    """
    place, where, found = as_fraction(value), f"column {name!r}", shown(value)
    if place is None:
        raise PolicyError("must be a number", where=where, found=found)
    if unit == "frames":
        if place.denominator != 1:
            raise PolicyError("a frame number must be a whole number", where=where, found=found)
        place += len(timeline.pts) if place < 0 else 0
    if place < 0:
        allowed = f"-{len(timeline.pts)} or more" if unit == "frames" else "0 or more"
        raise PolicyError("is before the start of the video", where=where, found=found, allowed=allowed)
    return place


def span_between(timeline: Timeline, start: Fraction, end: Fraction, unit: Unit) -> Span:
    """Return the span of a video from `start` to `end`. The part after the end of the video is cut off.

    A range of seconds contains the frames whose timestamps are in the range.

    Raises:
        PolicyError: The range does not end after it starts, or contains no frame.
    """
    video = whole(timeline)
    if start >= end:
        raise PolicyError("a range must end after it starts", found=f"{float(start):g} to {float(end):g} {unit}")
    if unit == "frames":
        first, stop = min(int(start), video.stop), min(int(end), video.stop)
        # A frame begins at its timestamp. The frame number after the last frame stands for the end of the video.
        begins = (Fraction(int(timeline.pts[number])) if number < video.stop else video.end for number in (first, stop))
        from_, to = begins
    else:
        from_, to = (min(video.start + place / timeline.time_base, video.end) for place in (start, end))
        first, stop = (int(np.searchsorted(timeline.pts, math.ceil(place), side="left")) for place in (from_, to))
    if first >= stop:
        raise PolicyError(
            "the range contains no frame",
            found=f"{float(start):g} to {float(end):g} {unit}",
            allowed=f"{video.stop} frames in {float(timeline.seconds):g} s",
        )
    return replace(video, first=first, stop=stop, start=from_, end=to)


def _snapped(timeline: Timeline, seconds: Fraction, tolerance: Fraction) -> Fraction:
    """Return the time of the frame nearest to a time if their distance is within the tolerance, else the given time.

    All times are in seconds from the first frame.
    """
    if not len(timeline.pts):
        return seconds
    time = int(timeline.pts[0]) + seconds / timeline.time_base
    at = int(np.searchsorted(timeline.pts, math.ceil(time)))
    near = [int(pts) for pts in timeline.pts[max(0, at - 1) : at + 1]]
    nearest = min(near, key=lambda pts: abs(pts - time))
    found = (nearest - int(timeline.pts[0])) * timeline.time_base
    return found if abs(found - seconds) <= tolerance else seconds


@functools.lru_cache
def range_columns(names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the two columns of a listing whose names look like the start and the end of a range, or None."""
    found = [[(name, match) for name in names if (match := words.fullmatch(name))] for words in (STARTS, ENDS)]
    pairs = [
        (start, end)
        for (start, one), (end, other) in itertools.product(*found)
        if one.group("before", "after") == other.group("before", "after")
    ]
    return pairs[0] if pairs else None


def check_unit(columns: tuple[str, str], unit: Unit) -> None:
    """Raise PolicyError if the names of the columns of a range contradict the unit.

    Args:
        columns: The names that `range_columns` returned.
        unit: The unit in the policy.
    """
    match = STARTS.fullmatch(columns[0])
    assert match is not None  # `range_columns` selected the column by this pattern
    word = (match["before"] or match["after"] or "").lower()
    units = {"": unit, "frames": "frames", "frame": "frames", "pts": "pts", "ms": "milliseconds"}
    expected = units.get(word, "seconds")
    if expected != unit:
        raise PolicyError(
            f"the names of the listing's columns show that the ranges are in {expected}",
            found=f"columns {columns[0]!r} and {columns[1]!r}, unit: {unit}",
            allowed="unit: seconds, or unit: frames",
            remedy="write the names of columns that have this unit into the policy: `start: …`, `end: …`",
        )
