"""The command `framedex shard`."""

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from framedex.core.interrupts import interrupt_says
from framedex.core.printing import FailureList, echo, internal_errors, json_text, progress_bar
from framedex.core.words import SHOWN, counted, named
from framedex.errors import INTERNAL_ERROR, printable
from framedex.execution.engine import Slice
from framedex.indexer.parts.index import Index
from framedex.indexer.schema import NO_VIDEO, UNPROVEN
from framedex.options import (
    BYTE_COUNT,
    ENGINE_RULES,
    FILE,
    FINISH_RULE,
    PLACE_THAT_IS_THERE,
    PLACE_TO_WRITE,
    OptionRule,
    RuledCommand,
    allow_remote_option,
    engine_options,
    json_option,
    max_failures_option,
    out_folder_option,
    overwrite_option,
    prune_at_most_option,
    remove_option,
    slice_options,
    workers_option,
)
from framedex.records.medium import FAILED, REFUSED
from framedex.sharder.build import ShardOptions, build_from_policy, build_from_requests
from framedex.sharder.changing.append import append_from_policy
from framedex.sharder.changing.remove import RemovedReport, follow_index, remove_from_dataset
from framedex.sharder.cli_options import AUDIO_RULES, IMAGE_RULES, POLICY, audio_options, image_options
from framedex.sharder.clips.labels import label_lines, lacking, wanted_labels
from framedex.sharder.packing.pack import PACKS
from framedex.sharder.policies.reading import find_policy
from framedex.sharder.policies.sampling import CHOICES, Choose
from framedex.sharder.schema import FAILURES_NAME
from framedex.sharder.selection.explicit_clips import OUTSIDE, ExplicitClips, Outside
from framedex.sharder.writing.output import kept_items, unfinished_of
from framedex.sharder.writing.report import ShardReport
from framedex.storage.places import Access, Place, Stored, local_of

LOG = logging.getLogger("framedex.sharder")

EXAMPLE = """\b
Example:
  framedex shard INDEX --policy fps --out DATASET
  framedex shard INDEX --policy "{policy: fps, fps: 2, frames: 8}" --out DATASET
  framedex shard INDEX --clips clips.jsonl --out DATASET
  framedex audit INDEX --sql "SELECT uri, [0, 8, 16] AS frames FROM videos" --format parquet --out clips.parquet
  framedex shard INDEX --policy my_policy.yaml --out DATASET --pack clips --shard-size 1GB
  framedex shard INDEX --policy fps --out DATASET --pack clips --encode h264 --short-side 256
  framedex shard INDEX --policy fps --out DATASET --task $SLURM_ARRAY_TASK_ID/100   then   … --finish
  framedex shard INDEX --policy fps --out DATASET --append
  framedex shard DATASET --remove videos/a.mp4 --remove @taken_down.txt
  framedex shard DATASET --follow INDEX
"""


CHANGES = ("remove", "follow", "prune_at_most", "as_json")  # options that change an existing dataset
RULES = (
    OptionRule(all_but=CHANGES, when=lambda values: not values["remove"], beside="--remove"),
    OptionRule(options=["append"], when=lambda values: values["policy"] is not None, needs="--policy"),
    OptionRule(
        options=["labels", "overwrite", "task", "finish"],
        when=lambda values: not values["append"],
        beside="--append",
        why="it continues the dataset, with its labels, in one run",
    ),
    OptionRule(options=["replan_scenes"], when=lambda values: values["append"], needs="--append"),
    OptionRule(options=["follow"], when=lambda values: not values["remove"], beside="--remove"),
    OptionRule(all_but=CHANGES, when=lambda values: values["follow"] is None, beside="--follow"),
    OptionRule(options=["prune_at_most"], when=lambda values: values["follow"] is not None, needs="--follow"),
    FINISH_RULE,
    OptionRule(
        options=["task", "finish"],
        when=lambda values: values["pack"] is None,
        beside="--pack",
        why="a single run must write all tars of a dataset; it can use several --workers or a cluster",
    ),
    OptionRule(options=["choose", "outside"], when=lambda values: values["clips"] is not None, needs="--clips"),
    OptionRule(options=["shard_size"], when=lambda values: values["pack"] is not None, needs="--pack"),
    OptionRule(
        options=["scratch"], when=lambda values: isinstance(values["out"], Stored), needs="--out in object storage"
    ),
    *IMAGE_RULES,
    *AUDIO_RULES,
    *ENGINE_RULES,
)


