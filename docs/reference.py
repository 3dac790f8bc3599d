"""The parts of pages that come from framedex itself: its schemas, its commands, its policies, and an example audit."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from click.testing import CliRunner

from framedex.auditor.findings import SHOWN, checks_of, print_table, questions
from framedex.auditor.tables.database import QueryLimits, database
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.subject import Kind, described, opened
from framedex.cli import COMMANDS, main
from framedex.indexer import schema as index_schema
from framedex.records import medium
from framedex.sharder import schema as dataset_schema
from framedex.sharder.policies.reading import read_policy
from framedex.sharder.policies.sampling import Timeline
from framedex.sharder.writing.whole import ROWS_AT_ONCE

__all__ = ["ROWS_AT_ONCE", "checks_of", "dataset_schema", "index_schema", "medium"]  # for templates

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT.parent / "shared" / "corpus"
MODELINE = "# yaml-language-server: $schema=policy.schema.json\n"  # the first line of each policy, for editors
LISTED = {"start": 2.5, "end": 6.0, "cuts": [0, 4, 7, 10.4]}  # the row of the example video
RATES = ((24, 96), (60, 180), (30, 102))  # its frames per second, and how many frames have them
TICKS = 600  # per second
AUDITED_VIDEOS = 400
AUDITED_POLICY = """\
policy: windows
frames: 16
fps: 4
step_seconds: 3
short: pad
split:
  shares: {train: 8, val: 2}
  by: media_id
"""


def columns(schema: pa.Schema) -> Iterator[tuple[pa.Field, str, dict[str, str]]]:
    """Yield the fields of a schema with their types as text and their metadata."""
    for field in schema:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        yield field, str(field.type).replace("list<element: ", "list<").replace(" not null", ""), metadata


def commands() -> Iterator[tuple[str, str]]:
    """Yield the names of the commands and their help."""
    context = click.Context(main, info_name="framedex")
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        wide = click.Context(command, info_name=f"framedex {name}", max_content_width=100, terminal_width=100)
        yield name, command.get_help(wide)


def example_timeline() -> Timeline:
    """Return a video of 10.4 s, with a start point about every 2 s: 4 s at 24 frames/s, 3 s at 60, 3.4 s at 30."""
    gaps = np.concatenate([np.full(count, TICKS // rate) for rate, count in RATES])
    pts = np.cumsum(gaps) - gaps
    starts = np.searchsorted(pts, np.arange(0, int(gaps.sum()), 2 * TICKS))
    return Timeline(
        pts=pts, duration_pts=int(gaps.sum()), time_base=Fraction(1, TICKS), starts=starts, name="0123456789abcdef"
    )


def policies(timeline: Timeline) -> Iterator[tuple[str, str, Any]]:
    """Yield the name and the text of each file of configs/, and its clips of a video."""
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        text = path.read_text(encoding="utf-8").removeprefix(MODELINE).strip()
        yield path.name, text, read_policy(path).policy.sample(timeline, LISTED)


def example_audit(sql: str, check: str) -> dict[str, Any]:
    """Return what audits of an index and a dataset of made-up videos print.

    The result has `sql` and `check`, and by kind `views` (name, description, columns) and `answers` (question, answer).

    Args:
        sql: a question to the index.
        check: a check of the dataset.
    """
    from benchmarks.audit_data import write_index

    kinds: tuple[Kind, ...] = ("index", "dataset")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_index(Path("INDEX"), AUDITED_VIDEOS)
        Path("policy.yaml").write_text(AUDITED_POLICY, encoding="utf-8")
        _run("shard", "INDEX", "--policy", "policy.yaml", "--out", "DATASET")
        return {
            "sql": _run("audit", "INDEX", "--sql", sql),
            "check": _run("audit", "DATASET", "--check", check),
            "views": {kind: list(_views(kind)) for kind in kinds},
            "answers": {kind: list(_answers(kind)) for kind in kinds},
        }


def _run(*arguments: str) -> str:
    """Return the output of `framedex ARGUMENTS`."""
    result = CliRunner().invoke(main, [*arguments])
    if result.exit_code:
        raise RuntimeError(result.output)
    return result.stdout


def _views(kind: Kind) -> Iterator[tuple[str, str, list[str]]]:
    with opened(Path(kind.upper())) as audited, database(audited) as db:
        for name, text in described(kind).items():
            yield name, text, list(db.columns(name))


def _answers(kind: Kind) -> Iterator[tuple[Any, str]]:
    with opened(Path(kind.upper())) as audited, QueryProcess(audited, QueryLimits()) as queries:
        for question in questions("questions", kind):
            with contextlib.redirect_stdout(io.StringIO()) as answer:  # as --ask prints it
                print_table(queries.rows(question.sql, SHOWN + 1))
            yield question, answer.getvalue()


def corpus() -> tuple[list[Any], str]:
    """Test the corpus of hazards, which must be beside the checkout. Return its media and their table."""
    from benchmarks.exactness import markdown, try_folder

    tried = try_folder(CORPUS)
    return tried, markdown(tried)
