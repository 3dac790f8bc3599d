"""`framedex.audit` and `framedex.query`: the command `framedex audit` as Python functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from framedex.auditor.findings.findings import Audit
from framedex.auditor.run import asks_frames, check_free, run
from framedex.auditor.tables.database import GIBIBYTE, QueryLimits
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.reading import check_reads
from framedex.auditor.tables.subject import opened
from framedex.errors import FramedexError
from framedex.sharder.policies.reading import PolicyLike
from framedex.storage.locations import Access
from framedex.storage.places import Place, place

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
) -> Audit:
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
