"""The size in which frames are stored in a dataset: at most one of three limits decides."""

from __future__ import annotations

from fractions import Fraction

from framedex.errors import PolicyError
from framedex.sharder.decoding.video import Size


def check_limits(short_side: int | None, size: Size | None, box: int | None) -> None:
    """Raise PolicyError for a side that is no side, or more than one limit."""
    if size is not None and (not isinstance(size, tuple | list) or len(size) != 2):
        raise PolicyError("a size is (height, width)", found=repr(size))
    given = [side for side in (short_side, box, *(size or ())) if side is not None]
    wrong = [side for side in given if type(side) is not int or side < 1]
    if wrong:
        raise PolicyError("an image's side is a whole number above zero", found=repr(wrong[0]))
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
