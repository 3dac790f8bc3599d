"""Compact an index, and run an index in slices on several machines (Slurm arrays, Kubernetes indexed jobs).

Compacting merges the parts that many runs wrote into few parts, without the rows that no longer count.

The slices of a run write the same parts as an undivided run. The first slice writes the plan of all slices: the numbers
of the parts, and a digest of the work. Each slice compares the sources with the index as it was before the run, finds
the same work, and writes every n-th part of it. A part that exists is done, so a slice that runs again does the rest.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import OutputError, SourceError
from framedex.execution.engine import Slice
from framedex.files import outputs
from framedex.files.outputs import Output
from framedex.files.parquet_parts import PartWriter, ffmpeg_of, part_path, read_all
from framedex.indexer import schema
from framedex.indexer.parts.index import Index, as_videos, rows_by_group
from framedex.indexer.parts.part_pairs import PartPairs, next_part
from framedex.indexer.runs import build
from framedex.indexer.runs.work import IndexOptions, Members, Work, parted, plan_work
from framedex.storage.places import Place, parquet_file

# Limits of a merged part: its rows of `videos` are in memory until it is written.
MEDIA_A_PART = 16_384
PACKETS_A_PART = 32_000_000
# Looking up one video reads one row group (decision 0019).
VIDEOS_A_ROW_GROUP = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """The result of compacting.

    Attributes:
        parts_before: number of parts before.
        parts: number of parts now.
        media: number of media.
        dropped: number of rows that no longer counted.
    """

    parts_before: int
    parts: int
    media: int
    dropped: int


def compact_index(out: Place) -> CompactReport:
    """Write the rows that count into new parts, in the same order, and remove the old parts.

    At every moment a reader that opens the index sees every medium. Memory use is one row group, plus the rows of
    `videos` for one part.

    Raises:
        FormatError: the index cannot be read.
        OutputError: another run writes the index, or it is being written in slices.
    """
    with build.opened_whole(out) as output:
        index = Index(out)
        old, rows, media = index.parts, index.rows, len(index)
        if len(old) <= -(-media // MEDIA_A_PART) and rows == media:
            return CompactReport(parts_before=len(old), parts=len(old), media=media, dropped=0)
        merged = _PartMerger(output, next_part(out))
        for number in old:
            merged.copy_rows(number, index.counting_rows(number))
        merged.flush()
        header = schema.read_header(out)
        outputs.write_json_aside(output.local / schema.HEADER, header | {"generation": header["generation"] + 1})
        output.publish(output.local / schema.HEADER)
        for number in old:  # ascending: a superseded row is removed before the row that supersedes it
            for table in (schema.VIDEOS_FOLDER, schema.FRAMES_FOLDER):
                output.remove(f"{table}/{part_path(output.local, number).name}")
        return CompactReport(parts_before=len(old), parts=merged.written, media=media, dropped=rows - media)


class _PartMerger:
    """Writes new parts, into which rows of old parts are copied.

    Unlike `PartPairs`, it copies tables without turning them into Python objects.
    """

    def __init__(self, output: Output, first: int) -> None:
        self._output, self._number = output, first
        self.written = 0
        self._clear()

    def _clear(self) -> None:
        self._videos: list[pa.Table] = []
        self._writer: PartWriter | None = None
        self._group: list[pa.Table] = []
        self._group_packets = self._packets = 0

    def copy_rows(self, part: int, rows: NDArray[np.int64]) -> None:
        """Copy some rows of an old part.

        Args:
            part: number of the old part.
            rows: int64, row numbers in ascending order.
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
                packets = int(lengths[first:end].sum())
                if self._group and self._group_packets + packets > schema.FRAMES_PER_ROW_GROUP:
                    self._write_group()
                self._group.append(table.slice(first, end - first))
                self._group_packets += packets
                self._packets += packets
        if sum(map(len, self._videos)) >= MEDIA_A_PART or self._packets >= PACKETS_A_PART:
            self.flush()

    def _write_group(self) -> None:
        if self._writer is None:
            path = part_path(self._output.local / schema.FRAMES_FOLDER, self._number)
            self._writer = PartWriter(path, schema.FRAMES, version=schema.SCHEMA_VERSION, delta=schema.DELTA_COLUMNS)
        self._writer.write(pa.concat_tables(self._group).combine_chunks())
        self._group, self._group_packets = [], 0

    def flush(self) -> None:
        """Write the collected rows as a part, and make it visible."""
        if not self._videos:
            return
        self._write_group()
        assert self._writer is not None  # each row of videos has a row of frames
        self._writer.commit()
        # A reader opens frames only for the rows of videos that it sees, so videos are published last.
        self._output.publish(part_path(self._output.local / schema.FRAMES_FOLDER, self._number))
        videos = pa.concat_tables(self._videos)
        path = part_path(self._output.local / schema.VIDEOS_FOLDER, self._number)
        writer = PartWriter(path, schema.VIDEOS, version=schema.SCHEMA_VERSION)
        for first in range(0, len(videos), VIDEOS_A_ROW_GROUP):
            writer.write(videos.slice(first, VIDEOS_A_ROW_GROUP).combine_chunks())
        writer.commit()
        self._output.publish(path)
        self._number += 1
        self.written += 1
        self._clear()


