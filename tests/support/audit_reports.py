"""Helpers for tests of audit reports: write and read reports, and give media hostile or long names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.loader.contact_sheets.test_inspect import Node, Page
from tests.support.datasets import run

FIRED = "window.fired=1"
HOSTILE = [
    f"<script>{FIRED}</script>.mp4",
    f'"><img src=x onerror={FIRED}>.mkv',
    "</title></style></script>\u202e&amp;'.mp4",
]
ROWS = 10_000
Report = tuple[Path, Node, dict[str, Any]]


class ReportPage(Page):
    """A page with form fields: `<input>` has no end tag."""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attributes)
        if tag == "input":
            self._open.pop()


def written(place: Path | str, out: Path, *options: object, code: int = 0) -> tuple[Node, dict[str, Any]]:
    """Write a report; return its page and its JSON."""
    run("audit", place, "--report", out, *options, code=code)
    return ReportPage(out.read_text(encoding="utf-8")).root, json.loads(out.with_suffix(".json").read_text("utf-8"))


def rename_media(index: Path, name: Callable[[int], str]) -> None:
    path = index / "videos" / "part-000000.parquet"
    table = pq.read_table(path)
    names = pa.array([name(number) for number in range(len(table))])
    place = table.schema.get_field_index("uri")
    pq.write_table(table.set_column(place, table.schema.field(place), names), path)
