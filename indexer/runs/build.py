"""Build or refresh an index: plan the work, run it on an engine, write parts.

Tars and Parquet files are read first. Each is replaced by items for its media: its videos, one by one, and its images.
"""

import contextlib
import itertools
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
from framedex.files.outputs import Output, full_disk_says, opened_output, remove_unfinished, write_json_aside
from framedex.files.parquet_parts import library_versions, read_all, write_part
from framedex.indexer import schema
from framedex.indexer.facts import Identity, MediumFacts, Row, no_frames, problem_of, rows_of
from framedex.indexer.parts.part_pairs import FILES_A_PART, VERIFIED_FILES_A_PART, PartPairs, listing_table
from framedex.indexer.probing.probe import medium_of
from framedex.indexer.runs.existence import Opened, media_there
from framedex.indexer.runs.work import IndexOptions, Item, Members, Work, attempt, plan_work
from framedex.indexer.sources.discover import OtherFiles, media_id
from framedex.indexer.sources.named_medium import readable_name
from framedex.indexer.sources.sequences import group_names
from framedex.records.medium import FAILED, GONE, IMAGES, OK, REFUSED, VIDEO
from framedex.storage.places import Place, parquet_file
from framedex.storage.uris import medium_name

HOLDERS_TOGETHER = 64  # tars and Parquet files whose members are in memory at a time
READ_TOGETHER = 4  # files that one task of a cluster reads: fewer than are probed, since one may have many members


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """The reason why a file with several media is not readable, and the file's identity, if it is known."""

    error: MediaError
    identity: Identity | None


ContentsOrError = Opened | Unreadable | StorageError


