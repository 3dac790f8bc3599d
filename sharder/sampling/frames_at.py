"""Selection of the frame shown at a time, in exact integer arithmetic. Pure functions over numpy columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Choose = Literal["nearest", "previous", "next"]
CHOICES: tuple[Choose, ...] = ("nearest", "previous", "next")

SAFE = 1 << 60  # sums of two, and their doubles, fit int64


def progression(first: int, step: int, count: int) -> NDArray[Any]:
    """Return first + k * step for k below `count`: int64, or Python integers if those do not fit."""
    if abs(first) + abs(step) * count < SAFE:
        return first + step * np.arange(count, dtype=np.int64)
    return np.array([first + step * k for k in range(count)], dtype=object)


def integers(values: Sequence[int]) -> NDArray[Any]:
    """Return whole numbers as int64, or as Python integers if those do not fit."""
    small = all(abs(value) < SAFE for value in values)
    return np.array(values, dtype=np.int64 if small else object)


def common_denominator(times: Sequence[Fraction]) -> int:
    """Return the least number that makes all given times whole when multiplied by it."""
    return math.lcm(*(time.denominator for time in times))


def over_common_denominator(times: Sequence[Fraction]) -> tuple[NDArray[Any], int]:
    """Return (numerators [n], denominator) of arbitrary times, exactly."""
    denominator = common_denominator(times)
    return integers([int(time * denominator) for time in times]), denominator


def frames_at(pts: NDArray[np.int64], numerators: NDArray[Any], denominator: int, choose: Choose) -> NDArray[np.int64]:
    """Return int64, shaped as the times: the presentation number of the frame chosen at each time.

    Of equal pts, the first one is taken.

    Args:
        pts: int64 [frames], ascending, in presentation order.
        numerators: Times are numerators / denominator, in the unit of pts.
        choose: `previous` is the frame on screen at that time: the last one with pts <= time (before the first frame,
            the first one). `next` is the first one with pts >= time (after the last frame, the last one). `nearest` has
            the least distance; a tie goes to the earlier frame.
    """
    low, high = int(pts[0]) - 1, int(pts[-1]) + 1  # times far outside need not fit int64
    if choose == "next":
        ceilings = np.clip(-(-numerators // denominator), low, high).astype(np.int64)
        after = np.minimum(np.searchsorted(pts, ceilings, side="left"), len(pts) - 1)
        return after.astype(np.int64) if after.max(initial=0) < len(pts) - 1 else _first_of_equals(pts, after)
    floors = np.clip(numerators // denominator, low, high).astype(np.int64)
    chosen = np.maximum(np.searchsorted(pts, floors, side="right") - 1, 0)
    if choose == "nearest":
        after = np.minimum(chosen + 1, len(pts) - 1)
        middles = pts[chosen] + pts[after]
        if numerators.dtype == object or int(np.abs(middles).max(initial=0)) * denominator >= SAFE * 4:
            numerators, middles = numerators.astype(object), middles.astype(object)
        chosen = np.where((2 * numerators > middles * denominator).astype(np.bool_), after, chosen)
    return _first_of_equals(pts, chosen)


def _first_of_equals(pts: NDArray[np.int64], frames: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.searchsorted(pts, pts[frames], side="left").astype(np.int64)


def differences(
    pts: NDArray[np.int64], frames: NDArray[np.int64], numerators: NDArray[Any], denominator: int
) -> NDArray[Any]:
    """Return the times of frames minus given times, as numerators over the same denominator."""
    shown = pts[frames]
    if numerators.dtype == object or int(np.abs(shown).max(initial=0)) * denominator >= SAFE:
        shown, numerators = shown.astype(object), numerators.astype(object)
    return np.asarray(shown * denominator - numerators)


def distances(
    pts: NDArray[np.int64], frames: NDArray[np.int64], numerators: NDArray[Any], denominator: int
) -> NDArray[Any]:
    """Return the distances of frames from times, as numerators over the same denominator."""
    return np.asarray(np.abs(differences(pts, frames, numerators, denominator)))
