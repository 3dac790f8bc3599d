"""Build or refresh an index: plan the work, run it on an engine, write parts.

Replaces the tars and Parquet files of a run by what they hold: their videos, one by one, and their images.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from framedex.core.column_rules import reading
from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.core.words import SHOWN
from framedex.errors import INTERNAL_ERROR, MediaError, OutputError, StorageError
from framedex.execution.engine import Calls, Outcome
from framedex.files.outputs import full_disk_says, opened_output, remove_unfinished, write_json_aside
from framedex.files.parquet_parts import library_versions, read_all, write_part
from framedex.indexer import schema
from framedex.indexer.facts import Identity, MediumFacts, Row, no_frames, problem_of, rows_of
from framedex.indexer.parts.part_pairs import FILES_A_PART, VERIFIED_FILES_A_PART, PartPairs, listing_table
from framedex.indexer.probing.probe import ProbeTask, medium_of
from framedex.indexer.runs.existence import Opened, media_there
from framedex.indexer.runs.work import IndexOptions, Item, Members, Work, attempt, plan_work
from framedex.indexer.sources.discover import OtherFiles, media_id
from framedex.indexer.sources.members import FileMember
from framedex.indexer.sources.named_medium import readable_name
from framedex.indexer.sources.sequences import group_names
from framedex.records.medium import FAILED, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.storage.outputs import Output
from framedex.storage.places import Place, parquet_file
from framedex.storage.uris import medium_name

HOLDERS_TOGETHER = 64  # whose members are in memory at a time
READ_TOGETHER = 4  # files that one task of a cluster reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why a file with several media is not readable, and which file it is, if that is known."""

    error: MediaError
    identity: Identity | None


ContentsOrError = Opened | Unreadable | StorageError


def opened_files(items: Sequence[Item], options: IndexOptions) -> Iterator[list[Item]]:
    """Yield the items in order, in batches, with each tar or Parquet file replaced by items for what it holds.

    Raises:
        StorageError: the store denies access.
    """
    for batch in _batches(items):
        holders = sum(map(is_holder, batch))
        if not holders:
            yield batch
            continue
        calls = Calls(
            function=read_contents,
            items=batch,
            timeout_seconds=options.timeout_seconds,
            passes=lambda item: not is_holder(item),
            together=READ_TOGETHER,
        )
        outcomes = options.engine(calls, workers=min(options.workers, holders), memory_bytes=options.memory_bytes)
        yield [item for outcome in outcomes for item in _opened(outcome)]


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    holders = 0
    for item in items:
        batch.append(item)
        holders += is_holder(item)
        if holders == HOLDERS_TOGETHER:
            yield batch
            batch, holders = [], 0
    if batch:
        yield batch


def is_holder(item: Item) -> bool:
    """Return whether an item is a file whose contents are to be found."""
    return item.task is not None and item.task.holds is not None


def read_contents(item: Item) -> ContentsOrError:
    """Return what a file holds, or why it is not readable. Runs in a worker."""
    assert item.task is not None  # the engine does not call this for other items
    there = media_there(item.task)
    try:
        return there.contents()
    except StorageError as error:
        return error
    except MediaError as error:
        with contextlib.suppress(MediaError, StorageError):
            return Unreadable(error=error, identity=there.identity())
        return Unreadable(error=error, identity=None)


def _opened(outcome: Outcome[Item, ContentsOrError]) -> list[Item]:
    """Return the items that replace an item.

    Raises:
        StorageError: the store denies access.
    """
    item, found = outcome.item, outcome.result
    if not is_holder(item):
        return [item]
    if isinstance(found, StorageError):
        raise found
    if isinstance(found, Unreadable):
        return [_failed(item, found.error, found.identity)]
    if found is None:
        assert outcome.kind is not None  # because there is no result
        assert outcome.message is not None
        return [_failed(item, MediaError(outcome.kind, outcome.message, traceback=outcome.traceback))]
    sequences = _sequences(item, found)
    images, videos, rest = _images(item, found), _videos(item, found, sequences), _rest(item, found)
    there = sequences | {video.identity[1] for video in videos}
    if any(one.found for one in (*images, *rest)):
        there.add(None)  # the file itself has a row
    inside = [*_gone(item, there), *images, *videos, *rest]
    # Only the last one counts for the part, so that all rows of a file are in one.
    return [replace(one, files=0) for one in inside[:-1]] + inside[-1:]


def _sequences(item: Item, file: Opened) -> set[str | None]:
    """Return the names of the sequences that the images of a file make."""
    images = None if item.task is None else item.task.images
    if images is None or images.ignored:
        return set()
    names = group_names((image.name for image in file.contents.images), single=images.single)
    return {readable_name(name) for name in names}


