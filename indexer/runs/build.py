"""Build or refresh an index: plan the work, run it on an engine, write parts.

Tars and Parquet files are read first. Each is replaced by an item for each of its videos, and one for all its images.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from framedex.core.column_rules import reading
from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.errors import MediaError, OutputError, StorageError
from framedex.execution.engine import Calls, Outcome
from framedex.files.outputs import Output, full_disk_says, opened_output, remove_unfinished, write_json_aside
from framedex.files.parquet_parts import library_versions, read_all, write_part
from framedex.indexer import schema
from framedex.indexer.facts import Identity, MediumFacts, Row, no_frames, problem_of, rows_of
from framedex.indexer.parts.part_pairs import FILES_A_PART, VERIFIED_FILES_A_PART, PartPairs, listing_table
from framedex.indexer.probing.probe import ProbeTask, medium_of
from framedex.indexer.runs.existence import Opened, find_identity, open_holder, probe_media
from framedex.indexer.runs.work import IndexOptions, IndexReport, Item, Members, Work, attempt, plan_work
from framedex.indexer.sources.discover import media_id
from framedex.indexer.sources.named_medium import readable_name
from framedex.indexer.sources.sequences import group_names
from framedex.records.medium import FAILED, GONE, IMAGES, VIDEO
from framedex.storage.places import Place, parquet_file

HOLDERS_TOGETHER = 64  # tars and Parquet files whose members are in memory at a time
READ_TOGETHER = 4  # files that a task of a cluster reads; fewer than it probes, because a file may have many members

ContentsOrFacts = Opened | MediumFacts | StorageError


def opened_files(items: Sequence[Item], options: IndexOptions) -> Iterator[list[Item]]:
    """Yield the items in order, in batches. Each tar or Parquet file is replaced by items for its media.

    Raises:
        StorageError: The store denies access.
    """
    # A batch ends with its 64th tar or Parquet file. So items behind the same number of such files are in one batch.
    before = itertools.accumulate((is_holder(item) for item in items), initial=0)
    numbered = zip(before, items, strict=False)
    for _, some in itertools.groupby(numbered, key=lambda entry: entry[0] // HOLDERS_TOGETHER):
        batch = [item for _, item in some]
        if not any(map(is_holder, batch)):
            yield batch
            continue
        calls = Calls(
            function=read_contents,
            items=batch,
            timeout_seconds=options.timeout_seconds,
            passes=lambda item: not is_holder(item),
            together=READ_TOGETHER,
        )
        workers = min(options.workers, sum(map(is_holder, batch)))
        outcomes = options.engine(calls, workers=workers, memory_bytes=options.memory_bytes)
        yield [item for outcome in outcomes for item in _items_in(outcome)]


def is_holder(item: Item) -> bool:
    """Return whether an item is a tar or a Parquet file."""
    return item.task is not None and item.task.holds is not None


def read_contents(item: Item) -> ContentsOrFacts:
    """Return the contents of a file, or its facts with the reason why it is not readable. A worker calls this."""
    assert item.task is not None  # the engine does not call this for other items
    try:
        return open_holder(item.task)
    except StorageError as error:
        return error
    except MediaError as error:
        identity = None
        with contextlib.suppress(MediaError, StorageError):
            identity = find_identity(item.task)
        return _holder_facts(item.task, error, identity)


def _holder_facts(
    task: ProbeTask, error: MediaError, identity: Identity | None, kind: str | None = None
) -> MediumFacts:
    """Return the facts of a tar or a Parquet file that is not usable, or only in part."""
    kind = kind or (IMAGES if task.holds == "tar" else VIDEO)
    return MediumFacts(kind=kind, container=task.holds, identity=identity, problem=problem_of(error))


def _items_in(outcome: Outcome[Item, ContentsOrFacts]) -> list[Item]:
    """Return the items that replace a file with several media. Other items stay.

    Raises:
        StorageError: The store denies access.
    """
    item, file = outcome.item, outcome.result
    task, (uri, _) = item.task, item.identity
    if task is None or task.holds is None:
        return [item]
    if isinstance(file, StorageError):
        raise file
    if not isinstance(file, Opened):
        return [replace(item, found=file or _holder_facts(task, _error_of(outcome), None))]
    contents = file.contents
    inside: list[Item] = []  # images, videos, and the problem of the file itself
    names: set[str | None] = set()
    if contents.images and task.images is not None:
        if task.images.ignored:
            error = MediaError(schema.NO_VIDEO, f"its {len(contents.images)} images are ignored", refused=True)
            inside.append(replace(item, found=_holder_facts(task, error, file.identity)))
        else:
            groups = group_names((image.name for image in contents.images), single=task.images.single)
            names = {readable_name(name) for name in groups}
            inside.append(replace(item, task=replace(task, holds=None)))
    of_videos = replace(task, images=None, holds=None, sidecars=(), searched=True)
    of_videos = replace(of_videos, facts=file.facts, expected=file.identity.fingerprint)
    for member in contents.videos:
        if member.name in names:
            message = "the file has a sequence of images of the same name; rename one of them"
            member = replace(member, error=MediaError("tar", message, refused=True))
        inside.append(replace(item, identity=(uri, member.name), task=replace(of_videos, member=member)))
    # If the file has only images, each of their sequences has a remark about the damage.
    if contents.damage is not None and (contents.videos or not contents.images):
        error = MediaError("truncated", f"the file is truncated or damaged: {contents.damage}")
        inside.append(replace(item, found=_holder_facts(task, error, file.identity, VIDEO)))
    elif not contents.videos and not contents.images:
        error = MediaError("empty", "the file contains neither videos nor images", refused=True)
        inside.append(replace(item, found=_holder_facts(task, error, file.identity)))
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


def _error_of(outcome: Outcome[Item, Any]) -> MediaError:
    """Return the error of a call without a result: its process died, or its time or memory ran out."""
    assert outcome.kind is not None
    assert outcome.message is not None
    return MediaError(outcome.kind, outcome.message, traceback=outcome.traceback)


Probing = list[MediumFacts] | StorageError

FILES_TOGETHER = 64  # files that a task of a cluster probes; starting a task costs more than probing a small file
SLICES_NAME = "slices.json"  # exists until the slices of a run are finished


def build_index(options: IndexOptions) -> IndexReport:
    """Probe media that are new, changed or failed, and write them as new parts.

    Parts appear during the run. If a run is killed, its parts stay, and the next run does the rest.

    Raises:
        OutputError: `out` is something else than an index, another run writes it, or it is being written in slices.
        SourceError: A source is wrong or missing.
        FormatError: The existing index cannot be read.
    """
    work = plan_work(options)
    with opened_whole(options.out) as output:
        old = begin(output, work)
        parts = PartPairs(output, files_a_part=files_a_part(options))
        with parts_written(parts):
            members = probe_items(options, work.items, parts, work.report)
        if members:  # the media of a tar are known once it is read
            write_listing(output, old, work, members)
        return work.report


@contextlib.contextmanager
def parts_written(parts: PartPairs) -> Iterator[None]:
    """Write the remaining rows when the block ends, even if it was interrupted. Raises OSError."""
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
    """Open an index for writing by `opened_output`. Raises OutputError, also if the disk is full."""
    with (
        opened_output(out, *names, **how) as output,
        full_disk_says("the index", output.local, lambda: "what is written is kept"),
    ):
        yield output


@contextlib.contextmanager
def opened_whole(out: Place) -> Iterator[Output]:
    """Open an index that only this run writes, and remove the unfinished files of a killed run.

    In object storage, two runs may open one index. The first of them to write goes on, and the other one is refused.

    Raises:
        OutputError: Another run writes the index, or it is being written in slices.
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
    """Return the number of files of a part."""
    return VERIFIED_FILES_A_PART if options.verify else FILES_A_PART


