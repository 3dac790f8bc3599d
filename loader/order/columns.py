"""Values of each clip that a sampler goes by: an array, or a column of the dataset by its name."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError

LARGEST = float(np.finfo(np.float64).max)


def values_of(dataset: Sized, what: object, name: str) -> NDArray[Any]:
    """Return [clips]: a value for each clip.

    Args:
        dataset: the clips.
        what: an array with a value for each clip, or the name of a column of the dataset.
        name: the name of the argument, for errors.

    Raises:
        FramedexError: there is no such column, or what is given is no array of that length.
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
    try:
        values: NDArray[Any] = np.asarray(what)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of several lengths; torch tensors with gradients
        raise FramedexError(
            f"{name} has a value for each clip", found=error, allowed=f"an array of {len(dataset):,} values"
        ) from error
    if values.shape != (len(dataset),):
        found = repr(what)[:80] if values.ndim == 0 else f"an array of shape {values.shape}"
        found = f"{len(values):,} values" if values.ndim == 1 else found
        raise FramedexError(f"{name} has a value for each clip", found=found, allowed=f"{len(dataset):,} values")
    if isinstance(what, np.ma.MaskedArray) and np.ma.is_masked(what):
        clip = int(np.argmax(np.ma.getmaskarray(what)))
        raise FramedexError(f"{name} has a value for each clip", found=f"a masked one for clip {clip}")
    return values


def numbers_of(dataset: Sized, what: object, name: str) -> NDArray[np.float64]:
    """Return float64 [clips]: a finite number for each clip. As `values_of`, and numbers only.

    Raises:
        FramedexError: as `values_of`, or a value is no finite number.
    """
    values = values_of(dataset, what, name)
    if values.dtype.kind not in "biuf":
        own = (
            values.tolist() if isinstance(what, str) or values.dtype.kind != "U" else list(cast("Sequence[Any]", what))
        )
        wrong = next((place for place, value in enumerate(own) if not _is_number(value)), None)
        if wrong is not None or values.dtype.kind != "O":
            raise _no_number(name, f"{own[wrong or 0]!r}"[:40] if own else str(values.dtype), wrong or 0)
    numbers: NDArray[np.float64] = values.astype(np.float64)
    places = np.flatnonzero(~np.isfinite(numbers))
    if len(places):
        raise _no_number(name, f"{numbers[places[0]]}", int(places[0]), f", {len(places):,} such clips in all")
    return numbers


def _is_number(value: object) -> bool:
    """Return whether a value is a number that float64 has, at least nearly."""
    value = value.item() if isinstance(value, np.generic) else value
    return isinstance(value, int | float) and abs(value) <= LARGEST


def _no_number(name: str, found: str, clip: int, more: str = "") -> FramedexError:
    return FramedexError(
        f"{name} has a number for each clip",
        found=f"{found} for clip {clip}{more}",
        allowed="finite numbers",
        remedy="leave out clips without a number by where=, or give an array with a number for each clip",
    )


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


def joint_codes(codes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return int64 [clips]: numbers from 0 on, equal where all codes are equal, in ascending order of the first ones.

    Args:
        codes: int64 [clips] each, 0 or more and below the number of clips.
    """
    found = codes[0]
    for other in codes[1:]:
        found = codes_of(found * (int(other.max(initial=0)) + 1) + other)
    return found
