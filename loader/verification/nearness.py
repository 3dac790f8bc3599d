"""Which picture of a source a lossy picture is, by mean square differences. Pure functions over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]

PEAK = 255.0
LEAST_SQUARE = 1e-6  # mean square difference that counts as no difference: 108 dB
VALUES_AT_ONCE = 1 << 16  # of each picture; their products are summed exactly in float64
# If a picture is nearer to another one of the source than to its own, and the two differ by more than twice its own
# distance to the nearer one, the triangle inequality says that its own is farther away, whatever was lost.
TWICE = 4.0  # squared
ROUNDED = 4.0  # mean square difference that counts as lost in rounding: 42 dB


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """What some lossy pictures are.

    Attributes:
        psnr: float64 [F], against each one's own picture, in dB.
        other: int64 [F], the place of the candidate that the picture is instead of its own, -1 if it is its own.
        unlike: bool [F], whether the picture is farther from its own than encoding explains.
        undecided: bool [F], whether another candidate is as near as its own, or nearer by no more than was lost.
    """

    psnr: NDArray[np.float64]
    other: NDArray[np.int64]
    unlike: NDArray[np.bool_]
    undecided: NDArray[np.bool_]


def nearness(
    found: Sequence[Picture],
    own: NDArray[np.int64],
    candidates: Sequence[Picture],
    lost: NDArray[np.float64],
) -> Nearness:
    """Compare lossy pictures with pictures of their source.

    Args:
        found: uint8 [H, W, 3] each, at least one.
        own: int64 [F], the place among the candidates of what each of them should be.
        candidates: uint8 [H, W, 3] each.
        lost: float64 [F], the mean square difference that encoding makes.
    """
    away = mean_squares(found, candidates)
    between = mean_squares([candidates[place] for place in own.tolist()], candidates)
    rows = np.arange(len(found))
    mine = away[rows, own]
    away[rows, own] = np.inf
    best = away.argmin(axis=1)
    nearest = away[rows, best]
    is_near = nearest <= mine
    is_other = is_near & (between[rows, best] > TWICE * nearest)
    return Nearness(
        psnr=10 * np.log10(PEAK**2 / np.maximum(mine, LEAST_SQUARE)),
        other=np.where(is_other, best, -1),
        unlike=mine > TWICE * lost + ROUNDED,
        undecided=is_near & ~is_other,
    )


def mean_squares(some: Sequence[Picture], others: Sequence[Picture]) -> NDArray[np.float64]:
    """Return float64 [some, others]: the mean square difference of each picture from each other one."""
    left, right = (np.stack([picture.ravel() for picture in pictures]) for pictures in (some, others))
    total = np.zeros((len(left), len(right)))
    for first in range(0, left.shape[1], VALUES_AT_ONCE):
        one, other = (side[:, first : first + VALUES_AT_ONCE].astype(np.float64) for side in (left, right))
        total += (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1) - 2 * (one @ other.T)
    squares: NDArray[np.float64] = total / left.shape[1]
    return squares
