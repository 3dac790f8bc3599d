"""`framedex shard`."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from framedex.indexer.index import Index
from framedex.progress import progress
from framedex.sharder.audio import AudioOptions
from framedex.sharder.build import ShardOptions, build_from_policy, build_from_requests
from framedex.sharder.decoder import Size
from framedex.sharder.image_files import FORMATS, ImageFormat, ImageOptions
from framedex.sharder.pack import PACKS, Pack
from framedex.sharder.pack_audio import AUDIO_FORMATS, AudioFormat
from framedex.sharder.policies import read_policy
from framedex.sharder.requests import Requests
from framedex.sharder.sampling import CHOICES, Choose
from framedex.sharder.writer import ShardReport

EXAMPLE = """\b
Example:
  framedex shard INDEX --policy configs/fps.yaml --out DATASET
  framedex shard INDEX --clips clips.jsonl --out DATASET
  framedex shard INDEX --policy configs/fps.yaml --out DATASET --pack clips --shard-size 1GB
"""


class ByteCount(click.ParamType[int]):
    """A number of bytes with a decimal or binary unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes that `512MB`, `1.5GiB` or `100000` means."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", str(value).strip().lower())
        found = float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ") if match else 0
        if found < 1:
            self.fail(f"{value!r} is no size; write 512MB, 1.5GiB or 100000", param, ctx)
        return int(found)


class FrameSize(click.ParamType[Size]):
    """Height and width of a frame."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        """Return the (height, width) that `224x320` means."""
        match = re.fullmatch(r"(\d+)x(\d+)", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no height and width; write 224x320", param, ctx)
        return int(match[1]), int(match[2])


class Seconds(click.ParamType[Fraction]):
    """A duration, exactly as it is written."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return the seconds that `2`, `0.5` or `1/3` means."""
        text = str(value).strip()
        if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?|\d{1,6}/[1-9]\d{0,5}", text) or not Fraction(text):
            self.fail(f"{value!r} is no duration; write 2, 0.5 or 1/3", param, ctx)
        return Fraction(text)


SIZE, FRAME_SIZE, DURATION = ByteCount(), FrameSize(), Seconds()


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
    "--pack",
    type=click.Choice(PACKS),
    help="What to copy into tars: every clip as a tiny file, its frames as images, or only clips of media that are not "
    "byte ranges of their file.  [default: nothing; clips point into the sources]",
)
@click.option(
    "--shard-size",
    type=SIZE,
    default="512MB",
    show_default=True,
    help="With --pack: a new tar begins when a clip would make it larger than this.",
)
@click.option(
    "--image-format",
    type=click.Choice(list(FORMATS)),
    default="jpeg",
    show_default=True,
    help="With --pack images: what frames are stored as.",
)
@click.option(
    "--quality",
    type=click.IntRange(1, 100),
    default=90,
    show_default=True,
    help="With --pack images: of JPEG and WebP.",
)
@click.option("--short-side", type=click.IntRange(1), help="With --pack images: the shorter side's length at most.")
@click.option("--box", type=click.IntRange(1), help="With --pack images: the longer side's length at most.")
@click.option("--size", type=FRAME_SIZE, metavar="HxW", help="With --pack images: height and width exactly.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="all cores",
    help="With --pack images: processes that decode and encode.",
)
@click.option(
    "--audio", is_flag=True, help="Clips carry the sound from their first frame's time to their last one's end."
)
@click.option(
    "--audio-rate",
    type=click.IntRange(1000, 768_000),
    metavar="HZ",
    help="With --audio: resample.  [default: as it is]",
)
@click.option(
    "--audio-channels", type=click.IntRange(1, 8), help="With --audio: mix to so many.  [default: as they are]"
)
@click.option(
    "--audio-seconds", type=DURATION, metavar="SECONDS", help="With --audio: so long, from each clip's first frame on."
)
@click.option(
    "--audio-format",
    type=click.Choice(AUDIO_FORMATS),
    default="flac",
    show_default=True,
    help="With --audio and --pack: what sound is stored as.",
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
    pack: Pack | None,
    shard_size: int,
    image_format: ImageFormat,
    quality: int,
    short_side: int | None,
    box: int | None,
    size: Size | None,
    workers: int,
    audio: bool,
    audio_rate: int | None,
    audio_channels: int | None,
    audio_seconds: Fraction | None,
    audio_format: AudioFormat,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Plan clips from an INDEX and write a dataset: byte ranges, frame numbers and timestamps of every clip.

    No video is opened: the index knows where every packet lies and which ones a frame needs. With --pack, what clips need
    is copied into webdataset tars, and the sources are not needed any more. Clips that a policy finds
    in damaged GOPs are left out, with a row in failures.parquet that does not count as a failure.

    Exit codes: 0 done, 1 failed, 2 usage, 3 done but more clips were impossible than --max-failures.
    """
    if (policy is None) == (clips is None):
        raise click.UsageError("give either --policy or --clips")
    if not audio and (audio_rate, audio_channels, audio_seconds) != (None, None, None):
        raise click.UsageError("--audio-rate, --audio-channels and --audio-seconds need --audio")
    images = ImageOptions(format=image_format, quality=quality, short_side=short_side, box=box, size=size)
    opened = Index(index)
    passed_over = 0
    with progress("") as show:
        options = ShardOptions(
            overwrite=overwrite,
            keep_damaged=damaged == "keep",
            pack=pack,
            shard_bytes=shard_size,
            images=images,
            workers=workers,
            audio=AudioOptions(rate=audio_rate, channels=audio_channels, seconds=audio_seconds) if audio else None,
            audio_format=audio_format,
            on_progress=show,
        )
        if policy is not None:
            passed_over = opened.unusable
            report = build_from_policy(opened, out, read_policy(policy), options)
        else:
            assert clips is not None
            report = build_from_requests(opened, out, Requests(clips), choose=choose, options=options)
    if as_json:
        click.echo(json.dumps(asdict(report) | {"out": str(report.out)}, ensure_ascii=False))
    else:
        for failure in report.failures:
            if failure["counts"]:
                click.echo(f"failed: {failure['uri']}: {failure['message']}")
        _print_summary(report, passed_over)
    if report.failed > max_failures:
        sys.exit(3)


def _print_summary(report: ShardReport, passed_over: int) -> None:
    parts = [f"{report.clips} clips of {report.frames} frames from {report.media} media, {report.failed} failed"]
    if passed_over:
        parts.append(f"{passed_over} unusable media passed over")
    if report.shards:
        parts.append(f"{report.shards} tars")
    parts += [f"{count} clips left out ({kind})" for kind, count in report.left_out.items()]
    if report.resumed:
        parts.append(f"{report.resumed} clips taken up from an unfinished run")
    click.echo(f"{', '.join(parts)} → {report.out}")
