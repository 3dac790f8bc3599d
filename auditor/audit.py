"""The functions `framedex.audit` and `framedex.query`, which correspond to the command `framedex audit`.

An audit opens an index or a dataset, adds the tables that its checks need, runs the checks and writes the report.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from framedex.auditor import findings
from framedex.auditor.tables.database import Database, QueryLimits, check_reads, database
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.source_files import add_files, add_policy_misses, add_scene_views, add_tars
from framedex.auditor.tables.subject import OF_SOURCES, Kind, opened
from framedex.core.limits import GIBIBYTE
from framedex.core.words import did_you_mean
from framedex.errors import FramedexError
from framedex.files.outputs import check_free
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.storage.places import OWN_STORE, Access, Place, place

LIMITS = QueryLimits()
MORE = "raise the limits timeout=, memory= and spill=, or reduce the result with LIMIT or WHERE"
# The view of an index or a dataset that nearly every check uses. It is loaded into memory once.
KEPT: dict[Kind, str] = {"index": "videos", "dataset": "clips"}


def uses_frames(sql: str) -> bool:
    """Return whether a query may use the table of packets, which takes longer to open."""
    return re.search(r"\b(frames|packets|gops|frames_parts)\b", sql, re.IGNORECASE) is not None


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
    """Run checks, and write a report if `report` is given.

    Args:
        what: The index or dataset.
        names: The names of the checks to run. If empty, all checks are run.
        look: Whether to check that media and tars still exist and are unchanged.
        policy: The policy for the checks that need a policy. If None, these checks are not run.
        access: Where the sources are, and which sources may be read.
        report: The .html file of the report.
        pictures: Whether the report shows frames of examples.
    """
    with opened(what, frames=report is not None) as audited:
        asked = _select_checks(audited.kind, names)
        queries = [question.sql for question in [*asked, *findings.questions("summary", audited.kind)]]
        queries += [findings.SHARED, findings.PARTS_OF_FILES, *OF_SOURCES, "shard"]
        if report is not None:
            from framedex.auditor.report import page  # imports the decoders of pictures, so only on demand

            queries += page.queries(audited.kind)
        with database(audited, kept={KEPT[audited.kind]: findings.words(queries)}) as db:
            _add_tables(db, asked, look=look, named=bool(names), policy=policy, access=access)
            found = findings.ask_all(db, asked, summary=not names)
            if names and found.unasked:
                check, lack = found.unasked[0]
                raise FramedexError("the requested check cannot be run", found=check.name, remedy=f"it needs {lack}")
            if report is not None:
                found = page.write_report(db, found, report, access=access, pictures=pictures)
            return found


def _add_tables(
    db: Database, asked: list[findings.Check], *, look: bool, named: bool, policy: PolicyLike | None, access: Access
) -> None:
    """Add the tables that checks need and that an index or a dataset does not contain.

    Looking at all sources takes long. So `files` is added only if `look` is set, or if a check that needs it was
    requested by name.
    """
    if policy is not None and db.audited.kind != "index":
        raise FramedexError(
            "--policy can only be used with an index; a dataset lists the clips that could not be made as failures",
            found=db.audited.kind,
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


def _select_checks(kind: Kind, names: tuple[str, ...]) -> list[findings.Check]:
    """Return the checks with these names, or all checks if `names` is empty. Raises FramedexError."""
    known = {check.name: check for check in findings.checks_of(kind)}
    for name in names:
        if name not in known:
            raise FramedexError(
                f"there is no such check of {'an index' if kind == 'index' else 'a dataset'}",
                found=name,
                allowed=", ".join(sorted(known)),
                remedy=did_you_mean(name, known),
            )
    return [check for check in known.values() if not names or check.name in names]


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
    """Summarize the contents of an index or a dataset, and report its problems, like `framedex audit`.

    Args:
        what: The folder of an index or a dataset, or its uri in object storage.
        checks: The names of the checks to run. If empty, all checks are run.
        files: Whether to check that the media still exist and are unchanged.
        policy: A policy, if `what` is an index. The audit then also reports media that are too short for the policy,
            and problems of the views if the policy has views.
        root: The current root folder of the sources, if they were moved.
        allow_remote: Whether sources may be in another object store than the index or dataset, as for ClipDataset.
        report: The .html file to which a report is written. A .json file with the same name is written beside it.
        pictures: Whether the report shows frames of examples.
        overwrite: Whether an existing report is replaced.

    Returns:
        The sections of the summary, and the findings, the most severe ones first.

    Raises:
        FramedexError: An argument is invalid, the index or dataset does not exist, or the report already exists.
    """
    page = None if report is None else Path(report)
    if page is not None:
        if page.suffix != ".html":
            raise FramedexError("the file name of a report must end in .html", found=str(page))
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
    """Return the rows of an SQL query on the views of an index or a dataset, like `framedex audit --sql`.

    docs/audit.md lists the views and their columns.

    Args:
        what: The folder of an index or a dataset, or its uri in object storage.
        sql: A single statement that only reads, in DuckDB's SQL.
        timeout: The time limit of the query in seconds.
        memory: The memory limit of the query and of its result in GiB.
        spill: The size limit in GiB of the temporary files that the query writes if memory is too small.

    Raises:
        FramedexError: The index or dataset does not exist, the query is invalid, or the query exceeds a limit.
    """
    check_reads(sql)
    limits = QueryLimits(seconds=timeout, memory_bytes=int(memory * GIBIBYTE), spill_bytes=int(spill * GIBIBYTE))
    with (
        opened(place(what), frames=uses_frames(sql)) as audited,
        QueryProcess(audited, limits, remedy=MORE) as queries,
    ):
        return queries.table(sql)
