"""The built-in queries of an audit, and the output of their results.

Each .sql file contains a title, the meaning of the result, and the query. An audit runs the queries of the summary and
of the checks, and prints their results as lines of text. The result of a single query, built-in or from the user, is
printed or written as a table, CSV, JSON or Parquet.
"""

import contextlib
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.resources import files
from itertools import repeat, takewhile
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from framedex.auditor.tables.database import EXPLANATION, Database, Result
from framedex.auditor.tables.subject import Kind, literal
from framedex.core.printing import TerminalBytes, echo, escaped_json, stdout_bytes
from framedex.core.words import duration_text
from framedex.errors import FramedexError, printable
from framedex.storage.reader import ASIDE

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # in descending order of severity
FIELD = re.compile(r"(severity|needs|means|remedy): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A built-in query with a title.

    Attributes:
        name: The name of the query.
        title: The problem that a check finds, the question that a query of the cookbook answers, or the headline of a
            section of the summary.
        sql: The query.
        needs: The optional tables and columns (`view.column`) that the query needs. Tables are optional if an option
            adds them, and columns if only some indexes or datasets have them.
    """

    name: str
    title: str
    sql: str
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Question):
    """A query that returns one row for each problem.

    Attributes:
        severity: The severity of the problem.
        means: A text that explains the problem and its consequences.
        remedy: A text that says how to fix or avoid the problem.
    """

    severity: Severity
    means: str
    remedy: str


def checks_of(kind: Kind) -> list[Check]:
    """Return all checks of an index or a dataset, in descending order of severity."""
    found = [Check(**query) for query in _read_queries("checks", kind)]
    return sorted(found, key=lambda check: (SEVERITIES.index(check.severity), check.name))


def questions(folder: Literal["summary", "questions"], kind: Kind) -> list[Question]:
    """Return the queries of the summary or of the cookbook, in the order of their file names."""
    return [Question(**query) for query in _read_queries(folder, kind)]


def words(queries: Iterable[str]) -> set[str]:
    """Return all words in some queries, which include the names of all columns that the queries use."""
    return {word for query in queries for word in re.findall(r"\w+", query)}


def _read_queries(folder: str, kind: Kind) -> list[dict[str, Any]]:
    """Read the .sql files of a folder in the order of their names. Return the attributes of each query."""
    found: list[dict[str, Any]] = []
    for file in sorted((files("framedex.auditor") / folder / kind).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            lines = file.read_text(encoding="utf-8").splitlines()
            comment = list(takewhile(lambda line: line.startswith("--"), lines))
            # A continuation line has more spaces after the `--`.
            joined = re.sub(r"\n--   +", " ", "\n".join(comment))
            title, *rest = (line.removeprefix("--").strip() for line in joined.splitlines())
            fields = {match[1]: match[2] for line in rest if (match := FIELD.fullmatch(line))}
            needs = tuple(re.split(r",\s*", fields["needs"])) if "needs" in fields else ()
            # A number at the beginning of a file name defines only the order of queries.
            name = re.sub(r"^\d+_", "", file.name.removesuffix(".sql"))
            sql = "\n".join(lines[len(comment) :]).strip()
            found.append(fields | {"name": name, "title": title, "sql": sql, "needs": needs})
    return found


EXAMPLES = 5  # maximum number of rows of a finding that are shown
# A query that returns a row if any file has several media, so that a uri does not identify a medium.
SHARED = "SELECT 1 FROM videos WHERE member IS NOT NULL OR video_streams > 1 LIMIT 1"
PARTS_OF_FILES = "SELECT media_id, member, CASE WHEN video_streams > 1 THEN stream_index END AS stream FROM videos"
AT_ONCE = 2  # number of parallel queries, so that one query runs while DuckDB plans another
# The options that add the optional tables, by table.
OPTION_OF = {"files": "--files", "policy_misses": "--policy", "scene_views": "--policy with a policy that has views"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The problems that a check found.

    Attributes:
        check: The check.
        count: The number of rows that the check's query returns, one per problem.
        examples: Column name → value for each of the first rows.
    """

    check: Check
    count: int
    examples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the summary, which is the result of one query.

    Attributes:
        question: The query.
        names: The names of the columns.
        rows: The rows.
    """

    question: Question
    names: list[str]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit of an index or a dataset.

    Attributes:
        kind: `index` or `dataset`.
        place: The path or uri that was audited.
        sections: The sections of the summary.
        findings: The findings of the checks, in descending order of severity.
        passed: The checks that found no problem.
        unasked: The checks that could not be run, and the option or column that each of them needs.
    """

    kind: str
    place: str
    sections: list[Section]
    findings: list[Finding]
    passed: list[Check]
    unasked: list[tuple[Check, str]]

    def as_json(self) -> dict[str, Any]:
        """Return the audit as JSON values."""
        return {
            "kind": self.kind,
            "place": self.place,
            "summary": {
                section.question.name: [dict(zip(section.names, row, strict=True)) for row in section.rows]
                for section in self.sections
            },
            "findings": [
                {
                    "check": finding.check.name,
                    "title": finding.check.title,
                    "severity": finding.check.severity,
                    "count": finding.count,
                    "examples": finding.examples,
                    "means": finding.check.means,
                    "remedy": finding.check.remedy,
                    "sql": finding.check.sql,
                }
                for finding in self.findings
            ],
            "passed": [check.name for check in self.passed],
            "unasked": {check.name: needs for check, needs in self.unasked},
        }


def ask_all(database: Database, asked: Sequence[Check], *, summary: bool = True) -> Audit:
    """Run the queries of the summary and the given checks.

    Args:
        database: The database of the index or dataset.
        asked: The checks.
        summary: Whether to run the queries of the summary.
    """
    audited = database.audited
    first = questions("summary", audited.kind) if summary else []
    lacks = {question: missing(database.types, question) for question in [*first, *asked]}
    can = [check for check in asked if lacks[check] is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sections = pool.map(_section, repeat(database), [question for question in first if lacks[question] is None])
        answers = dict(zip(can, pool.map(find, repeat(database), can), strict=True))
    findings = [finding for finding in answers.values() if finding is not None]
    if audited.kind == "index" and database.ask(SHARED).rows:
        findings = [_name_parts(database, finding) for finding in findings]
    findings.sort(key=_gravity)
    return Audit(
        kind=audited.kind,
        place=str(audited.place),
        sections=list(sections),
        findings=findings,
        passed=[check for check in can if answers[check] is None],
        unasked=[(check, lack) for check in asked if (lack := lacks[check]) is not None],
    )


def missing(columns_of: Callable[[str], Collection[str]], question: Question) -> str | None:
    """Return the missing option or column that a query needs, as a text. None if nothing is missing.

    Args:
        columns_of: A function that returns the names of a view's columns, or no names if there is no such view.
        question: The query.
    """
    for need in question.needs:
        view, _, column = need.partition(".")
        columns = [name.lower() for name in columns_of(view)]  # column names in SQL are case-insensitive
        if not columns or (column and column not in columns):
            return OPTION_OF.get(view, f"a column {column!r}, which a listing or a policy can define")
    return None


def find(database: Database, check: Check) -> Finding | None:
    """Run a check, and return its finding, or None if there is no problem. Raises FramedexError if its query fails."""
    if "GROUP BY" in check.sql:  # counting the rows takes as long as the query, so both are done in one query
        found = f"WITH found AS MATERIALIZED ({check.sql}) SELECT (SELECT count(*) FROM found) AS _count, * FROM found"
        examples = database.ask(f"{found} LIMIT {EXAMPLES}").records()
        counts = [example.pop("_count") for example in examples]
        count = counts[0] if counts else 0
    else:
        ((count,),) = database.ask(f"SELECT count(*) FROM ({check.sql})").rows
        examples = database.ask(f"{check.sql}\nLIMIT {EXAMPLES}").records() if count else []
    return Finding(check=check, count=count, examples=examples) if count else None


DAMAGE_MET = "damage_met"
DAMAGE_SQL: dict[Kind, str] = {
    "index": "SELECT media_id, uri, met.error_message FROM videos JOIN {met} USING (media_id) ORDER BY uri, media_id",
    "dataset": "SELECT clip_id, uri, met.error_message FROM clips JOIN {met} USING (clip_id) ORDER BY clip",
}


def with_damage(database: Database, found: Audit, damaged: Mapping[str, str]) -> Audit:
    """Return an audit with one more finding: the damage that was found when pictures for the report were decoded.

    Args:
        database: The database of the index or dataset.
        found: The result of the audit.
        damaged: The reason why a medium or clip does not decode, by media_id or clip_id.
    """
    kind = database.audited.kind
    key, things = ("media_id", "Media") if kind == "index" else ("clip_id", "Clips")
    rows = ", ".join(f"({literal(identity)}, {literal(reason)})" for identity, reason in sorted(damaged.items()))
    check = Check(
        name=DAMAGE_MET,
        title=f"{things} whose pictures do not decode",
        sql=DAMAGE_SQL[kind].format(met=f"(VALUES {rows}) AS met({key}, error_message)"),
        needs=(),
        severity="error",
        means="Decoding failed when the pictures of this report were drawn. The report draws only examples of other "
        "findings, so there may be more damage.",
        remedy="find all damage with `framedex index --verify`, and replace the files"
        if kind == "index"
        else "find all such clips with `framedex verify`, and replace the files",
    )
    added = find(database, check)
    return replace(found, findings=sorted([*found.findings, *([added] if added else [])], key=_gravity))


def _gravity(finding: Finding) -> tuple[int, int]:
    return SEVERITIES.index(finding.check.severity), -finding.count


def _name_parts(database: Database, finding: Finding) -> Finding:
    """Add columns for the member and the stream of a file to a finding's examples, if a file has several media."""
    ids = ", ".join(literal(row["media_id"]) for row in finding.examples if row.get("media_id"))
    if not ids:
        return finding
    known = {row["media_id"]: row for row in database.ask(f"{PARTS_OF_FILES} WHERE media_id IN ({ids})").records()}
    columns = [name for name in ("member", "stream") if any(row[name] is not None for row in known.values())]
    examples = []
    for row in finding.examples:
        parts = {name: known[row["media_id"]][name] for name in columns}
        examples.append({name: row[name] for name in ("media_id", "uri")} | parts | row)
    return replace(finding, examples=examples)


def _section(database: Database, question: Question) -> Section:
    answer = database.ask(question.sql)
    return Section(question=question, names=answer.names, rows=answer.rows)


WIDTH = 118  # maximum number of characters per line
ROWS = 8  # maximum number of rows of a table in the printed summary
NAMES = ("media_id",)  # columns for programs, which are not printed
# Columns with file names and similar names. A long name is cut at its beginning, since names mostly differ at their
# ends. Other long texts are cut at their ends.
NAMING = {"uri", "member", "name", "clip_id", "first", "video", "folder", "file", "listed_uri"}
LONGEST, LONGEST_SENTENCE = 48, 80  # maximum number of characters of cells with names and of cells with other texts
LONGEST_TITLE = 64  # maximum number of characters printed of a distribution's title; all titles fit
SENTENCES = ("totals", "traits")  # sections that are printed as one sentence
# Column names that contain a unit. Each has the name with the next smaller unit, and the factor between both.
SMALLER = {
    "hours": ("minutes", 60),
    "minutes": ("seconds", 60),
    "gigabytes": ("megabytes", 1000),
    "megabytes": ("kilobytes", 1000),
    "gigabytes_read": ("megabytes_read", 1000),
    "megabytes_read": ("kilobytes_read", 1000),
}
# The columns of a section that describes the distribution of a number, and their titles.
SPREAD = {
    "least": "least",
    "tenth": "1 in 10 below",
    "median": "median",
    "nine_tenths": "1 in 10 above",
    "greatest": "greatest",
    "mean": "mean",
}


def lines(audit: Audit) -> Iterator[str]:
    """Yield the lines of text that `framedex audit` prints."""
    spreads = [section for section in audit.sections if {*section.names} >= {*SPREAD}]
    for section in audit.sections:
        if section in spreads:
            if section is spreads[0] and any(spread.rows for spread in spreads):
                yield from _spreads(spreads)
                yield ""
        elif section.rows:
            yield from _answer_section(section)
            yield ""
    if not audit.findings:
        yield f"nothing found by {len(audit.passed)} check{'s' * (len(audit.passed) != 1)}"
    for finding in audit.findings:
        yield from _finding(finding)
    if audit.findings:
        counts = Counter(finding.check.severity for finding in audit.findings)
        total = ", ".join(f"{counts[severity]} {severity}{'s' * (counts[severity] != 1)}" for severity in SEVERITIES)
        yield f"{total}; {len(audit.passed)} checks found nothing" if audit.passed else total
    for lack in sorted({lack for _, lack in audit.unasked}):
        names = ", ".join(check.name for check, its_lack in audit.unasked if its_lack == lack)
        yield f"not run without {lack}: {names}"


def _answer_section(section: Section) -> Iterator[str]:
    title = section.question.title
    if section.question.name in SENTENCES:
        facts = [legible(*fact) for fact in zip(section.names, section.rows[0], strict=True)]
        text = ", ".join(f"{cell(value)} {name}".replace("_", " ") for name, value in facts)
        yield from textwrap.wrap(f"{title}: {text}", WIDTH, subsequent_indent="  ")
        return
    yield f"{title}:"
    yield from (f"  {line}" for line in table(*legible_table(section.names, section.rows[:ROWS])))
    if len(section.rows) > ROWS:
        yield f"  … and {len(section.rows) - ROWS:,} more rows (--json prints all)"


def _spreads(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the lines of one table for all sections that describe distributions."""
    yield "Distributions of numbers:"
    rows = []
    for section in sections:
        places = [section.names.index(name) for name in SPREAD]
        rows += [(section.question.title, *(row[place] for place in places)) for row in section.rows]
    yield from (f"  {line}" for line in table(["", *SPREAD.values()], rows, LONGEST_TITLE))


def legible(name: str, value: object) -> tuple[str, object]:
    """Convert a value below 1 to a smaller unit. Return its name, which contains the unit, and the value."""
    while name in SMALLER and isinstance(value, float) and 0 < value < 1:
        name, times = SMALLER[name]
        value = float(f"{value * times:.3g}")
    return name, value


def legible_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Replace a column of hours by texts in the unit that fits each value, such as `1.2 s`. Return names and rows."""
    shown = [
        [duration_text(3600 * value) if name == "hours" and value is not None else value for name, value in pairs]
        for pairs in (zip(names, row, strict=True) for row in rows)
    ]
    return ["duration" if name == "hours" else name for name in names], shown


def _finding(finding: Finding) -> Iterator[str]:
    check = finding.check
    yield f"{check.severity}: {check.title}: {finding.count:,}   [{check.name}]"
    yield from textwrap.wrap(check.means, WIDTH, initial_indent="  ", subsequent_indent="  ")
    shown = [name for name in finding.examples[0] if name not in NAMES]
    rows = [tuple(example[name] for name in shown) for example in finding.examples]
    yield from (f"    {line}" for line in table(shown, rows))
    if finding.count > len(rows):
        yield f"    … and {finding.count - len(rows):,} more"
    yield from textwrap.wrap(f"remedy: {check.remedy}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield ""


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], longest: int = LONGEST) -> Iterator[str]:
    """Yield the lines of a table. Numbers are aligned right, and other values left.

    Args:
        names: The names of the columns.
        rows: The values of each row.
        longest: The maximum length of values in columns with names (NAMING).
    """
    columns = []
    for place, name in enumerate(names):
        # The values of `others` are names, too, but several names each.
        most, ends = (longest, True) if name in NAMING else (LONGEST_SENTENCE, name == "others")
        cells = [printable(name), *(cell(row[place], most, ends=ends) for row in rows)]
        width = max(map(len, cells))
        is_number = all(isinstance(row[place], (int, float, Decimal, type(None))) for row in rows)
        columns.append([text.rjust(width) if is_number else text.ljust(width) for text in cells])
    yield from ("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def cell(value: object, longest: int = LONGEST, *, ends: bool = True) -> str:
    """Return a value as one short line of text without control characters.

    Args:
        value: The value.
        longest: The maximum length of the result.
        ends: Whether a long text is cut at its beginning. If False, only the first line is shown, cut at its end.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, Decimal)):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.10g}"
    if isinstance(value, bytes):
        return value.hex() if len(value) <= longest // 2 else f"{value[: longest // 2 - 1].hex()}…"
    whole = str(value) if ends else str(value).split("\n", 1)[0]
    text = printable(whole[-longest - 1 :] if ends else whole[: longest + 1])  # one more character than is shown
    if len(text) <= longest:
        return text
    return "…" + text[1 - longest :] if ends else text[: longest - 1] + "…"


Format = Literal["table", "csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHOWN = 1000  # maximum number of rows of a printed table
# Maximum size of the rows of a printed table, which are in memory together, since column widths depend on all rows.
MAX_SHOWN_BYTES = 16_000_000


def print_table(answer: Result) -> None:
    """Print the first rows of a result as a table, and a line that says whether there are more rows."""
    for line in _lines(answer.names, answer.rows[:SHOWN]):
        echo(line)
    if answer.cut or len(answer.rows) > SHOWN:
        echo("… and more rows (for all rows, use --format csv or --out FILE)")


def print_answer(answer: pa.RecordBatchReader, form: Format) -> None:
    """Print the result of a query as CSV, JSON or Parquet.

    Raises:
        FramedexError: The format cannot represent a value, or the format is Parquet and stdout is a terminal.
    """
    if form == "parquet" and sys.stdout.isatty():
        raise FramedexError("Parquet cannot be printed to a terminal", remedy="write a file with --out")
    with _held_by(form):
        _write(answer, form, stdout_bytes())


def write_answer(answer: pa.RecordBatchReader, form: Format, out: Path) -> int:
    """Write the result of a query to a file atomically, and return the number of rows. Raises FramedexError."""
    target = out.resolve()  # if `out` is a symbolic link, the target of the link is replaced, not the link
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(ASIDE + target.name)
    try:
        with open(aside, "wb") as file, _held_by(form):
            if form == "table":
                # Columns are addressed by position, since several may have the same name.
                shown = [row for batch in answer for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
                file.writelines(f"{line}\n".encode() for line in _lines(answer.schema.names, shown))
                rows = len(shown)
            else:
                rows = _write(answer, form, file)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return rows


def _lines(names: list[str], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """Yield the lines of a table. For EXPLAIN, yield the lines of DuckDB's drawing instead."""
    if names == EXPLANATION:
        yield from (line for _, text in rows for line in printable(str(text), lines=True).splitlines())
    else:
        yield from table(names, rows)


@contextlib.contextmanager
def _held_by(form: Format) -> Iterator[None]:
    """Convert errors about values that a format cannot represent to FramedexError."""
    try:
        yield
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise FramedexError(
            f"{form} cannot represent a value of the result", found=error, remedy="cast it to VARCHAR in the query"
        ) from error


def _write(answer: pa.RecordBatchReader, form: Format, file: BinaryIO | TerminalBytes) -> int:
    """Write the result of a query as CSV, JSON or Parquet, batch by batch, and return the number of rows."""
    rows = 0
    if form == "json":
        names = answer.schema.names
        keys = [f"{name}_{n}" if (n := names[:place].count(name)) else name for place, name in enumerate(names)]
        file.write(b"[")
        for batch in answer:
            for row in batch.rename_columns(keys).to_pylist():  # renamed, since several columns may have one name
                text = orjson.dumps(row, default=plain, option=orjson.OPT_NON_STR_KEYS).decode()
                file.write((b",\n" if rows else b"\n") + escaped_json(text).encode())
                rows += 1
        file.write(b"\n]\n")
        return rows
    is_csv = form == "csv"
    schema = answer.schema
    if is_csv:
        schema = pa.schema([(field.name, pa.string() if _is_nested(field.type) else field.type) for field in schema])
    opened = pyarrow.csv.CSVWriter(file, schema) if is_csv else pq.ParquetWriter(file, schema, compression="zstd")
    with opened as writer:
        for batch in answer:
            writer.write_batch(pa.record_batch(list(map(_flatten, batch.columns)), schema=schema) if is_csv else batch)
            rows += batch.num_rows
    return rows


def _flatten(column: pa.Array) -> pa.Array:
    """Return a column that can be written to CSV. Lists become JSON texts, and bytes become hexadecimal texts."""
    if not _is_nested(column.type):
        return column

    def as_text(value: object) -> str:
        return value.hex() if isinstance(value, bytes) else orjson.dumps(value, default=plain).decode()

    return pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def plain(value: object, *, bits: int = 63) -> object:
    """Convert a value of a type that JSON lacks to a JSON value. Integers of more than `bits` bits become floats."""
    if isinstance(value, Decimal):  # DuckDB's sums of integers have this type
        return int(value) if value == value.to_integral_value() and abs(value) < 1 << bits else float(value)
    return value.hex() if isinstance(value, bytes) else str(value)
