"""The queries that come with framedex.

Each .sql file contains a title, the meaning of the answer, and the query itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from framedex.auditor.tables.subject import Kind

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
