"""The findings of an audit: the summary, and the answers of the checks that found something.

The queries that come with framedex.

Each .sql file contains a title, the meaning of the answer, and the query itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import repeat
from typing import Any, Literal

from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind, literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # the worst one first
FIELD = re.compile(r"(severity|needs|means|remedy): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query with a title.

    Attributes:
        name: The name of the query.
        title: What it asks.
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
        remedy: What to do about it.
    """

    severity: Severity
    means: str
    remedy: str


def checks_of(kind: Kind) -> list[Check]:
    """Return all checks of an index or a dataset, the most severe first."""
    found = [_check(name, text) for name, text in _texts("checks", kind)]
    return sorted(found, key=lambda check: (SEVERITIES.index(check.severity), check.name))


def questions(folder: Literal["summary", "questions"], kind: Kind) -> list[Question]:
    """Return the queries of a summary or of the cookbook, in the order of their file names."""
    return [_question(name, text) for name, text in _texts(folder, kind)]


def words(queries: Iterable[str]) -> set[str]:
    """Return all words in some queries. They include the names of all columns that the queries need."""
    return {word for query in queries for word in re.findall(r"\w+", query)}


def _texts(folder: str, kind: Kind) -> list[tuple[str, str]]:
    here = files("framedex.auditor") / folder / kind
    found = [entry for entry in here.iterdir() if entry.name.endswith(".sql")]
    return sorted((entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in found)


def _split(text: str) -> tuple[list[str], str]:
    """Return the lines of a file's comment, with continuation lines joined, and its query."""
    comment: list[str] = []
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        line = lines.pop(0).removeprefix("--")
        if line.startswith("   ") and comment:
            comment[-1] += " " + line.strip()
        else:
            comment.append(line.strip())
    return comment, "\n".join(lines).strip()


def _parsed(text: str) -> tuple[str, dict[str, str], str]:
    """Return the title, the fields of the comment, and the query of a file."""
    (title, *rest), sql = _split(text)
    return title, {match[1]: match[2] for line in rest if (match := FIELD.fullmatch(line))}, sql


def _needs(fields: dict[str, str]) -> tuple[str, ...]:
    return tuple(part for part in re.split(r",\s*", fields.get("needs", "")) if part)


def _question(name: str, text: str) -> Question:
    title, fields, sql = _parsed(text)
    return Question(name=re.sub(r"^\d+_", "", name), title=title, sql=sql, needs=_needs(fields))


def _check(name: str, text: str) -> Check:
    title, fields, sql = _parsed(text)
    (severity,) = (known for known in SEVERITIES if known == fields["severity"])
    return Check(
        name=name,
        title=title,
        sql=sql,
        needs=_needs(fields),
        severity=severity,
        means=fields["means"],
        remedy=fields["remedy"],
    )


EXAMPLES = 5
SHARED = "SELECT 1 FROM videos WHERE member IS NOT NULL OR video_streams > 1 LIMIT 1"  # finds a file with several media
PARTS_OF_FILES = "SELECT media_id, member, CASE WHEN video_streams > 1 THEN stream_index END AS stream FROM videos"
AT_ONCE = 2  # parallel queries: one runs while another is planned
OPTION_OF = {
    "files": "--files",
    "policy_misses": "--policy",
    "scene_views": "--policy, of a policy with views",
}  # the option that adds a view that a check needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found.

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
        findings: What the checks found, the most severe first.
        passed: The checks that found nothing.
        unasked: The checks that could not run, each with what it needs.
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
        findings = [_told_apart(database, finding) for finding in findings]
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


def _told_apart(database: Database, finding: Finding) -> Finding:
    """Return a finding whose examples name the medium within its file, for files with several media."""
    ids = ", ".join(literal(row["media_id"]) for row in finding.examples if row.get("media_id"))
    if not ids:
        return finding
    known = {row["media_id"]: row for row in database.ask(f"{PARTS_OF_FILES} WHERE media_id IN ({ids})").records()}
    columns = [name for name in ("member", "stream") if any(row[name] is not None for row in known.values())]
    examples = [
        {name: row[name] for name in ("media_id", "uri")}
        | {name: known[row["media_id"]][name] for name in columns}
        | row
        for row in finding.examples
    ]
    return replace(finding, examples=examples)


def _section(database: Database, question: Question) -> Section:
    answer = database.ask(question.sql)
    return Section(question=question, names=answer.names, rows=answer.rows)
