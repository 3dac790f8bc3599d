"""Plans a dataset in slices on several machines. The last step writes it, in the bytes of an undivided run.

The plan is cut into groups of pieces, by what the index says alone. Each slice plans every n-th group, and writes its
rows into a file of the folder `OUT.slices`. A file that exists is done, so a slice that runs again does the rest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from framedex.errors import OutputError
from framedex.execution.slices import Slice
from framedex.files.locks import LOCK_NAME
from framedex.files.outputs import opened_output
from framedex.files.slices import agreed_plan, check_all_there, written_plan
from framedex.sharder.plan_in_workers import PlanningRun, planned_in_workers
from framedex.sharder.planning.pieces import Piece
from framedex.sharder.writing.planned_files import read_planned, write_planned
from framedex.sharder.writing.planned_rows import PlannedRows
from framedex.sharder.writing.report import ShardReport
from framedex.storage.objects import delete
from framedex.storage.outputs import Output
from framedex.storage.places import Place, Stored, names_in

MOST_FRAMES_A_GROUP = 1_000_000  # of the media of a group, unless it has one medium alone
PLAN_NAME = "slices.json"
ROWS_FOLDER = "rows"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedPlan:
    """What all slices of a run share: the contents of `slices.json`.

    Attributes:
        slices: Number of slices.
        job: Digest of what makes two runs the same.
    """

    slices: int
    job: str


def slices_of(out: Place) -> Place:
    """Return the folder of the slices of a dataset."""
    return Stored(uri=f"{out.uri}.slices") if isinstance(out, Stored) else out.with_name(f"{out.name}.slices")


def plan_slice(out: Place, job: Row, pieces: Iterable[Piece], run: PlanningRun, part: Slice) -> ShardReport:
    """Plan one slice of a dataset. The report counts what this slice has.

    Raises:
        OutputError: Other slices have other work, or another run does this slice.
        PolicyError: As for a run that is not divided.
    """
    place = slices_of(out)
    with opened_output(place, shared=True) as output:
        _agree(output, SlicedPlan(slices=part.count, job=_digest(job)))
        with opened_output(place, lock=f"{LOCK_NAME}-{part.number}"):
            found: list[PlannedRows] = []
            resumed = 0
            for number, group in enumerate(_groups(pieces)):
                if number % part.count != part.number:
                    continue
                name = _rows_name(number)
                if (place / name).exists():
                    rows = read_planned(place / name)
                    resumed += sum(len(each.is_clip) for each in rows)
                else:
                    rows = _planned(group, run)
                    (output.local / ROWS_FOLDER).mkdir(exist_ok=True)
                    write_planned(output.local / name, rows)
                    output.publish(output.local / name)
                found += [_counted(each) for each in rows]
    failures = [asdict(failure) for each in found for failure in each.failures]
    return ShardReport(
        out=place,
        clips=sum(len(each.frames) for each in found),
        media=len({row["media_id"] for each in found for row in each.media}),
        frames=sum(int(each.frames.sum()) for each in found),
        shards=0,
        resumed=resumed,
        failures=failures,
    )


def _planned(group: list[Piece], run: PlanningRun) -> list[PlannedRows]:
    """Return the rows of a group. Raises the error that ends it."""
    rows = list(planned_in_workers(run, group))
    if rows and rows[-1].error is not None:
        raise rows[-1].error
    return rows


def _counted(rows: PlannedRows) -> PlannedRows:
    """Return rows without the tables, which are on disk."""
    media = [{"media_id": row["media_id"]} for row in rows.media]
    return replace(rows, clips=rows.clips.schema.empty_table(), recipes=rows.recipes.schema.empty_table(), media=media)


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of each group."""
    group: list[Piece] = []
    weight = 0
    for piece in pieces:
        if group and weight + piece.weight > MOST_FRAMES_A_GROUP:
            yield group
            group, weight = [], 0
        group.append(piece)
        weight += piece.weight
    if group:
        yield group


def _agree(output: Output, plan: SlicedPlan) -> None:
    """Write the plan of the slices, or check that it is the one that another slice wrote. Raises OutputError."""
    with opened_output(output.where, lock=f"{LOCK_NAME}-plan", wait=True):
        stored = _read_plan(output.where) or SlicedPlan(**agreed_plan(output, PLAN_NAME, asdict(plan)))
    _check_same(output.where, stored, plan)


def _check_same(place: Place, stored: SlicedPlan, plan: SlicedPlan) -> None:
    if stored == plan:
        return
    same = "index, policy and options" if stored.slices == plan.slices else "number of slices"
    raise OutputError(
        f"the slices of this dataset have another {same}",
        where=str(place / PLAN_NAME),
        found=None if stored.slices == plan.slices else plan.slices,
        allowed=None if stored.slices == plan.slices else stored.slices,
        remedy=f"give each slice and --finish the same command, or delete {place} to begin again",
    )


def _read_plan(place: Place) -> SlicedPlan | None:
    stored = written_plan(place, PLAN_NAME)
    return None if stored is None else SlicedPlan(**stored)


def _digest(job: Row) -> str:
    return hashlib.blake2b(json.dumps(job, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _rows_name(number: int) -> str:
    return f"{ROWS_FOLDER}/group-{number:06d}.parquet"


def sliced_rows(out: Place, job: Row, pieces: Iterable[Piece], *, done: int) -> Iterator[PlannedRows]:
    """Yield the rows that the slices of a dataset planned, in the order of the plan.

    Args:
        out: The dataset.
        job: What makes two runs the same.
        pieces: The plan.
        done: Items of the plan to leave out.

    Raises:
        OutputError: Slices are missing, or have other work.
    """
    place = slices_of(out)
    stored = _read_plan(place)
    if stored is None:
        raise OutputError("there are no slices to finish", where=str(place), remedy="run them with --task I/N")
    _check_same(place, stored, SlicedPlan(slices=stored.slices, job=_digest(job)))
    there = set(names_in(place / ROWS_FOLDER))
    count = sum(1 for _ in _groups(pieces))
    missing = [number for number in range(count) if Path(_rows_name(number)).name not in there]
    check_all_there(place, count, "groups of clips", missing, slices=stored.slices)
    left = done
    for number in range(count):
        for rows in read_planned(place / _rows_name(number)):
            behind = min(left, len(rows.is_clip))
            left -= behind
            if behind < len(rows.is_clip):
                yield rows.behind(behind) if behind else rows


def remove_slices(out: Place) -> None:
    """Remove the folder of the slices of a complete dataset."""
    place = slices_of(out)
    if isinstance(place, Stored):
        delete([f"{place.uri}/{name}" for name in place.names()])
    else:
        shutil.rmtree(place, ignore_errors=True)
