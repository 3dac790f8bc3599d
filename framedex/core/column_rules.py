"""Rules for the values of columns, and their checks. Conversion of columns to numpy, and comparison of values.

An index or a dataset may come from an untrusted source. The types of columns are checked once per file, and the values
of a row when the row is read, so that later code can rely on both. A check that fails raises FormatError with the
file, the row and the column.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FormatError, FramedexError

MAX_SHOWN = 80  # number of characters of a value that a message shows; a message should fit into a few lines
# Upper limit of byte offsets and of numbers of audio samples. No valid file reaches the limit, and the sum of two
# numbers below the limit fits into int64.
FAR = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """A rule for the values of a column. For a column of lists, the rule applies to each element of a list.

    Attributes:
        bounds: The (smallest, largest) number that is allowed. If None, any number is allowed.
        among: The texts that are allowed. If None, any text is allowed.
        any_text: Whether texts may contain null characters.
        needed: Whether null is an error. A row is checked when it is used, so rows of unusable media may have nulls.
    """

    bounds: tuple[int, int] | None = None
    among: frozenset[str] | None = None
    any_text: bool = False
    needed: bool = False

    def allowed(self) -> str:
        """Return a description of the allowed values, for messages."""
        if self.among is not None:
            return ", ".join(sorted(self.among))
        return "a value" if self.bounds is None else f"{self.bounds[0]:,} to {self.bounds[1]:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAt:
    """The position of a row that is being read, for messages.

    Attributes:
        file: The name of the file.
        row: The number of the row.
        remedy: The remedy if the row has a value that is not allowed.
    """

    file: str
    row: int
    remedy: str

    def wrong(self, column: str, found: object, allowed: str | None = None) -> FormatError:
        """Return the error for a value that is not allowed."""
        text = str(found)
        return FormatError(
            "has a value that is not allowed",
            where=f"{self.file}, row {self.row}, column {column}",
            found=text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…",
            allowed=allowed,
            remedy=self.remedy,
        )

    def unlike(self, column: str, other: str, found: str) -> FormatError:
        """Return the error for a value in `column` that contradicts the value in the column `other`."""
        return self.wrong(column, found, f"a value that agrees with column {other}")


def check_row(row: Mapping[str, Any], rules: Mapping[str, ColumnRule], at: RowAt) -> None:
    """Raise FormatError if a value in a row breaks the rule of its column.

    Args:
        row: Column name → Python value. Lists are numpy arrays.
        rules: Column name → rule. Other columns are not checked.
        at: The position of the row, for the message.
    """
    for name, rule in rules.items():
        value = row.get(name)
        if value is None:
            if rule.needed:
                raise at.wrong(name, "null", rule.allowed())
        elif isinstance(value, np.ndarray):
            if len(value) and rule.bounds is not None:
                least, most = value.min(), value.max()
                if not (rule.bounds[0] <= least and most <= rule.bounds[1]):
                    raise at.wrong(name, most if rule.bounds[0] <= least else least, rule.allowed())
        elif isinstance(value, str) and "\0" in value and not rule.any_text:
            raise at.wrong(name, repr(value), "a text without null characters")
        elif rule.among is not None:
            if value not in rule.among:
                raise at.wrong(name, repr(value), rule.allowed())
        elif rule.bounds is not None and not rule.bounds[0] <= value <= rule.bounds[1]:
            raise at.wrong(name, value, rule.allowed())


def wrong_rows(column: pa.ChunkedArray, rule: ColumnRule) -> NDArray[np.int64]:
    """Return the numbers of the rows in which the value of a column breaks a rule, as int64, ascending.

    The column must not have lists.
    """
    wrong = pa.chunked_array([pa.array(np.zeros(len(column), np.bool_))])
    if rule.needed and column.null_count:
        wrong = column.is_null()
    if rule.among is not None:
        known = pc.is_in(column, value_set=pa.array(sorted(rule.among), column.type))
        wrong = pc.or_(wrong, pc.and_(pc.invert(known), column.is_valid()))
    elif rule.bounds is not None:
        inside = pc.and_(pc.greater_equal(column, rule.bounds[0]), pc.less_equal(column, rule.bounds[1]))
        wrong = pc.or_(wrong, pc.invert(pc.fill_null(inside, True)))
    return np.flatnonzero(wrong.to_numpy())


def check_columns(found: pa.Schema, expected: pa.Schema, file: str, remedy: str) -> None:
    """Raise FormatError if the columns of a file differ from the expected ones.

    A required column must exist. An expected column must not occur twice, and must have the expected type. Further
    columns are ignored.
    """
    for field in expected:
        places = found.get_all_field_indices(field.name)
        if len(places) > 1 or (not places and not field.nullable):
            what = "has two columns of the same name" if places else "does not have a required column"
            raise FormatError(what, where=file, found=field.name, remedy=remedy)
        if places and not same_type(found.field(places[0]).type, field.type):
            raise FormatError(
                "has a column of another type",
                where=f"{file}, column {field.name}",
                found=found.field(places[0]).type,
                allowed=field.type,
                remedy=remedy,
            )


def same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a column of type `found` can be read as one of type `expected`.

    Signed integers of all widths are equivalent, since the rules limit the numbers. The name of the element field of a
    list is ignored.
    """
    if pa.types.is_signed_integer(found) and pa.types.is_signed_integer(expected):
        return True
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return same_type(found.value_type, expected.value_type)
    return bool(found == expected)