@click.command("shard", epilog=EXAMPLE, cls=RuledCommand, rules=RULES)
@click.argument("index", metavar="INDEX|DATASET", type=PLACE_THAT_IS_THERE)
@out_folder_option("The folder or uri of the dataset. It must be new or empty.", required=False)
@click.option(
    "--policy",
    type=POLICY,
    metavar="POLICY",
    help="The policy that says which frames make clips: a YAML file, the name of a policy that is included in framedex "
    "(fps, windows, uniform …), or YAML text.",
)
@click.option(
    "--clips",
    type=FILE,
    help="A file with the frames or seconds of every clip: JSON Lines, .json, .csv or .parquet. `framedex audit "
    "--sql … --out FILE` can write .json, .csv and .parquet.",
)
@click.option(
    "--choose",
    type=click.Choice(CHOICES),
    default="nearest",
    show_default=True,
    help="With --clips: the frame that is taken for a time in seconds.",
)
@click.option(
    "--outside",
    type=click.Choice(OUTSIDE),
    default="error",
    show_default=True,
    help="With --clips: the treatment of frames and times outside of the video. `error`: the clip is not made. `pad`: "
    "such frames become padding. `edge`: such frames become padding that repeats the first or last frame of the video. "
    "`drop`: such frames are left out.",
)
@click.option(
    "--labels",
    metavar="COLUMN",
    help="The column of labels. Its sorted values are numbered from 0, and the dataset records the numbers, so that "
    "all readers and splits use the same ones. Every clip must have a value.",
)
@max_failures_option("impossible clips")
@click.option(
    "--damaged",
    type=click.Choice(["avoid", "keep"]),
    default="avoid",
    show_default=True,
    help="Whether clips with frames of damaged GOPs are left out (`avoid`) or made (`keep`).",
)
@click.option(
    "--pack",
    type=click.Choice(PACKS),
    help="The data to copy into tars. `clips`: every clip as a tiny video. `images`: the frames of every clip as "
    "images. `needed`: as `clips`, but only for media whose packets are not byte ranges of their file.  "
    "[default: nothing is copied; clips refer to the sources]",
)
@click.option(
    "--shard-size",
    type=BYTE_COUNT,
    default="512MB",
    show_default=True,
    help="With --pack: the maximum size of a tar. A clip that would exceed it goes into a new tar.",
)
@image_options
@workers_option("The number of processes that plan clips and, with --pack, also cut, decode and encode them.")
@engine_options
@audio_options
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --out in object storage: the local folder in which the dataset is written first.  "
    "[default: the system's temporary folder]",
)
@allow_remote_option()
@slice_options("dataset")
@click.option(
    "--append",
    is_flag=True,
    help="Append clips of media that the existing dataset at --out does not have and never had, by the same policy and "
    "options. Clips that are there do not change.",
)
@click.option(
    "--replan-scenes",
    is_flag=True,
    help="With --append: allow new views and files of scenes that the dataset has, and its files in new scenes. These "
    "scenes, and all that share files with them, are planned again, and their clips are replaced.",
)
@remove_option(
    "Only remove the clips of a medium from an existing dataset, which is passed instead of an INDEX. @LIST is a text "
    "file with one medium per line. Tars that have such clips are written anew without them, under other names."
)
@click.option(
    "--follow",
    type=PLACE_THAT_IS_THERE,
    metavar="INDEX",
    help="Only remove the clips of media that this index does not have any more, from an existing dataset, which is "
    "passed instead of an INDEX.",
)
@prune_at_most_option("With --follow: refuse to remove more than this share of the media of the dataset.")
@overwrite_option("a dataset that is")
@json_option()
def shard(
    index: Place,
    out: Place | None,
    policy: str | Path | None,
    clips: Path | None,
    choose: Choose,
    outside: Outside,
    labels: str | None,
    max_failures: int,
    damaged: str,
    shard_size: int,
    allow_remote: bool,
    task: Slice | None,
    append: bool,
    replan_scenes: bool,
    remove: tuple[str, ...],
    follow: Place | None,
    prune_at_most: float,
    as_json: bool,
    **named_as_fields: Any,
) -> None:
    """Plan clips from an INDEX, and write a dataset with the byte ranges, frame numbers and timestamps of every clip.

    Videos are not opened, because the index has the offset of every packet and the packets that each frame needs. With
    --pack, these packets are copied into webdataset tars, so that the sources are not needed any more. If a policy
    selects a clip with frames of a damaged GOP, the clip is left out. It has a row in failures.parquet, but does not
    count as a failure. With --remove or --follow, clips are removed from an existing DATASET.

    Exit codes: 0: success. 1: the run failed, or an internal error of framedex affected some clips (all others are in
    the dataset). 2: wrong usage. 3: the dataset is complete, but more than --max-failures clips were impossible.
    """
    if remove or follow is not None:
        dataset = PLACE_TO_WRITE.convert(str(index), None, click.get_current_context())
        with interrupt_says(lambda: "run the same command again to complete the change"):
            if follow is None:
                removed = remove_from_dataset(dataset, remove)
            else:
                removed = follow_index(dataset, Index(follow), at_most=prune_at_most)
        _print_removed(dataset, removed, as_json)
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    if (policy is None) == (clips is None):
        raise click.UsageError("give either --policy or --clips")
    opened = Index(index, access=Access(allow_remote=allow_remote))
    skipped = 0
    with interrupt_says(lambda: _kept(out, task)), progress_bar("") as show:
        options = ShardOptions(
            keep_damaged=damaged == "keep",
            shard_bytes=shard_size,
            labels=None if labels is None else wanted_labels(labels),
            part=task,
            on_progress=show,
            **named_as_fields,
        )
        if policy is not None:
            skipped = opened.unusable - opened.problems[REFUSED, NO_VIDEO]
            file = find_policy(policy)
            if append:
                report = append_from_policy(opened, out, file, options, replan_scenes=replan_scenes)
            else:
                report = build_from_policy(opened, out, file, options)
        else:
            assert clips is not None  # either --policy or --clips was given
            wanted = ExplicitClips(clips)
            report = build_from_requests(opened, out, wanted, choose=choose, outside=outside, options=options)
    if as_json:
        echo(json_text(asdict(report) | {"out": str(report.out)}))
    else:
        failures = FailureList()
        for failure in report.failures:
            if failure["counts"]:
                failures.add(failure["kind"], f"failed: {printable(str(failure['uri']))}: {failure['message']}")
            if failure.get("traceback"):
                LOG.info("%s, clip %s\n%s", failure["uri"], failure["clip_id"], failure["traceback"])
        failures.end(printable(str(report.out / FAILURES_NAME)))
        reasons = []
        if skipped and (internal := opened.problems[FAILED, INTERNAL_ERROR]):
            reasons.append(internal_errors(internal))
        if skipped and (unproven := opened.problems[REFUSED, UNPROVEN]):
            reasons.append(f"run framedex index again for {unproven:,} of them")
        _print_summary(report, skipped, reasons)
    if report.internal:
        sys.exit(1)
    if report.failed > max_failures:
        sys.exit(3)


