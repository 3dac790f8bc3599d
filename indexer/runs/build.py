"""Build or update an index: plan the work, probe media on an engine, and write parts.

The work consists of items (`Item`), at first one for each file or folder of images. Tars and Parquet files are searched
for media first. Then the item of a tar or a Parquet file is replaced by one item for each of its videos, and one item
for all of its images.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framedex.core.column_rules import reading
from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.errors import MediaError, OutputError, StorageError
from framedex.execution.engine import Calls, Outcome
from framedex.files.changes import LOG_NAME, begun_generation, log_change, next_generation
from framedex.files.outputs import Output, full_disk, has_locks, opened_output, remove_unfinished, write_json_aside
from framedex.files.parquet_parts import library_versions, part_numbers, part_path, read_all, write_part
from framedex.indexer import schema
from framedex.indexer.facts import Identity, MediumFacts, no_frames, problem_of, rows_of
from framedex.indexer.parts.index import as_videos
from framedex.indexer.parts.part_pairs import FILES_A_PART, VERIFIED_FILES_A_PART, PartPairs, listing_table
from framedex.indexer.probing.probe import ProbeTask, medium_of
from framedex.indexer.runs.existence import Opened, find_identity, open_holder, probe_media
from framedex.indexer.runs.work import (
    IndexOptions,
    IndexReport,
    Item,
    Members,
    Work,
    attempt,
    check_prunable,
    plan_work,
)
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
COMMAND = "index"  # the subcommand in lines of the log
REPLACED = (schema.HEADER, schema.LISTING_NAME, LOG_NAME)  # files that a run replaces
# Options that the log does not have: `sources` may name media, and the others do not change what is written.
UNLOGGED = frozenset({"sources", "out", "engine", "on_progress", "workers"})


def build_index(options: IndexOptions) -> IndexReport:
    """Probe media that are new, changed or failed, and write their rows as new parts of the index.

    Parts are written during the run. If the run is killed, its parts are kept, and the next run probes the other media.

    Raises:
        OutputError: `out` is not an index, another run is writing the index, or the index is being written in slices.
        SourceError: A source is missing or cannot be read.
        FormatError: The existing index cannot be read.
    """
    work = plan_work(options)
    check_prunable(work, options)
    with opened_whole(options.out) as output:
        run = begin(output, work, options)
        parts = PartPairs(output, files_a_part=files_a_part(options), generation=run.generation)
        with parts_written(parts):
            members = probe_items(options, work.items, parts, work.report)
        if members:  # the listing includes the media in tars, which were unknown before the tars were read
            write_listing(output, run.listing, work, members)
        if run.changes:
            end(output, run.generation, logged(options))
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
    with index_output(out, *REPLACED) as output:
        if (out / SLICES_NAME).exists():
            raise OutputError(
                "the index is being written in slices",
                where=str(out),
                remedy=f"run the remaining slices and --finish, or delete {SLICES_NAME} to abandon the run in slices",
            )
        for folder in (output.local, output.local / schema.VIDEOS_FOLDER, output.local / schema.FRAMES_FOLDER):
            remove_unfinished(folder)
        if has_locks(out):  # no other run is about to write the other part of a pair
            remove_unpaired(output)
        yield output


def remove_unpaired(output: Output) -> None:
    """Delete parts of `frames` without a part of `videos`, which a killed run left."""
    videos, frames = (part_numbers(output.where / name) for name in (schema.VIDEOS_FOLDER, schema.FRAMES_FOLDER))
    for number in sorted({*frames}.difference(videos)):
        output.remove(f"{schema.FRAMES_FOLDER}/{part_path(output.local, number).name}")


def files_a_part(options: IndexOptions) -> int:
    """Return the number of files whose rows are written into one part."""
    return VERIFIED_FILES_A_PART if options.verify else FILES_A_PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run that has written the listing and the header of its generation.

    Attributes:
        generation: The generation of the index that the run writes.
        changes: Whether the run changes the index.
        listing: The previous listing. None if there was none.
    """

    generation: int
    changes: bool
    listing: pa.Table | None


