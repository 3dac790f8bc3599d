"""The report of an audit: one page without external resources, and a JSON file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from framedex.auditor.findings.findings import Audit
from framedex.auditor.report.histograms import CHARTS, histograms
from framedex.auditor.report.media_table import OWN_COLUMNS, TABLE_SQL, MediaTable, as_script, media_table
from framedex.auditor.report.page import Shown, page
from framedex.auditor.report.pictures import pictured, strips
from framedex.auditor.report.timelines import COLUMNS, timeline
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind
from framedex.core.version import __version__
from framedex.errors import OutputError
from framedex.files.atomic import write_aside
from framedex.html.elements import jpeg_uri
from framedex.storage.locations import Access

MOST_BYTES = 1_000_000  # of a page without its pictures
SUFFIX = ".html"


def queries(kind: Kind) -> list[str]:
    """Return texts that name all columns of `videos` (index) or `clips` (dataset) that a report needs."""
    return [TABLE_SQL[kind], *OWN_COLUMNS, *(chart.sql for chart in CHARTS[kind]), *COLUMNS]


def write_report(db: Database, found: Audit, path: Path, *, access: Access, pictures: bool) -> None:
    """Write the page of an audit, and a .json file beside it. The same input gives the same bytes.

    Args:
        db: The database of the index or dataset.
        found: The audit.
        path: The .html file.
        access: Which sources may be read.
        pictures: Whether frames of examples are decoded.

    Raises:
        OutputError: The file name does not end in .html.
        FramedexError: A table cannot be read.
    """
    if path.suffix.lower() != SUFFIX:
        raise OutputError("the report is a page", where=str(path), found=path.suffix or "no ending", allowed=SUFFIX)
    wanted = pictured(found) if pictures else {}
    identities = list(dict.fromkeys(identity for several in wanted.values() for identity in several))
    shown = Shown(
        found=found,
        charts=histograms(db),
        timeline=timeline(db, found),
        wanted=wanted,
        strips=strips(db, identities, access),
    )
    content, rows = _within_budget(shown, media_table(db, found))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, content)
    facts = as_json(shown, rows) | {"schema_version": db.audited.header["schema_version"]}
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    write_aside(path.with_suffix(".json"), orjson.dumps(facts, option=options, default=str) + b"\n")


def _within_budget(shown: Shown, rows: MediaTable) -> tuple[bytes, MediaTable]:
    """Return the page and the rows that fit into it."""
    different = {picture.jpeg for strip in shown.strips.values() for picture in strip.pictures}
    pictures = sum(len(jpeg_uri(jpeg)) for jpeg in different)
    while True:
        content = page(shown, rows)
        excess = len(content) - pictures - MOST_BYTES
        if excess <= 0 or not len(rows):
            return content, rows
        each = len(as_script(rows)) / len(rows)
        rows = rows.first(max(0, len(rows) - int(excess / each) - 1))


def as_json(shown: Shown, rows: MediaTable) -> dict[str, Any]:
    """Return the contents of the page as JSON values: those of `framedex audit --json` and the numbers of charts."""
    return shown.found.as_json() | {
        "framedex": __version__,
        "histograms": {chart.counted.name: chart.as_json() for chart in shown.charts},
        "timeline": shown.timeline and shown.timeline.as_json(),
        "table": {"of": rows.of, "shown": len(rows), "total": rows.total},
        "pictures": {
            identity: {
                "name": strip.name,
                "frames": [{"frame": p.frame, "seconds": p.seconds} for p in strip.pictures],
                "reason": strip.reason,
            }
            for identity, strip in shown.strips.items()
        },
    }