def _gone(item: Item, there: set[str | None]) -> list[Item]:
    """Return an item for each known medium that a file no longer holds.

    Args:
        item: the file.
        there: the names of the media that it holds; None among them if the file itself has a row.
    """
    uri, _ = item.identity
    gone: dict[str | None, list[Row]] = {}
    for row in item.known:
        if row["status"] != GONE and row["member"] not in there:
            gone.setdefault(row["member"], []).append(row)
    return [Item(identity=(uri, name), rows=some) for name, some in gone.items()]


def _failed(item: Item, error: MediaError, identity: Identity | None = None, kind: str | None = None) -> Item:
    """Return the item of a file of which something is not usable."""
    assert item.task is not None  # `is_holder`
    holder = item.task.holds
    kind = kind or (IMAGES if holder == "tar" else VIDEO)
    return replace(item, found=MediumFacts(kind=kind, container=holder, identity=identity, problem=problem_of(error)))


def _images(item: Item, file: Opened) -> list[Item]:
    """Return the item for the images of a file."""
    assert item.task is not None  # `is_holder`
    images = file.contents.images
    if not images:
        return []
    assert item.task.images is not None  # only tars hold images
    if not item.task.images.ignored:
        return [replace(item, task=replace(item.task, holds=None))]
    return [
        _failed(item, MediaError(schema.NO_VIDEO, f"its {len(images)} images are ignored", refused=True), file.identity)
    ]


def _videos(item: Item, file: Opened, sequences: set[str | None]) -> list[Item]:
    """Return an item for each video of a file. `sequences`: the names of its sequences of images."""
    assert item.task is not None  # `is_holder`
    task = replace(item.task, images=None, holds=None, sidecars=(), searched=True)
    task = replace(task, facts=file.facts, expected=file.identity.fingerprint)
    uri, _ = item.identity
    return [
        replace(item, identity=(uri, member.name), task=replace(task, member=_alone(member, sequences)))
        for member in file.contents.videos
    ]


def _alone(member: FileMember, sequences: set[str | None]) -> FileMember:
    """Return a video of a file. It is refused if a sequence of images has its name."""
    if member.name not in sequences:
        return member
    said = "the file holds a sequence of images of the same name; rename one of them"
    return replace(member, error=MediaError("tar", said, refused=True))


def _rest(item: Item, file: Opened) -> list[Item]:
    """Return an item that says what else a file may hold, or that it holds nothing; else none.

    Sequences of images have a remark each if their file is damaged.
    """
    contents = file.contents
    if contents.damage is not None and (contents.videos or not contents.images):
        error = MediaError("truncated", f"the file is truncated or damaged: {contents.damage}")
        return [_failed(item, error, file.identity, VIDEO)]
    if not contents.videos and not contents.images:
        return [_failed(item, MediaError("empty", "the file holds no video and no image", refused=True), file.identity)]
    return []


Probing = list[MediumFacts] | StorageError

FILES_TOGETHER = 64  # files that one task of a cluster probes
KEPT = "what is written is kept"
SLICES_NAME = "slices.json"  # exists while a run in slices is under way


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """What a run did: how many media and files had which outcome.

    Refused media are counted in every run that names them, even if nothing changed.

    Attributes:
        out: the index.
        root: the folder that recorded uris are relative to.
        new: files that the index did not know.
        changed: files that the index knew, and that differ now.
        retried: files that were refused or failed before, are unchanged, and are probed again.
        gone: files that are no longer there.
        unchanged: files that are not probed again.
        thumbnails: images that were skipped because they lie beside videos.
        others: files of searched folders that were skipped because of their endings.
        ok: media that are usable.
        decoded_whole: by codec, usable videos of this run that were decoded to prove their frames, because packets of
            their codec are not parsed.
        refused: media that are refused.
        failed: media that failed, except those in `internal`.
        internal: media at which framedex itself failed.
        without_video: files without a video stream that a search found. They are skipped, and neither refused nor
            failed.
        without_video_examples: the uris of the first of these.
        problems: name, status and reason of each medium that is refused, failed or internal.
        finished: whether the run of these slices was finished before. Then nothing was written.
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
        """Add one medium's row."""
        if row["status"] == OK:
            self.ok += 1
            if row["kind"] == VIDEO and row["codec"] not in schema.SCANNED:
                self.decoded_whole[row["codec"]] = self.decoded_whole.get(row["codec"], 0) + 1
        if row["status"] in (OK, GONE):
            return
        if row["status"] == REFUSED and row["error_kind"] == schema.NO_VIDEO:
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


