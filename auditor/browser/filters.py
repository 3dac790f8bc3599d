"""Filters of clips or media by column, as conditions of SQL. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from framedex.auditor.tables.views import literal, quoted
from framedex.errors import FramedexError

WHOLE = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "", "BIG", "HUGE")} | {"INTEGER"}
COMPARED = WHOLE | {"UINTEGER", "FLOAT", "DOUBLE", "BOOLEAN", "DATE", "TIME", "TIMESTAMP"}  # by value, not by text


def _text(column: str) -> str:
    return f"CAST({column} AS VARCHAR)"


def _is_compared(type_: str) -> bool:
    return type_ in COMPARED or type_.startswith(("DECIMAL", "TIMESTAMP"))


def _comparison(sign: str) -> Callable[[str, str, str], str]:
    def condition(column: str, type_: str, value: str) -> str:
        if type_ == "VARCHAR":
            return f"{column} {sign} {literal(value)}"
        if not _is_compared(type_):
            raise FramedexError("the values of this column have no order", found=f"a column of {type_}")
        return f"{column} {sign} CAST({literal(value)} AS {type_})"

    return condition


def _equal(column: str, type_: str, value: str) -> str:
    wanted = f"CAST({literal(value)} AS {type_})" if _is_compared(type_) else literal(value)
    return f"{column if _is_compared(type_) else _text(column)} = {wanted}"


# The condition of each operation: column, its type and a value → SQL.
OPERATIONS: dict[str, Callable[[str, str, str], str]] = {
    "=": _equal,
    "≠": lambda column, type_, value: f"({_equal(column, type_, value)}) IS NOT TRUE",
    "<": _comparison("<"),
    "≤": _comparison("<="),
    ">": _comparison(">"),
    "≥": _comparison(">="),
    "contains": lambda column, _, value: f"contains(lower({_text(column)}), lower({literal(value)}))",
    "is empty": lambda column, _, __: f"{column} IS NULL",
    "is not empty": lambda column, _, __: f"{column} IS NOT NULL",
}
WITHOUT_VALUE = ("is empty", "is not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A condition on one column.

    Attributes:
        column: The column's name.
        operation: One of OPERATIONS.
        value: The value as text.
    """

    column: str
    operation: str
    value: str

    def condition(self, types: Mapping[str, str]) -> str:
        """Return the condition as SQL.

        Args:
            types: The type of each column.

        Raises:
            FramedexError: there is no such column or operation, or the column has no order.
        """
        operation = OPERATIONS.get(self.operation)
        if operation is None:
            raise FramedexError("no such operation", found=repr(self.operation), allowed=", ".join(OPERATIONS))
        return operation(quoted(checked_column(self.column, types)), types[self.column], self.value)


def checked_column(column: str, types: Mapping[str, str]) -> str:
    """Return the name of a column. Raises FramedexError if there is no such column."""
    if column not in types:
        raise FramedexError("there is no such column", found=repr(column), allowed=", ".join(types))
    return column


def filter_of(value: Any) -> Filter:
    """Return a filter from its JSON object. Raises FramedexError if it is none."""
    names = ("column", "operation", "value")
    if not isinstance(value, dict) or set(value) != set(names) or not all(isinstance(value[n], str) for n in names):
        raise FramedexError("a filter is an object of three texts", found=repr(value)[:200], allowed=", ".join(names))
    return Filter(**value)
