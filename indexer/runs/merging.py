"""Compact an index, and build an index in slices on several machines (Slurm arrays, Kubernetes indexed jobs).

Compacting merges the parts of many runs into few parts. Rows that a later run replaced, rows of media that are not in
the index any more, and their mentions in the listing are removed.

The slices of a run write the same parts as an undivided run. The first slice writes a plan that all slices share: the
numbers of the parts, and a digest of the work. Each slice compares the sources with the state of the index before the
run, so that all slices find the same work. Of n slices, each writes every n-th part. If a slice runs again, it skips
the parts that exist.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import OutputError, SourceError
from framedex.execution.engine import Slice
from framedex.files import outputs
from framedex.files.changes import begun_generation, listed_names, log_change, next_generation
from framedex.files.outputs import Output
from framedex.files.parquet_parts import ffmpeg_of, part_numbers, part_path, read_all
from framedex.indexer import schema
from framedex.indexer.parts import part_pairs
from framedex.indexer.parts.index import Index, as_videos, rows_by_group
from framedex.indexer.parts.part_pairs import PartPairs, next_part
from framedex.indexer.runs import build
from framedex.indexer.runs.work import IndexOptions, IndexReport, Members, Work, parted, plan_work
from framedex.indexer.sources.discover import media_id
from framedex.records.columns import Row
from framedex.storage.places import Place, parquet_file
from framedex.storage.uris import rows_by_name, spellings

# Limits for the size of a merged part. They limit the memory, because the rows of `videos` are in memory until the part
# is written.
MEDIA_A_PART = 16_384
PACKETS_A_PART = 32_000_000
COMPACT: Row = {"compact": True}  # the options of compacting in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """The result of compacting an index.

    Attributes:
        parts_before: The number of parts before compacting.
        parts: The number of parts after compacting.
        media: The number of media in the index.
        dropped: The number of rows that were removed.
        unlisted: The number of rows of the listing that were removed, because their media are not in the index.
    """

    parts_before: int
    parts: int
    media: int
    dropped: int
    unlisted: int


def compact_index(out: Place) -> CompactReport:
    """Copy the current rows of an index into new parts, in the same order, and remove the old parts.

    Afterwards, no file of the index has the name, the packets or the user's columns of a medium that is not in the
    index any more.

    A reader that opens the index meanwhile sees every medium. At any time, one row group of `frames` and the rows of
    `videos` of one part are in memory.

    Raises:
        FormatError: The index cannot be read.
        OutputError: Another run is writing the index, or the index is being written in slices.
    """
    with build.opened_whole(out) as output:
        index = Index(out)
        old, rows, media = index.parts, index.rows, len(index)
        is_merged = len(old) <= -(-media // MEDIA_A_PART) and rows == media
        listing = index.listing
        kept = listing.filter(pc.is_in(listing["media_id"], index.columns(["media_id"])["media_id"].combine_chunks()))
        unlisted = len(listing) - len(kept)
        report = CompactReport(
            parts_before=len(old), parts=len(old), media=media, dropped=rows - media, unlisted=unlisted
        )
        build.remove_unpaired(output)
        if is_merged and not unlisted and begun_generation(out, build.COMMAND, COMPACT) is None:
            return report
        generation = next_generation(out, index.generation, build.COMMAND, COMPACT)
        log_change(output, generation, build.COMMAND, COMPACT)
        if not is_merged:
            merged = _PartMerger(output, files_a_part=MEDIA_A_PART)
            for number in old:
                merged.copy_rows(number, index.counting_rows(number))
            merged.flush()
        build.write_generation(output, generation)
        # The part numbers ascend, so that a superseded row is removed before the row that supersedes it.
        for number in [] if is_merged else old:
            for table in (schema.VIDEOS_FOLDER, schema.FRAMES_FOLDER):
                output.remove(f"{table}/{part_path(output.local, number).name}")
        if unlisted:
            build.publish_listing(output, kept)
        counts = {"media": media, "dropped": rows - media, "unlisted": unlisted}
        log_change(output, generation, build.COMMAND, COMPACT, counts)
        return replace(report, parts=len(part_numbers(out / schema.VIDEOS_FOLDER)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReport:
    """The result of removing media from an index.

    Attributes:
        removed: The number of media that were removed.
        unknown: The names that no medium of the index has.
    """

    removed: int
    unknown: list[str]


def remove_media(out: Place, names: Sequence[str]) -> RemoveReport:
    """Remove media, and their mentions in the listing, from an index. Sources that still name them may add them again.

    Their rows and packets stay in the files of the index, unseen by readers, until the index is compacted.

    Args:
        out: The index.
        names: The names of media, as in the index or as paths, or "@LIST" for a text file with one name per line. The
            name of a tar or a Parquet file stands for all media in it.

    Raises:
        FormatError: The index cannot be read.
        OutputError: Another run is writing the index, or the index is being written in slices.
        SourceError: A list cannot be read.
    """
    wanted = listed_names(names)
    with build.opened_whole(out) as output:
        index = Index(out)
        rows = index.columns(["media_id", "kind", "uri", "member", "stream_index"])
        by_name = rows_by_name(rows["uri"].to_pylist(), rows["member"].to_pylist())
        found: set[int] = set()
        listed = set[str]()  # the ids that a listing may have for the media; also for media that are gone
        unknown: list[str] = []
        for name in wanted:
            possible = spellings(name, index.root)
            of_name = next(filter(None, map(by_name.get, possible)), [])
            found.update(of_name)
            listed.update(map(media_id, possible))
            if not of_name:
                unknown.append(name)
        gone = rows.take(pa.array(sorted(found), pa.int64())).to_pylist()
        listed |= {media_id(row["uri"], member=row["member"]) for row in gone}
        listing = part_pairs.without_pruned(index.listing, dict.fromkeys(listed))
        asked: Row = {"remove": len(wanted)}
        if gone or len(listing) < len(index.listing) or begun_generation(out, build.COMMAND, asked) is not None:
            generation = next_generation(out, index.generation, build.COMMAND, asked)
            log_change(output, generation, build.COMMAND, asked)
            if gone:
                build.write_gone(output, gone, generation)
            build.write_generation(output, generation)
            build.publish_listing(output, listing)
            build.end(output, generation, asked)
        return RemoveReport(removed=len(gone), unknown=unknown)


class _PartMerger(PartPairs):
    """A writer of new parts from rows of old parts.

    The rows are copied as Arrow tables. The size of a part is limited by its number of files. Here, each medium counts
    as a file.
    """

    @staticmethod
    def _table(rows: list[pa.Table], columns: pa.Schema) -> pa.Table:
        return pa.concat_tables(rows)

    def copy_rows(self, part: int, rows: NDArray[np.int64]) -> None:
        """Copy some rows of an old part into the new parts.

        Args:
            part: The number assigned to the old part.
            rows: int64 [rows], the numbers of the rows, ascending.
        """
        if not len(rows):
            return
        videos, frames = (
            parquet_file(part_path(self._output.where / folder, part))
            for folder in (schema.VIDEOS_FOLDER, schema.FRAMES_FOLDER)
        )
        self._videos.append(as_videos(videos.read()).take(rows))
        for table in rows_by_group(frames, rows):
            lengths = pc.list_value_length(table["size"]).to_numpy()
            for first, end in _stretches(lengths, schema.FRAMES_PER_ROW_GROUP):
                self._add_frames(table.slice(first, end - first), int(lengths[first:end].sum()))
        self._files += len(rows)
        if self._files >= self._files_a_part or self._packets >= PACKETS_A_PART:
            self.flush()


def _stretches(lengths: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Divide rows into contiguous ranges of at most `most` packets. A row with more packets is a range of one row.

    Args:
        lengths: int64 [rows], the number of packets of each row.
        most: The maximum number of packets of a range.

    Yields:
        (first, end): The number of the first row of a range, and the number of the row after the last one.
    """
    first = total = 0
    for row, length in enumerate(lengths.tolist()):
        if row > first and total + length > most:
            yield first, row
            first, total = row, 0
        total += length
    if first < len(lengths):
        yield first, len(lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedRun:
    """The plan that all slices of a run share, which is the content of `slices.json`.

    Attributes:
        slices: The number of slices.
        generation: The generation of the index that the slices write.
        first_part: The number of the first part that the slices write. The other parts have the next numbers.
        parts: The number of parts that all slices together write.
        work: A digest of all work of the run (`digest`).
    """

    slices: int
    generation: int
    first_part: int
    parts: int
    work: str

    def part(self, out: Place, number: int) -> Place:
        """Return the path of a part in the table `videos`. `number` counts the parts of this run, from 0."""
        return part_path(out / schema.VIDEOS_FOLDER, self.first_part + number)

    def missing(self, out: Place, first: int = 0, step: int = 1) -> list[int]:
        """Return the parts of the run that do not exist yet, counted from 0.

        Only every `step`-th part is considered, from the part `first` on.
        """
        return [number for number in range(first, self.parts, step) if not self.part(out, number).exists()]


def build_slice(options: IndexOptions, part: Slice) -> IndexReport:
    """Run one slice of an index run. The report counts the media of this slice, but the files of the whole run.

    Raises:
        OutputError: As in `build_index`, or the sources or options differ between the slices.
        SourceError, FormatError: As in `build_index`.
    """
    if (before := _report_if_finished(options)) is not None:
        return before
    with build.index_output(options.out, shared=True) as output:
        plan, work = _agree_on_plan(output, options, part.count)
        with outputs.opened_output(options.out, lock=f"{outputs.LOCK_NAME}-{part.number}"):
            size = build.files_a_part(options)
            items = parted(work.items, size)
            wanted = plan.missing(options.out, part.number, part.count)
            mine = [item for number in wanted for item in items[number]]
            numbers = [plan.first_part + number for number in wanted]
            parts = PartPairs(output, numbers=numbers, files_a_part=size, generation=plan.generation)
            with build.parts_written(parts):
                build.probe_items(options, mine, parts, work.report)
        return work.report


def _report_if_finished(options: IndexOptions) -> IndexReport | None:
    """Return the report of a run that earlier slices have completed, or None if the run is not complete."""
    if read_plan(options.out) is not None or not (options.out / schema.HEADER).exists():
        return None
    work = plan_work(options)
    work.report.finished = build.is_finished(options.out, work)
    return work.report if work.report.finished else None


def _agree_on_plan(output: Output, options: IndexOptions, slices: int) -> tuple[SlicedRun, Work]:
    """Return the plan and the work that the slices of a run share. The first slice writes the plan."""
    with outputs.opened_output(options.out, lock=f"{outputs.LOCK_NAME}-plan", wait=True):
        stored = read_plan(options.out)
        first = next_part(options.out) if stored is None else stored.first_part
        work = plan_work(options, before=first)
        parts = len(parted(work.items, build.files_a_part(options)))
        generation = build.following_generation(options.out, options) if stored is None else stored.generation
        plan = SlicedRun(
            slices=slices, generation=generation, first_part=first, parts=parts, work=digest(options, work)
        )
        if stored is None:
            # Object storage has no locks, so several slices may find no plan at the same time. Therefore, --finish
            # writes the header and the listing of an index in object storage.
            if outputs.has_locks(options.out):
                build.begin(output, work, options, generation)
            stored = SlicedRun(**outputs.agreed_plan(output, build.SLICES_NAME, asdict(plan)))
        if plan != stored:
            is_count = plan.slices != stored.slices
            raise OutputError(
                f"the slices of a run must have the same {'number of slices' if is_count else 'sources and options'}",
                where=str(options.out / build.SLICES_NAME),
                found=plan.slices if is_count else "other work than in the first slice",
                allowed=stored.slices if is_count else None,
                remedy=f"run the same command for each slice, or delete {build.SLICES_NAME} to begin again; "
                "existing parts are kept",
            )
        return plan, work


def read_plan(out: Place) -> SlicedRun | None:
    """Return the plan of a run in slices, or None if the index has no such run."""
    stored = outputs.written_plan(out, build.SLICES_NAME)
    return None if stored is None else SlicedRun(**stored)


def digest(options: IndexOptions, work: Work) -> str:
    """Return a digest, as 32 hex digits, of the work of a run and of the options that affect its output."""
    asked = {"root": work.report.root} | {name: getattr(options, name) for name in ("verify", "prove", "depth")}
    found = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16)
    for item in work.items:
        found.update(repr((item.identity, item.task, item.found, item.rows)).encode("utf-8", "surrogateescape"))
    for mention in work.listed:
        found.update(repr(mention).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def finish_index(options: IndexOptions) -> IndexReport:
    """Check that all slices of a run are written, complete the listing, and return the report of the run.

    Raises:
        OutputError: Slices are missing or still running, or the index has no run in slices.
        SourceError: The sources or options differ from the sources and options of the slices.
    """
    if (before := _report_if_finished(options)) is not None:
        return before
    with build.index_output(options.out, *build.REPLACED) as output:
        plan = read_plan(options.out)
        if plan is None:
            raise OutputError(
                "there is no run in slices to finish", where=str(options.out), remedy="first run slices with --task i/n"
            )
        outputs.check_all_there(options.out, plan.parts, "parts", plan.missing(options.out), slices=plan.slices)
        work = plan_work(options, before=plan.first_part)
        if digest(options, work) != plan.work:
            raise SourceError(
                "the sources or options differ from the sources or options of the slices",
                where=str(options.out),
                remedy="pass the same sources and options with --finish as with --task",
            )
        members, ffmpeg = Members(), set[str]()
        for number in range(plan.parts):
            table = parquet_file(plan.part(options.out, number)).read()
            ffmpeg |= ffmpeg_of(table.schema)
            for row in table.to_pylist():
                build.note_row(row, work.report, members)
        if not outputs.has_locks(options.out):
            build.begin(output, work, options, plan.generation)
        # The header gets the versions of FFmpeg with which other machines probed media.
        header = schema.read_header(output.local)
        if not ffmpeg <= set(header.get("ffmpeg", [])):
            versions = sorted({*header.get("ffmpeg", []), *ffmpeg})
            outputs.write_json_aside(output.local / schema.HEADER, header | {"ffmpeg": versions})
            output.publish(output.local / schema.HEADER)
        if members:
            build.write_listing(output, read_all(output.local / schema.LISTING_NAME), work, members)
        build.end(output, plan.generation, build.logged(options))
        output.remove(build.SLICES_NAME)
        for path in output.local.glob(f"{outputs.LOCK_NAME}-*"):
            path.unlink()
        return work.report
