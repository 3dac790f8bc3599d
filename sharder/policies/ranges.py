"""Ranges: stretches of a video that a row of the listing holds. Every policy can sample them."""

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
Places = tuple[Fraction, Fraction] | None  # start and end of a range, in its unit; None for the whole video

# Names such as start, begin_time, StartSeconds, frame_end or stop: a word for an end of a range, alone or with a unit.
UNIT_WORDS = "seconds|second|secs|sec|s|time|frames|frame|pts|ms"
STARTS, ENDS = (
    re.compile(rf"(?:(?P<before>{UNIT_WORDS})[_ ]?)?(?:{words})(?:[_ ]?(?P<after>{UNIT_WORDS}))?", re.IGNORECASE)
    for words in ("start|begin", "end|stop")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Record):
    """The columns of a listing that hold a range [start, end) of each row's video, or several ranges.

    `start` and `end` are the names of the columns; one of them may be missing. Instead, `cuts` is the column that holds
    a list of places between which the ranges lie. `unit` is their unit: seconds from the first frame, or frame numbers.
    With `include_end`, a range of frames includes its last frame. An end in seconds that lies within
    `tolerance_seconds` of a frame's timestamp is replaced by that timestamp, because times in listings are rounded.
    `frames` is the column with the number of frames that the range must have.
    """

    start: ColumnName | None = parameter("the listing's column with the start; empty cells: the video's start", None)
    end: ColumnName | None = parameter("the listing's column with the end; empty cells: the video's end", None)
    cuts: ColumnName | None = parameter("instead: the column with a list of ascending places between ranges", None)
    unit: Unit = parameter("unit of the columns: seconds from the first frame, or frame numbers", "seconds")
    include_end: YesNo = parameter("with unit: frames, whether the end belongs to the range", False)
    tolerance_seconds: Seconds = parameter("an end that is so close to a frame's time is moved to it", Fraction(0))
    frames: ColumnName | None = parameter("the listing's column with the number of frames that a range must have", None)

    def __post_init__(self) -> None:
        if self.start is None and self.end is None and self.cuts is None:
            raise RefusedError(
                "a range needs the name of a column",
                allowed="{start: start, end: end}, or {cuts: cuts}",
                remedy="`range: null` samples whole videos",
            )
        if self.cuts is not None and (self.start, self.end, self.frames) != (None, None, None):
            found = ", ".join(name for name in ("start", "end", "frames") if getattr(self, name) is not None)
            raise RefusedError("ranges are given by start and end, or by cuts", found=f"cuts and {found}")
        if self.include_end and (self.unit == "seconds" or self.end is None):
            raise RefusedError("include_end is for an end in frames", found=f"unit: {self.unit}, end: {self.end}")
        if self.tolerance_seconds and self.unit == "frames":
            raise RefusedError("tolerance_seconds is for a range in seconds", found=f"unit: {self.unit}")

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.start, self.end, self.cuts, self.frames) if name is not None]

    def places(self, timeline: Timeline, row: Mapping[str, Any], *, whole_if_empty: bool = True) -> list[Places]:
        """Return the ranges that a row holds.

        Args:
            whole_if_empty: An empty start is the video's start, an empty end its end; otherwise they are errors.

        Raises:
            PolicyError: The row lacks these columns, or its cells do not hold places.
        """
        if self.cuts is not None:
            return list(itertools.pairwise(_cuts(timeline, row, self.cuts, self.unit)))
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
            # A range that begins after the video's end is reported by its own start.
            end = max(Fraction(length), Fraction(0) if start is None else start + 1)
        elif self.include_end:
            end += 1
        return [(start or Fraction(0), end)]

    def span(self, timeline: Timeline, row: Mapping[str, Any], places: Places) -> Span:
        """Return the stretch of a video that a range of a row means, without what lies past the video's end.

        Raises:
            PolicyError: The range has no frame, or another number of frames than the row states.
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
                    "the range has another number of frames than the row states",
                    where=f"column {self.frames!r}",
                    found=f"{found} frames, of a video of {len(timeline.pts)}",
                    allowed=shown(expected),
                    remedy="a range that ends after its video is cut there",
                )
        return span


def cell_of(row: Mapping[str, Any], name: str) -> object:
    """Return a row's value in a column, which may be empty. Raises PolicyError if the column does not exist."""
    if name not in row:
        raise no_column("listing", name, map(str, row), none="it has no columns for this medium")
    return row[name]


