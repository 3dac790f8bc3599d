"""`framedex.audit` and `framedex.query`: the command `framedex audit` as Python functions.

A whole audit: opens an index or a dataset, adds tables, runs the checks and writes the report.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from framedex.auditor import findings
from framedex.auditor.tables.database import GIBIBYTE, Database, QueryLimits, check_reads, database
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.source_files import add_files, add_policy_misses, add_scene_views, add_tars
from framedex.auditor.tables.subject import OF_SOURCES, Kind, opened
from framedex.core.words import did_you_mean
from framedex.errors import FramedexError, OutputError
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.storage.places import OWN_STORE, Access, Place, place

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
) -> findings.Audit:
    """Run all checks, or the named ones, and write a report if `report` is given."""
    with opened(what, frames=report is not None) as audited:
        asked = chosen(audited.kind, names)
        queries = [question.sql for question in [*asked, *findings.questions("summary", audited.kind)]]
        if report is not None:
            from framedex.auditor.report.page import (
                queries as of_report,  # imports the decoders of pictures, so only on demand
            )

            queries += of_report(audited.kind)
        with database(
            audited,
            kept={
                KEPT[audited.kind]: findings.words(
                    [*queries, findings.SHARED, findings.PARTS_OF_FILES, *OF_SOURCES, "shard"]
                )
            },
        ) as db:
            _add_tables(db, asked, look=look, named=bool(names), policy=policy, access=access)
            found = findings.ask_all(db, asked, summary=not names)
            if names and found.unasked:
                check, lack = found.unasked[0]
                raise FramedexError(
                    "a check that is named cannot be asked", found=check.name, remedy=f"it needs {lack}"
                )
            if report is not None:
                from framedex.auditor.report.page import write_report

                write_report(db, found, report, access=access, pictures=pictures)
            return found


def _add_tables(
    db: Database, asked: list[findings.Check], *, look: bool, named: bool, policy: PolicyLike | None, access: Access
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


def chosen(kind: Kind, names: tuple[str, ...]) -> list[findings.Check]:
    """Return the checks with these names, or all if there are no names. Raises FramedexError for an unknown name."""
    known = findings.checks_of(kind)
    for name in names:
        if name not in {check.name for check in known}:
            raise FramedexError(
                f"there is no such check of {'an index' if kind == 'index' else 'a dataset'}",
                found=name,
                allowed=", ".join(sorted(check.name for check in known)),
                remedy=did_you_mean(name, (check.name for check in known)),
            )
    return [check for check in known if not names or check.name in names]


LIMITS = QueryLimits()
MORE = "timeout=, memory= and spill= give it more; a LIMIT or a WHERE makes it less"


def audit(
    what: str | Place,
    *,
    checks: str | Sequence[str] = (),
    files: bool = False,
    policy: PolicyLike | None = None,
    root: str | Path | None = None,
    allow_remote: bool = False,
    report: str | Path | None = None,
    pictures: bool = True,
    overwrite: bool = False,
) -> findings.Audit:
    """Report the contents of an index or a dataset and its problems, as `framedex audit` does.

    Args:
        what: An index or a dataset: a folder, or a uri of object storage.
        checks: The names of the checks to run. Empty: all.
        files: Whether to check that the media still exist and are unchanged.
        policy: For an index, report the media that are too short for this policy, and what is wrong with the views of
            its scenes. None: this is not checked.
        root: The current root of the sources, if they moved.
        allow_remote: Whether sources may lie in another store than the index or dataset: as for ClipDataset.
        report: An .html file to write, with a .json file beside it. None: no report.
        pictures: Whether the report shows frames of examples.
        overwrite: Whether an existing report is replaced.

    Returns:
        The summary in sections, and the findings, the most severe first.

    Raises:
        FramedexError: An argument is wrong, there is no index or dataset, or the report exists already.
    """
    page = None if report is None else Path(report)
    if page is not None:
        if page.suffix != ".html":
            raise FramedexError("the report is an .html file", found=str(page))
        for path in (page, page.with_suffix(".json")):
            check_free(path, overwrite)
    access = Access(root=root, allow_remote=allow_remote)
    names = (checks,) if isinstance(checks, str) else tuple(checks)
    return run(place(what), names, look=files, policy=policy, access=access, report=page, pictures=pictures)


def query(
    what: str | Place,
    sql: str,
    *,
    timeout: float = LIMITS.seconds,
    memory: float = LIMITS.memory_bytes / GIBIBYTE,
    spill: float = LIMITS.spill_bytes / GIBIBYTE,
) -> pa.Table:
    """Return the rows of an SQL query over the views of an index or a dataset, as `framedex audit --sql` does.

    docs/audit.md lists the views and their columns.

    Args:
        what: An index or a dataset: a folder, or a uri of object storage.
        sql: One statement that only reads, in DuckDB's SQL.
        timeout: The most seconds that the query may take.
        memory: The most GiB of memory that the query or its answer may take.
        spill: The most GiB that the query may write to the temporary folder if memory is too small.

    Raises:
        FramedexError: There is no index or dataset, the query is wrong, or it reaches a limit.
    """
    check_reads(sql)
    limits = QueryLimits(seconds=timeout, memory_bytes=int(memory * GIBIBYTE), spill_bytes=int(spill * GIBIBYTE))
    with (
        opened(place(what), frames=asks_frames(sql)) as audited,
        QueryProcess(audited, limits, remedy=MORE) as queries,
    ):
        return queries.table(sql)
