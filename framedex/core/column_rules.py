"""Rules for the values that the columns of a file may hold, and the checks that apply them.

Anybody may have written an index or a dataset. Column types are checked once per file and values when a row is read, so
that later code can rely on both. A check that fails raises FormatError with the file, the row and the column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FormatError, FramedexError

MOST_SHOWN = 80  # characters of a value in a message
# The sum of two such values does not overflow int64, and no file or clock reaches this value.
FAR = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """The values that a column may hold. For a list column, the rule applies to each element.

    Attributes:
        least, most: The bounds of a number, inclusive. They are checked only if both are given.
        among: The only texts allowed. None: any text is allowed.
        any_text: Whether texts may contain null characters.
        needed: Whether null is an error in a row that is used.
    """

    least: float | None = None
    most: float | None = None
    among: frozenset[str] | None = None
    any_text: bool = False
    needed: bool = False

    def allowed(self) -> str:
        """Return a description of the allowed values."""
        if self.among is not None:
            return ", ".join(sorted(self.among))
        if self.least is None or self.most is None:
            return "a value"
        return f"{self.least:,} to {self.most:,}"


Rules = Mapping[str, ColumnRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAt:
    """The row of a file that is being read.

    Attributes:
        file: The file, as messages name it.
        row: The number of the row.
        remedy: How to repair a wrong row.
    """

    file: str
    row: int
    remedy: str

    def wrong(self, column: str, found: object, allowed: str | None = None) -> FormatError:
        """Return the error for a value that is not allowed."""
        text = str(found)
        return FormatError(
            "holds what cannot be",
            where=f"{self.file}, row {self.row}, column {column}",
            found=text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…",
            allowed=allowed,
            remedy=self.remedy,
        )

    def unlike(self, column: str, other: str, found: str) -> FormatError:
        """Return the error for two columns that contradict each other."""
        return self.wrong(column, found, f"what agrees with column {other}")


def check_row(row: Mapping[str, Any], rules: Rules, at: RowAt) -> None:
    """Raise FormatError if a row breaks a rule.

    Args:
        row: Python values by column. Lists are numpy arrays.
        rules: The rule of each column to check.
        at: The position of the row, for the message.
    """
    for name, rule in rules.items():
        value = row.get(name)
        if value is None:
            if rule.needed:
                raise at.wrong(name, "null", rule.allowed())
        elif isinstance(value, np.ndarray):
            if len(value) and rule.least is not None and rule.most is not None:
                least, most = value.min(), value.max()
                if not (rule.least <= least and most <= rule.most):
                    raise at.wrong(name, most if rule.least <= least else least, rule.allowed())
        elif isinstance(value, str) and "\0" in value and not rule.any_text:
            raise at.wrong(name, repr(value), "a text without null characters")
        elif rule.among is not None:
            if value not in rule.among:
                raise at.wrong(name, repr(value), rule.allowed())
        elif rule.least is not None and rule.most is not None and not rule.least <= value <= rule.most:
            raise at.wrong(name, value, rule.allowed())


def wrong_rows(column: pa.ChunkedArray, rule: ColumnRule) -> NDArray[np.int64]:
    """Return the rows in which a column of plain values breaks a rule: int64, ascending."""
    wrong = pa.chunked_array([pa.array(np.zeros(len(column), np.bool_))])
    if rule.needed and column.null_count:
        wrong = column.is_null()
    if rule.among is not None:
        known = pc.is_in(column, value_set=pa.array(sorted(rule.among), column.type))
        wrong = pc.or_(wrong, pc.and_(pc.invert(known), column.is_valid()))
    elif rule.least is not None and rule.most is not None:
        inside = pc.and_(pc.greater_equal(column, rule.least), pc.less_equal(column, rule.most))
        wrong = pc.or_(wrong, pc.invert(pc.fill_null(inside, True)))
    return np.flatnonzero(wrong.to_numpy())


def check_columns(found: pa.Schema, expected: pa.Schema, file: str, remedy: str) -> None:
    """Raise FormatError if a file lacks a required column, or if a column appears twice or has another type."""
    for field in expected:
        places = found.get_all_field_indices(field.name)
        if len(places) > 1 or (not places and not field.nullable):
            what = "has a column twice" if places else "lacks a column"
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
    """Return whether values of two types can be used in the same way.

    Signed integers of any width are the same, since rules say how large the numbers may be. The name of a list's
    element is ignored.
    """
    if pa.types.is_signed_integer(found) and pa.types.is_signed_integer(expected):
        return True
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return same_type(found.value_type, expected.value_type)
    return bool(found == expected)


@contextlib.contextmanager
def reading(file: str, remedy: str) -> Iterator[None]:
    """Raise FormatError if a file cannot be read: damaged pages, invalid UTF-8, values that Python cannot hold."""
    try:
        yield
    except FramedexError:
        raise
    except (OSError, pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise FormatError("cannot be read", where=file, found=error, remedy=remedy) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The values that a key of a JSON header may have.

    Attributes:
        kind: The type of the value.
        element: The type of the elements of a list.
        least, most: The bounds of a whole number, inclusive. None: 0 and FAR.
        needed: Whether the key is required.
        any_text: Whether a text may hold NUL, which paths may not.
    """

    kind: type
    element: type | None = None
    least: int | None = None
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
            and (not isinstance(element, int) or (self.least or 0) <= element <= (self.most or FAR))
            for element in elements
        )

    def allowed(self) -> str:
        """Return a description of the allowed values."""
        words = {str: "a text", int: "a whole number", dict: "an object"}
        text = words[self.element or self.kind]
        bounds = "" if self.most is None else f" from {self.least or 0:,} to {self.most:,}"
        return f"a list, each {text}{bounds}" if self.kind is list else f"{text}{bounds}"


def check_header(header: Mapping[str, Any], keys: Mapping[str, Key], file: str, remedy: str) -> None:
    """Raise FormatError if a key of a JSON header is missing or has a value that is not allowed."""
    for name, key in keys.items():
        value = header.get(name)
        if value is None and not key.needed:
            continue
        if not key.holds(value):
            found = "nothing" if name not in header else repr(value)[:MOST_SHOWN]
            raise FormatError(
                "holds what cannot be", where=f"{file}, key {name}", found=found, allowed=key.allowed(), remedy=remedy
            )
