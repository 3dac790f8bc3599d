"""Orders in which clips are drawn by weights, with replacement: pure functions of weights, a seed and an epoch."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.order.columns import codes_of, numbers_of, values_of
from framedex.loader.order.order import generator


def weights_of(dataset: Sized, weights: object, balance: object) -> NDArray[np.float64] | None:
    """Return float64 [clips]: how often each clip is drawn, relative to the others. None: clips have no weights.

    Args:
        dataset: the clips.
        weights: a number for each clip, or the name of a column. None: the same for all.
        balance: a value for each clip, or the name of a column; all values are drawn equally often, and the clips of
            one value by their weights. None: values have no influence.

    Raises:
        FramedexError: there is no such column, a weight is not a number of 0 or more, or no clip could be drawn.
    """
    if weights is None and balance is None:
        return None
    found = np.ones(len(dataset)) if weights is None else numbers_of(dataset, weights, "weights")
    if (found < 0).any():
        at = int(np.argmax(found < 0))
        raise FramedexError("a weight is below 0", found=f"{found[at]} for clip {at}", allowed="0 or more")
    if not (found > 0).any():
        raise FramedexError(
            "no clip has a weight above 0",
            found=f"weights of 0 alone, of {len(found):,} clips",
            allowed="numbers of 0 or more, of which one is above 0",
        )
    found = found / found.max()  # their sum is finite
    return found if balance is None else _balanced(found, values_of(dataset, balance, "balance"))


def _balanced(weights: NDArray[np.float64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights of which every value has an equal share."""
    missing = np.flatnonzero(values != values) if values.dtype.kind in "fM" else _places_of_none(values)
    if len(missing):
        raise FramedexError(
            "balance needs a value for each clip",
            found=f"none for clip {missing[0]}, {len(missing):,} such clips in all",
            remedy="leave these clips out with where=, or give an array with a value for each clip",
        )
    codes = codes_of(values)
    shares = np.bincount(codes, weights)
    if not shares.all():
        clip = int(np.argmax(shares[codes] == 0))
        raise FramedexError(
            "every value of balance needs a clip whose weight is above 0",
            found=f"none for {values[clip : clip + 1].tolist()[0]!r}",
        )
    balanced: NDArray[np.float64] = np.divide(weights, shares[codes])
    return balanced


def _places_of_none(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the places of None and of not-a-number among objects."""
    if values.dtype.kind != "O":
        return np.zeros(0, np.int64)
    objects = values.tolist()
    missing = (value is None or (isinstance(value, float) and value != value) for value in objects)
    return np.flatnonzero(np.fromiter(missing, np.bool_, len(objects)))


def drawn_order(weights: NDArray[np.float64], length: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return int64 [length]: clips drawn with replacement, each with a probability proportional to its weight.

    Args:
        weights: float64 [clips], 0 or more. A clip of weight 0 is never drawn.
        length: how many clips are drawn.
        seed: the seed of the draws.
        epoch: number of the epoch. Each has other draws.
    """
    bounds = np.cumsum(weights)
    drawn = np.searchsorted(bounds, generator(seed, epoch).random(length) * bounds[-1], side="right")
    last = int(np.flatnonzero(weights)[-1])  # the product may be rounded up to the last bound
    return np.asarray(np.minimum(drawn, last), np.int64)