def report_of(options: IndexOptions, work: Work) -> IndexReport:
    """Return the report of a run before anything is probed."""
    report = IndexReport(
        out=options.out,
        root=work.root,
        new=len(work.probe) + len(work.unopened) - work.changed - work.retried,
        changed=work.changed,
        retried=work.retried,
        gone=len(work.gone),
        unchanged=work.unchanged,
        thumbnails=work.thumbnails,
        others=work.others,
    )
    for row in work.problems:
        report.count(row)
    return report


def build_index(options: IndexOptions) -> IndexReport:
    """Probe media that are new, changed or failed, and write them as new parts.

    Parts appear during the run. If a run is killed, its parts stay, and the next run does the rest.

    Raises:
        OutputError: `out` holds something else, another run writes the index, or it is being written in slices.
        SourceError: a source is wrong or missing.
        FormatError: the existing index cannot be read.
    """
    work = plan_work(options)
    with opened_whole(options.out) as output:
        old = begin(output, work)
        report = report_of(options, work)
        parts = PartPairs(output, files_a_part=files_a_part(options))
        with parts_written(parts):
            members = probe_items(options, work.items, parts, report)
        if members:  # the media of a tar are known once it is read
            write_listing(output, old, work, members)
        return report


@contextlib.contextmanager
def parts_written(parts: PartPairs) -> Iterator[None]:
    """Write the rows that are left when probing ends, also if it was interrupted. Raises OSError."""
    try:
        yield
    except OSError:  # writing failed, and would fail again
        raise
    except BaseException:
        parts.flush()
        raise
    parts.flush()


@contextlib.contextmanager
def index_output(out: Place, *names: str, **how: Any) -> Iterator[Output]:
    """Open an index for writing, as `opened_output` does. Raises OutputError, also if the disk is full."""
    with opened_output(out, *names, **how) as output, full_disk_says("the index", output.local, lambda: KEPT):
        yield output


@contextlib.contextmanager
def opened_whole(out: Place) -> Iterator[Output]:
    """Open an index that only this run writes, and remove the unfinished files of a killed run.

    If two runs write one index in object storage, the run that is second to write something is refused.

    Raises:
        OutputError: another run writes the index, or it is being written in slices.
    """
    with index_output(out, schema.HEADER, schema.LISTING_NAME) as output:
        if (out / SLICES_NAME).exists():
            raise OutputError(
                "the index is being written in slices",
                where=str(out),
                remedy=f"run the rest of them and --finish, or delete {SLICES_NAME} to give them up",
            )
        for folder in (output.local, output.local / schema.VIDEOS_FOLDER, output.local / schema.FRAMES_FOLDER):
            remove_unfinished(folder)
        yield output


def files_a_part(options: IndexOptions) -> int:
    """Return the number of files whose rows one part holds."""
    return VERIFIED_FILES_A_PART if options.verify else FILES_A_PART


def begin(output: Output, work: Work) -> pa.Table | None:
    """Write the listing and the header of a new generation; return the previous listing, or None.

    Errors in the listing are raised before anything is written.
    """
    path, header_path = output.local / schema.LISTING_NAME, output.local / schema.HEADER
    with reading(str(path), schema.REMEDY):
        old = read_all(path) if path.exists() else None
    listing = listing_table(old, work.listed, work.root, work.members, work.sidecars)
    if not header_path.exists() or work.items or old is None or not listing.equals(old):
        before: Row = schema.read_header(output.local) if header_path.exists() else {"generation": 0}
        probed_by = {*before.get("ffmpeg", [])} | ({ffmpeg_version()} if work.probe else set())
        header = {
            "format": schema.FORMAT,
            "schema_version": schema.SCHEMA_VERSION,
            "root": work.root,
            "generation": before["generation"] + 1,
            "ffmpeg": sorted(probed_by),
            "libraries": library_versions(),
        }
        write_json_aside(header_path, header)
        output.publish(header_path)
    write_part(path, listing, version=schema.SCHEMA_VERSION)
    output.publish(path)
    return old


def is_finished(out: Place, work: Work) -> bool:
    """Return whether an index has all media of a run already, and the same listing."""
    if work.items or not (out / schema.HEADER).exists() or not (out / schema.LISTING_NAME).exists():
        return False
    old = parquet_file(out / schema.LISTING_NAME).read()
    return bool(listing_table(old, work.listed, work.root, work.members, work.sidecars).equals(old))


def write_listing(output: Output, old: pa.Table | None, work: Work, members: Members) -> None:
    """Replace the listing.

    Args:
        output: the index.
        old: the listing so far.
        work: of the run.
        members: the media that were found in each tar, by the tar's uri, and the sidecars of each as JSON.
    """
    listing = listing_table(old, work.listed, work.root, work.members | members, work.sidecars)
    write_part(output.local / schema.LISTING_NAME, listing, version=schema.SCHEMA_VERSION)
    output.publish(output.local / schema.LISTING_NAME)