def _print_removed(dataset: Place, report: RemovedReport, as_json: bool) -> None:
    """Print the result of removing media from a dataset."""
    if as_json:
        echo(json_text(asdict(report)))
        return
    if report.unknown:
        echo(f"not in the dataset: {printable(named(report.unknown[:SHOWN], len(report.unknown)))}")
    parts = [f"{counted(report.media, 'medium', 'media')} with {counted(report.clips, 'clip')} removed"]
    if report.failures:
        parts.append(f"{counted(report.failures, 'failure')} removed")
    if report.tars:
        parts.append(f"{counted(report.tars, 'tar')} written anew")
    echo(f"{', '.join(parts)}, {counted(report.left, 'clip')} left → {printable(str(dataset))}")
    if report.media and isinstance(dataset, Stored):
        echo("a DiskCache of a machine that read the dataset may still have bytes of it: rm -r FOLDER_OF_THE_CACHE")


def _kept(out: Place, task: Slice | None) -> str:
    """Return a message about the results that an interrupted run keeps, and about how to continue it."""
    folder = local_of(out)
    if task is not None:
        return "the complete groups of this slice are kept; run the same command again to continue"
    if folder is None:
        return "all written files are kept; run the same command again to continue"
    unfinished = unfinished_of(folder)
    if not (items := kept_items(unfinished)):
        return "no clips were written yet; run the same command again"
    clips = f"{counted(items, 'clip')} in {printable(str(unfinished))} {'is' if items == 1 else 'are'} kept"
    return f"{clips}; run the same command again to continue"


def _print_summary(report: ShardReport, skipped: int, reasons: list[str]) -> None:
    """Print a summary of a run.

    Args:
        report: The report of the run.
        skipped: The number of unusable media, which the run skipped.
        reasons: Remarks about the unusable media.
    """
    media = counted(report.media, "medium", "media")
    parts = [
        f"{counted(report.clips, 'clip')} ({counted(report.frames, 'frame')}) from {media}, {report.failed:,} failed"
    ]
    if report.internal:
        parts.append(internal_errors(report.internal))
    if skipped:
        why = f" ({', '.join(reasons)})" if reasons else ""
        parts.append(f"{counted(skipped, 'unusable medium', 'unusable media')} skipped{why}")
    if report.filtered.count:
        which = named(report.filtered.examples, report.filtered.count)
        parts.append(f"{counted(report.filtered.count, 'medium', 'media')} left out by the filter ({which})")
    if report.shards:
        parts.append(counted(report.shards, "tar"))
    if report.finished:
        parts.append("finished before, nothing was written" if report.clips else "nothing was written")
    parts += [f"{counted(count, 'clip')} left out ({kind})" for kind, count in report.left_out.items()]
    if report.resumed:
        parts.append(f"{counted(report.resumed, 'clip')} taken up from an unfinished run")
    echo(f"{', '.join(parts)} → {printable(str(report.out))}")
    for line in label_lines(report.labels):
        echo(printable(line))
    for line in lacking(report.labels):
        echo(f"warning: {printable(line)}", err=True)
