"""Plan an index run: find the media of the sources, and compare them with the rows of the existing index.

A rerun skips unchanged media whose rows already have everything that the options of the run require.
"""

import difflib
import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction

from framedex.core.column_rules import reading
from framedex.core.limits import GIBIBYTE
from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.core.words import SHOWN, counted
from framedex.errors import INTERNAL_ERROR, MediaError, MissingSourceError, OutputError, SourceError
from framedex.execution.engine import Engine, run_local
from framedex.files.changes import LOG_NAME
from framedex.files.outputs import LOCK_NAME
from framedex.files.parquet_parts import PART_NAME, read_all
from framedex.indexer.facts import MediumFacts, problem_of
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.part_pairs import NOTHING_PRUNED, Pruned, without_pruned
from framedex.indexer.probing.probe import Depth, ProbeTask, Streams
from framedex.indexer.probing.probe_images import ImageTask
from framedex.indexer.runs.existence import find_identity, is_same
from framedex.indexer.schema import HEADER, LISTING_NAME, NAMED_BY, NO_VIDEO, REMEDY, SCANNED, UNPROVEN
from framedex.indexer.sources.discover import (
    Found,
    OtherFiles,
    Search,
    default_root,
    discover,
    is_listing,
    media_id,
    other_files,
    source_name,
)
from framedex.indexer.sources.folders import is_there
from framedex.indexer.sources.lerobot import LEROBOT
from framedex.indexer.sources.named_medium import SIDECARS, NamedMedium, Sidecar, is_image_name, readable_name
from framedex.indexer.sources.sequences import at_rate
from framedex.records.columns import Row
from framedex.records.medium import FAILED, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.storage.hub import pinned
from framedex.storage.places import Place, local_of, names_in
from framedex.storage.reader import ASIDE
from framedex.storage.uris import absolute, is_inside, is_remote, joined, local_path, medium_name, relative

KNOWN_COLUMNS = (
    "media_id",
    "kind",
    "stream_index",
    "uri",
    "member",
    "member_bytes",
    "sidecars",
    "status",
    "error_kind",
    "error_message",
    "probed_by",
    "tried",
    "size_bytes",
    "mtime_ns",
    "fingerprint",
    "video_streams",
    "hashed",
    "proof",
    "depth",
    "time_base_num",
    "time_base_den",
)


