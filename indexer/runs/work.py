"""Plan an index run: find the media that sources name, and compare them with the rows of the existing index.

A rerun skips media whose rows still describe them and answer everything that the run asks.
"""

import difflib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.core.words import SHOWN
from framedex.errors import INTERNAL_ERROR, MediaError, MissingSourceError, OutputError, SourceError
from framedex.execution.engine import GIBIBYTE, Engine, run_local
from framedex.files.outputs import ASIDE, LOCK_NAME
from framedex.files.parquet_parts import PART_NAME
from framedex.indexer.facts import MediumFacts, Row, problem_of
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth, ProbeTask, Streams
from framedex.indexer.probing.probe_images import ImageTask
from framedex.indexer.runs.existence import find_identity, is_same
from framedex.indexer.schema import HEADER, NO_VIDEO, SCANNED, UNPROVEN
from framedex.indexer.sources.discover import Found, OtherFiles, Search, default_root, discover, is_listing, other_files
from framedex.indexer.sources.folders import is_there
from framedex.indexer.sources.lerobot import LEROBOT
from framedex.indexer.sources.named_medium import SIDECARS, NamedMedium, Sidecar, is_image_name, readable_name
from framedex.indexer.sources.sequences import at_rate
from framedex.records.medium import FAILED, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.storage.hub import pinned
from framedex.storage.places import Place, local_of, names_in
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
    """Return whether known rows still describe a medium and have everything that the task asks for.

    Another version of framedex probes refused media again, because it may support them. For failed media, see
    `fails_again`.
    """
    must_try = (
        row["status"] == FAILED
        or (row["status"] == REFUSED and row["probed_by"] != __version__)
        or row["error_kind"] == UNPROVEN
        for row in known
    )
    return bool(known) and not any(must_try) and _has_answers(task, known) and is_same(task, known[0])


