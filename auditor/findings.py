"""The queries that come with framedex, and the output of their answers.

Each .sql file contains a title, the meaning of the answer, and the query itself. An audit runs the queries of the
summary and of the checks, and is printed as lines of text. The answer to a single query, also to a user's, is printed
or written as a table, CSV, JSON or Parquet.
"""

import contextlib
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from framedex.errors import FramedexError, printable
from framedex.files.outputs import ASIDE

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the worst one first
FIELD = re.compile(r"(severity|needs|means|remedy): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query with a title.

    Attributes:
        name: The name of the query.
        title: The question in words.
        sql: The query.
        needs: Views that exist only on request, or columns (`view.column`) that only some indexes or datasets have.
    """

    name: str
    title: str
    sql: str
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Question):
    """A query that returns one row for each problem.

    Attributes:
        severity: How bad a problem is.
        means: Why it matters.
        remedy: How to fix or avoid it.
    """

    severity: Severity
    means: str
    remedy: str


def checks_of(kind: Kind) -> list[Check]:
    """Return all checks of an index or a dataset, the most severe first."""
    found = [Check(**query) for query in _read_queries("checks", kind)]
    return sorted(found, key=lambda check: (SEVERITIES.index(check.severity), check.name))


def questions(folder: Literal["summary", "questions"], kind: Kind) -> list[Question]:
    """Return the queries of a summary or of the cookbook, in the order of their file names."""
    return [Question(**query) for query in _read_queries(folder, kind)]


def words(queries: Iterable[str]) -> set[str]:
    """Return all words in some queries. They include the names of all columns that the queries need."""
    return {word for query in queries for word in re.findall(r"\w+", query)}


def _read_queries(folder: str, kind: Kind) -> list[dict[str, Any]]:
    """Return the attributes of each query of a folder, in the order of the file names."""
    found: list[dict[str, Any]] = []
    for file in sorted((files("framedex.auditor") / folder / kind).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            lines = file.read_text(encoding="utf-8").splitlines()
            comment = list(takewhile(lambda line: line.startswith("--"), lines))
            # A line that continues the one before is indented further.
            joined = re.sub(r"\n--   +", " ", "\n".join(comment))
            title, *rest = (line.removeprefix("--").strip() for line in joined.splitlines())
            fields = {match[1]: match[2] for line in rest if (match := FIELD.fullmatch(line))}
            needs = tuple(re.split(r",\s*", fields["needs"])) if "needs" in fields else ()
            # A number at the beginning of a name only sets the order.
            name = re.sub(r"^\d+_", "", file.name.removesuffix(".sql"))
            sql = "\n".join(lines[len(comment) :]).strip()
            found.append(fields | {"name": name, "title": title, "sql": sql, "needs": needs})
    return found


EXAMPLES = 5  # rows of a finding that are shown; its SQL gives the others
# Finds whether some file has several media. Only then a uri does not identify a medium.
SHARED = "SELECT 1 FROM videos WHERE member IS NOT NULL OR video_streams > 1 LIMIT 1"
PARTS_OF_FILES = "SELECT media_id, member, CASE WHEN video_streams > 1 THEN stream_index END AS stream FROM videos"
AT_ONCE = 2  # parallel queries: one runs while another is planned
# The option that adds a view that a check needs.
OPTION_OF = {"files": "--files", "policy_misses": "--policy", "scene_views": "--policy, of a policy with views"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The rows that a check found.

    Attributes:
        check: The check.
        count: The number of rows of its query.
        examples: The first rows, by column.
    """

    check: Check
    count: int
    examples: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the summary."""

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
        findings: The findings of the checks, the most severe first.
        passed: The checks without a finding.
        unasked: The checks that could not run, each with the option or column that it needs.
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
    """Run the queries of the summary and all given checks."""
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
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.check.severity), -finding.count))
    return Audit(
        kind=audited.kind,
        place=str(audited.place),
        sections=list(sections),
        findings=findings,
        passed=[check for check in can if answers[check] is None],
        unasked=[(check, lack) for check in asked if (lack := lacks[check]) is not None],
    )


def missing(columns_of: Callable[[str], Collection[str]], question: Question) -> str | None:
    """Return the option or the column that a question needs and the views lack, or None if the views have all."""
    for need in question.needs:
        view, _, column = need.partition(".")
        columns = [name.lower() for name in columns_of(view)]  # as queries compare them
        if not columns or (column and column not in columns):
            return OPTION_OF.get(view, f"a column {column!r}, which a listing or a policy may give")
    return None


def find(database: Database, check: Check) -> Finding | None:
    """Return the finding of a check, or None if it found nothing. Raises FramedexError if its query fails."""
    if "GROUP BY" in check.sql:  # counting such a query costs as much as running it, so it runs once
        found = f"WITH found AS MATERIALIZED ({check.sql}) SELECT (SELECT count(*) FROM found) AS _count, * FROM found"
        examples = database.ask(f"{found} LIMIT {EXAMPLES}").records()
        counts = [example.pop("_count") for example in examples]
        count = counts[0] if counts else 0
    else:
        ((count,),) = database.ask(f"SELECT count(*) FROM ({check.sql})").rows
        examples = database.ask(f"{check.sql}\nLIMIT {EXAMPLES}").records() if count else []
    return Finding(check=check, count=count, examples=examples) if count else None


def _name_parts(database: Database, finding: Finding) -> Finding:
    """Return a finding whose examples also name the member or stream of a file that has several media."""
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


WIDTH = 118  # characters of a line, which fit a wide terminal and a diff of two audits
ROWS = 8  # a summary shows the first rows of a table; --json has all
NAMES = ("media_id",)  # columns that only programs read
# Names of files differ at their end, so the end of a long name is shown. Other long texts are cut at their end.
NAMING = {"uri", "member", "name", "clip_id", "first", "video", "folder", "file", "listed_uri"}
LONGEST, LONGEST_SENTENCE = 48, 80  # characters of a cell with a name, and of one with another text
LONGEST_TITLE = 64  # the titles of distributions are names that must not be cut
SENTENCES = ("totals", "traits")  # sections that are printed as one sentence
# For each unit of a fact, a smaller unit and its factor.
SMALLER = {
    "hours": ("minutes", 60),
    "minutes": ("seconds", 60),
    "gigabytes": ("megabytes", 1000),
    "megabytes": ("kilobytes", 1000),
    "gigabytes_read": ("megabytes_read", 1000),
    "megabytes_read": ("kilobytes_read", 1000),
}
# The columns of a section about the distribution of a number.
SPREAD = ("least", "tenth", "median", "nine_tenths", "greatest", "mean")


def lines(audit: Audit) -> Iterator[str]:
    """Yield the lines of an audit."""
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
        yield f"not asked without {lack}: {names}"


def _answer_section(section: Section) -> Iterator[str]:
    title = section.question.title
    if section.question.name in SENTENCES:
        facts = [legible(*fact) for fact in zip(section.names, section.rows[0], strict=True)]
        text = ", ".join(f"{cell(value)} {name}".replace("_", " ") for name, value in facts)
        yield from textwrap.wrap(f"{title}: {text}", WIDTH, subsequent_indent="  ")
        return
    yield f"{title}:"
    yield from (f"  {line}" for line in table(section.names, section.rows[:ROWS]))
    if len(section.rows) > ROWS:
        yield f"  … and {len(section.rows) - ROWS:,} more rows (--json has all)"


def _spreads(sections: Sequence[Section]) -> Iterator[str]:
    """Yield one table for all sections about the distribution of a number."""
    yield "How they are spread:"
    rows = []
    for section in sections:
        places = [section.names.index(name) for name in SPREAD]
        rows += [(section.question.title, *(row[place] for place in places)) for row in section.rows]
    names = ("", "least", "10 %", "median", "90 %", "greatest", "mean")
    yield from (f"  {line}" for line in table(names, rows, LONGEST_TITLE))


def legible(name: str, value: object) -> tuple[str, object]:
    """Return a fact's name and value, in a smaller unit if the value is less than 1 in its own unit."""
    while name in SMALLER and isinstance(value, float) and 0 < value < 1:
        name, times = SMALLER[name]
        value = float(f"{value * times:.3g}")
    return name, value


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
    """Yield the lines of a table, with numbers aligned right and all else left.

    Args:
        names: The names of the columns.
        rows: The values of each row.
        longest: The maximum length of a name.
    """
    columns = []
    for place, name in enumerate(names):
        limits: dict[str, Any] = (
            {"longest": longest} if name in NAMING else {"longest": LONGEST_SENTENCE, "ends": False}
        )
        cells = [printable(name), *(cell(row[place], **limits) for row in rows)]
        width = max(map(len, cells))
        is_number = all(isinstance(row[place], (int, float, Decimal, type(None))) for row in rows)
        columns.append([text.rjust(width) if is_number else text.ljust(width) for text in cells])
    yield from ("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def cell(value: object, longest: int = LONGEST, *, ends: bool = True) -> str:
    """Return a value as one short line without control characters.

    Args:
        value: Any value.
        longest: The maximum length of a text.
        ends: Whether the end of a long text is shown. If False, its first line or the beginning of that line is shown.
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
    text = printable(whole[-longest - 1 :] if ends else whole[: longest + 1])  # more is not shown
    if len(text) <= longest:
        return text
    return "…" + text[1 - longest :] if ends else text[: longest - 1] + "…"


Format = Literal["table", "csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHOWN = 1000  # a terminal shows at most this many rows of a table
MAX_SHOWN_BYTES = 16_000_000  # all rows are in memory at once, since the widths of columns depend on all of them


def print_table(answer: Result) -> None:
    """Print the first rows of an answer as a table, and whether there are more."""
    for line in _lines(answer.names, answer.rows[:SHOWN]):
        echo(line)
    if answer.cut or len(answer.rows) > SHOWN:
        echo("… and more rows (--format csv, or --out FILE, has all)")


def print_answer(answer: pa.RecordBatchReader, form: Format) -> None:
    """Print the answer to a query as CSV, JSON or Parquet.

    Raises:
        FramedexError: The answer contains a value that the format cannot hold, or is Parquet for a terminal.
    """
    if form == "parquet" and sys.stdout.isatty():
        raise FramedexError("Parquet is not for terminals", remedy="name a file with --out")
    with _held_by(form):
        _write(answer, form, stdout_bytes())


def write_answer(answer: pa.RecordBatchReader, form: Format, out: Path) -> int:
    """Write an answer to a file, completely or not at all. Return the number of rows. Raises FramedexError."""
    target = out.resolve()  # a symbolic link is kept
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(ASIDE + target.name)
    try:
        with open(aside, "wb") as file, _held_by(form):
            if form == "table":
                # Not by name, since columns of a query may share a name.
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
    """Yield the lines of a table. An answer to EXPLAIN is a drawing of several lines and not a table."""
    if names == EXPLANATION:
        yield from (line for _, text in rows for line in printable(str(text), lines=True).splitlines())
    else:
        yield from table(names, rows)


@contextlib.contextmanager
def _held_by(form: Format) -> Iterator[None]:
    """Raise FramedexError for values that a format cannot hold."""
    try:
        yield
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise FramedexError(
            f"the answer holds a value that {form} cannot", found=error, remedy="cast it to VARCHAR in the query"
        ) from error


def _write(answer: pa.RecordBatchReader, form: Format, file: BinaryIO | TerminalBytes) -> int:
    """Write an answer as CSV, JSON or Parquet, batch by batch, and return the number of rows."""
    rows = 0
    if form == "json":
        names = answer.schema.names
        keys = [f"{name}_{n}" if (n := names[:place].count(name)) else name for place, name in enumerate(names)]
        file.write(b"[")
        for batch in answer:
            for row in batch.rename_columns(keys).to_pylist():  # else one of two columns with the same name is lost
                text = orjson.dumps(row, default=plain, option=orjson.OPT_NON_STR_KEYS).decode()
                file.write((b",\n" if rows else b"\n") + escaped_json(text).encode())
                rows += 1
        file.write(b"\n]\n")
        return rows
    is_csv = form == "csv"
    schema = answer.schema
    if is_csv:
        schema = pa.schema([(field.name, pa.string() if _is_nested(field.type) else field.type) for field in schema])
    with (
        pyarrow.csv.CSVWriter(file, schema) if is_csv else pq.ParquetWriter(file, schema, compression="zstd") as writer
    ):
        for batch in answer:
            writer.write_batch(pa.record_batch(list(map(_flatten, batch.columns)), schema=schema) if is_csv else batch)
            rows += batch.num_rows
    return rows


def _flatten(column: pa.Array) -> pa.Array:
    """Return a column that CSV can hold: lists as JSON texts, and bytes as hexadecimal texts."""
    if not _is_nested(column.type):
        return column

    def as_text(value: object) -> str:
        return value.hex() if isinstance(value, bytes) else orjson.dumps(value, default=plain).decode()

    return pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def plain(value: object, *, bits: int = 63) -> object:
    """Return a JSON value for a value whose type JSON lacks. Whole numbers of more bits become floats."""
    if isinstance(value, Decimal):  # the type of sums of whole numbers
        return int(value) if value == value.to_integral_value() and abs(value) < 1 << bits else float(value)
    return value.hex() if isinstance(value, bytes) else str(value)
