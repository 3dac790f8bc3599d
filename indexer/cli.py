"""The command `framedex index`: its options, and the printing of plans and reports."""

import logging
import os
import shlex
import sys
from dataclasses import asdict
from typing import Any

import click
import pyarrow.compute as pc

from framedex.core.interrupts import interrupt_says
from framedex.core.limits import GIBIBYTE
from framedex.core.printing import FailureList, echo, internal_errors, json_text, progress_bar
from framedex.core.words import SHOWN, counted, named, rate_text
from framedex.errors import FramedexError, MissingSourceError, printable
from framedex.execution.engine import Slice
from framedex.files.outputs import has_locks
from framedex.indexer.parts.index import Index
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.merging import build_slice, compact_index, finish_index, remove_media
from framedex.indexer.runs.work import IndexOptions, IndexReport, Work, check_prunable, plan_work
from framedex.indexer.sources.discover import OtherFiles
from framedex.indexer.sources.named_medium import SIDECARS, sidecars_of
from framedex.indexer.sources.sequences import rate_of
from framedex.options import (
    ENGINE_RULES,
    FINISH_RULE,
    PLACE_TO_WRITE,
    OptionRule,
    RuledCommand,
    engine_options,
    json_option,
    limits_rule,
    max_failures_option,
    out_folder_option,
    prune_at_most_option,
    read_by,
    remove_option,
    slice_options,
    time_limit_option,
    workers_option,
)
from framedex.records.medium import IMAGES, OK
from framedex.storage.places import Place
from framedex.storage.uris import medium_name

TABLE_ROWS = 20  # maximum number of media in the printed table; a longer table does not fit on most terminals
LOG = logging.getLogger("framedex.indexer")

EXAMPLE = (
    "\b\n"
    "Example:\n"
    "  framedex index videos/ more/*.mkv --out INDEX\n"
    "  framedex index listing.csv --root /data --workers 16 --out INDEX\n"
    "  framedex index videos/ --out INDEX --task $SLURM_ARRAY_TASK_ID/100"
    "   then   framedex index videos/ --out INDEX --finish\n"
)


# With --dry-run and --finish, all options of a run are allowed, even options without effect such as --workers. So users
# can repeat the command of the run, and add --dry-run or --finish.
RULES = (
    OptionRule(all_but=["out", "compact", "as_json"], when=lambda values: not values["compact"], beside="--compact"),
    OptionRule(all_but=["remove", "as_json"], when=lambda values: not values["remove"], beside="--remove"),
    OptionRule(
        options=["prune"],
        when=lambda values: values["task"] is None and not values["finish"],
        beside="--task and --finish",
        why="prune in an undivided run",
    ),
    OptionRule(options=["prune_at_most"], when=lambda values: values["prune"], needs="--prune"),
    FINISH_RULE,
    OptionRule(
        options=["task", "finish"],
        when=lambda values: not values["dry_run"],
        beside="--dry-run",
        why="--dry-run shows the plan of the whole run",
    ),
    OptionRule(
        options=["depth"],
        when=lambda values: not values["verify"] or values["depth"] == "packets",
        beside="--verify",
        why="--verify reads every packet",
    ),
    OptionRule(
        options=["prove"],
        when=lambda values: not values["verify"],
        beside="--verify",
        why="--verify compares every frame",
    ),
    OptionRule(
        options=["image_fps"],
        when=lambda values: values["images"] != "ignore" or not all(map(os.path.isdir, values["sources"])),
        beside="--images ignore",
        why="the sources do not include an image, a tar or a list",
    ),
    limits_rule("timeout", "memory"),
    *ENGINE_RULES,
)