def is_done(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether a medium is unchanged, and its rows in the index have everything that the task requires.

    The result is False for failed media (see `fails_again`). It is also False for media that another version of
    framedex refused, because this version may support them.
    """
    must_try = (
        row["status"] == FAILED
        or (row["status"] == REFUSED and row["probed_by"] != __version__)
        or row["error_kind"] == UNPROVEN
        for row in known
    )
    return bool(known) and not any(must_try) and _has_answers(task, known) and is_same(task, known[0])


def _has_answers(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether the rows of a medium in the index have everything that the task requires."""
    for row in known:
        # A file without a video stream is skipped if a search found it, and fails if the user named it.
        if row["error_kind"] == NO_VIDEO and not _is_member(row):
            would_probe_images = task.images is not None and not task.images.ignored
            if would_probe_images or (row["status"] == REFUSED) != task.searched:
                return False
        if task.verify and row["status"] == OK and not row["hashed"]:
            return False
        if task.prove and row["status"] == OK and row["kind"] == VIDEO and row["proof"] is None:
            return False
        if _is_member(row) and not set(task.sidecars) <= set(json.loads(row["sidecars"] or "{}")):
            return False
        if task.depth == "packets" and row["kind"] == VIDEO and row["depth"] == "tables":
            return False
    if task.streams == "all":
        videos = [row for row in known if row["kind"] == VIDEO]
        streams = Counter(row["member"] for row in videos)
        if any(streams[row["member"]] < (row["video_streams"] or 1) for row in videos):
            return False
    return task.images is None or _is_timed(task.images, known)


def _is_member(row: Row) -> bool:
    """Return whether a row describes a video that is a member of a tar or a Parquet file."""
    return row["member_bytes"] is not None


def attempt(task: ProbeTask, options: "IndexOptions") -> str:
    """Return the value of the column `tried` of a failed medium: the version of FFmpeg and the options for probing."""
    asked: dict[str, object] = {name: getattr(task, name) for name in ("depth", "streams", "verify", "prove")}
    if task.images is not None:
        timing = (task.images.single, task.images.fps, task.images.default_fps, task.images.seconds)
        asked["images"] = hashlib.blake2b(repr(timing).encode(), digest_size=8).hexdigest()
    asked |= {"timeout": options.timeout_seconds, "memory": options.memory_bytes}
    return f"FFmpeg {ffmpeg_version()}, " + ", ".join(f"{name} {value}" for name, value in asked.items())


def fails_again(task: ProbeTask, known: list[Row], options: "IndexOptions") -> bool:
    """Return whether a medium has failed before under the same conditions, so that it would fail again.

    The conditions are the file, the options, and the versions of framedex and FFmpeg. If the reason for the failure was
    a bug of framedex or an unanswered request to a store, return False, because the medium was not the cause.
    """
    failed = [row for row in known if row["status"] == FAILED]
    if not failed or any(row["probed_by"] != __version__ or row["error_kind"] == INTERNAL_ERROR for row in known):
        return False
    tried, tried_inside = attempt(task, options), attempt(replace(task, images=None), options)
    is_equal = all(row["tried"] == (tried_inside if _is_member(row) else tried) for row in failed)
    return is_equal and _has_answers(task, known) and is_same_medium(task, known)


def is_same_medium(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether a medium is unchanged since its rows were recorded.

    For a medium that was not readable, return whether it is still not readable.
    """
    if known[0]["fingerprint"] is not None:
        return is_same(task, known[0])
    try:
        find_identity(task)
    except MediaError:
        return True
    return False


def _is_timed(task: ImageTask, known: list[Row]) -> bool:
    """Return whether the recorded images have the rate, and the grouping into sequences, that the task requires.

    Rows of videos in a tar are ignored. For images in a folder, return True, because `is_same` compares their timing.
    """
    if task.form == "folder":  # the fingerprint of a folder also covers its timing
        return True
    tick = at_rate(1, task.rate).tick
    usable = [row for row in known if row["status"] == OK and row["kind"] == IMAGES]
    if any((row["time_base_num"], row["time_base_den"]) != (tick.numerator, tick.denominator) for row in usable):
        return False
    return task.form != "tar" or all(is_image_name(row["member"]) == task.single for row in usable)


def is_still_unopened(error: MediaError, known: list[Row]) -> bool:
    """Return whether the index already records, for this version of framedex, the same reason not to open a medium."""
    reason = (REFUSED if error.refused else FAILED, error.kind, error.what, __version__)
    names = ("status", "error_kind", "error_message", "probed_by")
    return len(known) == 1 and tuple(known[0][name] for name in names) == reason


# A pattern for the names of the objects that the slices of a run write before the header of the index exists.
BEGUN = re.compile(rf"slices\.json|{re.escape(LOG_NAME)}|(?:videos|frames)/{PART_NAME.pattern}")
Identity = tuple[str, str | None]  # (uri, name); the name is None unless several media share the uri
# For the uri of each tar or Parquet file, a dictionary from the names of its media to their sidecars as JSON.
Members = dict[str, dict[str, str | None]]
# The number of files that a tar or a Parquet file counts as when items are divided into parts. Such a file may have
# thousands of media. The fewer such files a part has, the less work is lost if a run is killed.
HOLDER_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions(Search):
    """The options of an index run.

    The uris in the index are relative to the attribute `root` (see `Search`). If `root` is None, they are relative to
    the root of the existing index or, in a new index, to the common folder of the sources.

    Attributes:
        sources: The files, folders, globs, lists and listings that the user passes.
        out: The folder of the index.
        depth, streams, verify, prove: The options of probing (see `ProbeTask`).
        sidecars: The kinds of sidecars that become columns of the videos in tars.
        image_fps: The number of images per second, for images whose times are not stated. If None, 1.
        workers: The number of processes that probe media.
        engine: The function that runs the probes.
        retry: Whether to probe failed media again even if nothing changed.
        prune: Whether to remove media from the index that only these sources named, and that they no longer name.
        prune_at_most: The maximum share of the media named by these sources that may be pruned, from 0 to 1.
        timeout_seconds: The time limit for each medium, in seconds. If None, time is not limited.
        memory_bytes: The memory that each process may map (`local_pool.run_local`), in bytes. If None, memory is not
            limited.
        on_progress: The function to call with (done, total) after each medium.
    """

    sources: Sequence[str]
    out: Place
    depth: Depth = "auto"
    streams: Streams = "best"
    verify: bool = False
    prove: int = 0
    sidecars: tuple[Sidecar, ...] = SIDECARS
    image_fps: Fraction | None = None
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    engine: Engine = run_local
    retry: bool = False
    prune: bool = False
    prune_at_most: float = 0.1
    timeout_seconds: float | None = 3600.0
    memory_bytes: int | None = 8 * GIBIBYTE
    on_progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A unit of work of an index run: a file, an image sequence, or a video in a file with several media.

    An item is probed, or has a problem and is not opened, or no longer exists.

    Attributes:
        identity: The uri, and the name of the medium in a file or folder with several media. The name is None for other
            media.
        task: The task for probing the item. None if the item is not probed.
        rows: The rows of the item in the index, if the item no longer exists. None otherwise.
        found: The metadata of the item, if they are known without probing. None otherwise.
        known: The rows in the index of the media in a tar or a Parquet file. Empty for other items.
        files: The number of files that the item counts as when items are divided into parts.
    """

    identity: Identity
    task: ProbeTask | None = None
    rows: list[Row] | None = None
    found: MediumFacts | None = None
    known: list[Row] = field(default_factory=list)
    files: int = 1


def parted(items: Sequence[Item], files_a_part: int) -> list[list[Item]]:
    """Divide items into parts of an index. A part is full when its items count as `files_a_part` files."""
    parts: list[list[Item]] = []
    files = files_a_part
    for item in items:
        if files >= files_a_part:
            parts.append([])
            files = 0
        parts[-1].append(item)
        files += item.files
    return parts


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """The outcome of an index run: numbers of media and files, and a list of problems.

    Refused and failed media are counted in every run whose sources include them, even if the media are not probed
    again.

    Attributes:
        out: The folder of the index.
        root: The folder that the uris in the index are relative to.
        new: The number of files that were not in the index before.
        changed: The number of files that were in the index and have changed.
        retried: The number of unchanged files that are probed again because they were refused or failed.
        gone: The number of files in the index that no longer exist.
        unnamed: The number of media in the index that these sources named in an earlier run, but do not name any more.
            Media that are gone are not counted.
        pruned: The number of media that are removed from the index because no source names them any more.
        unchanged: The number of files that are not probed again.
        thumbnails: The number of images that were skipped because their folders contain videos.
        others: The files in searched folders that were skipped because of their filename extensions.
        ok: The number of usable media.
        decoded_whole: The number of usable videos of each codec that were decoded completely to prove their frames,
            because framedex does not parse packets of the codec.
        refused: The number of refused media, except the files in `without_video`.
        failed: The number of failed media, except the media in `internal`.
        internal: The number of media that failed because of a bug of framedex.
        without_video: The number of files without a video stream that a search found. Such files are skipped.
        without_video_examples: The uris of the first `SHOWN` files that `without_video` counts.
        problems: The name, status and reason of each medium that `refused`, `failed` and `internal` count.
        finished: Whether an earlier run completed all slices of this run. If so, this run did not write anything.
    """

    out: Place
    root: str
    new: int = 0
    changed: int = 0
    retried: int = 0
    gone: int = 0
    unnamed: int = 0
    pruned: int = 0
    unchanged: int = 0
    thumbnails: int = 0
    others: list[OtherFiles] = field(default_factory=list)
    ok: int = 0
    decoded_whole: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    failed: int = 0
    internal: int = 0
    without_video: int = 0
    without_video_examples: list[str] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)
    finished: bool = False

    def count(self, row: Row) -> None:
        """Add a row of `videos` to the counts and problems of the report."""
        if row["status"] == OK:
            self.ok += 1
            if row["kind"] == VIDEO and row["codec"] not in SCANNED:
                self.decoded_whole[row["codec"]] = self.decoded_whole.get(row["codec"], 0) + 1
        if row["status"] in (OK, GONE):
            return
        if row["status"] == REFUSED and row["error_kind"] == NO_VIDEO:
            self.without_video += 1
            if len(self.without_video_examples) < SHOWN:
                self.without_video_examples.append(row["uri"])
            return
        if row["status"] == REFUSED:
            self.refused += 1
        elif row["error_kind"] == INTERNAL_ERROR:
            self.internal += 1
        else:
            self.failed += 1
        problem = {"uri": medium_name(row["uri"], row.get("member"))}
        problem |= {key: row[key] for key in ("status", "error_kind", "error_message")}
        if row["error_kind"] == INTERNAL_ERROR:
            problem["error_traceback"] = row["error_traceback"] or ""
        self.problems.append(problem)


@dataclass(slots=True, kw_only=True)
class Work:
    """The planned work of a run.

    Attributes:
        report: The report of the run. Before probing, it counts the planned work.
        listed: All mentions of media, including media that are not probed again.
        sidecars: The kinds of sidecars that become columns.
        probe: The items to probe.
        unopened: The items that must not be opened. Their field `found` has the reason.
        gone: The files in the index that no longer exist, with their rows.
        pruned: The rows of media that no source names any more. Empty without `IndexOptions.prune`.
        mentions: The mentions that this run removes from the listing.
        named_before: The number of media in the index that earlier runs of these sources named.
        members: The media of each listed tar or Parquet file that the index already has.
    """

    report: IndexReport
    listed: list[NamedMedium]
    sidecars: tuple[Sidecar, ...]
    probe: list[Item] = field(default_factory=list)
    unopened: list[Item] = field(default_factory=list)
    gone: list[Item] = field(default_factory=list)
    pruned: list[Row] = field(default_factory=list)
    mentions: Pruned = field(default_factory=dict)
    named_before: int = 0
    members: Members = field(default_factory=dict)

    @property
    def items(self) -> list[Item]:
        """All items, in the order in which their rows are written. A tar or a Parquet file is one item."""
        return self.gone + self.unopened + self.probe


def plan_work(options: IndexOptions, *, before: int | None = None) -> Work:
    """Find the media of the sources, and compare them with the rows of the index. Nothing is written.

    Args:
        options: The options of the run.
        before: Only parts with smaller numbers are read, to see the index as it was before the run. If None, all parts
            are read.

    Raises:
        OutputError: The root of the index differs from `options.root`, or `options.out` is not an index.
        SourceError: A source is missing or cannot be read.
    """
    # A source on the Hub keeps its name when its revision has a new commit.
    names = list(map(source_name, options.sources))
    options = replace(options, sources=[_pinned(source) for source in options.sources])
    known: dict[str, list[Row]] = {}
    root = options.root and absolute(options.root)
    if (options.out / HEADER).exists():
        index = Index(options.out, before=before)
        if root is not None and root != index.root:
            raise OutputError(
                "the index has another root",
                where=str(options.out),
                found=root,
                allowed=index.root,
                remedy="omit --root, or write a new index",
            )
        root = index.root
        for row in index.columns(KNOWN_COLUMNS).to_pylist():
            known.setdefault(row["uri"], []).append(row)
    elif _is_something_else(options.out):
        raise OutputError(
            "the output folder exists, but is not an index",
            where=str(options.out),
            remedy="choose a new or empty folder",
        )
    found = discover(options.sources, options, names=names)
    root = root or default_root(options.sources)
    if readable_name(root) != root:
        raise SourceError("the root's name is not valid UTF-8", where=readable_name(root), remedy="rename the folder")
    _check_sources_exist(found, root, known)
    work = _compare(found, root, known, options)
    if known and (options.out / LISTING_NAME).exists():
        _find_unnamed(work, known, frozenset(names), prune=options.prune)
    return work


def _find_unnamed(work: Work, known: dict[str, list[Row]], names: frozenset[str], *, prune: bool) -> None:
    """Find the media that the sources of a run no longer name, and add them to the work.

    Args:
        work: The work of the run, to which media are added.
        known: The rows in the index, by uri.
        names: The names of the sources.
        prune: Whether to remove the media.
    """
    path, root = work.report.out / LISTING_NAME, work.report.root
    with reading(str(path), REMEDY):
        listing = without_pruned(read_all(path, ["media_id", NAMED_BY]), NOTHING_PRUNED)
    sources: dict[str, set[str]] = {}  # the sources of each medium in the listing; "" stands for unknown sources
    for identity, some in zip(listing["media_id"].to_pylist(), listing[NAMED_BY].to_pylist(), strict=True):
        sources.setdefault(identity, set()).update(some or [""])
    gone = {row["media_id"] for item in work.gone for row in item.rows or []}
    rows: dict[str, list[Row]] = {}  # by the id of the medium in the listing, which all streams of a file share
    for row in itertools.chain(*known.values()):
        if row["media_id"] not in gone:
            rows.setdefault(media_id(row["uri"], member=row["member"]), []).append(row)
    naming: dict[Identity, set[str]] = {}  # the sources of this run that name a medium
    for item in work.listed:
        naming.setdefault((relative(item.path, root), item.member), set()).update(item.sources)
    still = {media_id(uri, member=member): some for (uri, member), some in naming.items()}
    for identity, some in rows.items():  # a file that a source names also names the media in it
        still[identity] = still.get(identity, set()) | naming.get((some[0]["uri"], None), set())
    lost: dict[str, Set[str]] = {}  # the sources that named a medium in an earlier run, but do not any more
    for identity, some in sources.items():
        if gone_from := (some & names) - still.get(identity, set()):
            lost[identity] = gone_from
    work.named_before = sum(bool(sources.get(identity, set()) & names) for identity in rows)
    work.report.unnamed = len(lost.keys() & rows.keys())
    if prune:
        work.mentions = lost
        left = [identity for identity in rows if identity in lost and sources[identity] <= lost[identity]]
        left = [identity for identity in left if not still[identity]]
        work.report.pruned = len(left)
        work.pruned = [row for identity in left for row in rows[identity]]


def check_prunable(work: Work, options: IndexOptions) -> None:
    """Raise SourceError if a run would prune more media than `IndexOptions.prune_at_most` allows."""
    if work.report.pruned > options.prune_at_most * work.named_before:
        share = work.report.pruned / work.named_before
        raise SourceError(
            "the sources no longer name so many media that they may be incomplete",
            where=str(options.out),
            found=f"{work.report.pruned:,} of {counted(work.named_before, 'medium', 'media')} ({share:.0%})",
            allowed=f"up to {options.prune_at_most:.0%} are pruned",
            remedy=f"complete the sources, or pass --prune-at-most {math.ceil(share * 100) / 100:g}",
        )


def _pinned(source: str) -> str:
    """Return a source. If it is on the Hugging Face Hub, replace its revision by the hash of the current commit."""
    at = next((prefix for prefix in ("@", LEROBOT) if source.startswith(prefix)), "")
    return at + pinned(source.removeprefix(at))


def _check_sources_exist(found: Found, root: str, known: dict[str, list[Row]]) -> None:
    """Raise MissingSourceError if a source does not exist.

    If a missing source is in the index, this is not an error: the medium counts as gone.
    """
    missing = [
        item
        for item in found.listed
        if item.named == "source"
        and item.error is None
        and not is_remote(item.path)  # probing reports missing objects
        and not os.path.lexists(item.path)
        and relative(item.path, root) not in known
    ]
    if missing:
        folder, name = os.path.split(missing[0].path)
        beside = os.listdir(folder) if os.path.isdir(folder) else []
        close = [readable_name(other) for other in difflib.get_close_matches(name, beside, 1)]
        raise MissingSourceError(
            "a source does not exist" if len(missing) == 1 else f"{len(missing)} sources do not exist",
            found=", ".join(item.spelled for item in missing[:SHOWN]) + (", …" if missing[SHOWN:] else ""),
            remedy=f"did you mean {os.path.join(os.path.dirname(missing[0].spelled), close[0])!r}?" if close else None,
        )


def _compare(found: Found, root: str, known: dict[str, list[Row]], options: IndexOptions) -> Work:
    """Return the work for media that are new, or that differ from their rows in the index.

    Args:
        found: The media of the sources.
        root: The folder that the uris in the index are relative to.
        known: The rows in the index, by uri.
        options: The options of the run.
    """
    explicit = {(relative(item.path, root), item.member) for item in found.listed if item.named != "search"}
    tasks: dict[Identity, ProbeTask] = {}
    errors: dict[Identity, MediaError] = {}
    for item in found.listed:
        identity = relative(item.path, root), item.member
        if item.error is not None:
            errors[identity] = item.error
        elif identity not in tasks or (item.fps, item.seconds) != (None, None):
            tasks[identity] = replace(probe_task(item, options), searched=identity not in explicit)
    out = absolute(str(options.out))
    others = other_files(path for path in found.others if not is_inside(path, out))
    report = IndexReport(out=options.out, root=root, thumbnails=len(found.thumbnails), others=others)
    work = Work(report=report, listed=found.listed, sidecars=options.sidecars)
    problems: list[Row] = []
    for identity, task in tasks.items():
        of_uri = known.get(identity[0], [])
        if task.holds is None:
            rows = [row for row in of_uri if row["member"] == identity[1]]
        else:  # the rows that were recorded when the file was last probed, for all its media
            rows = [row for row in of_uri if row["fingerprint"] == of_uri[-1]["fingerprint"]]
            work.members[identity[0]] = {row["member"]: row["sidecars"] for row in rows if row["member"] is not None}
        if is_done(task, rows) or (not options.retry and fails_again(task, rows, options)):
            report.unchanged += 1
            problems += [row for row in rows if row["status"] in (REFUSED, FAILED)]
            continue
        planned = Item(identity=identity, task=task)
        work.probe.append(planned if task.holds is None else replace(planned, known=of_uri, files=HOLDER_FILES))
        if any(row["status"] != OK for row in rows) and is_same_medium(task, rows):
            report.retried += 1
        else:
            report.changed += bool(rows)
    for (uri, member), error in errors.items():
        if (uri, member) in tasks:
            continue
        rows = [row for row in known.get(uri, []) if row["member"] == member]
        if is_still_unopened(error, rows):
            report.unchanged += 1
            problems += rows
        else:
            facts = MediumFacts(kind=VIDEO if member is None else IMAGES, member=member, problem=problem_of(error))
            work.unopened.append(Item(identity=(uri, member), found=facts))
            report.changed += bool(rows)
    named = {uri for uri, _ in tasks.keys() | errors.keys()}
    # A medium counts as gone only if this run searched its folder. Each listing counts as a searched folder, too: a
    # wrong row becomes a failed medium with the uri `LISTING/row N`, which is gone when the user has corrected the row.
    # Every uri in object storage counts, because it may be a folder.
    searched = [
        absolute(source)
        for source in options.sources
        if is_remote(source) or is_listing(source) or os.path.isdir(local_path(source))
    ]
    for uri, rows in known.items():
        path = joined(root, uri)
        if uri not in named and any(is_inside(path, folder) for folder in searched) and not is_there(path):
            work.gone.append(Item(identity=(uri, None), rows=rows))
    report.new = len(work.probe) + len(work.unopened) - report.changed - report.retried
    report.gone = len(work.gone)
    for row in sorted(problems, key=lambda row: medium_name(row["uri"], row["member"])):
        report.count(row)
    return work


def probe_task(item: NamedMedium, options: IndexOptions) -> ProbeTask:
    """Return the task for probing the medium of a mention."""
    images = None
    if item.form not in ("video", "parquet"):
        images = ImageTask(
            form=item.form,
            names=item.images or (),
            member=item.member,
            fps=item.fps,
            seconds=item.seconds,
            default_fps=options.image_fps,
            single=options.images == "single",
            ignored=options.images == "ignore" and item.named == "search",
        )
    return ProbeTask(
        path=item.path,
        depth=options.depth,
        streams=options.streams,
        verify=options.verify,
        prove=options.prove,
        images=images,
        facts=item.facts,
        holds=item.form if item.form in ("tar", "parquet") else None,
        sidecars=options.sidecars if item.form == "tar" else (),
    )


def _is_something_else(out: Place) -> bool:
    """Return whether a path without an index has files that an unfinished run cannot have written."""
    if local_of(out) is None:
        return any(not BEGUN.fullmatch(name) for name in names_in(out))
    if not out.exists():
        return False
    return not out.is_dir() or any(not name.startswith((LOCK_NAME, ASIDE, LOG_NAME)) for name in names_in(out))
