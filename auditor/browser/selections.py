"""The selection of the clips or media that the page of `framedex inspect --serve` shows.

Filters, a finding of the audit and an SQL query select an ordered list of keys.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from framedex.auditor.findings import Check, checks_of
from framedex.auditor.tables.database import QueryLimits, Result
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.subject import Kind, literal, quoted
from framedex.errors import FramedexError
from framedex.sharder.layout import layout_of

WHOLE = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "", "BIG", "HUGE")} | {"INTEGER"}
# Types whose values are compared as values. Values of other types are compared as texts.
COMPARED = WHOLE | {"UINTEGER", "FLOAT", "DOUBLE", "BOOLEAN", "DATE", "TIME", "TIMESTAMP"}


def _text(column: str) -> str:
    return f"CAST({column} AS VARCHAR)"


def _is_compared(type_: str) -> bool:
    return type_ in COMPARED or type_.startswith(("DECIMAL", "TIMESTAMP"))


def _comparison(sign: str, column: str, type_: str, value: str) -> str:
    if type_ == "VARCHAR":
        return f"{column} {sign} {literal(value)}"
    if not _is_compared(type_):
        raise FramedexError("the values of this column have no order", found=f"a column of {type_}")
    return f"{column} {sign} CAST({literal(value)} AS {type_})"


def _equal(column: str, type_: str, value: str) -> str:
    wanted = f"CAST({literal(value)} AS {type_})" if _is_compared(type_) else literal(value)
    return f"{column if _is_compared(type_) else _text(column)} = {wanted}"


# Functions that return the SQL condition of each operation, for a quoted column name, the column's type and a value.
OPERATIONS: dict[str, Callable[[str, str, str], str]] = {
    "=": _equal,
    "≠": lambda column, type_, value: f"({_equal(column, type_, value)}) IS NOT TRUE",
    "<": functools.partial(_comparison, "<"),
    "≤": functools.partial(_comparison, "<="),
    ">": functools.partial(_comparison, ">"),
    "≥": functools.partial(_comparison, ">="),
    "contains": lambda column, _, value: f"contains(lower({_text(column)}), lower({literal(value)}))",
    "is empty": lambda column, _, __: f"{column} IS NULL",
    "is not empty": lambda column, _, __: f"{column} IS NOT NULL",
}
WITHOUT_VALUE = ("is empty", "is not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A condition on one column.

    Attributes:
        column: The name of the column.
        operation: A key of OPERATIONS.
        value: The value with which the column is compared, as text.
    """

    column: str
    operation: str
    value: str

    def condition(self, types: Mapping[str, str]) -> str:
        """Return the condition as SQL.

        Args:
            types: The DuckDB type of each column.

        Raises:
            FramedexError: The column or the operation does not exist, or the values of the column cannot be ordered.
        """
        operation = OPERATIONS.get(self.operation)
        if operation is None:
            raise FramedexError("no such operation", found=repr(self.operation), allowed=", ".join(OPERATIONS))
        return operation(quoted(checked_column(self.column, types)), types[self.column], self.value)


def checked_column(column: str, types: Mapping[str, str]) -> str:
    """Return the name `column`, or raise FramedexError if there is no such column."""
    if column not in types:
        raise FramedexError("there is no such column", found=repr(column), allowed=", ".join(types))
    return column


def filter_of(value: Any) -> Filter:
    """Return the filter that a JSON value describes. Raises FramedexError if the value is malformed."""
    names = ("column", "operation", "value")
    if not isinstance(value, dict) or set(value) != set(names) or not all(isinstance(value[n], str) for n in names):
        raise FramedexError("a filter is an object of three texts", found=repr(value)[:200], allowed=", ".join(names))
    return Filter(**value)