def is_empty(value: object) -> bool:
    """Return whether a cell is empty."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # NaN does not equal NaN


def _filled_cell(row: Mapping[str, Any], name: str) -> object:
    """Return a row's value in a column. Raises PolicyError if the column does not exist or the cell is empty."""
    value = cell_of(row, name)
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if value is None or value != value:  # not is_empty: an empty text is refused as a number, with other words
        raise PolicyError("the cell is empty", where=f"column {name!r}", found=shown(value))
    return value


def _cuts(timeline: Timeline, row: Mapping[str, Any], name: str, unit: Unit) -> list[Fraction]:
    """Return the places in a cell, ascending. Raises PolicyError."""
    value = _filled_cell(row, name)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) < 2:
        raise PolicyError("cuts are a list of two or more numbers", where=f"column {name!r}", found=shown(value))
    cuts = [_place_of(timeline, item, f"{name}[{number}]", unit) for number, item in enumerate(value)]
    if any(after <= before for before, after in itertools.pairwise(cuts)):
        raise PolicyError("cuts must ascend", where=f"column {name!r}", found=str([float(cut) for cut in cuts])[:80])
    return cuts


def _place_of(timeline: Timeline, value: object, name: str, unit: Unit) -> Fraction:
    """Return one end of a range. A negative frame number counts from the end, as in DALI's file lists.

    Args:
        timeline: The video.
        value: A value of the listing.
        name: Name of the column, for errors.
        unit: The unit of the value.

    Raises:
        PolicyError: The value is not a place in a video.
    """
    place, where, found = as_fraction(value), f"column {name!r}", shown(value)
    if place is None:
        raise PolicyError("must be a number", where=where, found=found)
    if unit == "frames":
        if place.denominator != 1:
            raise PolicyError("a frame number must be whole", where=where, found=found)
        place += len(timeline.pts) if place < 0 else 0
    if place < 0:
        allowed = f"-{len(timeline.pts)} or more" if unit == "frames" else "0 or more"
        raise PolicyError("lies before the video", where=where, found=found, allowed=allowed)
    return place


def span_between(timeline: Timeline, start: Fraction, end: Fraction, unit: Unit) -> Span:
    """Return the stretch of a video between two places, without what lies past the video's end.

    A range of seconds contains the frames whose timestamps lie in it.

    Raises:
        PolicyError: The stretch contains no frame.
    """
    video = whole(timeline)
    if start >= end:
        raise PolicyError("a range must end after it starts", found=f"{float(start):g} to {float(end):g} {unit}")
    if unit == "frames":
        first, stop = min(int(start), video.stop), min(int(end), video.stop)
        # A frame begins at its timestamp; the one after the last would begin when the video ends.
        begins = (Fraction(int(timeline.pts[number])) if number < video.stop else video.end for number in (first, stop))
        from_, to = begins
    else:
        from_, to = (min(video.start + place / timeline.time_base, video.end) for place in (start, end))
        first, stop = (int(np.searchsorted(timeline.pts, math.ceil(place), side="left")) for place in (from_, to))
    if first >= stop:
        raise PolicyError(
            "no frame lies in the range",
            found=f"{float(start):g} to {float(end):g} {unit}",
            allowed=f"{video.stop} frames in {float(timeline.seconds):g} s",
        )
    return replace(video, first=first, stop=stop, start=from_, end=to)


def _snapped(timeline: Timeline, seconds: Fraction, tolerance: Fraction) -> Fraction:
    """Return the time of the frame that is nearest to a time, if it is within the tolerance; else the time itself.

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
    """Return the two columns of a listing that look like the start and the end of a range, or None."""
    found = [[(name, match) for name in names if (match := words.fullmatch(name))] for words in (STARTS, ENDS)]
    pairs = [
        (start, end)
        for (start, one), (end, other) in itertools.product(*found)
        if one.group("before", "after") == other.group("before", "after")
    ]
    return pairs[0] if pairs else None


def check_unit(columns: tuple[str, str], unit: Unit) -> None:
    """Check that the names of the columns of a range do not contradict its unit. Raises PolicyError."""
    match = STARTS.fullmatch(columns[0])
    assert match is not None  # `range_columns` found it by this pattern
    word = (match["before"] or match["after"] or "").lower()
    units = {"": unit, "frames": "frames", "frame": "frames", "pts": "pts", "ms": "milliseconds"}
    expected = units.get(word, "seconds")
    if expected != unit:
        raise PolicyError(
            f"the ranges of the listing are in {expected}, by the names of their columns",
            found=f"columns {columns[0]!r} and {columns[1]!r}, unit: {unit}",
            allowed="unit: seconds, or unit: frames",
            remedy="name the columns that have this unit: `start: …`, `end: …`",
        )
