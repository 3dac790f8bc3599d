"""Checks that a policy reads the ranges that a listing has.

A policy that does not would make the same clips of all rows of a video.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

import pyarrow as pa

from framedex.core.hints import did_you_mean
from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.indexer.schema import LISTING
from framedex.sharder.policies.ranges import is_empty
from framedex.sharder.policies.reading import PolicyFile

# start, begin_time, StartSeconds, frame_end, stop …: a word for an end of a range, alone or with a word for a unit.
UNIT_WORDS = "seconds|second|secs|sec|s|time|frames|frame|pts|ms"
STARTS, ENDS = (
    re.compile(rf"(?:(?P<before>{UNIT_WORDS})[_ ]?)?(?:{words})(?:[_ ]?(?P<after>{UNIT_WORDS}))?", re.IGNORECASE)
    for words in ("start|begin", "end|stop")
)


def range_columns(names: list[str]) -> tuple[str, str] | None:
    """Return the two columns of a listing that look like the start and the end of a range, or None."""
    found = [[(name, match) for name in names if (match := words.fullmatch(name))] for words in (STARTS, ENDS)]
    pairs = [
        (start, end)
        for (start, one), (end, other) in product(*found)
        if one.group("before", "after") == other.group("before", "after")
    ]
    return pairs[0] if pairs else None


def check_ranges(index: Index, file: PolicyFile) -> None:
    """Raise PolicyError if a policy ignores ranges of the listing, or names columns that do not exist.

    A listing has ranges if `range_columns` finds their columns and some row has a value in one of them. A policy with
    `range: null` means whole videos.
    """
    names = _user_names(index.listing)
    if file.policy.range_columns:
        check_there(file.policy.range_columns, index.listing, where="range", remedy="index a listing that has ranges")
    elif not file.range_said and not file.policy.names_ranges:
        _check_ignored(index.listing, names)


def check_there(wanted: Sequence[str], listing: pa.Table, *, where: str, remedy: str) -> None:
    """Raise PolicyError if a listing lacks a column.

    Args:
        wanted: The columns that a policy names.
        where: The key of the policy that names them.
        remedy: What to do if the listing has no columns at all.
    """
    names = _user_names(listing)
    for name in wanted:
        if name not in names:
            raise PolicyError(
                "the listing has no such column",
                where=where,
                found=repr(name),
                allowed=", ".join(names) or f"it has no columns; {remedy}",
                remedy=did_you_mean(name, names),
            )


def _user_names(listing: pa.Table) -> list[str]:
    return [name for name in listing.schema.names if name not in LISTING.names]


def _check_ignored(listing: pa.Table, names: list[str]) -> None:
    columns = range_columns(names)
    if columns is None:
        return
    start, end = columns
    for uri, *cells in zip(*(listing[name] for name in ("listed_uri", start, end)), strict=True):
        places = [cell.as_py() for cell in cells]
        if not all(map(is_empty, places)):
            shown = " to ".join("(empty)" if is_empty(place) else str(place) for place in places)
            raise PolicyError(
                "the listing has ranges, and the policy ignores them",
                found=f"columns {start!r} and {end!r}: {shown} of {uri}",
                remedy=f"write `range: {{start: {start}, end: {end}}}` into the policy to sample these ranges (in "
                "seconds from a video's first frame; add `unit: frames` for frame numbers), or `range: null` to sample "
                "whole videos",
            )