@click.command("index", epilog=EXAMPLE, cls=RuledCommand, rules=RULES)
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@out_folder_option("Folder or uri of the index. If the index exists, it is updated.", required=False)
@click.option(
    "--root",
    type=click.Path(file_okay=False),
    help="Folder that the uris in the index are relative to. If given, relative paths in lists are relative to it, "
    "too.  [default: the sources' common folder]",
)
@click.option(
    "--uri-column",
    metavar="NAME",
    help="Column of a listing that contains the paths or uris of the media.  [default: uri, or the known columns of "
    "Kinetics, Something-Something, WebVid and HowTo100M]",
)
@click.option(
    "--label-from", type=click.Choice(["parent"]), help="Add a column `label` with the name of each file's folder."
)
@click.option(
    "--depth",
    type=click.Choice(["auto", "packets", "tables"]),
    default="auto",
    show_default=True,
    help="How much of each file is read. `packets` reads every packet. `tables` reads only sample tables and random "
    "access points, which is faster, but possible only for MP4, MOV and 3GP. `auto` means `tables` for files whose "
    "sample tables can be trusted, and `packets` for other files.",
)
@click.option(
    "--streams",
    type=click.Choice(["best", "all"]),
    default="best",
    show_default=True,
    help="Which video streams of a file become media: the best one, or all. Cover art is always ignored.",
)
@click.option(
    "--images",
    type=click.Choice(["sequences", "single", "ignore"]),
    default="sequences",
    show_default=True,
    help="Whether the JPEG, PNG and WebP images of a searched folder become one medium together (`sequences`), become "
    "one medium each (`single`), or are skipped (`ignore`).",
)
@click.option(
    "--sidecars",
    callback=read_by(lambda value: sidecars_of(() if value == "none" else value.split(",")), ", or none"),
    default=",".join(SIDECARS),
    show_default=True,
    metavar="KINDS",
    help="Which sidecar files of the videos in a webdataset tar become user columns: a comma-separated list of json, "
    "txt, cls and __key__ (the key of the sample), or none.",
)
@click.option(
    "--image-fps",
    callback=read_by(rate_of),
    metavar="RATE",
    help="Images per second, such as 25 or 30000/1001, for images whose times are neither in a listing nor in a "
    "timestamps.txt.  [default: 1]",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Also decode every frame twice: in a full decode, and from the random access point that a clip would use. "
    "Store the hash of each frame, flag damage that only decoding detects, and exclude GOPs in which the two decodes "
    "differ.",
)
@click.option(
    "--prove",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Decode N random frames of each video twice: from the random access point that a clip would use, and from an "
    "earlier random access point. If the two pictures of a frame differ, decode the whole video, as with --verify.",
)
@click.option(
    "--retry",
    is_flag=True,
    help="Probe failed media again even if the files, the options and the versions of framedex and FFmpeg are "
    "unchanged.",
)
@click.option(
    "--follow-symlinks",
    is_flag=True,
    help="Also search folders that are symbolic links, and follow links to files outside of the searched folders.",
)
@workers_option("Number of processes that probe media.")
@time_limit_option(seconds=3600.0)
@click.option(
    "--memory",
    type=click.FloatRange(1),
    default=8.0,
    show_default=True,
    metavar="GIB",
    help="Memory that each process may map. A medium that needs more memory fails.",
)
@max_failures_option("failed or refused media")
@engine_options
@slice_options("index")
@click.option(
    "--compact",
    is_flag=True,
    help="Only merge the Parquet files of an existing index into fewer files. Do not pass a SOURCE.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="Remove media from the index that only these sources named, and that they no longer name. Media of an index "
    "of an earlier version are kept until a run has named them.",
)
@prune_at_most_option("Refuse to prune more than this share of the media that these sources named.")
@remove_option(
    "Only remove a medium from an existing index, which is passed instead of a SOURCE. @LIST is a text file with one "
    "medium per line. To delete all traces from the files of the index, run --compact afterwards."
)
@click.option("--dry-run", is_flag=True, help="Print the media that would be probed or pruned, and write nothing.")
@json_option()
def index(
    sources: tuple[str, ...],
    out: Place | None,
    label_from: str | None,
    timeout: float,
    memory: float,
    max_failures: int,
    task: Slice | None,
    finish: bool,
    compact: bool,
    remove: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **named_as_fields: Any,
) -> None:
    """Write the packets, timestamps and random access points of every video into Parquet tables.

    A SOURCE is a video, an image, a tar of videos or images, a Parquet file with videos in a column, a folder (searched
    recursively), a glob, @list.txt (one path per line, or DALI's `path label [start end]`), or a CSV, JSONL or Parquet
    listing with a `uri` column and any columns of your own. A source may be in object storage, or on the Hugging Face
    Hub (hf://datasets/OWNER/NAME@REVISION/PATH). lerobot:FOLDER stands for the LeRobot dataset in FOLDER. A rerun
    probes only media that are new or changed. Media that failed are probed again if the options or the versions of
    framedex or FFmpeg have changed, or with --retry.

    Exit codes: 0 success; 1 the run failed, or framedex has a bug that made some media fail (the rest is indexed);
    2 wrong usage; 3 the run is done, but more media failed or were refused than --max-failures allows.
    """
    if remove:
        if len(sources) != 1:
            raise click.UsageError("--remove needs one index: framedex index --remove URI INDEX")
        _remove(PLACE_TO_WRITE.convert(sources[0], None, click.get_current_context()), remove, as_json)
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    if compact:
        if sources:
            raise click.UsageError("--compact does not allow a SOURCE")
        _compact(out, as_json)
        return
    if not sources:
        raise click.UsageError("pass a SOURCE, --compact or --remove")
    with (
        interrupt_says(lambda: "nothing was written" if dry_run else _state_after_interrupt(out)),
        progress_bar("video") as show,
    ):
        options = IndexOptions(
            sources=sources,
            out=out,
            label_from_parent=label_from == "parent",
            timeout_seconds=timeout,
            memory_bytes=int(memory * GIBIBYTE),
            on_progress=show,
            **named_as_fields,
        )
        try:
            if dry_run:
                work = plan_work(options)
                _print_plan(work, options.prune, as_json)
                check_prunable(work, options)
                return
            report = finish_index(options) if finish else build_slice(options, task) if task else build_index(options)
        except MissingSourceError as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        echo(json_text(asdict(report) | {"out": str(report.out)}))
    elif report.finished:
        media = counted(report.unchanged, "file")
        echo(f"this run is finished: {media} unchanged, nothing was written → {printable(str(report.out))}")
    else:
        # In object storage, a new index that is written in slices is not readable until all slices are written.
        if task is None or has_locks(out):
            _print_rows(report)
        _print_summary(report, options.prune)
    if report.internal:
        sys.exit(1)
    if report.failed + report.refused > max_failures:
        sys.exit(3)


