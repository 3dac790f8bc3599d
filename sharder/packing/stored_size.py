"""The size in which frames are stored in a dataset: at most one of three limits decides."""

from __future__ import annotations

from fractions import Fraction

from framedex.errors import PolicyError
from framedex.sharder.decoding.video import Size


def check_limits(short_side: int | None, size: Size | None, box: int | None) -> None:
    """Raise PolicyError for a side that is no side, or more than one limit."""
    given = [side for side in (short_side, box, *(size or ())) if side is not None]
    if any(side < 1 for side in given):
        raise PolicyError("an image's side is a whole number above zero", found=min(given))
    if sum(value is not None for value in (short_side, size, box)) > 1:
        raise PolicyError("give one of short_side, size and box")


def reduction(height: int, width: int, *, short_side: int | None, box: int | None) -> Fraction:
    """Return the factor by which both sides are multiplied, at most 1.

    Args:
        short_side: Greatest length of the shorter side.
        box: Greatest length of the longer side.
    """
    limit, side = (short_side, min(height, width)) if box is None else (box, max(height, width))
    return Fraction(1) if limit is None else min(Fraction(1), Fraction(limit, side))
