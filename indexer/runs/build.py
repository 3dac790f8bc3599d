"""Build or update an index: plan the work, probe media on an engine, and write parts.

The work consists of items (`Item`), at first one for each file or folder of images. Tars and Parquet files are searched
for media first. Then the item of a tar or a Parquet file is replaced by one item for each of its videos, and one item
for all of its images.
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
from framedex.files.outputs import Output, full_disk, opened_output, remove_unfinished, write_json_aside
from framedex.files.parquet_parts import library_versions, read_all, write_part
from framedex.indexer import schema
from framedex.indexer.facts import Identity, MediumFacts, no_frames, problem_of, rows_of
from framedex.indexer.parts.part_pairs import FILES_A_PART, VERIFIED_FILES_A_PART, PartPairs, listing_table
from framedex.indexer.probing.probe import ProbeTask, medium_of
from framedex.indexer.runs.existence import Opened, find_identity, open_holder, probe_media
from framedex.indexer.runs.work import IndexOptions, IndexReport, Item, Members, Work, attempt, plan_work
from framedex.indexer.sources.discover import media_id
from framedex.indexer.sources.named_medium import readable_name
from framedex.indexer.sources.sequences import group_names
from framedex.records.columns import Row
from framedex.records.medium import FAILED, GONE, IMAGES, VIDEO
from framedex.storage.places import Place, parquet_file

HOLDERS_TOGETHER = 64  # maximum number of tars and Parquet files whose lists of members are in memory at a time
# Number of tars and Parquet files that one task on a cluster reads. It is smaller than FILES_TOGETHER, because such a
# file may have many members.
READ_TOGETHER = 4

ContentsOrFacts = Opened | MediumFacts | StorageError


def opened_files(items: Sequence[Item], options: IndexOptions) -> Iterator[list[Item]]:
    """Yield batches of the items, in order. The item of a tar or Parquet file is replaced by items for its media.

    Raises:
        StorageError: The store denies access.
    """
    # A batch ends with its 64th tar or Parquet file. `before` has, for each item, the number of tars and Parquet files
    # before the item. This number determines the batch of the item.
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
    """Return whether an item is a tar or a Parquet file whose contents have not been listed."""
    return item.task is not None and item.task.holds is not None


def read_contents(item: Item) -> ContentsOrFacts:
    """Return the contents of a tar or a Parquet file. This function runs in a worker process.

    If the file is not readable, return a record of the file with the reason. If the store denies access, return the
    error.
    """
    assert item.task is not None  # the engine calls this function only for items with a task
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
    """Return the record of a tar or a Parquet file that is completely or partly unusable."""
    kind = kind or (IMAGES if task.holds == "tar" else VIDEO)
    return MediumFacts(kind=kind, container=task.holds, identity=identity, problem=problem_of(error))


def _items_in(outcome: Outcome[Item, ContentsOrFacts]) -> list[Item]:
    """Return the items that replace the item of a tar or a Parquet file. Return other items unchanged.

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
    inside: list[Item] = []  # items for the images, for each video, and for a problem of the file itself
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
            message = "the file also has a sequence of images with this name; rename the video or the sequence"
            member = replace(member, error=MediaError("tar", message, refused=True))
        inside.append(replace(item, identity=(uri, member.name), task=replace(of_videos, member=member)))
    # If the file has only images, probing adds a remark about the damage to each sequence instead.
    if contents.damage is not None and (contents.videos or not contents.images):
        error = MediaError("truncated", f"the file is truncated or damaged: {contents.damage}")
        inside.append(replace(item, found=_holder_facts(task, error, file.identity, VIDEO)))
    elif not contents.videos and not contents.images:
        error = MediaError("empty", "the file contains neither videos nor images", refused=True)
        inside.append(replace(item, found=_holder_facts(task, error, file.identity)))
    names |= {member.name for member in contents.videos}
    if any(one.found for one in inside):
        names.add(None)  # stands for the file itself, which has a row in this case
    gone: dict[str | None, list[Row]] = {}
    for row in item.known:
        if row["status"] != GONE and row["member"] not in names:
            gone.setdefault(row["member"], []).append(row)
    inside = [Item(identity=(uri, name), rows=rows) for name, rows in gone.items()] + inside
    # Only the last item counts towards the number of files of a part, so that all rows of a file are in one part.
    return [replace(one, files=0) for one in inside[:-1]] + inside[-1:]


def _error_of(outcome: Outcome[Item, Any]) -> MediaError:
    """Return the error of a call that did not return, because its process died or exceeded its time or memory limit."""
    assert outcome.kind is not None
    assert outcome.message is not None
    return MediaError(outcome.kind, outcome.message, traceback=outcome.traceback)


Probing = list[MediumFacts] | StorageError

# Number of files that one task on a cluster probes. It is large, because starting a task takes longer than probing a
# small file.
FILES_TOGETHER = 64
SLICES_NAME = "slices.json"  # file with the plan of a run in slices; it exists until the run is finished


def build_index(options: IndexOptions) -> IndexReport:
    """Probe media that are new, changed or failed, and write their rows as new parts of the index.

    Parts are written during the run. If the run is killed, its parts are kept, and the next run probes the other media.

    Raises:
        OutputError: `out` is not an index, another run is writing the index, or the index is being written in slices.
        SourceError: A source is missing or cannot be read.
        FormatError: The existing index cannot be read.
    """
    work = plan_work(options)
    with opened_whole(options.out) as output:
        old = begin(output, work)
        parts = PartPairs(output, files_a_part=files_a_part(options))
        with parts_written(parts):
            members = probe_items(options, work.items, parts, work.report)
        if members:  # the listing includes the media in tars, which were unknown before the tars were read
            write_listing(output, old, work, members)
        return work.report


