"""What an audit finds: the answers of a summary, and of each check that has any."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from framedex.auditor.findings.queries import SEVERITIES, Check, Question, questions
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.views import literal

EXAMPLES = 5
SHARED = "SELECT 1 FROM videos WHERE member IS NOT NULL OR video_streams > 1 LIMIT 1"  # files of several media
PARTS_OF_FILES = "SELECT media_id, member, CASE WHEN video_streams > 1 THEN stream_index END AS stream FROM videos"
AT_ONCE = 2  # queries: while one is planned, another one runs
OPTION_OF = {"files": "--files", "policy_misses": "--policy"}  # what brings a view that a check needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found. count: rows of its query. examples: the first of them, by column."""

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
    """What an audit says of an index or a dataset.

    passed: checks that found nothing. unasked: those that could not be asked, with what they need.
    """

    kind: str
    place: str
    sections: list[Section]
    findings: list[Finding]
    passed: list[Check]
    unasked: list[tuple[Check, str]]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
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
    """Ask a summary, and all that checks ask."""
    audited = database.audited
    first = questions("summary", audited.kind) if summary else []
    lacks = {question: missing(database, question) for question in [*first, *asked]}
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


def missing(database: Database, question: Question) -> str | None:
    """Return what a question needs and there is not: an option, or a column; None where it has all."""
    for need in question.needs:
        view, _, column = need.partition(".")
        columns = database.columns(view)
        if not columns or (column and column not in columns):
            return OPTION_OF.get(view, f"a column {column!r}, which a listing or a policy may give")
    return None


def find(database: Database, check: Check) -> Finding | None:
    """Return what a check finds, None where that is nothing. Raises FramedexError where it cannot be asked."""
    if "GROUP BY" in check.sql:  # which counting does not make cheaper: it is done once
        found = f"WITH found AS MATERIALIZED ({check.sql}) SELECT (SELECT count(*) FROM found) AS _count, * FROM found"
        examples = database.ask(f"{found} LIMIT {EXAMPLES}").records()
        counts = [example.pop("_count") for example in examples]
        count = counts[0] if counts else 0
    else:
        ((count,),) = database.ask(f"SELECT count(*) FROM ({check.sql})").rows
        examples = database.ask(f"{check.sql}\nLIMIT {EXAMPLES}").records() if count else []
    return Finding(check=check, count=count, examples=examples) if count else None


def _told_apart(database: Database, finding: Finding) -> Finding:
    """Return a finding whose examples say which medium of a file they are, where some file holds several."""
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
