"""The command `framedex verify`."""

import math
import sys
from dataclasses import asdict

import click

from framedex import options
from framedex.core.interrupts import interrupt_says
from framedex.core.printing import FailureList, echo, internal_errors, json_text, progress_bar
from framedex.core.words import counted
from framedex.errors import printable
from framedex.loader.verification.verify import verify as verify_dataset
from framedex.loader.verification.verify_gpu import verify_on_gpu
from framedex.loader.verify import RIGHT, VerifyReport
from framedex.storage.places import Access, Place

EXAMPLE = """\b
Example:
  framedex verify DATASET
  framedex verify DATASET --sample 100 --json > verdicts.jsonl
  framedex verify DATASET --decode gpu
"""


@click.command(
    "verify", epilog=EXAMPLE, cls=options.RuledCommand, rules=(*options.SAMPLE_RULES, options.limits_rule("timeout"))
)
@options.dataset_argument()
@options.sample_options("Number of clips to check, chosen at random. [default: all]")
@options.access_options()
@options.workers_option("Number of processes that decode.")
@options.time_limit_option(seconds=3600.0)
@options.max_failures_option("inexact clips")
@click.option(
    "--decode",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help=(
        "Decoder that is verified. With 'gpu', the frames that NVDEC and nvJPEG decode are compared "
        "with the frames that the CPU decodes."
    ),
)
@options.json_option("Print one line of JSON per clip.")
def verify(
    dataset: Place,
    sample: int | None,
    seed: int,
    access: Access,
    workers: int,
    timeout: float,
    max_failures: int,
    decode: str,
    as_json: bool,
) -> None:
    """Decode clips from their byte ranges, and compare every frame bit for bit with a full decode of the source.

    With --json, each line has the keys clip_id, uri, frames, pts, md5 (of the native planes of each frame, null for
    padding), verdict (exact, nearest, differs, undecodable, stale, internal_error), reason, source_psnr and undecided.

    Encoded clips (--encode) cannot equal their source bit for bit. Their verdict is "nearest" if encoding the source's
    pictures again gives the same bytes. If another version of the encoder gives other bytes, every frame must pass two
    tests. First, the frame must be nearer to the source picture that it shows than to the clip's other source pictures
    and to the pictures before and after it. Second, its loss must be at most twice the loss of encoding this source
    picture again. If several source pictures differ by less than this loss, the frame may show any of them, and is
    counted as undecided. source_psnr is the lowest PSNR in dB of the clip's frames. The verification of encoded clips
    needs the encoder.

    With --decode gpu, a clip is "nearest" if every frame that the GPU decodes is nearer to the CPU's picture of this
    frame than to the CPU's pictures of the frames before and after it. Frames whose neighbours show the same picture
    are counted as undecided. Clips that are not decoded on a GPU are compared bit for bit. JSON lines also have the
    keys decoder and worst_psnr.

    Exit codes: 0 all clips are exact or nearest, 1 error, or framedex itself failed for some clips, 2 usage error, 3
    done, but the number of wrong clips exceeds --max-failures.
    """
    report, failures = VerifyReport(), FailureList()

    def kept() -> str:
        return f"{counted(report.clips, 'clip')} checked, {len(report.wrong)} of them wrong; another run begins anew"

    with interrupt_says(kept), progress_bar("clip") as show:
        for checked in (verify_dataset if decode == "cpu" else verify_on_gpu)(
            dataset,
            access=access,
            sample=sample,
            seed=seed,
            workers=workers,
            timeout_seconds=timeout,
            on_progress=show,
        ):
            report.count(checked)
            if as_json:
                echo(json_text(asdict(checked)))
            elif checked.verdict not in RIGHT:
                line = f"{printable(checked.uri)}: clip {printable(checked.clip_id)}: {checked.reason}"
                failures.add(checked.verdict, f"{checked.verdict}: {line}")
    if not as_json:
        failures.end("--json prints a line for every clip")
        _tell(report)
    if report.internal:
        sys.exit(1)
    if report.failed > max_failures:
        sys.exit(3)


def _tell(report: VerifyReport) -> None:
    """Print a summary of a verification."""
    told = [f"{count:,} {verdict}" for verdict, count in sorted(report.verdicts.items()) if verdict != "internal_error"]
    counts = ", ".join(told + [internal_errors(report.internal)] * bool(report.internal)) or "no clips"
    echo(f"{counts} ({report.frames:,} frames)")
    if report.decoders:
        echo(f"clips by decoder: {', '.join(f'{name} {count:,}' for name, count in sorted(report.decoders.items()))}")
    if report.source_psnr < math.inf:
        alike = "" if report.decoders else f"; {counted(report.undecided, 'frame')} not distinguishable"
        echo(f"worst encoded frame: {report.source_psnr:.1f} dB PSNR{alike}")
    if report.worst_psnr < math.inf:
        echo(
            f"worst frame on a GPU: {report.worst_psnr:.1f} dB PSNR; "
            f"{report.undecided} frames whose neighbours show the same picture"
        )
