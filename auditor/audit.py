"""`framedex.audit` and `framedex.query`: the command from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from framedex.auditor.findings.findings import Audit
from framedex.auditor.run import asks_frames, check_free, run
from framedex.auditor.tables.database import QueryLimits, database
from framedex.auditor.tables.subject import opened
from framedex.errors import FramedexError
from framedex.sharder.policies.reading import PolicyLike
from framedex.storage.places import Place, place

LIMITS = QueryLimits()


def audit(
    what: str | Place,
    *,
    checks: Sequence[str] = (),
    files: bool = False,
    policy: PolicyLike | None = None,
    root: str | Path | None = None,
    report: str | Path | None = None,
    pictures: bool = True,
    overwrite: bool = False,
) -> Audit:
    """Say what is in an index or a dataset, and what is wrong with it, as `framedex audit` does.

    Args:
        what: an index or a dataset: a folder, or a uri of object storage.
        checks: the names of those to ask. Empty: all.
        files: look whether the media are still there and unchanged, too.
        policy: of an index, ask which media are too short for this policy, too.
        root: where the sources lie now, if they moved.
        report: an .html file to write, with a .json file beside it. None: no report.
        pictures: draw frames of examples in the report.
        overwrite: replace a report that is there.

    Returns:
        The summary in sections, and what checks found, the worst first.

    Raises:
        FramedexError: an argument is wrong, there is no index or dataset, or the report is there already.
    """
    page = None if report is None else Path(report)
    if page is not None:
        if page.suffix != ".html":
            raise FramedexError("the report is an .html file", found=str(page))
        for path in (page, page.with_suffix(".json")):
            check_free(path, overwrite)
    where = None if root is None else str(root)
    return run(place(what), tuple(checks), look=files, policy=policy, root=where, report=page, pictures=pictures)


def query(what: str | Place, sql: str, *, limits: QueryLimits = LIMITS) -> pa.Table:
    """Return the rows of a query over the views of an index or a dataset (docs/audit.md), as `framedex audit --sql` does.

    Args:
        what: an index or a dataset: a folder, or a uri of object storage.
        sql: one statement that reads, in DuckDB's SQL.
        limits: of time, memory and disk.

    Raises:
        FramedexError: there is no index or dataset, the query is wrong, or it reaches a limit.
    """
    with (
        opened(place(what), frames=asks_frames(sql)) as audited,
        database(audited, limits=limits) as db,
        db.time_limit(limits.seconds),
    ):
        return db.user(sql).read_all()
