"""Checking values that people write: every check takes (value, where) and returns the value, or raises PolicyError."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from framedex.errors import PolicyError

Check = Callable[[object, str], Any]

# What is written where a number may stand; bounded, as 1e999999999 would fill the memory.
NUMBER = re.compile(r"[+-]?(\d{1,15}(\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,2})?(/\d{1,15})?")
MOST_SHOWN = 10**20
MOST_FRAMES = 100_000_000  # nineteen days at 60 fps; a larger number is a slip of the keyboard
MOST_WANTED = 20_000_000  # frames of all clips that a policy makes of one video
MOST_LISTED = 100_000


def shown(value: object) -> str:
    """Return a value for an error message; of what is long, its beginning."""
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return "a number of many digits"
    return repr(value)[:80] if isinstance(value, int | float | str | None) else type(value).__name__


def did_you_mean(name: str, allowed: Iterable[str]) -> str | None:
    """Return a remedy that names the closest of the allowed names, or None."""
    close = difflib.get_close_matches(name, list(allowed), 1)
    return f"did you mean {close[0]!r}?" if close else None


def as_fraction(value: object) -> Fraction | None:
    """Return a number as it is written (29.97 is 2997/100, "30000/1001" is taken exactly), None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
        return None
    if isinstance(value, int) and abs(value) > MOST_SHOWN:
        return None
    text = str(value).strip()
    if not NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.partition("/")
    below = int(denominator or 1)
    return Fraction(numerator) / below if below else None


def fraction(value: object, where: str) -> Fraction:
    """Check a number."""
    number = as_fraction(value)
    if number is None:
        raise PolicyError(
            "must be a number", where=where, found=shown(value), allowed="such as 2, 0.5, 29.97 or '30000/1001'"
        )
    return number


def rate(value: object, where: str) -> Fraction:
    """Check a number above zero."""
    number = fraction(value, where)
    if number <= 0:
        raise PolicyError("a rate must be above zero", where=where, found=value)
    return number


def seconds(value: object, where: str) -> Fraction:
    """Check a number of seconds, from zero on."""
    number = fraction(value, where)
    if number < 0:
        raise PolicyError("a time must not be negative", where=where, found=value)
    return number


def share(value: object, where: str) -> Fraction:
    """Check a share of a whole: a number from zero on."""
    number = fraction(value, where)
    if number < 0:
        raise PolicyError("a share must not be negative", where=where, found=value)
    return number


def whole(least: int) -> Check:
    """Return a check for whole numbers from `least` to MOST_FRAMES."""

    def check(value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_FRAMES:
            raise PolicyError(
                f"must be a whole number from {least} to {MOST_FRAMES:,}", where=where, found=shown(value)
            )
        return value

    return check


count, number = whole(1), whole(0)


def seed(value: object, where: str) -> int:
    """Check a seed: a whole number from 0 that fits 63 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise PolicyError("a seed is a whole number from 0 to 2^63 - 1", where=where, found=shown(value))
    return value


def boolean(value: object, where: str) -> bool:
    """Check true or false."""
    if not isinstance(value, bool):
        raise PolicyError("must be true or false", where=where, found=shown(value))
    return value


def column_name(value: object, where: str) -> str:
    """Check the name of a column."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise PolicyError("must be the name of a column", where=where, found=shown(value))
    return value


def one_of(allowed: tuple[str, ...]) -> Check:
    """Return a check for one of some words."""

    def check(value: object, where: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise PolicyError("unknown value", where=where, found=shown(value), allowed=", ".join(allowed))
        return value

    return check


def listed(check: Check, example: str) -> Check:
    """Return a check for a list of what another check takes, not empty."""

    def check_all(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_LISTED:
            found = f"{len(value)} elements" if isinstance(value, list) else shown(value)
            raise PolicyError(
                f"must be a list of 1 to {MOST_LISTED:,} elements", where=where, found=found, allowed=example
            )
        return tuple(check(item, f"{where}[{place}]") for place, item in enumerate(value))

    return check_all
