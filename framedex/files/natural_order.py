"""Sorting of numbered names as people expect: frame2 before frame10."""

from __future__ import annotations

import re

NUMBER = re.compile(r"([0-9]+)")

Key = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(name: str) -> Key:
    """Return the sort key of a name: text by code points, runs of ASCII digits by their value.

    Names that differ only in leading zeros are ordered by their text, so the order is total. Numbers may have any
    length.
    """
    parts = NUMBER.split(name)  # text at even places, digits at odd ones
    return tuple(_value(part) if place % 2 else part for place, part in enumerate(parts)), name


def _value(digits: str) -> tuple[int, str]:
    """Return a key that orders numbers by value. It avoids int(), which refuses thousands of digits."""
    significant = digits.lstrip("0")
    return len(significant), significant
