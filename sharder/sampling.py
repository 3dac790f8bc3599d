"""Choosing the frame shown at a time, in exact integer arithmetic. Pure functions over numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Choose = Literal["nearest", "previous"]
CHOICES: tuple[Choose, ...] = ("nearest", "previous")

_SAFE = 1 << 61


def grid(start: Fraction, step: Fraction, count: int) -> tuple[NDArray[np.generic], int]:
    """Return (numerators [count], denominator) of the times start + k * step, exactly."""
    denominator = start.denominator * step.denominator
    first, each = int(start * denominator), int(step * denominator)
    if abs(first) + abs(each) * count < _SAFE:
        return first + each * np.arange(count, dtype=np.int64), denominator
    return np.array([first + each * k for k in range(count)], dtype=object), denominator


def over_common_denominator(times: Sequence[Fraction]) -> tuple[NDArray[np.generic], int]:
    """Return (numerators [n], denominator) of arbitrary times, exactly."""
    denominator = 1
    for time in times:
        denominator = denominator * time.denominator // np.gcd(denominator, time.denominator, dtype=object)
    return np.array([int(time * denominator) for time in times], dtype=object), int(denominator)


def frames_at(
    pts: NDArray[np.int64], numerators: NDArray[np.generic], denominator: int, choose: Choose
) -> NDArray[np.int64]:
    """Return int64 [n]: the presentation number of the frame chosen at each time.

    pts: int64 [frames], ascending, in presentation order. Times are numerators / denominator, in the unit of pts.
    `previous` is the frame on screen at that time: the last one with pts <= time (the first frame before that).
    `nearest` has the least distance; a tie goes to the earlier frame, and of equal pts the first one is taken.
    """
    floors = (numerators // denominator).astype(np.int64)
    before = np.maximum(np.searchsorted(pts, floors, side="right") - 1, 0)
    if choose == "nearest":
        after = np.minimum(before + 1, len(pts) - 1)
        middles = pts[before] + pts[after]
        if numerators.dtype == object or (len(pts) and int(np.abs(middles).max(initial=0)) * denominator >= _SAFE):
            numerators, middles = numerators.astype(object), middles.astype(object)
        before = np.where((2 * numerators > middles * denominator).astype(np.bool_), after, before)
    return np.searchsorted(pts, pts[before], side="left").astype(np.int64)
