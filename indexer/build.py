"""Build or refresh an index: what is to do → engine → parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from framedex import __version__
from framedex.errors import MediaError, OutputError, SourceError
from framedex.indexer.discover import Listed, default_root, discover, media_id, readable_name, relative_uri
from framedex.indexer.engines import GIBIBYTE, Outcome, run_local
from framedex.indexer.fingerprint import open_same_file
from framedex.indexer.index import FRAMES_FOLDER, HEADER, LISTING_NAME, VIDEOS_FOLDER, Index, gaps_of
from framedex.indexer.parts import (
    ASIDE,
    LOCK_NAME,
    UNSTORABLE,
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
from framedex.indexer.probe import Depth, ProbeTask, Row, Streams, no_frames, probe_medium, problem_columns
from framedex.indexer.schema import (
    DELTA_COLUMNS,
    FAILED,
    FORMAT,
    FRAMES,
    FRAMES_PER_ROW_GROUP,
    LISTING,
    OK,
    REFUSED,
    SCHEMA_VERSION,
    VIDEO,
    VIDEOS,
)

KNOWN_COLUMNS = (
    "uri",
    "status",
    "error_kind",
    "error_message",
    "probed_by",
    "size_bytes",
    "mtime_ns",
    "fingerprint",
    "video_streams",
    "hashed",
    "depth",
)
NO_STREAM: Row = {"kind": VIDEO, "stream_index": -1}
FLUSH_PACKETS, FLUSH_MEDIA, FLUSH_SECONDS = 2_000_000, 2_000, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """What an index run is asked to do.

    root: what uris are recorded relative to; None takes the existing index's, else the sources' common folder.
    follow_symlinks: search linked folders, and let links lead out of the folders that media are found through.
    timeout_seconds: for each medium. memory_bytes: for each worker; see `engines.run_local`. on_progress: called with (done, total) after each medium.
    """

    sources: Sequence[str]
    out: Path
    root: str | None = None
    label_from_parent: bool = False
    depth: Depth = "auto"
    streams: Streams = "best"
    verify: bool = False
    follow_symlinks: bool = False
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    timeout_seconds: float | None = 600.0
    memory_bytes: int | None = 8 * GIBIBYTE
    on_progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run has to do: the mentions of media, which uris to probe, with their paths, which not to open, and what
    stays refused.
    """

    root: str
    listed: list[Listed]
    probe: dict[str, str]
    unopened: dict[str, MediaError]
    unchanged: int
    problems: list[Row]


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """What a run did: media by outcome (refused ones counted in every run that names them), and those left as they were."""

    out: Path
    root: str
    unchanged: int
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
        self.problems.append({key: row[key] for key in ("uri", "status", "error_kind", "error_message")})


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
    listed = discover(
        options.sources,
        root=options.root,
        label_from_parent=options.label_from_parent,
        follow_symlinks=options.follow_symlinks,
    )
    root = root or default_root(options.sources)
    if readable_name(root) != root:
        raise SourceError("the root's name is not valid UTF-8", where=readable_name(root), remedy="rename the folder")
    paths = {relative_uri(item.path, root): item.path for item in listed if item.error is None}
    errors = {relative_uri(item.path, root): item.error for item in listed if item.error is not None}
    probe = {uri: path for uri, path in paths.items() if not _is_done(path, known.get(uri, []), options)}
    unopened = {
        uri: error
        for uri, error in errors.items()
        if uri not in paths and not _is_still_refused(error, known.get(uri, []))
    }
    unchanged = (paths.keys() | errors.keys()) - probe.keys() - unopened.keys()
    refused = [row for uri in sorted(unchanged) for row in known[uri] if row["status"] == REFUSED]
    return Work(
        root=root,
        listed=listed,
        probe=probe,
        unopened=unopened,
        unchanged=len(unchanged),
        problems=refused,
    )


def _holds_something(folder: Path) -> bool:
    return any(path.name != LOCK_NAME and not path.name.startswith(ASIDE) for path in folder.iterdir())


def _is_done(path: str, known: list[Row], options: IndexOptions) -> bool:
    """Return whether known rows still describe the file, and all that is asked of it.

    Failed media are always probed again, refused ones by another version of framedex, which may cover them.
    """
    if not known or any(row["status"] == FAILED for row in known):
        return False
    if any(row["status"] == REFUSED and row["probed_by"] != __version__ for row in known):
        return False
    if options.streams == "all" and len(known) < (known[0]["video_streams"] or 1):
        return False
    if options.verify and any(row["status"] == OK and not row["hashed"] for row in known):
        return False
    if options.depth == "packets" and any(row["depth"] == "tables" for row in known):
        return False
    row = known[0]
    try:
        descriptor = open_same_file(
            path, size_bytes=row["size_bytes"], mtime_ns=row["mtime_ns"], expected=row["fingerprint"]
        )
    except OSError:
        return False
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _is_still_refused(error: MediaError, known: list[Row]) -> bool:
    """Return whether a known row already says that a medium was refused for this, by this version of framedex."""
    said = ("status", REFUSED), ("error_kind", error.kind), ("error_message", error.what), ("probed_by", __version__)
    return error.refused and len(known) == 1 and all(known[0][name] == value for name, value in said)