def opened_files(items: Sequence[Item], options: IndexOptions) -> Iterator[list[Item]]:
    """Yield the items in order, in batches, with each tar or Parquet file replaced by items for its media.

    Raises:
        StorageError: the store denies access.
    """
    # A batch ends with its 64th holder, so items behind the same number of holders are in one batch.
    before = itertools.accumulate((is_holder(item) for item in items), initial=0)
    numbered = zip(before, items, strict=False)
    for _, some in itertools.groupby(numbered, key=lambda entry: entry[0] // HOLDERS_TOGETHER):
        batch = [item for _, item in some]
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
        yield [item for outcome in outcomes for item in _items_in(outcome)]


def is_holder(item: Item) -> bool:
    """Return whether an item is a file with several media that has to be read."""
    return item.task is not None and item.task.holds is not None


def read_contents(item: Item) -> ContentsOrError:
    """Return the contents of a file, or why it is not readable. Runs in a worker."""
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


def _items_in(outcome: Outcome[Item, ContentsOrError]) -> list[Item]:
    """Return the items that replace a file with several media. Other items stay.

    Raises:
        StorageError: the store denies access.
    """
    item, file = outcome.item, outcome.result
    task, (uri, _) = item.task, item.identity
    if task is None or task.holds is None:
        return [item]
    if isinstance(file, StorageError):
        raise file
    if isinstance(file, Unreadable):
        return [_problem_item(item, file.error, file.identity)]
    if file is None:
        return [_problem_item(item, _error_of(outcome))]
    contents = file.contents
    inside: list[Item] = []  # images, videos, and the problem of the file itself
    names: set[str | None] = set()
    if contents.images:
        assert task.images is not None  # only tars hold images
        if task.images.ignored:
            error = MediaError(schema.NO_VIDEO, f"its {len(contents.images)} images are ignored", refused=True)
            inside.append(_problem_item(item, error, file.identity))
        else:
            groups = group_names((image.name for image in contents.images), single=task.images.single)
            names = {readable_name(name) for name in groups}
            inside.append(replace(item, task=replace(task, holds=None)))
    of_videos = replace(task, images=None, holds=None, sidecars=(), searched=True)
    of_videos = replace(of_videos, facts=file.facts, expected=file.identity.fingerprint)
    for member in contents.videos:
        if member.name in names:
            message = "the file holds a sequence of images of the same name; rename one of them"
            member = replace(member, error=MediaError("tar", message, refused=True))
        inside.append(replace(item, identity=(uri, member.name), task=replace(of_videos, member=member)))
    # If the file has images alone, each sequence of them has a remark about the damage.
    if contents.damage is not None and (contents.videos or not contents.images):
        error = MediaError("truncated", f"the file is truncated or damaged: {contents.damage}")
        inside.append(_problem_item(item, error, file.identity, VIDEO))
    elif not contents.videos and not contents.images:
        error = MediaError("empty", "the file holds no video and no image", refused=True)
        inside.append(_problem_item(item, error, file.identity))
    names |= {member.name for member in contents.videos}
    if any(one.found for one in inside):
        names.add(None)  # the file itself has a row
    gone: dict[str | None, list[Row]] = {}
    for row in item.known:
        if row["status"] != GONE and row["member"] not in names:
            gone.setdefault(row["member"], []).append(row)
    inside = [Item(identity=(uri, name), rows=rows) for name, rows in gone.items()] + inside
    # Only the last item counts as files of the part, so that a part has all rows of a file.
    return [replace(one, files=0) for one in inside[:-1]] + inside[-1:]


def _problem_item(item: Item, error: MediaError, identity: Identity | None = None, kind: str | None = None) -> Item:
    """Return the item of a file that is not usable, or not in whole."""
    assert item.task is not None  # `is_holder`
    holder = item.task.holds
    kind = kind or (IMAGES if holder == "tar" else VIDEO)
    return replace(item, found=MediumFacts(kind=kind, container=holder, identity=identity, problem=problem_of(error)))


def _error_of(outcome: Outcome[Item, Any]) -> MediaError:
    """Return the error of a call without a result: its process died, or its time or memory ran out."""
    assert outcome.kind is not None
    assert outcome.message is not None
    return MediaError(outcome.kind, outcome.message, traceback=outcome.traceback)


Probing = list[MediumFacts] | StorageError

FILES_TOGETHER = 64  # files that one task of a cluster probes: starting a task costs more than probing a small file
SLICES_NAME = "slices.json"  # exists while a run in slices is under way


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """The outcome of a run: numbers of media and files, and the problems.

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
    with (
        opened_output(out, *names, **how) as output,
        full_disk_says("the index", output.local, lambda: "what is written is kept"),
    ):
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
    _publish_listing(output, listing)
    return old


def _publish_listing(output: Output, listing: pa.Table) -> None:
    path = output.local / schema.LISTING_NAME
    write_part(path, listing, version=schema.SCHEMA_VERSION)
    output.publish(path)


def is_finished(out: Place, work: Work) -> bool:
    """Return whether an index has all media of a run already, and the same listing."""
    if work.items or not (out / schema.HEADER).exists() or not (out / schema.LISTING_NAME).exists():
        return False
    old = parquet_file(out / schema.LISTING_NAME).read()
    return bool(listing_table(old, work.listed, work.root, work.members, work.sidecars).equals(old))


def write_listing(output: Output, old: pa.Table | None, work: Work, members: Members) -> None:
    """Replace the listing after the run.

    Args:
        output: the index.
        old: the listing so far.
        work: the work of the run.
        members: the media that the run found in tars and Parquet files.
    """
    _publish_listing(output, listing_table(old, work.listed, work.root, work.members | members, work.sidecars))


def probe_items(options: IndexOptions, items: Sequence[Item], parts: PartPairs, report: IndexReport) -> Members:
    """Probe all items of a run that need it, write their rows and count them.

    Returns:
        The media that were found in tars and Parquet files.
    """
    members: Members = {}
    done, total = 0, sum(item.task is not None for item in items)
    for batch in opened_files(items, options):
        # Items with `files` 0 are further media of a file, which `items` has once.
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
    """Return the facts of the media in a file, or the error if the store denies access. Runs in a worker."""
    assert item.task is not None  # the engine does not call this for other items
    try:
        return media_there(item.task).probe()
    except StorageError as error:
        return error


def _rows(outcome: Outcome[Item, Probing], options: IndexOptions) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of a file: probed facts, or a row with the reason without them (gone, not opened, probing died).

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
        return
    if outcome.item.error is not None:
        kind = VIDEO if member is None else IMAGES
        media = [MediumFacts(kind=kind, member=member, problem=problem_of(outcome.item.error))]
    elif outcome.item.found is not None:
        media = [outcome.item.found]
    elif outcome.result is not None:
        media = outcome.result
    else:
        assert task is not None  # items without a task have rows or an error
        medium = replace(medium_of(task), problem=problem_of(_error_of(outcome)))
        with contextlib.suppress(MediaError, StorageError):  # a file that is not readable has no identity
            medium = replace(medium, identity=media_there(task).identity())
        media = [medium]
    for medium in media:
        name = media_id(uri, None if medium.is_best else medium.stream_index, member=medium.member)
        video, frames = rows_of(medium)
        if task is not None and medium.problem is not None and medium.problem.status == FAILED:
            video["tried"] = attempt(task, options)
        yield video | {"media_id": name, "uri": uri, "probed_by": __version__}, frames | {"media_id": name}
