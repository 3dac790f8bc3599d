"""The order that people give numbered names: frame2 before frame10."""

from __future__ import annotations

import re

NUMBER = re.compile(r"([0-9]+)")

Key = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(name: str) -> Key:
    """Return what names are sorted by: text by code points, runs of ASCII digits by their value.

    Names that differ in leading zeros alone follow each other by their text, so that the order is total. Numbers may
    have any length.
    """
    parts = NUMBER.split(name)  # text at even places, digits at odd ones
    return tuple(_value(part) if place % 2 else part for place, part in enumerate(parts)), name


def _value(digits: str) -> tuple[int, str]:
    """Return what orders numbers by value without computing it: int() refuses thousands of digits."""
    significant = digits.lstrip("0")
    return len(significant), significant
