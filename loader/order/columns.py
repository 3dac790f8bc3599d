"""Values of each clip that a sampler goes by: an array, or a column of the dataset by its name."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError


def values_of(dataset: Sized, what: object, name: str) -> NDArray[Any]:
    """Return [clips]: a value for each clip.

    Args:
        dataset: the clips.
        what: an array with a value for each clip, or the name of a column of the dataset.
        name: the name of the argument, for errors.

    Raises:
        FramedexError: there is no such column, or the array has another length.
    """
    if isinstance(what, str):
        if not hasattr(dataset, "column"):
            raise FramedexError(
                f"{name} names a column, and the dataset has no columns",
                found=type(dataset).__name__,
                allowed="a ClipDataset",
                remedy=f"give {name} as an array with a value for each clip",
            )
        return np.asarray(dataset.column(what))
    values = np.asarray(what)
    if values.shape != (len(dataset),):
        found = f"{len(values):,} values" if values.ndim == 1 else f"an array of shape {values.shape}"
        raise FramedexError(f"{name} has a value for each clip", found=found, allowed=f"{len(dataset):,} values")
    return values


def numbers_of(dataset: Sized, what: object, name: str) -> NDArray[np.float64]:
    """Return float64 [clips]: a finite number for each clip. As `values_of`, and numbers only.

    Raises:
        FramedexError: as `values_of`, or a value is no finite number.
    """
    values = values_of(dataset, what, name)
    if values.dtype.kind not in "biuf":
        example = repr(values[0])[:40] if len(values) else str(values.dtype)
        raise FramedexError(f"{name} has a number for each clip", found=example, allowed="numbers")
    numbers = values.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise FramedexError(
            f"{name} has a number for each clip",
            found=f"{numbers[wrong[0]]} for clip {wrong[0]}, {len(wrong):,} such clips in all",
            allowed="finite numbers",
        )
    return numbers


def codes_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return int64 [clips]: equal values as equal numbers from 0 on, in ascending order of numbers, else as they come.

    None is a value of its own.

    Raises:
        FramedexError: the values are lists or dicts, which cannot be told apart quickly.
    """
    if values.dtype.kind in "biufUSM":
        return np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(-1)
    codes: dict[Any, int] = {}
    try:
        return np.fromiter((codes.setdefault(value, len(codes)) for value in values.tolist()), np.int64, len(values))
    except TypeError as error:
        raise FramedexError(
            "clips are told apart by numbers or texts", found=error, allowed="a column of numbers or texts"
        ) from error