def _has_answers(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows of usable and skipped media have everything that the task asks for."""
    for row in known:
        # Files without a video stream are skipped if a search found them, and fail if they are named.
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
    """Return whether a row describes a video inside a file."""
    return row["member_bytes"] is not None


def attempt(task: ProbeTask, options: "IndexOptions") -> str:
    """Return the value of the column `tried` of a failed medium: the version of FFmpeg, and the options of probing."""
    asked: dict[str, object] = {name: getattr(task, name) for name in ("depth", "streams", "verify", "prove")}
    if task.images is not None:
        timing = (task.images.single, task.images.fps, task.images.default_fps, task.images.seconds)
        asked["images"] = hashlib.blake2b(repr(timing).encode(), digest_size=8).hexdigest()
    asked |= {"timeout": options.timeout_seconds, "memory": options.memory_bytes}
    return f"FFmpeg {ffmpeg_version()}, " + ", ".join(f"{name} {value}" for name, value in asked.items())


def fails_again(task: ProbeTask, known: list[Row], options: "IndexOptions") -> bool:
    """Return whether a failed medium would fail again: file, options, framedex and FFmpeg are the same.

    After a bug of framedex or an unanswered request to a store, the answer is False. They do not depend on the medium.
    """
    failed = [row for row in known if row["status"] == FAILED]
    if not failed or any(row["probed_by"] != __version__ or row["error_kind"] == INTERNAL_ERROR for row in known):
        return False
    tried, tried_inside = attempt(task, options), attempt(replace(task, images=None), options)
    if any(row["tried"] != (tried_inside if _is_member(row) else tried) for row in failed):
        return False
    return _has_answers(task, known) and is_same_medium(task, known)


def is_same_medium(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows still describe the medium. If it was not readable, return whether it still is not."""
    if known[0]["fingerprint"] is not None:
        return is_same(task, known[0])
    try:
        find_identity(task)
    except MediaError:
        return True
    return False


def _is_timed(task: ImageTask, known: list[Row]) -> bool:
    """Return whether the rows of a single image or of a tar have the rate and the sequences that the task asks for.

    Rows of videos in a tar are ignored.
    """
    if task.form == "folder":  # the fingerprint of a folder also covers its timing
        return True
    tick = at_rate(1, task.rate).tick
    usable = [row for row in known if row["status"] == OK and row["kind"] == IMAGES]
    if any((row["time_base_num"], row["time_base_den"]) != (tick.numerator, tick.denominator) for row in usable):
        return False
    return task.form != "tar" or all(is_image_name(row["member"]) == task.single for row in usable)


def is_still_unopened(error: MediaError, known: list[Row]) -> bool:
    """Return whether this version of framedex has recorded the same reason not to open a medium."""
    reason = (REFUSED if error.refused else FAILED, error.kind, error.what, __version__)
    names = ("status", "error_kind", "error_message", "probed_by")
    return len(known) == 1 and tuple(known[0][name] for name in names) == reason


# The names of objects that slices of a run write before the header.
BEGUN = re.compile(rf"slices\.json|(?:videos|frames)/{PART_NAME.pattern}")
Identity = tuple[str, str | None]  # uri, and name of the medium in a file or folder of several media
Members = dict[str, dict[str, str | None]]  # by the uri of a tar or Parquet file: names of its media, sidecars as JSON
# A tar or a Parquet file counts as this many files of a part, because it may have thousands of media. A killed run then
# loses less work.
HOLDER_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions(Search):
    """The options of an index run. The attribute `root` is also the folder that recorded uris are relative to.

    If it is None, that folder is the root of the existing index, or for a new one the sources' common folder.

    Attributes:
        sources: Files, folders, globs, lists and listings, as the user names them.
        out: The index.
        depth, streams, verify, prove: See `ProbeTask`.
        sidecars: The kinds of sidecars that become columns of the videos in tars.
        image_fps: The rate of images without stated times, in images per second. If None, 1.
        workers: The number of processes that probe.
        engine: Runs the probes.
        retry: Whether to probe failed media again even if nothing changed.
        timeout_seconds: The time limit for each medium. If None, there is none.
        memory_bytes: The memory limit of each process (`local_pool.run_local`). If None, there is none.
        on_progress: Is called with (done, total) after each medium.
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
    timeout_seconds: float | None = 3600.0
    memory_bytes: int | None = 8 * GIBIBYTE
    on_progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file, a sequence of images or a video inside a file. It is probed, not opened, or gone.

    Attributes:
        identity: The uri, and the name of the medium in a file or folder of several media.
        task: Describes how to probe it. None if it is not probed.
        rows: Its known rows, if it is gone.
        found: Its facts, if they are known without probing it.
        known: The known rows of a tar or a Parquet file.
        files: The number of files of a part that it counts as.
    """

    identity: Identity
    task: ProbeTask | None = None
    rows: list[Row] | None = None
    found: MediumFacts | None = None
    known: list[Row] = field(default_factory=list)
    files: int = 1


def parted(items: Sequence[Item], files_a_part: int) -> list[list[Item]]:
    """Return the items of each part of an index."""
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
    """The outcome of a run: numbers of media and files, and the problems.

    Refused media are counted in every run that names them, even if nothing changed.

    Attributes:
        out: The index.
        root: The folder that recorded uris are relative to.
        new: The number of files that the index lacked.
        changed: The number of files that the index had, and that have changed.
        retried: The number of unchanged files that are probed again because they were refused or failed.
        gone: The number of files that no longer exist.
        unchanged: The number of files that are not probed again.
        thumbnails: The number of images that were skipped because they lie beside videos.
        others: Files of searched folders that were skipped because of their endings.
        ok: The number of usable media.
        decoded_whole: The number of usable videos by codec that were decoded completely to prove their frames, because
            packets of their codec are not parsed.
        refused: The number of refused media.
        failed: The number of media that failed, without those in `internal`.
        internal: The number of media that failed because of a bug of framedex.
        without_video: The number of files without a video stream that a search found. They are skipped, and count
            neither as refused nor as failed.
        without_video_examples: The uris of the first of these files.
        problems: The name, status and reason of each medium in `refused`, `failed` and `internal`.
        finished: Whether an earlier run has finished these slices. Then nothing was written.
    """

    out: Place
    root: str
    new: int = 0
    changed: int = 0
    retried: int = 0
    gone: int = 0
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
        """Count the row of a medium."""
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
    """The work of a run.

    Attributes:
        report: The report of the run, before anything is probed.
        listed: All mentions of media.
        sidecars: The kinds of sidecars that become columns.
        probe: The media to probe.
        unopened: The media not to open. Their facts have the reason.
        gone: The files that no longer exist, with their known rows.
        members: The known media of each listed tar or Parquet file.
    """

    report: IndexReport
    listed: list[NamedMedium]
    sidecars: tuple[Sidecar, ...]
    probe: list[Item] = field(default_factory=list)
    unopened: list[Item] = field(default_factory=list)
    gone: list[Item] = field(default_factory=list)
    members: Members = field(default_factory=dict)

    @property
    def items(self) -> list[Item]:
        """All items, one per file, in the order in which their rows are written."""
        return self.gone + self.unopened + self.probe


def plan_work(options: IndexOptions, *, before: int | None = None) -> Work:
    """Find the media and compare them with the rows of the index at `out`. Nothing is written.

    Args:
        options: The options of the run.
        before: The number of the first part to ignore (`Index`).

    Raises:
        OutputError: The index has another root, or `out` is something else than an index.
        SourceError: A source is wrong or missing.
    """
    options = replace(options, sources=[_pinned(source) for source in options.sources])
    known: dict[str, list[Row]] = {}
    root = options.root and absolute(options.root)
    if (options.out / HEADER).exists():
        index = Index(options.out, before=before)
        if root is not None and root != index.root:
            raise OutputError(
                "the index was made relative to another root",
                where=str(options.out),
                found=root,
                allowed=index.root,
                remedy="leave out --root, or write a new index",
            )
        root = index.root
        for row in index.columns(KNOWN_COLUMNS).to_pylist():
            known.setdefault(row["uri"], []).append(row)
    elif _is_something_else(options.out):
        raise OutputError(
            "the output folder is something else than an index",
            where=str(options.out),
            remedy="choose a new or empty folder",
        )
    found = discover(options.sources, options)
    root = root or default_root(options.sources)
    if readable_name(root) != root:
        raise SourceError("the root's name is not valid UTF-8", where=readable_name(root), remedy="rename the folder")
    _check_sources_exist(found, root, known)
    return _compare(found, root, known, options)


def _pinned(source: str) -> str:
    """Return a source. If it is on the Hugging Face Hub, replace its revision by the commit that it now stands for."""
    at = next((prefix for prefix in ("@", LEROBOT) if source.startswith(prefix)), "")
    return at + pinned(source.removeprefix(at))


def _check_sources_exist(found: Found, root: str, known: dict[str, list[Row]]) -> None:
    """Raise MissingSourceError for sources that do not exist. Sources that the index has are gone, and no mistakes."""
    missing = [
        item
        for item in found.listed
        if item.named == "source"
        and item.error is None
        and not is_remote(item.path)  # probing shows which objects are missing
        and not os.path.lexists(item.path)
        and relative(item.path, root) not in known
    ]
    if missing:
        folder, name = os.path.split(missing[0].path)
        beside = os.listdir(folder) if os.path.isdir(folder) else []
        close = [readable_name(other) for other in difflib.get_close_matches(name, beside, 1)]
        raise MissingSourceError(
            "a source is not there" if len(missing) == 1 else f"{len(missing)} sources are not there",
            found=", ".join(item.spelled for item in missing[:SHOWN]) + (", …" if missing[SHOWN:] else ""),
            remedy=f"did you mean {os.path.join(os.path.dirname(missing[0].spelled), close[0])!r}?" if close else None,
        )


def _compare(found: Found, root: str, known: dict[str, list[Row]], options: IndexOptions) -> Work:
    """Return the work for media that are new, or that differ from the known rows of their uri."""
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
        else:  # all media of the file, as they were probed last
            rows = [row for row in of_uri if row["fingerprint"] == of_uri[-1]["fingerprint"]]
        if task.holds is not None:
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
    for identity, error in errors.items():
        if identity in tasks:
            continue
        uri, member = identity
        rows = [row for row in known.get(uri, []) if row["member"] == member]
        if is_still_unopened(error, rows):
            report.unchanged += 1
            problems += rows
        else:
            kind = VIDEO if member is None else IMAGES
            facts = MediumFacts(kind=kind, member=member, problem=problem_of(error))
            work.unopened.append(Item(identity=identity, found=facts))
            report.changed += bool(rows)
    named = {uri for uri, _ in tasks.keys() | errors.keys()}
    # A medium is gone only if this run searched its folder. Wrong rows of a listing have uris inside the listing.
    searched = [
        absolute(source)
        for source in options.sources
        if is_remote(source) or is_listing(source) or os.path.isdir(local_path(source))  # any uri may name a folder
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
    """Return the probe task of a named medium."""
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
    """Return whether the path of a new index has files that no unfinished run has written."""
    if local_of(out) is None:
        return any(not BEGUN.fullmatch(name) for name in names_in(out))
    if not out.exists():
        return False
    return not out.is_dir() or any(not name.startswith((LOCK_NAME, ASIDE)) for name in names_in(out))
