"""Counts of values as text, for messages about what was skipped and which values exist instead."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import FramedexError

SHOWN = 5  # how many values of a column, or names, are shown
COLUMNS = 4  # how many columns are shown with their values
LONGEST = 60  # characters shown of a value


def few(counts: Mapping[str, int], *, most: int = SHOWN) -> str:
    """Return the most frequent values with their counts, and the number of the other values.

    Args:
        counts: The count of each value. Among equally frequent values, the first ones are shown.
        most: How many values are shown.
    """
    said = ", ".join(f"{value} ({count:,})" for value, count in Counter(counts).most_common(most))
    others = len(counts) - most
    return f"{said} and {counted(others, 'other', 'others')}" if others > 0 else said


def named(names: Iterable[str], count: int) -> str:
    """Return the first few names, and the number of the others. `count` is the number of all names."""
    shown = list(itertools.islice(names, SHOWN))
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number and the name of what is counted. `many` is the plural, if it is not formed with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def tally(arrays: Iterable[Any]) -> Counter[str]:
    """Return the count of each value in some Arrow arrays, as text. An empty cell counts as a value."""
    found = Counter[str]()
    for array in arrays:
        try:
            pairs = [(row["values"], row["counts"]) for row in pc.value_counts(array).to_pylist()]
        except pa.ArrowNotImplementedError:  # lists and other nested values
            pairs = [(value, 1) for value in array.to_pylist()]
        for value, count in pairs:
            found[_text(value)] += count
    return found


def _text(value: object) -> str:
    return "empty" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)[:LONGEST]


def values_text(columns: Mapping[str, Mapping[str, int]]) -> str:
    """Return the values of some columns as text, by column name. Of many columns, only the first are named."""
    return "; ".join(
        f"{name}: {few(counts) or 'no rows'}" for name, counts in itertools.islice(columns.items(), COLUMNS)
    )


def no_clip_has(where: Mapping[str, object], columns: Mapping[str, Mapping[str, int]], path: object) -> FramedexError:
    """Return the error for a selection that matches no clip.

    Args:
        where: The wanted values by column.
        columns: The count of each value in these columns.
        path: The path of the dataset or index.
    """
    return FramedexError(
        "no clip has " + ("this value" if len(where) == 1 else "all of these values"),
        where=str(path),
        found=", ".join(f"{name}={value!r}" for name, value in where.items()),
        allowed=values_text(columns),
        remedy="ask for values that there are, or leave out `where`",
    )
