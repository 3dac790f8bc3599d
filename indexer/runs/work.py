"""Plan an index run: find the media that sources name, and compare them with what the index already holds."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from framedex.core.tallies import SHOWN
from framedex.errors import MediaError, MissingSourceError, OutputError, SourceError
from framedex.execution.engine import Engine
from framedex.execution.local_pool import GIBIBYTE, run_local
from framedex.files.atomic import ASIDE
from framedex.files.locks import LOCK_NAME
from framedex.files.parquet_parts import PART_NAME
from framedex.indexer.facts import MediumFacts
from framedex.indexer.images.probe_images import ImageTask
from framedex.indexer.media_rows import Row
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.layout import HEADER
from framedex.indexer.probing.probe import Depth, ProbeTask, Streams
from framedex.indexer.runs.rerun import (
    KNOWN_COLUMNS,
    is_done,
    is_same_failure,
    is_same_medium,
    is_still_unopened,
    rows_of,
)
from framedex.indexer.sources.discover import Found, default_root, discover, is_listing
from framedex.indexer.sources.lerobot import LEROBOT
from framedex.indexer.sources.named_medium import Images, NamedMedium, readable_name
from framedex.indexer.sources.other_files import OtherFiles, other_files
from framedex.indexer.sources.sidecars import SIDECARS, Sidecar
from framedex.indexer.sources.there import is_seen_missing, is_there, may_be_folder
from framedex.records.medium import FAILED, OK, REFUSED
from framedex.storage.hub import pinned
from framedex.storage.places import Place, local_of, names_in
from framedex.storage.uris import absolute, is_inside, joined, medium_name, relative

# Names that slices of a run write to object storage before there is a header.
BEGUN = re.compile(rf"slices\.json|(?:videos|frames)/{PART_NAME.pattern}")
Identity = tuple[str, str | None]  # uri, and which of several media of one file or folder
Members = dict[str, dict[str, str | None]]
HOLDER_FILES = 64  # files that a tar or a Parquet file counts as in a part


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """The options of an index run.

    Attributes:
        sources: files, folders, globs, lists and listings, as the user names them.
        out: the index.
        root: what uris are recorded relative to. None: the root of the existing index, else the sources' common folder.
        uri_column: the column of listings that names the media.
        label_from_parent: add a column `label`, the name of each file's folder.
        depth: see `ProbeTask`.
        streams: see `ProbeTask`.
        verify: see `ProbeTask`.
        prove: see `ProbeTask`.
        follow_symlinks: search linked folders, and let links lead out of the folders that media are found through.
        images: what the images of searched folders are (see `discover.discover`).
        sidecars: kinds of sidecars that become columns of the videos in tars.
        image_fps: rate of images that nothing else times, in images per second. None: 1.
        workers: how many processes probe.
        engine: runs the probes.
        retry: probe failed media again even if nothing changed.
        timeout_seconds: limit for each medium. None: no limit.
        memory_bytes: limit for each worker; see `local_pool.run_local`. None: no limit.
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
    """A file, a sequence of images or a video inside a file, and what happens to it: probed, not opened, or gone.

    Attributes:
        identity: uri, and which of several media in the file.
        task: how it is probed. None: it is not probed.
        error: why it is not opened.
        rows: its known rows, if it is gone.
        found: its facts, if they are known before it is probed.
        known: of a file with several media: its known rows.
        files: how many files it counts as where a part of the index has a number of files.
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
    """What a run has to do.

    Attributes:
        root: what uris are recorded relative to.
        listed: all mentions of media.
        thumbnails: how many images were skipped because they lie beside videos.
        others: files that were skipped because of their endings.
        probe: media to probe, and how.
        unopened: media not to open, and why.
        gone: the known rows of files that are no longer there, by uri.
        unchanged: how many media are not probed again.
        changed: how many media of `probe` and `unopened` the index knows and finds changed.
        retried: how many media of `probe` were refused or failed and are unchanged.
        problems: the rows of media that stay refused or failed.
        members: what is known of each listed tar or Parquet file, by its uri: its media, and the sidecars of each as
            JSON.
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
        return gone + unopened + [self._item(identity, task) for identity, task in self.probe.items()]

    def _item(self, identity: Identity, task: ProbeTask) -> Item:
        """Return the item of a task. A file with several media counts as many files: it may hold thousands of them."""
        if task.holds is None:
            return Item(identity=identity, task=task)
        return Item(identity=identity, task=task, known=self.inside.get(identity[0], []), files=HOLDER_FILES)


def plan_work(options: IndexOptions, *, before: int | None = None) -> Work:
    """Find the media and compare them with what the index at `out` already holds. Writes nothing.

    Args:
        options: of the run.
        before: as for `Index`.

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
    _check_there(found, root, known)
    return _compare(found, root, known, options)


def _pinned(source: str) -> str:
    """Return a source with the commit of the Hub that it names now, if it is on the Hub."""
    at = next((prefix for prefix in ("@", LEROBOT) if source.startswith(prefix)), "")
    return at + pinned(source.removeprefix(at))


def _check_there(found: Found, root: str, known: dict[str, list[Row]]) -> None:
    """Raise MissingSourceError for sources that do not exist.

    A source that the index knows is no mistake: it has disappeared.
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
    work = Work(
        root=root,
        listed=found.listed,
        thumbnails=found.thumbnails,
        others=_others(found, options),
        sidecars=options.sidecars,
    )
    for identity, task in tasks.items():
        rows = rows_of(known.get(identity[0], []), task, identity[1])
        if task.holds is not None:
            work.members[identity[0]] = {row["member"]: row["sidecars"] for row in rows if row["member"] is not None}
        if is_done(task, rows) or (not options.retry and _fails_again(task, rows, options)):
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
    work.gone = {uri: rows for uri, rows in known.items() if uri not in named and _is_gone(uri, root, options)}
    work.problems.sort(key=lambda row: medium_name(row["uri"], row["member"]))
    return work


def _fails_again(task: ProbeTask, rows: list[Row], options: IndexOptions) -> bool:
    """Return whether known rows describe a failure that another try would repeat."""
    return any(row["status"] == FAILED for row in rows) and is_same_failure(
        task, rows, timeout_seconds=options.timeout_seconds, memory_bytes=options.memory_bytes
    )


def _others(found: Found, options: IndexOptions) -> list[OtherFiles]:
    """Return the files that were skipped because of their endings, without those of the index itself."""
    out = absolute(str(options.out))
    return other_files(path for path in found.others if not is_inside(path, out))


def _is_gone(uri: str, root: str, options: IndexOptions) -> bool:
    """Return whether a known medium lay in a folder that is searched, and no longer exists.

    Rows of a listing that were wrong lie in the listing.
    """
    path = joined(root, uri)
    searched = [absolute(source) for source in options.sources if may_be_folder(source) or is_listing(source)]
    return any(is_inside(path, folder) for folder in searched) and not is_there(path)


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
    """Return whether the path of the new index exists and holds something that no index begins with."""
    if local_of(out) is None:
        return any(not BEGUN.fullmatch(name) for name in names_in(out))
    if not out.exists():
        return False
    return not out.is_dir() or any(not name.startswith((LOCK_NAME, ASIDE)) for name in names_in(out))