def _state_after_interrupt(out: Place) -> str:
    """Return a message about an interrupted run: how many media the index has, and how to continue the run."""
    again = "run the same command again to index the others"
    try:
        media = len(Index(out))
    except FramedexError:  # a new index that is written in slices is not readable before all slices are written
        return f"the files written in {printable(str(out))} are kept; {again}"
    if not media:
        return "nothing was indexed yet; run the same command again"
    return f"{counted(media, 'medium', 'media')} in {printable(str(out))} {'is' if media == 1 else 'are'} kept; {again}"


def _compact(out: Place, as_json: bool) -> None:
    """Compact an index, and print the report."""
    report = compact_index(out)
    if as_json:
        echo(json_text(asdict(report)))
        return
    echo(
        f"{report.media} media: {counted(report.parts_before, 'part')} → {report.parts}, "
        f"{counted(report.dropped, 'outdated row')} removed"
    )


def _remove(index: Place, names: tuple[str, ...], as_json: bool) -> None:
    """Remove media from an index, and print the report."""
    report = remove_media(index, names)
    if as_json:
        echo(json_text(asdict(report)))
        return
    where = printable(str(index))
    if report.unknown:
        echo(f"not in the index: {printable(named(report.unknown[:SHOWN], len(report.unknown)))}")
    echo(f"{counted(report.removed, 'medium', 'media')} removed → {where}")
    if report.removed:
        echo(f"to delete their rows from its files: framedex index --compact --out {shlex.quote(where)}")


def _print_plan(work: Work, prune: bool, as_json: bool) -> None:
    """Print the media that a run would probe or prune. `prune` is the option."""
    report = work.report
    gone = sorted(item.identity[0] for item in work.gone)
    pruned = sorted({medium_name(row["uri"], row["member"]) for row in work.pruned})
    probe = sorted(((medium_name(*item.identity), item.task) for item in work.probe), key=lambda entry: entry[0])
    images = {name: len(task.images.names) for name, task in probe if task and task.images and task.images.names}
    if as_json:
        plan = {name: getattr(report, name) for name in ("root", "unchanged", "changed", "retried")}
        unopened = sorted(medium_name(*item.identity) for item in work.unopened)
        plan |= {"unnamed": report.unnamed, "pruned": pruned}
        plan |= {"gone": gone, "probe": [name for name, _ in probe], "unopened": unopened, "images": images}
        echo(json_text(plan | {"thumbnails": report.thumbnails, "others": [asdict(some) for some in report.others]}))
        return
    for name, _ in probe:
        echo(printable(name) + (f" ({images[name]} image{'s' * (images[name] != 1)})" if name in images else ""))
    for name in gone:
        echo(f"gone: {printable(name)}")
    for name in pruned:
        echo(f"pruned: {printable(name)}")
    echo(
        f"would probe {len(probe)} media under {printable(report.root)}; {report.changed} changed, "
        f"{_retried(report.retried)}{len(gone)} gone, {report.unchanged} unchanged"
    )
    _print_unnamed(report, prune)
    _print_skipped(report.thumbnails, report.others)


def _print_unnamed(report: IndexReport, prune: bool) -> None:
    """Print the number of media in the index that the sources no longer name. `prune` is the option."""
    if report.unnamed:
        kept = report.unnamed - report.pruned
        others = [f"{kept:,} kept, because other sources name {'it' if kept == 1 else 'them'}"] if kept else []
        pruned = [f"{report.pruned:,} pruned"] if report.pruned else []
        what = ", ".join(pruned + others) if prune else "--prune removes what no other source names"
        echo(f"{counted(report.unnamed, 'medium', 'media')} no longer named by these sources: {what}")


def _retried(count: int) -> str:
    """Return the phrase about retried media in a summary. If no media are retried, return an empty text."""
    return f"{count:,} retried, " if count else ""