def _stretches(lengths: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs of rows with at most `most` packets together, or of one row; `end` is exclusive."""
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
    """The plan that all slices of a run share: the contents of `slices.json`.

    Attributes:
        slices: number of slices.
        first_part: number of the first part that they write.
        parts: number of parts that they write, from `first_part` on.
        work: digest of all work of the run.
    """

    slices: int
    first_part: int
    parts: int
    work: str

    def part(self, out: Place, number: int) -> Place:
        """Return the path of the `number`-th part of the run, counted from 0."""
        return part_path(out / schema.VIDEOS_FOLDER, self.first_part + number)

    def missing(self, out: Place, first: int = 0, step: int = 1) -> list[int]:
        """Return the numbers of the parts that are not written yet: all, or every `step`-th one from `first` on."""
        return [number for number in range(first, self.parts, step) if not self.part(out, number).exists()]


def build_slice(options: IndexOptions, part: Slice) -> build.IndexReport:
    """Do one slice of an index run. The report counts the media of this slice, and the files of the whole run.

    Raises:
        OutputError: as for `build_index`, or other slices have other work.
        SourceError: as for `build_index`.
        FormatError: as for `build_index`.
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
            parts = PartPairs(output, numbers=[plan.first_part + number for number in wanted], files_a_part=size)
            report = build.report_of(options, work)
            with build.parts_written(parts):
                build.probe_items(options, mine, parts, report)
        return report


def _report_if_finished(options: IndexOptions) -> build.IndexReport | None:
    """Return the report of a run whose slices were all written before, or None if some work is left."""
    if read_plan(options.out) is not None or not (options.out / schema.HEADER).exists():
        return None
    work = plan_work(options)
    return replace(build.report_of(options, work), finished=True) if build.is_finished(options.out, work) else None


def _agree_on_plan(output: Output, options: IndexOptions, slices: int) -> tuple[SlicedRun, Work]:
    """Return the plan and the work that the slices of a run share. The first slice writes the plan."""
    with outputs.opened_output(options.out, lock=f"{outputs.LOCK_NAME}-plan", wait=True):
        stored = read_plan(options.out)
        first = next_part(options.out) if stored is None else stored.first_part
        work = plan_work(options, before=first)
        parts = len(parted(work.items, build.files_a_part(options)))
        plan = SlicedRun(slices=slices, first_part=first, parts=parts, work=digest(options, work))
        if stored is None:
            # Without locks, several slices may be the first at the same time, so --finish begins an index in a store.
            if outputs.has_locks(options.out):
                build.begin(output, work)
            stored = SlicedRun(**outputs.agreed_plan(output, build.SLICES_NAME, asdict(plan)))
        if plan != stored:
            is_count = plan.slices != stored.slices
            raise OutputError(
                f"the slices of this run have other {'slices' if is_count else 'sources and options'}",
                where=str(options.out / build.SLICES_NAME),
                found=plan.slices if is_count else "other work than the first slice found",
                allowed=stored.slices if is_count else None,
                remedy=f"give each slice the same command, or delete {build.SLICES_NAME} to begin again; "
                "existing parts stay",
            )
        return plan, work


def read_plan(out: Place) -> SlicedRun | None:
    """Return the plan of a run in slices, or None if the index has no such run."""
    stored = outputs.written_plan(out, build.SLICES_NAME)
    return None if stored is None else SlicedRun(**stored)


def digest(options: IndexOptions, work: Work) -> str:
    """Return 32 hex digits that differ if slices would work or write differently."""
    asked = {"root": work.root} | {name: getattr(options, name) for name in ("verify", "prove", "depth")}
    found = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16)
    for item in work.items:
        found.update(repr((item.identity, item.task, str(item.error), item.rows)).encode("utf-8", "surrogateescape"))
    for mention in work.listed:
        found.update(repr(mention).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _note_ffmpeg(output: Output, versions: set[str]) -> None:
    """Add to the header the versions of FFmpeg that other machines probed with."""
    path = output.local / schema.HEADER
    header = schema.read_header(output.local)
    if not versions <= set(header.get("ffmpeg", [])):
        outputs.write_json_aside(path, header | {"ffmpeg": sorted({*header.get("ffmpeg", []), *versions})})
        output.publish(path)


def finish_index(options: IndexOptions) -> build.IndexReport:
    """Check that all slices of a run are written, complete the listing, and return the report of the run.

    Raises:
        OutputError: slices are missing or still running, or there is no run in slices.
        SourceError: the sources or options differ from those of the slices.
    """
    if (before := _report_if_finished(options)) is not None:
        return before
    with build.index_output(options.out, schema.HEADER, schema.LISTING_NAME) as output:
        plan = read_plan(options.out)
        if plan is None:
            raise OutputError(
                "there is no run in slices to finish", where=str(options.out), remedy="run its slices with --task i/n"
            )
        outputs.check_all_there(options.out, plan.parts, "parts", plan.missing(options.out), slices=plan.slices)
        work = plan_work(options, before=plan.first_part)
        if digest(options, work) != plan.work:
            raise SourceError(
                "the sources are not those that the slices indexed",
                where=str(options.out),
                remedy="give --finish the same sources and options as --task",
            )
        report, members, ffmpeg = build.report_of(options, work), Members(), set[str]()
        for number in range(plan.parts):
            table = parquet_file(plan.part(options.out, number)).read()
            ffmpeg |= ffmpeg_of(table.schema)
            for row in table.to_pylist():
                build.note_row(row, report, members)
        if not outputs.has_locks(options.out):
            build.begin(output, work)
        _note_ffmpeg(output, ffmpeg)
        if members:
            build.write_listing(output, read_all(output.local / schema.LISTING_NAME), work, members)
        output.remove(build.SLICES_NAME)
        for path in output.local.glob(f"{outputs.LOCK_NAME}-*"):
            path.unlink()
        return report