def build_index(options: IndexOptions) -> IndexReport:
    """Probe what is new, changed or failed, and write it as new parts. Raises OutputError, SourceError, FormatError.

    Parts appear while the run goes on; a killed run keeps those, and the next one does the rest.
    """
    work = plan_work(options)
    options.out.mkdir(parents=True, exist_ok=True)
    with exclusive(options.out):
        for folder in (options.out, options.out / VIDEOS_FOLDER, options.out / FRAMES_FOLDER):
            remove_unfinished(folder)
        listing = _listing_table(options.out, work)  # raises before anything is written
        header = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": work.root}
        if not (options.out / HEADER).exists():
            write_json_aside(options.out / HEADER, header | {"libraries": library_versions()})
        write_part(options.out / LISTING_NAME, listing, version=SCHEMA_VERSION)
        report = IndexReport(out=options.out, root=work.root, unchanged=work.unchanged)
        for row in work.problems:
            report.count(row)
        parts = PartPairs(options.out)
        for uri, error in work.unopened.items():
            video, frames = _with_identity(uri, NO_STREAM | problem_columns(error), no_frames())
            parts.add(video, frames)
            report.count(video)
        uris = list(work.probe)
        outcomes = run_local(
            probe_medium,
            [
                ProbeTask(path=work.probe[uri], depth=options.depth, streams=options.streams, verify=options.verify)
                for uri in uris
            ],
            workers=max(1, min(options.workers, len(uris))),
            timeout_seconds=options.timeout_seconds,
            memory_bytes=options.memory_bytes,
        )
        try:
            for number, (uri, outcome) in enumerate(zip(uris, outcomes if uris else [], strict=True), 1):
                for video, frames in _rows(uri, outcome):
                    parts.add(video, frames)
                    report.count(video)
                options.on_progress(number, len(uris))
        finally:
            parts.flush()
        return report


def _rows(uri: str, outcome: Outcome[ProbeTask, list[tuple[Row, Row]]]) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of a probed file, or those of a failure where the probe itself died."""
    if outcome.result is None:
        assert outcome.kind is not None  # as there is no result
        assert outcome.message is not None
        yield _with_identity(uri, NO_STREAM | problem_columns(MediaError(outcome.kind, outcome.message)), no_frames())
        return
    for video, frames in outcome.result:
        yield _with_identity(uri, video, frames)


def _with_identity(uri: str, video: Row, frames: Row) -> tuple[Row, Row]:
    stream = None if video.pop("best_stream", True) else video["stream_index"]
    identity = {"media_id": media_id(uri, stream), "uri": uri, "probed_by": __version__}
    return video | identity, frames | {"media_id": identity["media_id"]}


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


def _listing_table(out: Path, work: Work) -> pa.Table:
    """Return the listing anew: this run's mentions, and earlier ones of media that it does not name.

    A mention without columns does not replace earlier ones that have some: adding a file by naming its folder must not
    cost the others their labels.
    """
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for item in work.listed:
        identity = media_id(relative_uri(item.path, work.root))
        number = seen[identity] = seen.get(identity, -1) + 1
        rows.append({"media_id": identity, "listing_row": number, "listed_uri": item.spelled, **item.columns})
    names = list(dict.fromkeys(name for row in rows for name in row if name not in LISTING.names))
    table = pa.table(
        [pa.array([row[field.name] for row in rows], field.type) for field in LISTING]
        + [_user_column(name, [row.get(name) for row in rows]) for name in names],
        names=LISTING.names + names,
    )
    path = out / LISTING_NAME
    if path.exists():
        old = pq.read_table(path)
        plain = {row["media_id"] for row in rows if len(row) == len(LISTING)} & set(old["media_id"].to_pylist())
        keep = [identity not in seen or identity in plain for identity in old["media_id"].to_pylist()]
        table = table.filter(pa.array([row["media_id"] not in plain for row in rows], pa.bool_()))
        try:
            table = pa.concat_tables([old.filter(pa.array(keep, pa.bool_())), table], promote_options="permissive")
        except pa.ArrowException as error:
            raise OutputError(
                "a user column changed its type since the last run",
                where=str(path),
                found=error,
                remedy="keep the type, or write a new index",
            ) from error
    return table


def _user_column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except UNSTORABLE as error:
        raise SourceError(
            f"user column {name!r} cannot be stored", found=error, remedy="give it one plain type"
        ) from error
