"""Arrow arrays as numpy arrays.

Which values of a column equal one of some others. Numbers compare as numbers, whatever type the column has.
"""

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


def as_numpy(values: pa.Array) -> NDArray[Any]:
    """Return the elements of an array without nulls: numbers as a read-only view, other types as a copy.

    pyarrow's `to_numpy` does the same, but imports pandas if that is installed, which takes 0.3 s in each worker.
    """
    if pa.types.is_boolean(values.type):
        return as_numpy(values.cast(pa.uint8())).astype(np.bool_)
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    return np.from_dlpack(values) if is_number and len(values) else values.to_numpy(zero_copy_only=False)


OBJECT_BYTES = 64  # a Python object of a value, and the reference to it; for a dictionary and its names, per value
CHARACTER_BYTES = 4  # a character of a Python text takes up to so many


def object_bytes(values: pa.Array) -> int:
    """Return about how many bytes the values of an array take as Python objects (`to_pylist`)."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    own: int = len(values) * OBJECT_BYTES
    if pa.types.is_dictionary(kind):
        return own + CHARACTER_BYTES * encoded_bytes(values)
    if pa.types.is_struct(kind):
        return own + sum(object_bytes(part) for part in values.flatten())
    if pa.types.is_map(kind):
        first, stop = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return own + sum(object_bytes(part.slice(first, stop - first)) for part in (values.keys, values.items))
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return own + object_bytes(values.flatten())
    return own + CHARACTER_BYTES * int(values.nbytes)


def encoded_bytes(values: pa.DictionaryArray) -> int:
    """Return how many bytes the texts of a dictionary-encoded array have, each as often as it occurs."""
    if pa.types.is_primitive(values.type.value_type):
        return len(values) * int(values.type.value_type.bit_width) // 8
    lengths = pc.binary_length(values.dictionary).take(values.indices)
    return int(pc.sum(lengths).as_py() or 0)


def column_as_numpy(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    """Return a column, which may have nulls, as an array that callers may write to.

    Args:
        name: The name of the column, for the error.

    Returns:
        Numbers keep their type. With nulls, numbers become float64 with NaN, and times have NaT. Yes and no is bool, or
        objects with None if there are nulls. Texts and all other values are objects, with None for null.

    Raises:
        FramedexError: Whole numbers beside nulls are too large for float64, or numpy has no such type.
    """
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            return np.concatenate([_decoded(chunk) for chunk in column.chunks] or [np.zeros(0, np.object_)])
        if pa.types.is_integer(kind) and column.null_count:
            column = column.cast(pa.float64())  # raises for numbers that float64 does not have
        values: NDArray[Any] = column.to_numpy()
    except (ValueError, pa.ArrowException) as error:
        raise FramedexError(
            "the column is no numpy array", where=f"column {name}", found=error, remedy="as_arrow=True"
        ) from error
    if pa.types.is_boolean(kind) and not column.null_count:
        values = values.astype(np.bool_)
    return values if values.flags.writeable else values.copy()


def _decoded(chunk: pa.DictionaryArray) -> NDArray[Any]:
    """Return texts that are stored by number, as objects. Equal texts are one object."""
    texts = np.append(chunk.dictionary.to_numpy(zero_copy_only=False).astype(np.object_), np.array([None], np.object_))
    found: NDArray[Any] = texts[as_numpy(pc.fill_null(chunk.indices.cast(pa.int64()), len(texts) - 1))]
    return found


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
