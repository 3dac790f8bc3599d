"""Numbers as people read them, for terminals, sheets and pages. JSON and tables of SQL have the numbers themselves."""

from __future__ import annotations

import math

DIGITS = 3  # significant ones
SAME_RATE = 1.01  # rates that differ by less than this factor are told as one
SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
DURATIONS = (("h", 3600.0), ("min", 60.0))
LEAST = 1e-6  # smaller numbers have an exponent


def number_text(value: float, *, digits: int = DIGITS, separator: str = ",") -> str:
    """Return a number with a few significant digits, and with all digits before the decimal point.

    Args:
        value: The number.
        digits: How many significant digits it has at most, if it has fewer before the decimal point.
        separator: What separates thousands.
    """
    if not math.isfinite(value) or 0 < abs(value) < LEAST:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    whole, point, rest = f"{value:,.{decimals}f}".partition(".")
    rest = rest.rstrip("0")
    return whole.replace(",", separator) + (point + rest if rest else "")


def rate_text(low: float, high: float) -> str:
    """Return frames per second, as one number or as a range: `25 fps`, `14.9–30.3 fps`, `500–1000 fps`."""
    least, most = (number_text(rate, separator="") for rate in (low, high))
    return f"{most} fps" if high <= SAME_RATE * low or least == most else f"{least}–{most} fps"


def duration_text(seconds: float) -> str:
    """Return a duration: `0.08 s`, `23.97 s`, `4.2 min`, `2.8 h`."""
    for unit, each in DURATIONS:
        if abs(seconds) >= each:
            return f"{number_text(seconds / each, digits=2)} {unit}"
    return f"{number_text(seconds, digits=4)} s"


def size_text(size_bytes: float) -> str:
    """Return a size in the decimal unit that fits: `144 kB`, `1.5 GB`."""
    for unit, each in SIZES:
        if size_bytes >= each * (1 - 0.5 / 10**DIGITS):  # what rounds to 1000 of a unit is 1 of the next
            return f"{number_text(size_bytes / each)} {unit}"
    return f"{number_text(size_bytes)} bytes"
