"""Run an index in slices on several machines (Slurm arrays, Kubernetes indexed jobs).

The parts are the same as those of an undivided run.

The first slice writes down the plan of all slices: which parts, and a digest of the work. Each slice compares the
sources with the index as it was before the run, finds the same work, and writes every n-th part of it. A part that
exists is done, so a slice that runs again does the rest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from framedex.errors import OutputError, SourceError
from framedex.execution.slices import Slice
from framedex.files.atomic import write_json_aside
from framedex.files.locks import LOCK_NAME
from framedex.files.outputs import has_locks, opened_output
from framedex.files.parquet_parts import ffmpeg_of, part_path
from framedex.files.row_groups import read_all
from framedex.files.slices import agreed_plan, check_all_there, written_plan
from framedex.indexer.parts.layout import HEADER, LISTING_NAME, VIDEOS_FOLDER, read_header
from framedex.indexer.parts.part_pairs import PartPairs, next_part
from framedex.indexer.runs.build import (
    SLICES_NAME,
    IndexReport,
    begin,
    files_a_part,
    index_output,
    is_finished,
    note_row,
    parts_written,
    probe_items,
    report_of,
    write_listing,
)
from framedex.indexer.runs.work import IndexOptions, Members, Work, parted, plan_work
from framedex.storage.outputs import Output
from framedex.storage.places import Place, parquet_file


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedRun:
    """What all slices of a run share: the contents of `slices.json`.

    Attributes:
        slices: number of slices.
        first_part: number of the first part that they write.
        parts: how many parts they write, from `first_part` on.
        work: digest of all work of the run.
    """

    slices: int
    first_part: int
    parts: int
    work: str


def build_slice(options: IndexOptions, part: Slice) -> IndexReport:
    """Do one slice of an index run. The report counts the media of this slice, and the files of the whole run.

    Raises:
        OutputError: as for `build_index`, or other slices have other work.
        SourceError: as for `build_index`.
        FormatError: as for `build_index`.
    """
    if (before := _finished(options)) is not None:
        return before
    with index_output(options.out, shared=True) as output:
        plan, work = _take_plan(output, options, part.count)
        with opened_output(options.out, lock=f"{LOCK_NAME}-{part.number}"):
            size = files_a_part(options)
            items = parted(work.items, size)
            wanted = [
                number
                for number in range(part.number, plan.parts, part.count)
                if not _part(options.out, plan, number).exists()
            ]
            mine = [item for number in wanted for item in items[number]]
            parts = PartPairs(output, numbers=[plan.first_part + number for number in wanted], files_a_part=size)
            report = report_of(options, work)
            with parts_written(parts):
                probe_items(options, mine, parts, report)
        return report


def _finished(options: IndexOptions) -> IndexReport | None:
    """Return the report of a run whose slices were all written before; None if something is left to do."""
    if read_plan(options.out) is not None or not (options.out / HEADER).exists():
        return None
    work = plan_work(options)
    return replace(report_of(options, work), finished=True) if is_finished(options.out, work) else None


def _take_plan(output: Output, options: IndexOptions, slices: int) -> tuple[SlicedRun, Work]:
    """Return the plan and the work that the slices of a run share. The first slice writes the plan."""
    with opened_output(options.out, lock=f"{LOCK_NAME}-plan", wait=True):
        stored = read_plan(options.out)
        first = next_part(options.out) if stored is None else stored.first_part
        work = plan_work(options, before=first)
        parts = len(parted(work.items, files_a_part(options)))
        plan = SlicedRun(slices=slices, first_part=first, parts=parts, work=digest(options, work))
        if stored is None:
            if has_locks(options.out):  # in a store, --finish does this: many slices may be first at the same time
                begin(output, work)
            stored = SlicedRun(**agreed_plan(output, SLICES_NAME, asdict(plan)))
        if plan != stored:
            same = "slices" if plan.slices != stored.slices else "sources and options"
            raise OutputError(
                f"the slices of this run have other {same}",
                where=str(options.out / SLICES_NAME),
                found=plan.slices if same == "slices" else "other work than the first slice found",
                allowed=stored.slices if same == "slices" else None,
                remedy=f"give each slice the same command, or delete {SLICES_NAME} to begin again; "
                "parts that are there stay",
            )
        return plan, work


def read_plan(out: Place) -> SlicedRun | None:
    """Return the plan of a run in slices, or None if the index has no such run."""
    stored = written_plan(out, SLICES_NAME)
    return None if stored is None else SlicedRun(**stored)


def _part(out: Place, plan: SlicedRun, number: int) -> Place:
    return part_path(out / VIDEOS_FOLDER, plan.first_part + number)


def digest(options: IndexOptions, work: Work) -> str:
    """Return 32 hex digits that change with anything that a slice would do or write differently."""
    asked: dict[str, Any] = {
        "root": work.root,
        "verify": options.verify,
        "prove": options.prove,
        "depth": options.depth,
    }
    found = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16)
    for item in work.items:
        found.update(repr((item.identity, item.task, str(item.error), item.rows)).encode("utf-8", "surrogateescape"))
    for mention in work.listed:
        found.update(repr(mention).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _note_ffmpeg(output: Output, versions: set[str]) -> None:
    """Add to the header the versions of FFmpeg that other machines probed with."""
    path = output.local / HEADER
    header = read_header(output.local)
    if not versions <= set(header.get("ffmpeg", [])):
        write_json_aside(path, header | {"ffmpeg": sorted({*header.get("ffmpeg", []), *versions})})
        output.publish(path)


def finish_index(options: IndexOptions) -> IndexReport:
    """Check that all slices of a run are there, complete the listing, and return what the run did.

    Raises:
        OutputError: slices are missing or still running, or there is no run in slices.
        SourceError: the sources or options differ from those of the slices.
    """
    if (before := _finished(options)) is not None:
        return before
    with index_output(options.out, HEADER, LISTING_NAME) as output:
        plan = read_plan(options.out)
        if plan is None:
            raise OutputError(
                "there is no run in slices to finish", where=str(options.out), remedy="run its slices with --task i/n"
            )
        missing = [number for number in range(plan.parts) if not _part(options.out, plan, number).exists()]
        check_all_there(options.out, plan.parts, "parts", missing, slices=plan.slices)
        work = plan_work(options, before=plan.first_part)
        if digest(options, work) != plan.work:
            raise SourceError(
                "the sources are not those that the slices indexed",
                where=str(options.out),
                remedy="give --finish the same sources and options as --task",
            )
        report, members, ffmpeg = report_of(options, work), Members(), set[str]()
        for number in range(plan.parts):
            table = parquet_file(_part(options.out, plan, number)).read()
            ffmpeg |= ffmpeg_of(table.schema)
            for row in table.to_pylist():
                note_row(row, report, members)
        if not has_locks(options.out):
            begin(output, work)
        _note_ffmpeg(output, ffmpeg)
        if members:
            write_listing(output, read_all(output.local / LISTING_NAME), work, members)
        output.remove(SLICES_NAME)
        for path in output.local.glob(f"{LOCK_NAME}-*"):
            path.unlink()
        return report
