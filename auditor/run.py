"""A whole audit: opens an index or a dataset, adds tables, runs the checks and writes the report."""

from __future__ import annotations

import re
from pathlib import Path

from framedex.auditor.findings.findings import PARTS_OF_FILES, SHARED, Audit, ask_all
from framedex.auditor.findings.queries import Check, checks_of, questions, words
from framedex.auditor.tables.database import Database, database
from framedex.auditor.tables.policy_tables import add_policy_misses, add_scene_views
from framedex.auditor.tables.source_files import add_files, add_tars
from framedex.auditor.tables.subject import Kind, opened
from framedex.auditor.tables.views import OF_SOURCES
from framedex.core.hints import did_you_mean
from framedex.errors import FramedexError, OutputError
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.storage.locations import OWN_STORE, Access
from framedex.storage.places import Place

FRAMES_VIEWS = re.compile(r"\b(frames|packets|gops|frames_parts)\b", re.IGNORECASE)
KEPT: dict[Kind, str] = {"index": "videos", "dataset": "clips"}  # the view that nearly every check uses


def asks_frames(sql: str) -> bool:
    """Return whether a query may use the views of single frames, which take longer to open."""
    return FRAMES_VIEWS.search(sql) is not None


def check_free(path: Path | None, overwrite: bool) -> None:
    """Raise OutputError if a file exists and must not be replaced."""
    if path is not None and path.exists():
        if not overwrite:
            raise OutputError(
                "the output file is there already", where=str(path), remedy="pass --overwrite, or choose another name"
            )
        if not path.is_file():
            raise OutputError("the output is no regular file", where=str(path), remedy="choose another name")


def run(
    what: Place,
    names: tuple[str, ...] = (),
    *,
    look: bool = False,
    policy: PolicyLike | None = None,
    access: Access = OWN_STORE,
    report: Path | None = None,
    pictures: bool = True,
) -> Audit:
    """Run all checks, or the named ones, and write a report if `report` is given."""
    with opened(what, frames=report is not None) as audited:
        asked = chosen(audited.kind, names)
        queries = [question.sql for question in [*asked, *questions("summary", audited.kind)]]
        if report is not None:
            from framedex.auditor.report.report import (
                queries as of_report,
            )  # imports the decoders of pictures, so only on demand

            queries += of_report(audited.kind)
        with database(
            audited, kept={KEPT[audited.kind]: words([*queries, SHARED, PARTS_OF_FILES, *OF_SOURCES, "shard"])}
        ) as db:
            _add_tables(db, asked, look=look, named=bool(names), policy=policy, access=access)
            found = ask_all(db, asked, summary=not names)
            if names and found.unasked:
                check, lack = found.unasked[0]
                raise FramedexError(
                    "a check that is named cannot be asked", found=check.name, remedy=f"it needs {lack}"
                )
            if report is not None:
                from framedex.auditor.report.report import write_report

                write_report(db, found, report, access=access, pictures=pictures)
            return found


def _add_tables(
    db: Database, asked: list[Check], *, look: bool, named: bool, policy: PolicyLike | None, access: Access
) -> None:
    """Add the tables that checks need and that an index or a dataset does not contain."""
    if policy is not None and db.audited.kind != "index":
        raise FramedexError(
            "--policy asks an index; a dataset's failures say what its own policy missed", found=db.audited.kind
        )
    needed = {need for check in asked for need in check.needs}
    if "files" in needed and (look or named):
        add_files(db, access)
    if "tars" in needed:
        add_tars(db, content=look)
    if "policy_misses" in needed and policy is not None:
        add_policy_misses(db, policy)
    if "scene_views" in needed and policy is not None and find_policy(policy).policy.views is not None:
        add_scene_views(db, policy)


def chosen(kind: Kind, names: tuple[str, ...]) -> list[Check]:
    """Return the checks with these names, or all if there are no names. Raises FramedexError for an unknown name."""
    known = checks_of(kind)
    for name in names:
        if name not in {check.name for check in known}:
            raise FramedexError(
                f"there is no such check of {'an index' if kind == 'index' else 'a dataset'}",
                found=name,
                allowed=", ".join(sorted(check.name for check in known)),
                remedy=did_you_mean(name, (check.name for check in known)),
            )
    return [check for check in known if not names or check.name in names]