VIEWS: dict[Kind, str] = {"index": "videos", "dataset": "clips"}
KEYS: dict[Kind, str] = {"index": "media_id", "dataset": "clip"}
# Columns by which the rows of a query can identify clips or media, in descending order of preference.
LINKS: dict[Kind, tuple[str, ...]] = {
    "index": ("media_id", "uri"),
    "dataset": ("clip", "clip_id", "media_id", "uri"),
}
ORDERS: dict[Kind, tuple[str, ...]] = {"index": ("uri", "media_id"), "dataset": ("clip",)}
KEPT = 8  # number of selections that are cached, for users who switch between several
LIMITS = QueryLimits(seconds=120.0)  # the time limit is shorter than on the command line, since the user waits
ANSWER_BYTES = 16_000_000  # maximum size of a query's result, since the page is slow with larger ones
STOP_SECONDS = 0.05  # interval between attempts to stop queries, since another query may start after the first attempt
LESS = "reduce the result with LIMIT or WHERE, or use framedex audit --sql, whose limits can be raised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A selection of clips or media.

    Attributes:
        filters: Conditions that must all be true.
        finding: The name of a check. Only clips or media that it found are selected. If None, there is no such limit.
        sql: A query. Only clips or media that its rows identify are selected. If None, there is no such limit.
        sort: The column to sort by. If None, the order of the query, or else of the index or dataset, is kept.
        descending: Whether `sort` is in descending order.
    """

    filters: tuple[Filter, ...] = ()
    finding: str | None = None
    sql: str | None = None
    sort: str | None = None
    descending: bool = False


def wanted_of(value: Any) -> Wanted:
    """Return the selection that a JSON value describes. Raises FramedexError if the value is malformed."""
    known = {"filters": list, "finding": str, "sql": str, "sort": str, "descending": bool}
    if not isinstance(value, dict) or not all(
        name in known and (part is None or isinstance(part, known[name])) for name, part in value.items()
    ):
        raise FramedexError("a selection has wrong keys or types", found=repr(value)[:200], allowed=", ".join(known))
    filters = tuple(map(filter_of, value.get("filters") or ()))
    return Wanted(**value | {"filters": filters, "descending": bool(value.get("descending"))})


class Selections:
    """A cache of selections of an index or dataset. Thread-safe. Queries are run one after the other.

    Attributes:
        kind: `index` or `dataset`.
        types: The DuckDB type of each column of the media or clips.
        total: The number of media or clips.
        checks: The checks by name.
    """

    def __init__(self, queries: QueryProcess) -> None:
        self.kind = queries.audited.kind
        self.types = queries.types(VIEWS[self.kind])
        if self.kind == "dataset":
            self.total = sum(part.rows for part in layout_of(queries.audited.header).clips)
        else:
            self.total = int(queries.rows("SELECT count(*) FROM videos", 1).rows[0][0])
        self.checks: dict[str, Check] = {check.name: check for check in checks_of(self.kind)}
        self._queries, self._lock = queries, threading.Lock()
        self._kept: OrderedDict[Wanted, Sequence[Any]] = OrderedDict()

    def keys(self, wanted: Wanted) -> Sequence[Any]:
        """Return the keys of the selected clips or media in order, as a range or an array.

        Raises:
            FramedexError: A column or a check does not exist, or the query fails or exceeds a limit.
            KeyboardInterrupt: `stop` was called.
        """
        if wanted == Wanted() and self.kind == "dataset":
            return range(self.total)
        with self._lock:
            found = self._kept.get(wanted)
            if found is None:
                check = None if wanted.finding is None else self.finding(wanted.finding).sql
                bases = {sql: self._link_of(sql) for sql in (wanted.sql, check) if sql is not None}
                found = self._queries.table(self._sql(wanted, bases)).column(0).combine_chunks()
                self._kept[wanted] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return found

    def page(self, wanted: Wanted, first: int, count: int) -> tuple[int, list[Any]]:
        """Return the number of selected clips or media, and `count` of their keys, from the index `first` on.

        Raises the same errors as `keys`.
        """
        keys = self.keys(wanted)
        some = keys[first : first + count]
        return len(keys), some.to_pylist() if isinstance(some, pa.Array) else list(some)

    def query(self, sql: str, most: int) -> Result:
        """Return the first `most` rows of a query, up to ANSWER_BYTES. Raises the same errors as `keys`."""
        with self._lock:
            return self._queries.rows(sql, most, most_bytes=ANSWER_BYTES)

    def finding(self, name: str) -> Check:
        """Return the check with a name. Raises FramedexError."""
        if name not in self.checks:
            raise FramedexError("there is no such check", found=repr(name), allowed=", ".join(self.checks))
        return self.checks[name]

    def link(self, names: Sequence[str]) -> str | None:
        """Return the column by which rows identify clips or media, or None if there is no such column.

        Args:
            names: The names of the rows' columns.
        """
        lower = [name.lower() for name in names]
        return next((name for name in LINKS[self.kind] if name in lower), None)

    def values(self, column: str, most: int) -> list[tuple[str | None, int]]:
        """Return the `most` most frequent values of a column as text, and their counts. Raises FramedexError."""
        name = quoted(checked_column(column, self.types))
        sql = f"SELECT CAST({name} AS VARCHAR), count(*) FROM {VIEWS[self.kind]} GROUP BY 1 ORDER BY 2 DESC, 1"
        return self.query(f"{sql} LIMIT {most}", most).rows

    def stop(self) -> None:
        """Stop the running query."""
        self._queries.stop()

    def close(self) -> None:
        """Stop the running query and all waiting queries, and prevent further queries."""
        while not self._lock.acquire(timeout=STOP_SECONDS):
            self._queries.stop()

    def _sql(self, wanted: Wanted, bases: Mapping[str, str]) -> str:
        """Return the query that selects the keys.

        Args:
            wanted: The selection.
            bases: The queries that limit the selection, with the column by which the rows of each identify items.
        """
        conditions = [one.condition(self.types) for one in wanted.filters]
        order = [quoted(name) for name in ORDERS[self.kind]]
        if wanted.sort is not None:
            direction = "DESC" if wanted.descending else "ASC"
            order.insert(0, f"{quoted(checked_column(wanted.sort, self.types))} {direction} NULLS LAST")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        key = quoted(KEYS[self.kind])
        if not bases:
            return f"SELECT {key} FROM {VIEWS[self.kind]}{where} ORDER BY {', '.join(order)}"
        joins, tables = [], []
        for number, (base, link) in enumerate(bases.items()):
            tables.append(
                f"base_{number} AS (SELECT {quoted(link)} AS _link, min(_place) AS _place{number} FROM "
                f"(SELECT {quoted(link)}, row_number() OVER () AS _place FROM ({bare(base)}\n)) GROUP BY 1)"
            )
            joins.append(f"JOIN base_{number} ON v.{quoted(link)} = base_{number}._link")
        if wanted.sort is None:
            order.insert(0, "_place0")
        return (
            f"WITH {', '.join(tables)} SELECT v.{key} FROM {VIEWS[self.kind]} v {' '.join(joins)}{where} "
            f"ORDER BY {', '.join(order)}"
        )

    def _link_of(self, sql: str) -> str:
        """Return the column by which the rows of a query identify clips or media. Raises FramedexError."""
        names = self._queries.rows(f"SELECT * FROM ({bare(sql)}\n) LIMIT 0", 1).names
        link = self.link(names)
        if link is None:
            raise FramedexError(
                f"the rows of the query do not identify {'clips' if self.kind == 'dataset' else 'media'}",
                found=", ".join(names),
                allowed=f"a column {' or '.join(LINKS[self.kind])}",
            )
        return link


def bare(sql: str) -> str:
    """Return a query without semicolons at its end, so that it can be put in parentheses."""
    return sql.rstrip().rstrip(";")
