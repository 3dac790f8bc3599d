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
from framedex.indexer.facts import MediumFacts, Row
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth, ProbeTask, Streams
from framedex.indexer.probing.probe_images import ImageTask
from framedex.indexer.runs.existence import media_there
from framedex.indexer.schema import HEADER, NO_VIDEO, UNPROVEN
from framedex.indexer.sources.discover import Found, OtherFiles, default_root, discover, is_listing, other_files
from framedex.indexer.sources.folders import is_seen_missing, is_there, may_be_folder
from framedex.indexer.sources.lerobot import LEROBOT
from framedex.indexer.sources.named_medium import SIDECARS, Images, NamedMedium, Sidecar, is_image_name, readable_name
from framedex.indexer.sources.sequences import at_rate
from framedex.records.medium import FAILED, IMAGES, OK, REFUSED, VIDEO
from framedex.storage.hub import pinned
from framedex.storage.places import Place, local_of, names_in
from framedex.storage.uris import absolute, is_inside, joined, medium_name, relative

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


def rows_of(known: list[Row], task: ProbeTask, member: str | None) -> list[Row]:
    """Return the rows of one uri that describe a medium as it was probed last.

    For a tar or a Parquet file, these are the rows of all its media.

    Args:
        known: the rows of the uri in the order in which they were written.
        task: how the medium is probed.
        member: name of the medium in a file or folder of several media, else None.
    """
    if task.holds is None:
        return [row for row in known if row["member"] == member]
    return [row for row in known if row["fingerprint"] == known[-1]["fingerprint"]]