@contextlib.contextmanager
def reading(file: str, remedy: str) -> Iterator[None]:
    """Replace errors in the block, which reads a file, by FormatError.

    The causes of such errors are damaged pages, invalid UTF-8, and values that Python cannot represent.
    """
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise FormatError("cannot be read", where=file, found=error, remedy=remedy) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The allowed values of a key of a JSON header.

    Attributes:
        kind: The type of the value.
        element: The type of the elements if the value is a list, else None.
        most: The largest whole number that is allowed. The smallest is 0. If None, FAR.
        needed: Whether the key is required.
        any_text: Whether a text may contain null characters. False for texts that are paths.
    """

    kind: type
    element: type | None = None
    most: int | None = None
    needed: bool = True
    any_text: bool = False

    def holds(self, value: object) -> bool:
        """Return whether a value is allowed."""
        if type(value) is not self.kind:
            return False
        elements = value if isinstance(value, list) else [value]
        kind = self.element or self.kind
        return all(
            type(element) is kind
            and (self.any_text or not (isinstance(element, str) and "\0" in element))
            and (not isinstance(element, int) or 0 <= element <= (self.most or FAR))
            for element in elements
        )

    def allowed(self) -> str:
        """Return a description of the allowed values, for messages."""
        text = {str: "a text", int: "a whole number", dict: "an object"}[self.element or self.kind]
        bounds = "" if self.most is None else f" from 0 to {self.most:,}"
        return f"a list in which each element is {text}{bounds}" if self.kind is list else f"{text}{bounds}"


def check_header(header: Mapping[str, Any], keys: Mapping[str, Key], file: str, remedy: str) -> None:
    """Raise FormatError if a key of a JSON header is missing or has a value that is not allowed."""
    for name, key in keys.items():
        value = header.get(name)
        if (key.needed or value is not None) and not key.holds(value):
            raise FormatError(
                "has a value that is not allowed",
                where=f"{file}, key {name}",
                found="nothing" if name not in header else repr(value)[:MAX_SHOWN],
                allowed=key.allowed(),
                remedy=remedy,
            )


def as_numpy(values: pa.Array) -> NDArray[Any]:
    """Return an Arrow array without nulls as a numpy array. Numbers are a read-only view, other types are copied.

    pyarrow's `to_numpy` would also do this for numbers. But it imports pandas if pandas is installed, and the import
    takes 0.3 s in each worker.
    """
    if pa.types.is_boolean(values.type):
        return as_numpy(values.cast(pa.uint8())).astype(np.bool_)
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    return np.from_dlpack(values) if is_number and len(values) else values.to_numpy(zero_copy_only=False)


OBJECT_BYTES = 64  # approximate memory of a small Python object and the reference to it, or of one entry of a dict
CHARACTER_BYTES = 4  # the maximum: Python stores a text with 1, 2 or 4 bytes per character


def object_bytes(values: pa.Array) -> int:
    """Estimate the memory in bytes that the values of an array take as Python objects, as `to_pylist` returns them."""
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
    """Return the size in bytes of the values of a dictionary-encoded array after decoding.

    A value that occurs several times counts several times.
    """
    if pa.types.is_primitive(values.type.value_type):
        return len(values) * int(values.type.value_type.bit_width) // 8
    lengths = pc.binary_length(values.dictionary).take(values.indices)
    return int(pc.sum(lengths).as_py() or 0)


def column_as_numpy(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    """Return a column as a writable numpy array. The column may have nulls.

    Args:
        column: The column.
        name: The name of the column, for the error.

    Returns:
        An array of the column's type if the column has numbers, booleans or times. With nulls, integers become float64
        with NaN, times have NaT, and booleans become objects with None. Texts and values of all other types are
        objects, with None for null.

    Raises:
        FramedexError: The column has nulls and also integers that float64 cannot represent, or numpy does not support
            the column's type.
    """
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            return np.concatenate([_decoded(chunk) for chunk in column.chunks] or [np.zeros(0, np.object_)])
        if pa.types.is_integer(kind) and column.null_count:
            column = column.cast(pa.float64())  # raises for integers that float64 cannot represent exactly
        values: NDArray[Any] = column.to_numpy()
    except (ValueError, pa.ArrowException) as error:
        raise FramedexError(
            "the column cannot become a numpy array", where=f"column {name}", found=error, remedy="pass as_arrow=True"
        ) from error
    if pa.types.is_boolean(kind) and not column.null_count:
        values = values.astype(np.bool_)
    return values if values.flags.writeable else values.copy()


def _decoded(chunk: pa.DictionaryArray) -> NDArray[Any]:
    """Return dictionary-encoded texts as an array of objects. Equal texts are one Python object."""
    texts = np.append(chunk.dictionary.to_numpy(zero_copy_only=False).astype(np.object_), np.array([None], np.object_))
    found: NDArray[Any] = texts[as_numpy(pc.fill_null(chunk.indices.cast(pa.int64()), len(texts) - 1))]
    return found


LARGEST = Fraction(np.finfo(np.float64).max)  # the largest number that float64 represents
EXACT = Context(prec=100)  # more digits than Arrow's decimals can have, so that nothing is rounded


def equal_values(column: pa.ChunkedArray, wanted: Iterable[object], name: str, where: str) -> NDArray[np.bool_]:
    """Return whether each value of a column equals one of the wanted values, as bool [values].

    Numbers are compared by their values, not by their types. Null does not equal any value.

    Args:
        column: The column.
        wanted: The wanted values.
        name: The name of the column, for the error.
        where: The dataset or index, for the error.

    Raises:
        FramedexError: A wanted value cannot be compared with values of the column's type.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind):
        raise FramedexError(
            f"column {name!r} contains lists or records, which `where` cannot compare",
            where=where,
            found=str(kind),
            remedy="choose clips by the `filter` of the policy, or by a column with a single value per clip",
        )
    encoded = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    different = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], kind)
    equal = np.zeros(len(different) + 1, np.bool_)  # the last element is for null
    for value in wanted:
        try:
            scalar = _scalar(value, kind)
            if scalar is not None:
                equal[:-1] |= np.asarray(pc.equal(different, scalar).fill_null(False), np.bool_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise FramedexError(
                f"this value cannot be compared with the values of column {name!r}",
                where=where,
                found=repr(value)[:80],
                allowed=f"values of type {kind}",
            ) from error
    places = [chunk.indices.fill_null(len(different)) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.bool_), *(equal[place.to_numpy()] for place in places)])


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Convert a value to a column's type. Return None for a number that the type cannot represent.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: The value cannot be converted to the type, such as a text
            to a number.
    """
    if isinstance(value, np.datetime64 | np.timedelta64):  # the unit of the value may differ from the column's unit
        return pa.scalar(value).cast(kind)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | Decimal):
        return pa.scalar(value, kind)
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return None if pa.types.is_integer(kind) or pa.types.is_decimal(kind) else pa.scalar(float(value), kind)
    number = Fraction(str(value))  # the number as the user wrote it: 0.1 is 1/10, not the nearest binary fraction
    if pa.types.is_integer(kind):
        low = -(1 << (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        is_there = number.denominator == 1 and low <= number < low + (1 << kind.bit_width)
        return pa.scalar(int(number), kind) if is_there else None
    if pa.types.is_floating(kind):
        # A decimal fraction such as 0.1 equals the nearest float. An integer equals the nearest float only if both have
        # exactly the same value.
        nearest = kind.to_pandas_dtype()(float(number)) if abs(number) < LARGEST else np.float64(np.inf)
        is_there = number.denominator > 1 or (math.isfinite(nearest) and Fraction(float(nearest)) == number)
        return pa.scalar(float(nearest), kind) if is_there else None
    if pa.types.is_decimal(kind):
        scaled = number * 10**kind.scale
        is_there = scaled.denominator == 1 and abs(scaled) < 10**kind.precision
        return pa.scalar(Decimal(int(scaled)).scaleb(-kind.scale, EXACT), kind) if is_there else None
    return pa.scalar(value, kind)
