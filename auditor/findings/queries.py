"""The questions that come with framedex, each a .sql file: what it asks, what the answer means, and the query itself."""

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
    """A query with its title. needs: views that there are only if asked for, or columns (`view.column`) that only some have."""

    name: str
    title: str
    sql: str
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Question):
    """A query that has a row for each thing found. means: why that matters. remedy: what to do about it."""

    severity: Severity
    means: str
    remedy: str


def checks_of(kind: Kind) -> list[Check]:
    """Return all checks of an index or a dataset, the gravest first."""
    found = [_check(name, text) for name, text in _texts("checks", kind)]
    return sorted(found, key=lambda check: (SEVERITIES.index(check.severity), check.name))


def questions(folder: Literal["summary", "questions"], kind: Kind) -> list[Question]:
    """Return the queries of a summary, or those of the cookbook, in the order of their files' names."""
    return [_question(name, text) for name, text in _texts(folder, kind)]


def words(queries: Iterable[str]) -> set[str]:
    """Return the words of some queries, among which are the names of all columns that they need."""
    return {word for query in queries for word in re.findall(r"\w+", query)}


def _texts(folder: str, kind: Kind) -> list[tuple[str, str]]:
    here = files("framedex.auditor") / folder / kind
    found = [entry for entry in here.iterdir() if entry.name.endswith(".sql")]
    return sorted((entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in found)


def _split(text: str) -> tuple[list[str], str]:
    """Return the lines of a file's comment, continued ones joined, and its query."""
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
    """Return a file's title, the fields of its comment, and its query."""
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
