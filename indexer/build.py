"""Build or refresh an index: what is to do → engine → parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq

from framedex import __version__
from framedex.errors import MediaError, OutputError, SourceError
from framedex.indexer.discover import Found, default_root, discover, media_id, relative_uri
from framedex.indexer.engines import GIBIBYTE, Outcome, run_local
from framedex.indexer.identity import Row, no_frames, problem_columns
from framedex.indexer.images import ImageTask
from framedex.indexer.index import FRAMES_FOLDER, HEADER, LISTING_NAME, VIDEOS_FOLDER, Index, gaps_of
from framedex.indexer.listed import Images, Listed, readable_name
from framedex.indexer.listing_table import listing_table
from framedex.indexer.parts import (
    ASIDE,
    LOCK_NAME,
    PartWriter,
    exclusive,
    library_versions,
    part_numbers,
    part_path,
    remove_unfinished,
    table_of,
    write_json_aside,
    write_part,
)
from framedex.indexer.probe import Depth, ProbeTask, Streams, probe_medium
from framedex.indexer.rerun import KNOWN_COLUMNS, is_done, is_still_refused, rows_of
from framedex.indexer.schema import (
    DELTA_COLUMNS,
    FORMAT,
    FRAMES,
    FRAMES_PER_ROW_GROUP,
    IMAGES,
    OK,
    REFUSED,
    SCHEMA_VERSION,
    VIDEO,
    VIDEOS,
)

Identity = tuple[str, str | None]  # uri, and which of several sequences of images of one folder

FLUSH_PACKETS, FLUSH_MEDIA, FLUSH_SECONDS = 2_000_000, 2_000, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """What an index run is asked to do.

    root: what uris are recorded relative to; None takes the existing index's, else the sources' common folder.
    follow_symlinks: search linked folders, and let links lead out of the folders that media are found through.
    images: what the images of searched folders are (see `discover.discover`). image_fps: of images that nothing else times.
    timeout_seconds: for each medium. memory_bytes: for each worker; see `engines.run_local`. on_progress: called with
    (done, total) after each medium.
    """

    sources: Sequence[str]
    out: Path
    root: str | None = None
    label_from_parent: bool = False
    depth: Depth = "auto"
    streams: Streams = "best"
    verify: bool = False
    follow_symlinks: bool = False
    images: Images = "sequences"
    image_fps: Fraction | None = None
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    timeout_seconds: float | None = 600.0
    memory_bytes: int | None = 8 * GIBIBYTE
    on_progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(slots=True, kw_only=True)
class Work:
    """What a run has to do: the mentions of media, which to probe and how, which not to open, and what stays refused.

    members: the sequences that are known of each tar that is listed, by its uri. thumbnails: how many images were
    passed over because they lie beside videos.
    """

    root: str
    listed: list[Listed]
    thumbnails: int
    probe: dict[Identity, ProbeTask] = field(default_factory=dict)
    unopened: dict[Identity, MediaError] = field(default_factory=dict)
    unchanged: int = 0
    problems: list[Row] = field(default_factory=list)
    members: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """What a run did: media by outcome (refused ones counted in every run that names them), and those left as they were.

    thumbnails: how many images were passed over because they lie beside videos.
    """

    out: Path
    root: str
    unchanged: int
    thumbnails: int = 0
    ok: int = 0
    refused: int = 0
    failed: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)

    def count(self, row: Row) -> None:
        """Add one probed medium."""
        if row["status"] == OK:
            self.ok += 1
            return
        if row["status"] == REFUSED:
            self.refused += 1
        else:
            self.failed += 1
        name = medium_name(row["uri"], row.get("member"))
        self.problems.append({"uri": name} | {key: row[key] for key in ("status", "error_kind", "error_message")})


def plan_work(options: IndexOptions) -> Work:
    """Find the media and compare them with what an index at `out` already holds. Writes nothing."""
    known: dict[str, list[Row]] = {}
    root = options.root and os.path.abspath(options.root)
    if (options.out / HEADER).exists():
        index = Index(options.out)
        if root is not None and root != index.root:
            raise OutputError(
                "the index was made relative to another root",
                where=str(options.out),
                found=root,
                allowed=index.root,
                remedy="leave out --root, or write a new index",
            )
        root = index.root
        for row in index.videos.select(list(KNOWN_COLUMNS)).to_pylist():
            known.setdefault(row["uri"], []).append(row)
    elif options.out.exists() and (not options.out.is_dir() or _holds_something(options.out)):
        raise OutputError(
            "the output folder holds something else than an index",
            where=str(options.out),
            remedy="choose a new or empty folder",
        )
    found = discover(
        options.sources,
        root=options.root,
        label_from_parent=options.label_from_parent,
        follow_symlinks=options.follow_symlinks,
        images=options.images,
    )
    root = root or default_root(options.sources)
    if readable_name(root) != root:
        raise SourceError("the root's name is not valid UTF-8", where=readable_name(root), remedy="rename the folder")
    return _compare(found, root, known, options)


def _compare(found: Found, root: str, known: dict[str, list[Row]], options: IndexOptions) -> Work:
    """Return what has to be done for media that are not, or not as they are now, among the known rows of their uri."""
    tasks: dict[Identity, ProbeTask] = {}
    errors: dict[Identity, MediaError] = {}
    for item in found.listed:
        identity = relative_uri(item.path, root), item.member
        if item.error is not None:
            errors[identity] = item.error
        elif identity not in tasks or (item.fps, item.seconds) != (None, None):
            tasks[identity] = probe_task(item, options)
    work = Work(root=root, listed=found.listed, thumbnails=found.thumbnails)
    for identity, task in tasks.items():
        rows = rows_of(known.get(identity[0], []), task, identity[1])
        if task.images is not None and task.images.form == "tar":
            work.members[identity[0]] = [row["member"] for row in rows if row["member"] is not None]
        if is_done(task, rows):
            work.unchanged += 1
            work.problems += [row for row in rows if row["status"] == REFUSED]
        else:
            work.probe[identity] = task
    for identity, error in errors.items():
        if identity in tasks:
            continue
        rows = [row for row in known.get(identity[0], []) if row["member"] == identity[1]]
        if is_still_refused(error, rows):
            work.unchanged += 1
            work.problems += rows
        else:
            work.unopened[identity] = error
    work.problems.sort(key=lambda row: medium_name(row["uri"], row["member"]))
    return work


def probe_task(item: Listed, options: IndexOptions) -> ProbeTask:
    """Return how a medium is probed."""
    images = None
    if item.form != "video":
        images = ImageTask(
            form=item.form,
            names=item.images or (),
            member=item.member,
            fps=item.fps,
            seconds=item.seconds,
            default_fps=options.image_fps,
            single=options.images == "single",
        )
    return ProbeTask(path=item.path, depth=options.depth, streams=options.streams, verify=options.verify, images=images)


def medium_name(uri: str, member: str | None) -> str:
    """Return what people see of a medium: its uri, and which sequence of it."""
    return uri if member is None else f"{uri}#{member}"


def _holds_something(folder: Path) -> bool:
    return any(path.name != LOCK_NAME and not path.name.startswith(ASIDE) for path in folder.iterdir())


def build_index(options: IndexOptions) -> IndexReport:
    """Probe what is new, changed or failed, and write it as new parts. Raises OutputError, SourceError, FormatError.

    Parts appear while the run goes on; a killed run keeps those, and the next one does the rest.
    """
    work = plan_work(options)
    options.out.mkdir(parents=True, exist_ok=True)
    with exclusive(options.out):
        for folder in (options.out, options.out / VIDEOS_FOLDER, options.out / FRAMES_FOLDER):
            remove_unfinished(folder)
        path = options.out / LISTING_NAME
        old = pq.read_table(path) if path.exists() else None
        listing = listing_table(old, work.listed, work.root, work.members)  # raises before anything is written
        header = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": work.root}
        if not (options.out / HEADER).exists():
            write_json_aside(options.out / HEADER, header | {"libraries": library_versions()})
        write_part(path, listing, version=SCHEMA_VERSION)
        report = IndexReport(out=options.out, root=work.root, unchanged=work.unchanged, thumbnails=work.thumbnails)
        for row in work.problems:
            report.count(row)
        members = _probe_all(options, work, report)
        if members:  # which sequences a tar holds shows when it is read
            listing = listing_table(old, work.listed, work.root, work.members | members)
            write_part(path, listing, version=SCHEMA_VERSION)
        return report


def _probe_all(options: IndexOptions, work: Work, report: IndexReport) -> dict[str, list[str]]:
    """Probe what is to be probed, write its rows and count it. Return the sequences found in each tar, by its uri."""
    members: dict[str, list[str]] = {}
    parts = PartPairs(options.out)
    for (uri, member), error in work.unopened.items():
        video, frames = _with_identity(uri, _nothing(member) | problem_columns(error), no_frames())
        parts.add(video, frames)
        report.count(video)
    outcomes = run_local(
        probe_medium,
        list(work.probe.values()),
        workers=max(1, min(options.workers, len(work.probe))),
        timeout_seconds=options.timeout_seconds,
        memory_bytes=options.memory_bytes,
    )
    try:
        for number, ((uri, member), outcome) in enumerate(
            zip(work.probe, outcomes if work.probe else [], strict=True), 1
        ):
            for video, frames in _rows(uri, member, outcome):
                parts.add(video, frames)
                report.count(video)
                if video.get("container") == "tar" and video["member"] is not None:
                    members.setdefault(uri, []).append(video["member"])
            options.on_progress(number, len(work.probe))
    finally:
        parts.flush()
    return members


def _nothing(member: str | None, kind: str = VIDEO) -> Row:
    return {"kind": kind if member is None else IMAGES, "stream_index": -1, "member": member}


def _rows(
    uri: str, member: str | None, outcome: Outcome[ProbeTask, list[tuple[Row, Row]]]
) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of a probed file, or those of a failure where the probe itself died."""
    if outcome.result is None:
        assert outcome.kind is not None  # as there is no result
        assert outcome.message is not None
        nothing = _nothing(member, VIDEO if outcome.item.images is None else IMAGES)
        yield _with_identity(uri, nothing | problem_columns(MediaError(outcome.kind, outcome.message)), no_frames())
        return
    for video, frames in outcome.result:
        yield _with_identity(uri, video, frames)


