"""Which values of a column equal one of some others. Numbers compare as numbers, whatever type the column has."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FramedexError

LARGEST = Fraction(sys.float_info.max)
EXACT = Context(prec=100)  # more digits than a column of decimals has


def equal_values(column: pa.ChunkedArray, wanted: Iterable[object], name: str, where: str) -> NDArray[np.bool_]:
    """Return bool [values]: which values of a column equal one of some others. Nulls equal nothing.

    Args:
        column: the values.
        wanted: the others.
        name: the name of the column, for the error.
        where: the dataset or index, for the error.

    Raises:
        FramedexError: values of the column's type cannot be compared with such a value.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind):
        raise FramedexError(
            f"column {name!r} holds lists or records, which `where` does not compare",
            where=where,
            found=str(kind),
            remedy="choose clips by the policy's `filter`, or by a column of single values",
        )
    several = list(wanted)
    encoded = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    different = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], kind)
    equal = np.zeros(len(different) + 1, np.bool_)  # the last one is that of nulls
    for value in several:
        try:
            scalar = _scalar(value, kind)
            if scalar is not None:
                equal[:-1] |= np.asarray(pc.equal(different, scalar).fill_null(False), np.bool_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise FramedexError(
                f"column {name!r} never has such a value",
                where=where,
                found=repr(value)[:80],
                allowed=f"values of type {kind}",
            ) from error
    places = [chunk.indices.fill_null(len(different)) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.bool_), *(equal[place.to_numpy()] for place in places)])


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a value as one of a column's type; None for a number that the type does not have.

    Raises pa.ArrowException, TypeError, ValueError or OverflowError for a value that is no such thing at all.
    """
    if isinstance(value, np.datetime64 | np.timedelta64):  # whose unit may be another one
        return pa.scalar(value).cast(kind)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | Decimal):
        return pa.scalar(value, kind)
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return None if pa.types.is_integer(kind) or pa.types.is_decimal(kind) else pa.scalar(float(value), kind)
    number = Fraction(str(value))  # 0.1 is a tenth
    if pa.types.is_integer(kind):
        low = -(1 << (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        is_there = number.denominator == 1 and low <= number < low + (1 << kind.bit_width)
        return pa.scalar(int(number), kind) if is_there else None
    if pa.types.is_floating(kind):
        nearest = kind.to_pandas_dtype()(float(number)) if abs(number) < LARGEST else np.float64(np.inf)
        is_there = number.denominator > 1 or (math.isfinite(nearest) and Fraction(float(nearest)) == number)
        return pa.scalar(float(nearest), kind) if is_there else None
    if pa.types.is_decimal(kind):
        scaled = number * 10**kind.scale
        is_there = scaled.denominator == 1 and abs(scaled) < 10**kind.precision
        return pa.scalar(Decimal(int(scaled)).scaleb(-kind.scale, EXACT), kind) if is_there else None
    return pa.scalar(value, kind)