def begin(output: Output, work: Work, options: IndexOptions, generation: int | None = None) -> Begun:
    """Write the listing and the header of a new generation of the index, and the begin of the change into the log.

    If the listing has an error, the error is raised before any file is written. Media that are pruned leave the index
    before their mentions leave the listing, so that a run that is repeated after a kill still finds the mentions.

    Args:
        output: The index.
        work: The work of the run.
        options: The options of the run.
        generation: The generation to write. If None, the next one.
    """
    path, header_path = output.local / schema.LISTING_NAME, output.local / schema.HEADER
    with reading(str(path), schema.REMEDY):
        old = read_all(path) if path.exists() else None
    listing = listing_table(old, work.listed, work.report.root, work.members, work.sidecars, work.mentions)
    changes = (
        not header_path.exists() or bool(work.items) or bool(work.pruned) or old is None or not listing.equals(old)
    )
    before: Row = schema.read_header(output.local) if header_path.exists() else {"generation": 0}
    if not changes and begun_generation(output.local, COMMAND, logged(options)) is None:
        return Begun(generation=before["generation"], changes=False, listing=old)
    if generation is None:
        generation = following_generation(output.local, options)
    log_change(output, generation, COMMAND, logged(options))
    if work.pruned:
        write_gone(output, work.pruned, generation)
    probed_by = {*before.get("ffmpeg", [])} | ({ffmpeg_version()} if work.probe else set())
    header = {
        "format": schema.FORMAT,
        "schema_version": schema.SCHEMA_VERSION,
        "root": work.report.root,
        "generation": generation,
        "ffmpeg": sorted(probed_by),
        "libraries": library_versions(),
    }
    write_json_aside(header_path, header)
    output.publish(header_path)
    publish_listing(output, listing)
    return Begun(generation=generation, changes=True, listing=old)


def end(output: Output, generation: int, options: Row) -> None:
    """Complete the line of a change in the log.

    Args:
        output: The index.
        generation: The generation that was written.
        options: The options, as in the begun line.
    """
    # The rows are counted instead of the work, because a killed run may have written some of them.
    counts: Counter[str] = Counter()
    folder = output.where / schema.VIDEOS_FOLDER
    for number in reversed(part_numbers(folder)):
        names = ["status", "generation"]
        rows = as_videos(read_all(part_path(folder, number), names), names)
        written = rows.filter(pc.equal(rows["generation"], generation))["status"].to_pylist()
        if not written:
            break
        counts.update(written)
    log_change(output, generation, COMMAND, options, dict(sorted(counts.items())))


def following_generation(where: Place, options: IndexOptions) -> int:
    """Return the generation that a run writes."""
    current = schema.read_header(where)["generation"] if (where / schema.HEADER).exists() else 0
    return next_generation(where, current, COMMAND, logged(options))


def logged(options: IndexOptions) -> Row:
    """Return the options of a run for the log: the number of sources, and the options that differ from defaults."""
    found: Row = {"sources": len(options.sources)}
    for one in fields(options):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        value = getattr(options, one.name)
        if one.name not in UNLOGGED and value != default:
            found[one.name] = value if isinstance(value, bool | int | float | str) or value is None else str(value)
    return found


def write_gone(output: Output, rows: Sequence[Row], generation: int) -> None:
    """Remove media from an index, by one part in which all of them are gone. A reader sees all of them, or none.

    Args:
        output: The index.
        rows: The rows of the media in the index.
        generation: The generation of the index that is written.
    """
    parts = PartPairs(output, generation=generation)
    parts.add([gone_row(row) for row in rows])
    parts.flush()


def gone_row(row: Row) -> tuple[Row, Row]:
    """Return (row of `videos`, row of `frames`) by which a medium leaves the index."""
    gone = {key: row[key] for key in ("media_id", "kind", "uri", "member", "stream_index")}
    return gone | {"status": GONE, "probed_by": __version__}, no_frames() | {"media_id": row["media_id"]}


def write_generation(output: Output, generation: int) -> None:
    """Write the header of an existing index with a new generation."""
    path = output.local / schema.HEADER
    write_json_aside(path, schema.read_header(output.local) | {"generation": generation})
    output.publish(path)


def publish_listing(output: Output, listing: pa.Table) -> None:
    """Replace the listing of an index."""
    path = output.local / schema.LISTING_NAME
    write_part(path, listing, version=schema.SCHEMA_VERSION)
    output.publish(path)


def is_finished(out: Place, work: Work) -> bool:
    """Return whether an index already has all media of a run and the same listing."""
    if work.items or not (out / schema.HEADER).exists() or not (out / schema.LISTING_NAME).exists():
        return False
    old = parquet_file(out / schema.LISTING_NAME).read()
    listing = listing_table(old, work.listed, work.report.root, work.members, work.sidecars, work.mentions)
    return bool(listing.equals(old))


def write_listing(output: Output, old: pa.Table | None, work: Work, members: Members) -> None:
    """Replace the listing after a run that found media in tars and Parquet files.

    Args:
        output: The index.
        old: The listing before the run. None if there was none.
        work: The work of the run.
        members: The media that the run found in tars and Parquet files.
    """
    members = work.members | members
    listing = listing_table(old, work.listed, work.report.root, members, work.sidecars, work.mentions)
    publish_listing(output, listing)


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
        yield from map(gone_row, outcome.item.rows)
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
