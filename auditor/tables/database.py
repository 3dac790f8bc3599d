"""A DuckDB database of read-only views of an index or a dataset, without access to other files or the network.

DuckDB can be restricted to some directories, but it can still write into these. And its parser classifies
data-modifying CTEs as SELECT statements. So users' queries run in a read-only transaction, on a virtual file system
that contains only the files of the index or dataset and is read-only. Values that Python or JSON cannot represent are
cast to text.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.auditor.tables import subject
from framedex.core.limits import GIBIBYTE
from framedex.errors import FormatError, FramedexError, MissingExtraError, OutputError, printable
from framedex.storage.reader import ASIDE

try:
    from fsspec import AbstractFileSystem
except ModuleNotFoundError as error:
    raise MissingExtraError("fsspec", "audit", "framedex audit") from error
try:
    import duckdb
except ModuleNotFoundError as error:
    raise MissingExtraError("duckdb", "audit", "framedex audit") from error


# DuckDB types (lower-case names) whose values Python represents exactly. Dates and times are missing, because Python
# has no infinite dates, no dates before year 1 and no nanoseconds. NOT_IN_ARROW has the types that Arrow lacks.
WHOLE = ("tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint")
HELD = {*WHOLE, "boolean", "float", "double", "decimal", "varchar", "blob", "enum", "uuid"}
NESTED = ("list", "array", "struct", "map")
NOT_IN_ARROW = ("uhugeint", "bignum")


def _cast_to_plain(query: Any) -> Any:
    """Cast the columns of a query (a DuckDBPyRelation) to types that Python and JSON can represent."""
    plain = [_plain_type(type_) for type_ in query.types]
    if not any(plain):
        return query
    values = [f"#{n}" if type_ is None else f"CAST(#{n} AS {type_})" for n, type_ in enumerate(plain, 1)]
    columns = zip(values, map(subject.quoted, query.columns), strict=True)
    return query.project(", ".join(f"{value} AS {name}" for value, name in columns))


def _plain_type(type_: Any) -> str | None:
    """Return the SQL type to which values of a type are cast. VARCHAR replaces parts that Python cannot represent.

    Returns:
        The SQL type, or None if Python can represent the whole type.
    """
    if type_.id not in NESTED:
        return None if type_.id in HELD else "VARCHAR"
    names = [name for name, _ in type_.children]
    children = [part for _, part in type_.children]  # for an array, the element type and the length
    plain = [None if isinstance(part, int) else _plain_type(part) for part in children]
    if not any(plain):
        return None
    parts = [changed or str(part) for changed, part in zip(plain, children, strict=True)]
    if type_.id == "struct":
        return f"STRUCT({', '.join(map(' '.join, zip(map(subject.quoted, names), parts, strict=True)))})"
    if type_.id == "map":
        return f"MAP({', '.join(parts)})"
    return f"{parts[0]}[{''.join(parts[1:])}]"


def _is_in_arrow(type_: Any) -> bool:
    """Return whether Arrow can represent a type, including nested types."""
    if type_.id not in (*NESTED, "tuple", "union"):
        return type_.id not in NOT_IN_ARROW
    return all(isinstance(part, int) or _is_in_arrow(part) for _, part in type_.children)


class TableFiles(AbstractFileSystem):  # type: ignore[misc]
    """A read-only fsspec file system that contains only the files of the index or dataset.

    Args:
        files: Path in a uri (`subject.url`) → path of the local file.
    """

    protocol = subject.PROTOCOL

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__(skip_instance_cache=True)
        self._files = dict(files)

    def _path(self, name: str) -> Path:
        try:
            return self._files[str(self._strip_protocol(name))]
        except KeyError:
            raise FileNotFoundError(f"{name} is not a table of the index or dataset") from None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> TableFile:
        if mode != "rb":
            raise PermissionError(f"{path} is read-only")
        return TableFile(self._path(path))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": self._strip_protocol(path), "size": self._path(path).stat().st_size, "type": "file"}

    def exists(self, path: str, **options: Any) -> bool:
        return str(self._strip_protocol(path)) in self._files

    def glob(self, path: str, **options: Any) -> list[str]:
        return [str(self._strip_protocol(path))] if self.exists(path) else []

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._path(path).stat().st_mtime)


class TableFile:
    """An open file that several threads can read at the same time, since each thread has its own position."""

    def __init__(self, path: Path) -> None:
        self.closed = True
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise PermissionError(f"{path} is not a regular file")
        self._size = status.st_size
        self._local = threading.local()
        self.closed = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size}[whence]
        self._local.position = begin + offset
        return self.tell()

    def tell(self) -> int:
        return int(getattr(self._local, "position", 0))

    def read(self, size: int = -1) -> bytes:
        data = os.pread(self._descriptor, self._size - self.tell() if size < 0 else size, self.tell())
        self._local.position = self.tell() + len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
            self.closed = True

    def __del__(self) -> None:
        self.close()


def check_reads(sql: str) -> None:
    """Raise FramedexError unless a query is a single statement that only reads, or EXPLAIN of such a statement."""
    if not isinstance(sql, str):
        raise FramedexError("a query must be a text", found=repr(sql)[:80])
    try:
        sql.encode()  # raises UnicodeError for a lone surrogate, for which DuckDB would raise TypeError
        kinds = _kinds(sql)
        if kinds == ["EXPLAIN"]:
            kinds = [f"EXPLAIN of {kind}" for kind in _kinds(_after_explain(sql)) if kind != "SELECT"] or ["SELECT"]
    except (duckdb.Error, RuntimeError, UnicodeError) as error:
        raise FramedexError("DuckDB cannot parse the query", found=error) from error
    if kinds != ["SELECT"]:
        raise FramedexError(
            "a query must be a single statement that only reads",
            found=", ".join(kinds) or "nothing",
            allowed="SELECT, FROM, WITH, SUMMARIZE, DESCRIBE, SHOW, and EXPLAIN of these",
        )


def _kinds(sql: str) -> list[str]:
    """Return the type of each statement in a query. Raises the errors of duckdb.extract_statements."""
    return [statement.type.name for statement in duckdb.extract_statements(sql)]


def _after_explain(sql: str) -> str:
    """Return the statement that follows EXPLAIN, ANALYZE and options in parentheses.

    DuckDB returns only the type EXPLAIN, and not the type of the explained statement. A statement that does not begin
    with the token EXPLAIN, for example because a no-break space precedes it, is returned whole. It is then refused.
    """
    content = sql.encode()
    tokens = duckdb.tokenize(sql)
    ends = [*(begin for begin, _ in tokens[1:]), None]
    spans = [(begin, end) for (begin, kind), end in zip(tokens, ends, strict=True) if kind != duckdb.token_type.comment]
    words = [content[begin:end].decode().strip() for begin, end in spans]
    if words[0].upper() != "EXPLAIN":
        return sql
    first = 2 if words[1].upper() == "ANALYZE" else 1
    rest = content[spans[first][0] :].decode()
    if words[first] == "(":
        try:
            _kinds(rest)
        except duckdb.Error:  # the parentheses contain options, and not a SELECT
            return content[spans[words.index(")") + 1][0] :].decode()
    return rest


ASKED_OFTEN = ("repeated", "superseded")  # views that many other views use; they become tables, to be computed once
BATCH_ROWS = 1_000_000
USER_BATCH_ROWS = 2048  # the number of rows that DuckDB computes at a time
EXPLANATION = ["explain_key", "explain_value"]  # columns of the result of EXPLAIN. The values are multi-line drawings
INTERRUPTED = "INTERRUPT Error: Interrupted!"  # text of the OSError that pyarrow raises if DuckDB was interrupted
TYPES = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = '{view}' ORDER BY column_index"
LOCK = f"SET allowed_directories = ['{subject.url('')}']; SET enable_external_access = false"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """The limits of each query of a user.

    Attributes:
        seconds: The time limit.
        memory_bytes: The memory limit of the query's process. DuckDB writes temporary files if it would use more than
            three quarters of this memory.
        spill_bytes: The maximum size of the temporary files.
    """

    seconds: float = 600.0
    memory_bytes: int = 4 * GIBIBYTE
    spill_bytes: int = 16 * GIBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a query.

    Attributes:
        names: The names of the columns.
        rows: The rows, as Python values.
        cut: Whether the last rows were left out because the result is too large.
    """

    names: list[str]
    rows: list[tuple[Any, ...]]
    cut: bool = False

    def records(self) -> list[dict[str, Any]]:
        """Return each row as a dict of values by column."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


class Database:
    """An open DuckDB database with the views of an index or a dataset.

    Its methods raise FramedexError if a query fails.
    """

    def __init__(self, connection: Any, audited: subject.Audited) -> None:
        self._connection = connection
        self.audited = audited

    def columns(self, view: str) -> list[str]:
        """Return the names of a view's columns in lower case. Return no names if there is no such view."""
        return [name.lower() for name in self.types(view)]

    def types(self, view: str) -> dict[str, str]:
        """Return the DuckDB type of each column of a view. Return an empty dict if there is no such view."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            return dict(cursor.execute(TYPES.format(view=view)).fetchall())

    def ask(self, sql: str) -> Result:
        """Return all rows of a query. Thread-safe."""
        with _errors_of_queries(), contextlib.closing(self._connection.cursor()) as cursor:
            found = cursor.execute(sql)
            return Result(names=[column[0] for column in found.description], rows=found.fetchall())

    def arrow(self, sql: str) -> pa.RecordBatchReader:
        """Return the rows of a query as a stream of batches. Reading the stream may also raise FramedexError."""
        with _errors_of_queries():
            return _stream(self._connection.sql(sql), BATCH_ROWS)

    def user(self, sql: str, *, plain: bool = False, most: int | None = None) -> pa.RecordBatchReader:
        """Return the rows of a user's query as a stream of batches. The stream of the previous query becomes invalid.

        The limits of time and memory are not enforced here, but by `QueryProcess`.

        Args:
            sql: The query, which must be a single statement that only reads.
            plain: Whether values that Python or JSON cannot represent are cast to text. If False, values keep their
                Arrow types.
            most: The maximum number of rows. If None, all rows are returned.
        """
        check_reads(sql)
        with _errors_of_queries():
            with contextlib.suppress(duckdb.TransactionException):  # raised if there was no earlier query
                self._connection.rollback()
            # `check_reads` does not detect `WITH a AS (DELETE …) SELECT …`. In a read-only transaction, it fails.
            self._connection.execute("BEGIN TRANSACTION READ ONLY")
            query = self._connection.sql(sql)
            if plain:
                query = _cast_to_plain(query)
            for name, type_ in zip(query.columns, query.types, strict=True):
                if not _is_in_arrow(type_):  # DuckDB would change the values without an error
                    raise FramedexError(
                        "a column of the query has a type that Arrow lacks",
                        found=f"{printable(name)}: {type_}",
                        remedy="cast the column in the query, for example to VARCHAR or DOUBLE",
                    )
            return _stream(query if most is None else query.limit(most), USER_BATCH_ROWS)

    def add(self, name: str, table: pa.Table) -> None:
        """Create a table in the database, in addition to the views."""
        self._connection.register("added", table)
        self._connection.execute(f"CREATE TABLE {name} AS FROM added")
        self._connection.unregister("added")


def _stream(query: Any, batch_rows: int) -> pa.RecordBatchReader:
    """Return the rows of a query as a stream of batches. Reading raises the same errors as `_errors_of_queries`."""
    answer = query.to_arrow_reader(batch_rows)

    def batches() -> Iterator[pa.RecordBatch]:
        with answer, _errors_of_queries():
            yield from answer

    return pa.RecordBatchReader.from_batches(answer.schema, batches())


@contextlib.contextmanager
def _errors_of_queries() -> Iterator[None]:
    """Convert errors of a query to FramedexError, or to KeyboardInterrupt if the query was interrupted.

    If an error occurs after the first rows, pyarrow raises OSError with DuckDB's text.
    """
    try:
        yield
    except (duckdb.Error, RuntimeError, OSError, pa.ArrowException, OverflowError, ValueError) as error:
        if isinstance(error, duckdb.InterruptException) or str(error).strip() == INTERRUPTED:
            raise KeyboardInterrupt from error
        found = _found(error)
        remedy = "raise the limits --memory and --spill" if found.startswith("Out of Memory") else None
        raise FramedexError("the query cannot be run", found=found, remedy=remedy) from error


def _found(error: Exception) -> str:
    """Return the message of an error. The traceback is removed if the error occurred in `TableFiles`."""
    text = str(error).strip()
    _, _, traced = text.partition("Traceback (most recent call last):\n")
    return next((line for line in traced.splitlines() if line.strip() and not line[0].isspace()), text)


@contextlib.contextmanager
def database(
    audited: subject.Audited,
    *,
    kept: Mapping[str, Collection[str]] | None = None,
    limits: QueryLimits | None = None,
    spill: Path | None = None,
) -> Iterator[Database]:
    """Open a database with the views of an index or a dataset.

    Users' queries (`kept` is None) can read only the files of the index or dataset. They cannot use the network or
    change DuckDB's settings.

    Args:
        audited: The index or dataset.
        kept: For framedex's own queries, the columns that are loaded into memory, by view. Such a view becomes a table
            with only these columns. DuckDB then reads the files directly, and not through `TableFiles`.
        limits: The limits of users' queries.
        spill: An empty folder for temporary files of DuckDB. If None, a temporary folder is created.
    """
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(duckdb.connect()))
        folder = spill or stack.enter_context(tempfile.TemporaryDirectory(prefix="framedex-audit-"))
        connection.execute("SET temp_directory = ?", [str(folder)])
        names = subject.Names.OURS if kept is None or _is_pattern(audited) else subject.Names.PATHS
        # Creating tables in memory is faster if DuckDB need not preserve the order of rows. Below, DuckDB is set to
        # preserve the order again, since the results of queries must be in order.
        connection.execute("SET parquet_metadata_cache = true; SET preserve_insertion_order = false")
        if names is subject.Names.OURS:
            connection.register_filesystem(TableFiles(audited.tables()))
            connection.execute(LOCK)
        _define(connection, audited, names, kept or {})
        if limits is not None:
            connection.execute(f"SET memory_limit = '{limits.memory_bytes * 3 // 4}B'")
            connection.execute(f"SET max_temp_directory_size = '{limits.spill_bytes}B'")
        connection.execute("SET preserve_insertion_order = true; SET lock_configuration = true")
        yield Database(connection, audited)


def write_database(audited: subject.Audited, path: Path) -> list[str]:
    """Write a DuckDB database of the views, and return the names of the views. Raises OutputError.

    The views of an index will include parts that are written later. If a dataset was changed, its views raise an error.
    An existing file is replaced when the new file is complete.
    """
    if _is_pattern(audited):
        raise OutputError(
            "DuckDB would interpret the path of this folder as a pattern",
            where=str(audited.folder),
            remedy="rename the folder, or use a symbolic link with another name",
        )
    if not any(audited.parts.values()):
        raise OutputError("the index or dataset is still empty", where=str(audited.place), remedy="index first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=ASIDE) as folder:
        aside = os.path.join(folder, path.name)
        try:
            with contextlib.closing(duckdb.connect(aside)) as connection:
                _define(connection, audited, subject.Names.PATTERN, {})
        except duckdb.Error as error:
            raise FramedexError("the database cannot be written", where=str(path), found=str(error).strip()) from error
        os.replace(aside, path)
    return [name for name in subject.VIEWS[audited.kind] if name not in subject.INNER]


def _is_pattern(audited: subject.Audited) -> bool:
    """Return whether the path of the index or dataset contains characters that DuckDB interprets as a pattern."""
    return any(character in str(audited.folder) for character in "*?[")


def _define(
    connection: Any, audited: subject.Audited, names: subject.Names, kept: Mapping[str, Collection[str]]
) -> None:
    """Create the views, or tables for the views in `kept`. Raises FormatError if the files cannot be read."""
    try:
        columns = {}
        for table, numbers in audited.parts.items():
            columns[table] = subject.PARTS[table].names
            if numbers:
                rows = subject.reader(audited, table, names)
                added = f"{subject.FILE_COLUMN}, file_row_number"
                columns[table] = _names(connection, f"SELECT * EXCLUDE ({added}) FROM {rows}")
        for name, query in subject.statements(audited, columns, names).items():
            if name in kept:
                wanted = {word.lower() for word in kept[name]}
                chosen = [column for column in _names(connection, query) if column.lower() in wanted]
                try:
                    connection.execute(f"CREATE TABLE {name} AS {subject.in_memory(query, chosen)}")
                except duckdb.ConversionException:  # a later version of framedex wrote a value that FEW_VALUES lacks
                    connection.execute(f"CREATE TABLE {name} AS {subject.in_memory(query, chosen, few_values={})}")
            else:
                is_table = name in ASKED_OFTEN and names is not subject.Names.PATTERN
                connection.execute(f"CREATE {'TABLE' if is_table else 'VIEW'} {name} AS {query}")
    except (duckdb.Error, RuntimeError) as error:  # RuntimeError is raised for paths that are not UTF-8
        raise FormatError("a table is missing or damaged", where=str(audited.place), found=_found(error)) from error


def _names(connection: Any, query: str) -> list[str]:
    """Return the names of the columns of a query."""
    return [row[0] for row in connection.execute(f"DESCRIBE {query}").fetchall()]
