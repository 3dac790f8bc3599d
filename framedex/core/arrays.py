"""Arrow arrays as numpy arrays."""

from __future__ import annotations

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
