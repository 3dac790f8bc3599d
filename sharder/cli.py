"""`framedex shard`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from framedex.indexer.index import Index
from framedex.progress import progress
from framedex.sharder.build import ShardOptions, build_from_policy, build_from_requests
from framedex.sharder.policies import read_policy
from framedex.sharder.requests import read_requests
from framedex.sharder.sampling import CHOICES, Choose

EXAMPLE = """\b
Example:
  framedex shard INDEX --policy configs/fps.yaml --out DATASET
  framedex shard INDEX --clips clips.jsonl --out DATASET
"""


@click.command("shard", epilog=EXAMPLE)
@click.argument("index", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the dataset; must be new or empty.",
)
@click.option(
    "--policy", type=click.Path(path_type=Path, dir_okay=False), help="YAML file that says which frames make a clip."
)
@click.option(
    "--clips",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSONL file that names every clip's frames or seconds.",
)
@click.option(
    "--choose",
    type=click.Choice(CHOICES),
    default="nearest",
    show_default=True,
    help="With --clips: which frame a time in seconds means.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How many impossible clips still count as success.",
)
@click.option(
    "--damaged",
    type=click.Choice(["avoid", "keep"]),
    default="avoid",
    show_default=True,
    help="Whether clips may want frames of damaged GOPs.",
)
@click.option(
    "--cut", is_flag=True, help="Copy the packets of clips whose sources are not addressable by bytes (TS, PS, Ogg …)."
)
@click.option("--overwrite", is_flag=True, help="Replace a dataset that is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def shard(
    index: Path,
    out: Path,
    policy: Path | None,
    clips: Path | None,
    choose: Choose,
    max_failures: int,
    damaged: str,
    cut: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Plan clips from an INDEX and write a dataset: byte ranges, frame numbers and timestamps of every clip.

    No video is opened: the index knows where every packet lies and which ones a frame needs. Clips that a policy finds
    in damaged GOPs are left out, with a row in failures.parquet that does not count as a failure.

    Exit codes: 0 done, 1 failed, 2 usage, 3 done but more clips were impossible than --max-failures.
    """
    if (policy is None) == (clips is None):
        raise click.UsageError("give either --policy or --clips")
    opened = Index(index)
    with progress("") as show:
        options = ShardOptions(overwrite=overwrite, keep_damaged=damaged == "keep", cut=cut, on_progress=show)
        if policy is not None:
            made = read_policy(policy)
            report = build_from_policy(opened, out, made.policy, made.resolved, options)
        else:
            assert clips is not None
            report = build_from_requests(opened, out, read_requests(clips), choose=choose, options=options)
    failed = len(report.failures) - (report.left_out if policy is not None else 0)
    if as_json:
        click.echo(json.dumps(asdict(report) | {"out": str(report.out)}, ensure_ascii=False))
    else:
        for failure in report.failures:
            if policy is not None and failure["kind"] == "damaged":
                continue
            click.echo(f"failed: {failure['uri']}: {failure['message']}")
        skipped = f", {report.skipped_media} unusable media passed over" if report.skipped_media else ""
        skipped += (
            f", {report.left_out} clips in damaged GOPs left out" if policy is not None and report.left_out else ""
        )
        click.echo(
            f"{report.clips} clips of {report.frames} frames from {report.media} media, "
            f"{failed} failed{skipped} → {report.out}"
        )
    if failed > max_failures:
        sys.exit(3)