def probe_items(options: IndexOptions, items: Sequence[Item], parts: PartPairs, report: IndexReport) -> Members:
    """Probe all items of a run that need it, write their rows and count them.

    Returns:
        The media that were found in each tar, by the tar's uri, and the sidecars of each as JSON.
    """
    members: Members = {}
    done, total = 0, sum(item.task is not None for item in items)
    for batch in opened_files(items, options):
        # What a file holds, besides the last one.
        total += sum(item.files == 0 and item.task is not None for item in batch)
        calls = Calls(
            function=probe_item,
            items=batch,
            timeout_seconds=options.timeout_seconds,
            passes=is_known,
            together=FILES_TOGETHER,
        )
        workers = min(options.workers, max(1, sum(not is_known(item) for item in batch)))
        of_file: list[tuple[Row, Row]] = []  # a file that a killed run has read in part is read again as a whole
        for outcome in options.engine(calls, workers=workers, memory_bytes=options.memory_bytes):
            of_file += _rows(outcome, options)
            if outcome.item.files:
                parts.add(of_file, outcome.item.files)
                for video, _ in of_file:
                    note_row(video, report, members)
                of_file = []
            if outcome.item.task is not None:
                done += 1
                options.on_progress(done, total)
    return members


def note_row(video: Row, report: IndexReport, members: Members) -> None:
    """Count a row of `videos`. If it is about a medium in a tar, add it to `members`, by the tar's uri."""
    report.count(video)
    is_inside = video.get("container") == "tar" or video.get("member_bytes") is not None
    if is_inside and video["member"] is not None:
        members.setdefault(video["uri"], {})[video["member"]] = video["sidecars"]


def is_known(item: Item) -> bool:
    """Return whether the rows of an item are known without probing it."""
    return item.task is None or item.found is not None


def probe_item(item: Item) -> Probing:
    """Return the facts of the media in a file, or why no object of the store is readable. Runs in a worker."""
    assert item.task is not None  # the engine does not call this for other items
    try:
        return media_there(item.task).probe()
    except StorageError as error:
        return error


def _rows(outcome: Outcome[Item, Probing], options: IndexOptions) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of a file: what probing returned, or why there is no result (gone, not opened, probing died).

    Raises:
        StorageError: the store denies access. The rows of known media must not be replaced because of that.
    """
    if isinstance(outcome.result, StorageError):
        raise outcome.result
    (uri, member), task = outcome.item.identity, outcome.item.task
    if outcome.item.rows is not None:
        for row in outcome.item.rows:
            gone = {key: row[key] for key in ("media_id", "kind", "uri", "member", "stream_index")}
            yield gone | {"status": GONE, "probed_by": __version__}, no_frames() | {"media_id": row["media_id"]}
    elif outcome.item.error is not None:
        nothing = MediumFacts(kind=VIDEO if member is None else IMAGES, member=member)
        yield _named(uri, replace(nothing, problem=problem_of(outcome.item.error)), {})
    elif outcome.item.found is not None:
        assert task is not None  # it was read
        yield _named(uri, outcome.item.found, _tried(task, outcome.item.found, options))
    elif outcome.result is not None:
        assert task is not None  # the task gave the result
        for medium in outcome.result:
            yield _named(uri, medium, _tried(task, medium, options))
    else:
        assert task is not None
        assert outcome.kind is not None  # because there is no result
        assert outcome.message is not None
        error = MediaError(outcome.kind, outcome.message, traceback=outcome.traceback)
        medium = replace(medium_of(task), identity=_identity(task), problem=problem_of(error))
        yield _named(uri, medium, _tried(task, medium, options))


def _tried(task: ProbeTask, medium: MediumFacts, options: IndexOptions) -> Row:
    """Return the column that says how a failed medium was probed. Other media have no such column."""
    if medium.problem is None or medium.problem.status != FAILED:
        return {}
    return {"tried": attempt(task, options)}


def _identity(task: ProbeTask) -> Identity | None:
    """Return the identity of a file whose probe died, or None if it cannot be read."""
    with contextlib.suppress(MediaError, StorageError):
        return media_there(task).identity()
    return None


def _named(uri: str, medium: MediumFacts, more: Row) -> tuple[Row, Row]:
    """Return the rows of a medium with its name.

    Args:
        uri: of the file.
        medium: its facts.
        more: further columns of `videos`.
    """
    name = media_id(uri, None if medium.is_best else medium.stream_index, member=medium.member)
    video, frames = rows_of(medium)
    return video | more | {"media_id": name, "uri": uri, "probed_by": __version__}, frames | {"media_id": name}
