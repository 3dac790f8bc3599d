"""Counting values and naming a few of them, for messages about what was skipped and what there is instead."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import FramedexError

SHOWN = 5  # values of a column, or names
COLUMNS = 4  # of which values are shown
LONGEST = 60  # characters of a value


def few(counts: Mapping[str, int], *, most: int = SHOWN) -> str:
    """Return the most frequent of some values with how often each is there, and how many others there are.

    Args:
        counts: How often each value is there. Of equally frequent values, the first ones are shown.
        most: How many are shown.
    """
    said = ", ".join(f"{value} ({count:,})" for value, count in Counter(counts).most_common(most))
    others = len(counts) - most
    return f"{said} and {counted(others, 'other', 'others')}" if others > 0 else said


def named(names: Iterable[str], count: int) -> str:
    """Return the first of some names, and how many more there are. count: of all."""
    shown = list(itertools.islice(names, SHOWN))
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number and the word for what is counted. many: its plural, if that is not made by an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def tally(arrays: Iterable[Any]) -> Counter[str]:
    """Return how often each value is in some Arrow arrays, as text; an empty cell is a value, too."""
    found = Counter[str]()
    for array in arrays:
        try:
            pairs = [(row["values"], row["counts"]) for row in pc.value_counts(array).to_pylist()]
        except pa.ArrowNotImplementedError:  # of lists and other nested values
            pairs = [(value, 1) for value in array.to_pylist()]
        for value, count in pairs:
            found[_text(value)] += count
    return found


def _text(value: object) -> str:
    return "empty" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)[:LONGEST]


def values_text(columns: Mapping[str, Mapping[str, int]]) -> str:
    """Return which values columns have, by their names; of many columns, the first ones."""
    return "; ".join(
        f"{name}: {few(counts) or 'no rows'}" for name, counts in itertools.islice(columns.items(), COLUMNS)
    )


def no_clip_has(where: Mapping[str, object], columns: Mapping[str, Mapping[str, int]], path: object) -> FramedexError:
    """Return the error that no clip has the wanted values.

    Args:
        where: The values, by their columns.
        columns: How often each value is in these columns.
        path: Of the dataset or index.
    """
    return FramedexError(
        "no clip has " + ("this value" if len(where) == 1 else "all of these values"),
        where=str(path),
        found=", ".join(f"{name}={value!r}" for name, value in where.items()),
        allowed=values_text(columns),
        remedy="ask for values that there are, or leave out `where`",
    )
