"""`framedex verify`."""

from __future__ import annotations

import collections
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from framedex.loader.verify import verify as verify_dataset
from framedex.progress import progress

EXAMPLE = """\b
Example:
  framedex verify DATASET
  framedex verify DATASET --sample 100 --json > verdicts.jsonl
"""


@click.command("verify", epilog=EXAMPLE)
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--sample", type=click.IntRange(1), help="Check this many clips, chosen at random.  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the choice.")
@click.option("--root", type=click.Path(file_okay=False), help="Where the sources lie now, if the dataset moved.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="all cores",
    help="Processes that decode.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for one medium.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How many inexact clips still count as success.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line a clip.")
def verify(
    dataset: Path,
    sample: int | None,
    seed: int,
    root: str | None,
    workers: int,
    timeout: float,
    max_failures: int,
    as_json: bool,
) -> None:
    """Decode clips from their byte ranges and compare every frame, bit for bit, with a full decode of its source.

    With --json, a line a clip: clip_id, uri, frames, pts, md5 (over native planes; null for padding), verdict
    (exact, differs, undecodable, stale) and reason.

    Exit codes: 0 all exact, 1 failed, 2 usage, 3 done but more clips were not exact than --max-failures.
    """
    verdicts: collections.Counter[str] = collections.Counter()
    frames = 0
    with progress("clip") as show:
        for checked in verify_dataset(
            dataset,
            root=root,
            sample=sample,
            seed=seed,
            workers=workers,
            timeout_seconds=timeout,
            on_progress=show,
        ):
            verdicts[checked.verdict] += 1
            frames += len(checked.frames)
            if as_json:
                click.echo(json.dumps(asdict(checked), ensure_ascii=False))
            elif checked.verdict != "exact":
                click.echo(f"{checked.verdict}: {checked.uri}: clip {checked.clip_id}: {checked.reason}")
    if not as_json:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "no clips"
        click.echo(f"{counts} ({frames} frames)")
    if verdicts.total() - verdicts["exact"] > max_failures:
        sys.exit(3)