def _with_identity(uri: str, video: Row, frames: Row) -> tuple[Row, Row]:
    stream = None if video.pop("best_stream", True) else video["stream_index"]
    name = media_id(uri, stream, member=video.get("member"))
    return video | {"media_id": name, "uri": uri, "probed_by": __version__}, frames | {"media_id": name}


class PartPairs:
    """Writes rows as pairs of parts: frames first, then videos, which makes the pair visible."""

    def __init__(self, index: Path) -> None:
        self._folders = index / VIDEOS_FOLDER, index / FRAMES_FOLDER
        existing = part_numbers(self._folders[0])
        self._number = max(existing, default=-1) + 1
        self._clear()

    def _clear(self) -> None:
        self._videos: list[Row] = []
        self._frames: list[Row] = []
        self._packets = 0
        self._since = time.monotonic()

    def add(self, video: Row, frames: Row) -> None:
        """Take one medium; write a pair of parts when enough has gathered."""
        self._videos.append(video)
        gaps = {
            f"{kind}gap": gaps_of(frames[f"{kind}offset"], frames[f"{kind}size"])
            for kind in ("", "audio_")
            if frames.get(f"{kind}offset") is not None
        }
        self._frames.append(frames | gaps)
        self._packets += len(frames["size"])
        waited = time.monotonic() - self._since
        if self._packets >= FLUSH_PACKETS or len(self._videos) >= FLUSH_MEDIA or waited >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        if not self._videos:
            return
        videos, frames = (part_path(folder, self._number) for folder in self._folders)
        writer = PartWriter(frames, FRAMES, version=SCHEMA_VERSION, delta=DELTA_COLUMNS)
        for rows in self._row_groups():
            writer.write(table_of(rows, FRAMES))
        writer.commit()
        write_part(videos, table_of(self._videos, VIDEOS), version=SCHEMA_VERSION)
        self._number += 1
        self._clear()

    def _row_groups(self) -> Iterator[list[Row]]:
        """Yield the frames rows in groups of about FRAMES_PER_ROW_GROUP packets."""
        group: list[Row] = []
        packets = 0
        for row in self._frames:
            if group and packets + len(row["size"]) > FRAMES_PER_ROW_GROUP:
                yield group
                group, packets = [], 0
            group.append(row)
            packets += len(row["size"])
        yield group
