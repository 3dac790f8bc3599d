"""Checks that a policy reads the ranges that a listing has.

A policy that does not would make the same clips of all rows of a video.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from framedex.core.hints import did_you_mean
from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.indexer.schema import LISTING
from framedex.sharder.policies.ranges import is_empty, range_columns
from framedex.sharder.policies.reading import PolicyFile


def check_ranges(index: Index, file: PolicyFile) -> None:
    """Raise PolicyError if a policy ignores ranges of the listing, or reads columns that do not exist.

    A listing has ranges if `range_columns` finds their columns and some row has a value in one of them. A policy with
    `range: null` means whole videos.
    """
    names = _user_names(index.listing)
    ranges = file.policy.ranges(names)
    if ranges is not None:
        where = "range" if file.range_said else f"policy {file.resolved['policy']}"
        check_there(ranges.columns, index.listing, where=where, remedy="index a listing that has ranges")
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
    columns = range_columns(tuple(names))
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
