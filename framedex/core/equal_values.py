"""Which values of a column equal a given one. Numbers compare as numbers, whatever type the column has."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FramedexError


def check_where(where: object) -> None:
    """Raise FramedexError if `where` of a dataset is no mapping of columns to values."""
    if not isinstance(where, Mapping) or any(not isinstance(name, str) for name in where):
        raise FramedexError(
            "where is the value of each column",
            found=repr(where)[:80],
            allowed="a mapping, such as {'split': 'train'}",
        )


def equal_values(column: pa.ChunkedArray, value: object, name: str, where: str) -> NDArray[np.bool_]:
    """Return bool [values]: which values of a column equal a value. Nulls equal nothing.

    Args:
        column: the values.
        value: what they are compared with.
        name: the name of the column, for the error.
        where: the dataset or index, for the error.

    Raises:
        FramedexError: values of the column's type cannot be compared with such a value.
    """
    value = value.item() if isinstance(value, np.generic) else value
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and not _has_number(kind, value):
            return np.zeros(len(column), np.bool_)
        equal = pc.equal(column.cast(kind), pa.scalar(value, kind)).fill_null(False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FramedexError(
            f"column {name!r} never has such a value",
            where=where,
            found=repr(value)[:80],
            allowed=f"values of type {kind}",
        ) from error
    return np.asarray(equal.to_numpy(), np.bool_)


def _has_number(kind: pa.DataType, value: float) -> bool:
    """Return whether a column's type may have a number. Types that are no numbers may have any."""
    if pa.types.is_integer(kind):
        low = -(1 << (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        return low <= value < low + (1 << kind.bit_width) and value == int(value)
    if pa.types.is_floating(kind) and isinstance(value, int):
        return abs(value) < 1 << 1023 and Fraction(float(value)) == value
    return True