def is_done(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows still describe a medium and answer all that the task asks.

    Another version of framedex probes refused media again, because it may support them. For failed media, see
    `is_same_failure`.
    """
    must_try = (
        row["status"] == FAILED
        or (row["status"] == REFUSED and row["probed_by"] != __version__)
        or row["error_kind"] == UNPROVEN
        for row in known
    )
    return bool(known) and not any(must_try) and _has_answers(task, known) and media_there(task).is_same(known[0])


def _has_answers(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows answer all that the task asks of usable media, and of those that are skipped."""
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
    """Return the version of FFmpeg and the options that probe a medium, for the column `tried` of failed media."""
    asked: dict[str, object] = {name: getattr(task, name) for name in ("depth", "streams", "verify", "prove")}
    if task.images is not None:
        timing = (task.images.single, task.images.fps, task.images.default_fps, task.images.seconds)
        asked["images"] = hashlib.blake2b(repr(timing).encode(), digest_size=8).hexdigest()
    asked |= {"timeout": options.timeout_seconds, "memory": options.memory_bytes}
    return f"FFmpeg {ffmpeg_version()}, " + ", ".join(f"{name} {value}" for name, value in asked.items())


def fails_again(task: ProbeTask, known: list[Row], options: "IndexOptions") -> bool:
    """Return whether probing a medium would fail as before: the same file, options, framedex and FFmpeg.

    Bugs of framedex and unanswered requests to a store do not count, because they do not depend on the medium.
    """
    failed = [row for row in known if row["status"] == FAILED]
    if not failed or any(row["probed_by"] != __version__ or row["error_kind"] == INTERNAL_ERROR for row in known):
        return False
    tried, tried_inside = attempt(task, options), attempt(replace(task, images=None), options)
    if any(row["tried"] != (tried_inside if _is_member(row) else tried) for row in failed):
        return False
    return _has_answers(task, known) and is_same_medium(task, known)


def is_same_medium(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows still describe the medium.

    If it was not readable, return whether it is still not readable.
    """
    row = known[0]
    there = media_there(task)
    return not there.is_readable() if row["fingerprint"] is None else there.is_same(row)


def _is_timed(task: ImageTask, known: list[Row]) -> bool:
    """Return whether the rows of a single image or of a tar have the rate and the sequences that the task asks for.

    Rows of videos in a tar do not count.
    """
    if task.form == "folder":  # the fingerprint of a folder also covers its timing
        return True
    tick = at_rate(1, task.rate).tick
    usable = [row for row in known if row["status"] == OK and row["kind"] == IMAGES]
    if any((row["time_base_num"], row["time_base_den"]) != (tick.numerator, tick.denominator) for row in usable):
        return False
    return task.form != "tar" or all(is_image_name(row["member"]) == task.single for row in usable)


def is_still_unopened(error: MediaError, known: list[Row]) -> bool:
    """Return whether a known row, by this version of framedex, has the same reason not to open a medium."""
    reason = (REFUSED if error.refused else FAILED, error.kind, error.what, __version__)
    names = ("status", "error_kind", "error_message", "probed_by")
    return len(known) == 1 and tuple(known[0][name] for name in names) == reason


# Names that slices of a run write to object storage before there is a header.
BEGUN = re.compile(rf"slices\.json|(?:videos|frames)/{PART_NAME.pattern}")
Identity = tuple[str, str | None]  # uri, and name of the medium in a file or folder of several media
Members = dict[str, dict[str, str | None]]  # by the uri of a tar or Parquet file: names of its media, sidecars as JSON
# A tar or a Parquet file counts as so many files in a part, since it may have thousands of media: a killed run then
# loses less.
HOLDER_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """The options of an index run.

    Attributes:
        sources: files, folders, globs, lists and listings, as the user names them.
        out: the index.
        root: the folder that recorded uris are relative to. If None, the root of the existing index, or of a new one
            the sources' common folder.
        uri_column: the column of listings that names the media.
        label_from_parent: add a column `label`, the name of each file's folder.
        depth: see `ProbeTask`.
        streams: see `ProbeTask`.
        verify: see `ProbeTask`.
        prove: see `ProbeTask`.
        follow_symlinks: search linked folders, and let links lead out of the folders that media are found through.
        images: the media that the images of searched folders become (see `discover.discover`).
        sidecars: kinds of sidecars that become columns of the videos in tars.
        image_fps: rate of images without stated times, in images per second. If None, 1.
        workers: number of processes that probe.
        engine: runs the probes.
        retry: probe failed media again even if nothing changed.
        timeout_seconds: time limit for each medium. If None, time is not limited.
        memory_bytes: memory limit for each worker; see `run_local`. If None, memory is not limited.
        on_progress: called with (done, total) after each medium.
    """

    sources: Sequence[str]
    out: Place
    root: str | None = None
    uri_column: str | None = None
    label_from_parent: bool = False
    depth: Depth = "auto"
    streams: Streams = "best"
    verify: bool = False
    prove: int = 0
    follow_symlinks: bool = False
    images: Images = "sequences"
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
    """A file, a sequence of images or a video inside a file, which is probed, not opened, or gone.

    Attributes:
        identity: uri, and name of the medium in a file or folder of several media.
        task: how it is probed. If None, it is not probed.
        error: why it is not opened.
        rows: its known rows, if it is gone.
        found: its facts, if they are known before it is probed.
        known: the known rows of a file with several media.
        files: the number of files that it counts as in a part of the index.
    """

    identity: Identity
    task: ProbeTask | None = None
    error: MediaError | None = None
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
class Work:
    """The work of a run.

    Attributes:
        root: the folder that recorded uris are relative to.
        listed: all mentions of media.
        thumbnails: how many images were skipped because they lie beside videos.
        others: files that were skipped because of their endings.
        probe: media to probe, and how.
        unopened: media not to open, and why.
        gone: the known rows of files that no longer exist, by uri.
        unchanged: how many media are not probed again.
        changed: how many media of `probe` and `unopened` the index knows and finds changed.
        retried: how many media of `probe` were refused or failed and are unchanged.
        problems: the rows of media that stay refused or failed.
        members: the known media of each listed tar or Parquet file.
        inside: the known rows of the files with several media that are probed, by uri.
        sidecars: kinds of sidecars that become columns.
    """

    root: str
    listed: list[NamedMedium]
    thumbnails: int
    others: list[OtherFiles]
    probe: dict[Identity, ProbeTask] = field(default_factory=dict)
    unopened: dict[Identity, MediaError] = field(default_factory=dict)
    gone: dict[str, list[Row]] = field(default_factory=dict)
    unchanged: int = 0
    changed: int = 0
    retried: int = 0
    problems: list[Row] = field(default_factory=list)
    members: Members = field(default_factory=dict)
    inside: dict[str, list[Row]] = field(default_factory=dict)
    sidecars: tuple[Sidecar, ...] = ()

    @property
    def items(self) -> list[Item]:
        """All items to write, one per file, in the order of the rows."""
        gone = [Item(identity=(uri, None), rows=rows) for uri, rows in self.gone.items()]
        unopened = [Item(identity=identity, error=error) for identity, error in self.unopened.items()]
        probed = [
            Item(identity=identity, task=task)
            if task.holds is None
            else Item(identity=identity, task=task, known=self.inside.get(identity[0], []), files=HOLDER_FILES)
            for identity, task in self.probe.items()
        ]
        return gone + unopened + probed


def plan_work(options: IndexOptions, *, before: int | None = None) -> Work:
    """Find the media and compare them with the rows of the index at `out`, without writing to it.

    Args:
        options: the options of the run.
        before: number of the first part that does not count; see `Index`.

    Raises:
        OutputError: the index has another root, or `out` holds something else than an index.
        SourceError: a source is wrong or missing.
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
            "the output folder holds something else than an index",
            where=str(options.out),
            remedy="choose a new or empty folder",
        )
    found = discover(
        options.sources,
        root=options.root,
        label_from_parent=options.label_from_parent,
        uri_column=options.uri_column,
        follow_symlinks=options.follow_symlinks,
        images=options.images,
    )
    root = root or default_root(options.sources)
    if readable_name(root) != root:
        raise SourceError("the root's name is not valid UTF-8", where=readable_name(root), remedy="rename the folder")
    _check_sources_exist(found, root, known)
    return _compare(found, root, known, options)


def _pinned(source: str) -> str:
    """Return a source with the commit of the Hub that it names now, if it is on the Hub."""
    at = next((prefix for prefix in ("@", LEROBOT) if source.startswith(prefix)), "")
    return at + pinned(source.removeprefix(at))


def _check_sources_exist(found: Found, root: str, known: dict[str, list[Row]]) -> None:
    """Raise MissingSourceError for sources that do not exist.

    Sources that the index knows are not mistakes: they have disappeared since.
    """
    missing = [
        item
        for item in found.listed
        if item.named == "source"
        and item.error is None
        and is_seen_missing(item.path)
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
    work = Work(root=root, listed=found.listed, thumbnails=found.thumbnails, others=others, sidecars=options.sidecars)
    for identity, task in tasks.items():
        rows = rows_of(known.get(identity[0], []), task, identity[1])
        if task.holds is not None:
            work.members[identity[0]] = {row["member"]: row["sidecars"] for row in rows if row["member"] is not None}
        if is_done(task, rows) or (not options.retry and fails_again(task, rows, options)):
            work.unchanged += 1
            work.problems += [row for row in rows if row["status"] in (REFUSED, FAILED)]
            continue
        work.probe[identity] = task
        if task.holds is not None:
            work.inside[identity[0]] = known.get(identity[0], [])
        if any(row["status"] != OK for row in rows) and is_same_medium(task, rows):
            work.retried += 1
        else:
            work.changed += bool(rows)
    for identity, error in errors.items():
        if identity in tasks:
            continue
        rows = [row for row in known.get(identity[0], []) if row["member"] == identity[1]]
        if is_still_unopened(error, rows):
            work.unchanged += 1
            work.problems += rows
        else:
            work.unopened[identity] = error
            work.changed += bool(rows)
    named = {uri for uri, _ in tasks.keys() | errors.keys()}
    # A medium is gone only if this run searched its folder. Wrong rows of a listing have uris inside the listing.
    searched = [absolute(source) for source in options.sources if may_be_folder(source) or is_listing(source)]
    for uri, rows in known.items():
        if uri in named:
            continue
        path = joined(root, uri)
        if any(is_inside(path, folder) for folder in searched) and not is_there(path):
            work.gone[uri] = rows
    work.problems.sort(key=lambda row: medium_name(row["uri"], row["member"]))
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
    """Return whether the path of the new index has files that an unfinished run would not have written."""
    if local_of(out) is None:
        return any(not BEGUN.fullmatch(name) for name in names_in(out))
    if not out.exists():
        return False
    return not out.is_dir() or any(not name.startswith((LOCK_NAME, ASIDE)) for name in names_in(out))
