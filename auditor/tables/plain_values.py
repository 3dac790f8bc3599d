"""Queries whose values a person or JSON can be shown: DuckDB writes all others as text."""

from __future__ import annotations

from typing import Any

from framedex.auditor.tables.views import quoted

# Types, as DuckDB names them, whose values Python holds as they are. It does not hold infinite dates, dates before year
# 1, and times with nanoseconds. Arrow does not hold UHUGEINT and BIGNUM.
WHOLE = ("tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint")
HELD = {*WHOLE, "boolean", "float", "double", "decimal", "varchar", "blob", "enum", "uuid"}
NESTED = ("list", "array", "struct", "map")


def as_plain(query: Any) -> Any:
    """Return a query (a DuckDBPyRelation) whose values are plain. Its columns have the same names."""
    if all(_is_held(type_) for type_ in query.types):
        return query
    columns = [
        f"#{place} AS {quoted(name)}" if _is_held(type_) else f"CAST(#{place} AS VARCHAR) AS {quoted(name)}"
        for place, (name, type_) in enumerate(zip(query.columns, query.types, strict=True), 1)
    ]
    return query.project(", ".join(columns))


def _is_held(type_: Any) -> bool:
    """Return whether Python holds all values of a type."""
    if type_.id in NESTED:
        parts = [part for _, part in type_.children if not isinstance(part, int)]  # an array's size is a number
        return all(_is_held(part) for part in parts)
    return type_.id in HELD