@contextlib.contextmanager
def parts_written(parts: PartPairs) -> Iterator[None]:
    """Write the remaining rows when the `with` block ends, even if the block was interrupted. Raises OSError."""
    try:
        yield
    except OSError:  # another attempt to write would fail, too
        raise
    except BaseException:
        parts.flush()
        raise
    parts.flush()


@contextlib.contextmanager
def index_output(out: Place, *names: str, **how: Any) -> Iterator[Output]:
    """Open an index for writing with `opened_output`. Raises OutputError, for instance if the disk is full."""
    with opened_output(out, *names, **how) as output:
        try:
            yield output
        except OSError as error:
            full = full_disk(error, "the index", output.local, lambda: "the files written so far are kept")
            if full is None:
                raise
            raise full from error


@contextlib.contextmanager
def opened_whole(out: Place) -> Iterator[Output]:
    """Open an index for exclusive writing, and remove unfinished files of a killed run.

    In object storage, two runs may open the same index. The run that writes first continues, and the other run fails.

    Raises:
        OutputError: Another run is writing the index, or the index is being written in slices.
    """
    with index_output(out, schema.HEADER, schema.LISTING_NAME) as output:
        if (out / SLICES_NAME).exists():
            raise OutputError(
                "the index is being written in slices",
                where=str(out),
                remedy=f"run the remaining slices and --finish, or delete {SLICES_NAME} to abandon the run in slices",
            )
        for folder in (output.local, output.local / schema.VIDEOS_FOLDER, output.local / schema.FRAMES_FOLDER):
            remove_unfinished(folder)
        yield output


def files_a_part(options: IndexOptions) -> int:
    """Return the number of files whose rows are written into one part."""
    return VERIFIED_FILES_A_PART if options.verify else FILES_A_PART


def begin(output: Output, work: Work) -> pa.Table | None:
    """Write the listing and the header of a new generation of the index.

    If the listing has an error, the error is raised before any file is written.

    Returns:
        The previous listing. None if there is none.
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
    """Return whether an index already has all media of a run and the same listing."""
    if work.items or not (out / schema.HEADER).exists() or not (out / schema.LISTING_NAME).exists():
        return False
    old = parquet_file(out / schema.LISTING_NAME).read()
    return bool(listing_table(old, work.listed, work.report.root, work.members, work.sidecars).equals(old))


def write_listing(output: Output, old: pa.Table | None, work: Work, members: Members) -> None:
    """Replace the listing after a run that found media in tars and Parquet files.

    Args:
        output: The index.
        old: The listing before the run. None if there was none.
        work: The work of the run.
        members: The media that the run found in tars and Parquet files.
    """
    _publish_listing(output, listing_table(old, work.listed, work.report.root, work.members | members, work.sidecars))


def probe_items(options: IndexOptions, items: Sequence[Item], parts: PartPairs, report: IndexReport) -> Members:
    """Probe the items of a run unless their rows are known, write the rows, and count them in the report.

    Returns:
        The media that were found in tars and Parquet files.
    """
    members: Members = {}
    done, total = 0, sum(item.task is not None for item in items)
    for batch in opened_files(items, options):
        # A tar or Parquet file is one item in `items`, but one or more items in `batch`. All but the last of these have
        # `files` 0, and are added to the total here.
        total += sum(item.files == 0 and item.task is not None for item in batch)
        calls = Calls(
            function=probe_item,
            items=batch,
            timeout_seconds=options.timeout_seconds,
            passes=is_known,
            together=FILES_TOGETHER,
        )
        workers = min(options.workers, max(1, sum(not is_known(item) for item in batch)))
        # The rows of one file are written together, so that a killed run leaves either all rows of a file or none.
        of_file: list[tuple[Row, Row]] = []
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
    """Count a row of `videos` in the report. Add a medium that is in a tar or a Parquet file to `members`."""
    report.count(video)
    if (video.get("container") == "tar" or video.get("member_bytes") is not None) and video["member"] is not None:
        members.setdefault(video["uri"], {})[video["member"]] = video["sidecars"]


def is_known(item: Item) -> bool:
    """Return whether the rows of an item are known, so that the item is not probed."""
    return item.task is None or item.found is not None


def probe_item(item: Item) -> Probing:
    """Return the metadata of the media in a file. This function runs in a worker process.

    If the store denies access, return the error.
    """
    assert item.task is not None  # the engine calls this function only for items with a task
    try:
        return probe_media(item.task)
    except StorageError as error:
        return error


def _rows(outcome: Outcome[Item, Probing], options: IndexOptions) -> Iterator[tuple[Row, Row]]:
    """Yield (row of `videos`, row of `frames`) for each medium of an item.

    If the file is gone, was not opened or could not be probed, the row has the reason.

    Raises:
        StorageError: The store denies access. The error ends the run, so that rows of known media are not replaced.
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
        assert task is not None  # items without a task have `rows` or `found`
        medium = replace(medium_of(task), problem=problem_of(_error_of(outcome)))
        with contextlib.suppress(MediaError, StorageError):  # if the file is not readable, its identity is unknown
            medium = replace(medium, identity=find_identity(task))
        media = [medium]
    for medium in media:
        name = media_id(uri, None if medium.is_best else medium.stream_index, member=medium.member)
        video, frames = rows_of(medium)
        if task is not None and medium.problem is not None and medium.problem.status == FAILED:
            video["tried"] = attempt(task, options)
        yield video | {"media_id": name, "uri": uri, "probed_by": __version__}, frames | {"media_id": name}
