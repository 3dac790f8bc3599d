"""`framedex verify`."""

from __future__ import annotations

import collections
import math
import sys
from dataclasses import asdict

import click

from framedex.core.printing import echo, internal_errors, json_text
from framedex.core.progress import progress
from framedex.errors import printable
from framedex.loader.verification.verify import verify as verify_dataset
from framedex.loader.verification.verify_gpu import CheckedOnGpu, verify_on_gpu
from framedex.options.datasets import SAMPLE_RULES, dataset_argument, sample_options, sources_root_option
from framedex.options.outputs import json_option
from framedex.options.rules import RuledCommand
from framedex.options.runs import max_failures_option, time_limit_option, workers_option
from framedex.storage.places import Place

RIGHT = ("exact", "nearest")
EXAMPLE = """\b
Example:
  framedex verify DATASET
  framedex verify DATASET --sample 100 --json > verdicts.jsonl
  framedex verify DATASET --decode gpu
"""


@click.command("verify", epilog=EXAMPLE, cls=RuledCommand, rules=SAMPLE_RULES)
@dataset_argument()
@sample_options("Check this many clips, chosen at random.  [default: all]")
@sources_root_option()
@workers_option("Processes that decode.")
@time_limit_option(seconds=3600.0)
@max_failures_option("inexact clips")
@click.option(
    "--decode",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="Decode each clip by itself, as a loader without or with a GPU does; what NVDEC and nvJPEG decode is compared with the CPU's pictures.",
)
@json_option("Print a line of JSON for every clip.")
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