def _print_skipped(thumbnails: int, others: list[OtherFiles]) -> None:
    """Print the number of files that the search of folders skipped, with examples."""
    if thumbnails:
        echo(f"skipped {counted(thumbnails, 'image')} in folders with videos; to index images, pass them or a listing")
    if others:
        count = sum(some.count for some in others)
        kinds = [
            f"{some.count:,} {some.ending or 'without an extension'}, such as {printable(some.example)}"
            for some in others
        ]
        echo(
            f"skipped {counted(count, 'file')} for {'its extension' if count == 1 else 'their extensions'} "
            f"({'; '.join(kinds[:SHOWN])}{'; …' if kinds[SHOWN:] else ''}); to index videos among them, pass the videos"
        )


def _print_summary(report: IndexReport, prune: bool) -> None:
    """Print the problems of a run, and the number of media with each outcome. `prune` is the option."""
    failures = FailureList()
    for problem in report.problems:
        reason = f"{problem['error_message']} ({problem['error_kind']})"
        failures.add(problem["error_kind"], f"{problem['status']}: {printable(problem['uri'])}: {reason}")
        if "error_traceback" in problem:
            LOG.info("%s\n%s", problem["uri"], problem["error_traceback"])
    failures.end(f'framedex audit {shlex.quote(printable(str(report.out)))} --sql "FROM failures"')
    _print_unnamed(report, prune)
    _print_skipped(report.thumbnails, report.others)
    if report.without_video:
        which = named(report.without_video_examples, report.without_video)
        echo(f"skipped {counted(report.without_video, 'file')} without a video stream ({printable(which)})")
    if report.decoded_whole:
        by_count = sorted(report.decoded_whole.items(), key=lambda item: (-item[1], item[0]))
        codecs = ", ".join(f"{count:,} of {codec}" for codec, count in by_count)
        videos = counted(sum(report.decoded_whole.values()), "video")
        # This line explains to users of such codecs why the run was slow.
        echo(f"{videos} decoded completely to prove the frames; this takes longer than reading packets ({codecs})")
    internal = f", {internal_errors(report.internal)}" if report.internal else ""
    echo(
        f"{report.ok:,} indexed, {report.refused:,} refused, {report.failed:,} failed{internal}; "
        f"{report.new:,} files new, {report.changed:,} changed, {_retried(report.retried)}{report.gone:,} gone, "
        f"{report.unchanged:,} unchanged → {printable(str(report.out))}"
    )


def _print_rows(report: IndexReport) -> None:
    """Print a table of the first `TABLE_ROWS` usable media of the index."""
    videos = Index(report.out).videos
    media = videos.filter(pc.equal(videos["status"], OK))
    usable = media.slice(0, TABLE_ROWS).to_pylist()
    echo(f"{'video':<40} {'codec':<6} {'size':>9} {'frames':>7} {'fps':>7} {'vfr':<3} {'GOP':>4} {'seconds':>8}")
    for row in usable:
        seconds = row["duration_pts"] * row["time_base_num"] / row["time_base_den"]
        name = printable(medium_name(row["uri"], row["member"]))
        name = name if len(name) <= 40 else "…" + name[-39:]
        echo(
            f"{name:<40} {row['codec']:<6} {_size_text(row):>9} {row['frame_count']:>7,} {_rate_text(row):>7} "
            f"{'yes' if row['is_vfr'] else 'no':<3} {row['max_gop']:>4} {seconds:8,.2f}"
        )
    if len(media) > TABLE_ROWS:
        echo(f"… and {len(media) - TABLE_ROWS:,} more media")
    for row in usable:
        if row["error_message"] and (row["kind"] == IMAGES or row["error_kind"] is None):
            echo(f"note: {printable(medium_name(row['uri'], row['member']))}: {row['error_message']}")


def _size_text(row: dict[str, Any]) -> str:
    """Return a medium's width and height as text. If images differ in size, return the first image's size and a `+`."""
    height = f"{row['height']}+" if row["kind"] == IMAGES and row["varying_shape"] else str(row["height"])
    return f"{row['width']:>4}x{height:<4}"


def _rate_text(row: dict[str, Any]) -> str:
    """Return a medium's frames per second as text. If the rate varies, return the range of the rates."""
    if not row["median_gap_seconds"]:
        return "-"
    if not row["is_vfr"] or not row["min_gap_seconds"]:
        # The mean rate, because some containers round times to milliseconds, which makes single gaps inexact.
        return f"{row['frame_count'] / (row['duration_pts'] * row['time_base_num'] / row['time_base_den']):.2f}"
    return rate_text(1 / row["max_gap_seconds"], 1 / row["min_gap_seconds"]).removesuffix(" fps")
