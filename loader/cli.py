"""`framedex verify`."""

from __future__ import annotations

import collections
import math
import os
import sys
from dataclasses import asdict

import click

from framedex.core.printing import echo, internal_errors, json_text
from framedex.core.progress import progress
from framedex.errors import printable
from framedex.loader.verification.verify import verify as verify_dataset
from framedex.loader.verification.verify_gpu import CheckedOnGpu, verify_on_gpu
from framedex.options.places import PLACE_THAT_IS_THERE
from framedex.options.rules import OptionRule, RuledCommand
from framedex.storage.places import Place

RIGHT = ("exact", "nearest")
EXAMPLE = """\b
Example:
  framedex verify DATASET
  framedex verify DATASET --sample 100 --json > verdicts.jsonl
  framedex verify DATASET --decode gpu
"""


RULES = (OptionRule(options=["seed"], when=lambda values: values["sample"] is not None, needs="--sample"),)


@click.command("verify", epilog=EXAMPLE, cls=RuledCommand, rules=RULES)
@click.argument("dataset", type=PLACE_THAT_IS_THERE)
@click.option("--sample", type=click.IntRange(1), help="Check this many clips, chosen at random.  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True, help="With --sample: of the choice.")
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
@click.option(
    "--decode",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="gpu: as a loader with a GPU does; what it sends to NVDEC and nvJPEG is compared with the CPU's pictures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line a clip.")
def verify(
    dataset: Place,
    sample: int | None,
    seed: int,
    root: str | None,
    workers: int,
    timeout: float,
    max_failures: int,
    decode: str,
    as_json: bool,
) -> None:
    """Decode clips from their byte ranges and compare every frame, bit for bit, with a full decode of its source.

    With --json, a line a clip: clip_id, uri, frames, pts, md5 (over native planes; null for padding), verdict
    (exact, nearest, differs, undecodable, stale, internal_error) and reason.

    With --decode gpu, every frame that a GPU decodes must be nearer to the CPU's picture of it than to those of the
    frames before and after; its clip is then "nearest". Neighbours that are the same picture decide nothing and are
    counted. Clips that a GPU must not get are compared bit for bit. JSON lines have decoder, worst_psnr and
    undecided, too.

    Exit codes: 0 all exact or nearest, 1 failed, or framedex itself failed at some clips, 2 usage, 3 done but more clips
    were not exact than --max-failures.
    """
    verdicts: collections.Counter[str] = collections.Counter()
    decoders: collections.Counter[str] = collections.Counter()
    frames, undecided, worst = 0, 0, math.inf
    with progress("clip") as show:
        for checked in (verify_dataset if decode == "cpu" else verify_on_gpu)(
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
            if isinstance(checked, CheckedOnGpu):
                decoders[checked.decoder] += 1
                undecided += checked.undecided
                worst = min(worst, checked.worst_psnr or math.inf)
            if as_json:
                echo(json_text(asdict(checked)))
            elif checked.verdict not in RIGHT:
                echo(
                    f"{checked.verdict}: {printable(checked.uri)}: clip {printable(checked.clip_id)}: {checked.reason}"
                )
    internal = verdicts.pop("internal_error", 0)
    if not as_json:
        told = [f"{count} {verdict}" for verdict, count in sorted(verdicts.items())]
        counts = ", ".join(told + [internal_errors(internal)] * bool(internal)) or "no clips"
        echo(f"{counts} ({frames} frames)")
        if decoders:
            echo(f"clips by decoder: {', '.join(f'{name} {count}' for name, count in sorted(decoders.items()))}")
        if worst < math.inf:
            echo(f"worst frame on a GPU: {worst:.1f} dB PSNR; {undecided} frames with no other picture beside them")
    if internal:
        sys.exit(1)
    if verdicts.total() - sum(verdicts[verdict] for verdict in RIGHT) > max_failures:
        sys.exit(3)