def begin(output: Output, work: Work) -> pa.Table | None:
    """Write the listing and the header of a new generation; return the previous listing, or None.

    Errors in the listing are raised before anything is written.
    """
    path, header_path = output.local / schema.LISTING_NAME, output.local / schema.HEADER
    with reading(str(path), schema.REMEDY):
        old = read_all(path) if path.exists() else None
    listing = listing_table(old, work.listed, work.report.root, work.members, work.sidecars)
    if not header_path.exists() or work.items or old is None or not listing.equals(old):
        before: Row = schema.read_header(output.local) if header_path.exists() else {"generation": 0}
        probed_by = {*before.get("ffmpeg", [])} | ({ffmpeg_version()} if work.probe else set())
        header = {
            "format": schema.FORMAT,
            "schema_version": schema.SCHEMA_VERSION,
            "root": work.report.root,
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
    """Return whether an index already has all media of a run and its listing."""
    if work.items or not (out / schema.HEADER).exists() or not (out / schema.LISTING_NAME).exists():
        return False
    old = parquet_file(out / schema.LISTING_NAME).read()
    return bool(listing_table(old, work.listed, work.report.root, work.members, work.sidecars).equals(old))


def write_listing(output: Output, old: pa.Table | None, work: Work, members: Members) -> None:
    """Replace the listing after the run.

    Args:
        output: The index.
        old: The listing before the run.
        work: The work of the run.
        members: The media that the run found in tars and Parquet files.
    """
    _publish_listing(output, listing_table(old, work.listed, work.report.root, work.members | members, work.sidecars))


def probe_items(options: IndexOptions, items: Sequence[Item], parts: PartPairs, report: IndexReport) -> Members:
    """Probe the items of a run if necessary, write their rows and count them.

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
    """Count a row of `videos`. If its medium lies in a tar or a Parquet file, add it to `members`."""
    report.count(video)
    is_inside = video.get("container") == "tar" or video.get("member_bytes") is not None
    if is_inside and video["member"] is not None:
        members.setdefault(video["uri"], {})[video["member"]] = video["sidecars"]


def is_known(item: Item) -> bool:
    """Return whether the rows of an item are known without probing it."""
    return item.task is None or item.found is not None


def probe_item(item: Item) -> Probing:
    """Return the facts of the media in a file, or the error if the store denies access. A worker calls this."""
    assert item.task is not None  # the engine does not call this for other items
    try:
        return probe_media(item.task)
    except StorageError as error:
        return error


def _rows(outcome: Outcome[Item, Probing], options: IndexOptions) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of a file. If it is gone, was not opened or could not be probed, its row has the reason.

    Raises:
        StorageError: The store denies access. The rows of known media must not be replaced because of that.
    """
    if isinstance(outcome.result, StorageError):
        raise outcome.result
    (uri, _), task = outcome.item.identity, outcome.item.task
    if outcome.item.rows is not None:
        for row in outcome.item.rows:
            gone = {key: row[key] for key in ("media_id", "kind", "uri", "member", "stream_index")}
            yield gone | {"status": GONE, "probed_by": __version__}, no_frames() | {"media_id": row["media_id"]}
        return
    if outcome.item.found is not None:
        media = [outcome.item.found]
    elif outcome.result is not None:
        media = outcome.result
    else:
        assert task is not None  # items without a task have rows or facts
        medium = replace(medium_of(task), problem=problem_of(_error_of(outcome)))
        with contextlib.suppress(MediaError, StorageError):  # a file that is not readable has no identity
            medium = replace(medium, identity=find_identity(task))
        media = [medium]
    for medium in media:
        name = media_id(uri, None if medium.is_best else medium.stream_index, member=medium.member)
        video, frames = rows_of(medium)
        if task is not None and medium.problem is not None and medium.problem.status == FAILED:
            video["tried"] = attempt(task, options)
        yield video | {"media_id": name, "uri": uri, "probed_by": __version__}, frames | {"media_id": name}
