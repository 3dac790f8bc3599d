"""Which statements only read: the types that DuckDB gives them, and what an EXPLAIN explains."""

from __future__ import annotations

from framedex.errors import FramedexError, MissingExtraError

try:
    import duckdb
except ModuleNotFoundError as error:
    raise MissingExtraError("duckdb", "audit", "framedex audit") from error


def check_reads(sql: str) -> None:
    """Raise FramedexError unless a query is one statement that only reads, or EXPLAIN of one."""
    if not isinstance(sql, str):
        raise FramedexError("a query is a text", found=repr(sql)[:80])
    try:
        sql.encode()  # DuckDB raises TypeError for a lone surrogate
        kinds = _kinds(sql)
        if kinds == ["EXPLAIN"]:
            kinds = [f"EXPLAIN of {kind}" for kind in _kinds(_explained(sql)) if kind != "SELECT"] or ["SELECT"]
    except (duckdb.Error, RuntimeError, UnicodeError) as error:
        raise FramedexError("the query is not SQL that DuckDB takes", found=error) from error
    if kinds != ["SELECT"]:
        raise FramedexError(
            "only one statement that reads is run",
            found=", ".join(kinds) or "nothing",
            allowed="SELECT, FROM, WITH, SUMMARIZE, DESCRIBE, SHOW, and EXPLAIN of these",
        )


def _kinds(sql: str) -> list[str]:
    """Return the types of statements. Raises as duckdb.extract_statements does."""
    return [statement.type.name for statement in duckdb.extract_statements(sql)]


def _explained(sql: str) -> str:
    """Return the statement after EXPLAIN, ANALYZE and options in parentheses. DuckDB does not say what is explained.

    A statement that this cannot split, such as one with a no-break space, is returned whole.
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
    if words[first] == "(" and not _is_sql(rest):  # it is no SELECT in parentheses
        return content[spans[words.index(")") + 1][0] :].decode()
    return rest


def _is_sql(sql: str) -> bool:
    """Return whether DuckDB can parse a text."""
    try:
        duckdb.extract_statements(sql)
    except duckdb.Error:
        return False
    return True
