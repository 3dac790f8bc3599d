"""Queries whose values a person or JSON can be shown: DuckDB writes all others as text."""

from __future__ import annotations

from typing import Any

from framedex.auditor.tables.views import quoted
from framedex.errors import FramedexError, printable

# Types, as DuckDB names them, whose values Python holds as they are. It does not hold infinite dates, dates before year
# 1, and times with nanoseconds. Arrow does not hold those of NOT_IN_ARROW.
WHOLE = ("tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint")
HELD = {*WHOLE, "boolean", "float", "double", "decimal", "varchar", "blob", "enum", "uuid"}
NESTED = ("list", "array", "struct", "map")
NOT_IN_ARROW = frozenset({"uhugeint", "bignum"})


def as_plain(query: Any) -> Any:
    """Return a query (a DuckDBPyRelation) whose values are plain. Its columns have the same names."""
    plain = [_plain_type(type_) for type_ in query.types]
    if all(type_ is None for type_ in plain):
        return query
    columns = [
        f"#{place} AS {quoted(name)}" if type_ is None else f"CAST(#{place} AS {type_}) AS {quoted(name)}"
        for place, (name, type_) in enumerate(zip(query.columns, plain, strict=True), 1)
    ]
    return query.project(", ".join(columns))


def check_arrow_holds(query: Any) -> None:
    """Raise FramedexError if a column of a query has values that Arrow does not hold, which would become others."""
    for name, type_ in zip(query.columns, query.types, strict=True):
        if _has(type_, NOT_IN_ARROW):
            raise FramedexError(
                "a column of the query has a type that Arrow does not hold",
                found=f"{printable(name)}: {type_}",
                remedy="cast it in the query, to VARCHAR or DOUBLE for instance",
            )


def _plain_type(type_: Any) -> str | None:
    """Return a type as SQL with VARCHAR in place of what Python does not hold. None: Python holds all of it."""
    if type_.id not in NESTED:
        return None if type_.id in HELD else "VARCHAR"
    parts = [(name, part, part if isinstance(part, int) else _plain_type(part)) for name, part in type_.children]
    if all(plain is None or isinstance(plain, int) for _, _, plain in parts):
        return None
    said = [str(part) if plain is None else str(plain) for _, part, plain in parts]
    if type_.id == "struct":
        fields = ", ".join(f"{quoted(name)} {each}" for (name, _, _), each in zip(parts, said, strict=True))
        return f"STRUCT({fields})"
    if type_.id == "map":
        return f"MAP({', '.join(said)})"
    return f"{said[0]}[{said[1]}]" if type_.id == "array" else f"{said[0]}[]"


def _has(type_: Any, kinds: frozenset[str]) -> bool:
    """Return whether a type, or a part of it, is one of these."""
    if type_.id in kinds:
        return True
    nested = type_.id in (*NESTED, "tuple", "union")
    return nested and any(_has(part, kinds) for _, part in type_.children if not isinstance(part, int))
