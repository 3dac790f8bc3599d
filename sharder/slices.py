"""Plans a dataset in slices on several machines. The last step writes it, in the bytes of an undivided run.

The plan is cut into groups of pieces, by what the index says alone. Each slice plans every n-th group, and writes its
rows into a file of the folder `OUT.slices`. A file that exists is done, so a slice that runs again does the rest.

Plans clips by reference in worker processes, which return finished rows. This process writes them, in order.
"""

import functools
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.errors import OutputError
from framedex.execution.engine import Calls, Outcome, Slice
from framedex.execution.engines import Workers, run_local
from framedex.files.outputs import LOCK_NAME, agreed_plan, check_all_there, opened_output, written_plan
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import WantedClip
from framedex.sharder.clips.samples import Step
from framedex.sharder.planning.indexed_medium import OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import Piece, ReadGroup, behind, plan
from framedex.sharder.writing.planned_rows import ENDING, PlannedRows, planned_rows, read_planned, write_planned
from framedex.sharder.writing.report import ShardReport
from framedex.storage.objects import delete
from framedex.storage.outputs import Output
from framedex.storage.places import Place, Stored, names_in

MAX_CLIPS_A_TASK = 20_000  # by frames; a policy that takes 16 frames in a row gives a sixteenth of them
STEPS_AT_ONCE = 4096  # that become rows together, of what this process plans
MAX_CLIPS_SENT = 400_000  # of a medium; one that may have more is planned in this process, clip by clip
TASKS_AT_FIRST = 8  # planned in this process: the workers' start would take longer
TASKS_IN_FLIGHT = 3  # per worker
MEDIA_IN_MEMORY = 256  # media whose packets are kept while explicit clips switch between them; fewer in workers
SECONDS_A_TASK = 3600.0  # planning is aborted after this time


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRun:
    """How and where the clips of an index are planned. `schema`: of the dataset's `clips`."""

    index: Index
    options: PlanningOptions
    schema: pa.Schema
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningTask:
    """The unit of work of one worker.

    Attributes:
        schema: Of the dataset's `clips`.
        own: What this process plans instead; None if a worker may plan `pieces`.
    """

    index: Place
    options: PlanningOptions
    schema: pa.Schema
    pieces: list[Piece]
    own: Iterable[ReadGroup] | None = None


def planned_in_workers(run: PlanningRun, pieces: Iterable[Piece], *, done: int = 0) -> Iterator[PlannedRows]:
    """Yield the rows of a plan in its order, up to the first error.

    A process that dies costs the clips of the medium, or the explicit clip, at which it died: they become failures.

    Args:
        done: Items of the plan to leave out.
    """
    media = OpenMedia(run.index, run.options, kept=MEDIA_IN_MEMORY)
    calls = Calls(
        function=plan_task,
        items=_tasks(run, _left(pieces, media, done), media),
        timeout_seconds=SECONDS_A_TASK,
        in_flight=TASKS_IN_FLIGHT,
        passes=lambda task: task.own is not None,
    )
    for outcome in run.workers.run(calls):
        own = outcome.item.own
        for rows in _results(outcome, media) if own is None else _in_pieces(plan(own, None), run.schema):
            yield rows
            if rows.error is not None:
                return


def _left(pieces: Iterable[Piece], media: OpenMedia, done: int) -> Iterator[Piece | ReadGroup]:
    """Yield what is left behind the first `done` items of the plan; a piece that is partly done, as its items."""
    left = done
    for piece in pieces:
        if not left:
            yield piece
            continue
        found = piece.items(media)
        yield from behind([found], left)
        left = max(0, left - len(found))


def _tasks(run: PlanningRun, pieces: Iterable[Piece | ReadGroup], media: OpenMedia) -> Iterator[PlanningTask]:
    numbers = itertools.count()
    task = PlanningTask(index=run.index.path, options=run.options, schema=run.schema, pieces=[])
    gathered: list[Piece] = []

    def flush() -> Iterator[PlanningTask]:
        if not gathered:
            return
        taken, gathered[:] = gathered.copy(), []
        if next(numbers) < TASKS_AT_FIRST:
            yield replace(task, own=(piece.items(media) for piece in taken))
        else:
            yield replace(task, pieces=taken)

    for piece in _until_error(pieces):
        if isinstance(piece, Exception):
            yield from flush()
            yield replace(task, own=map(_raise, [piece]))
            return
        own = _own(piece, media)
        if own is not None:
            yield from flush()
            yield replace(task, own=own)
            continue
        assert not isinstance(piece, list)
        if sum(each.weight for each in gathered) + piece.weight > MAX_CLIPS_A_TASK:
            yield from flush()
        gathered.append(piece)
    yield from flush()


def _own(piece: Piece | ReadGroup, media: OpenMedia) -> Iterable[ReadGroup] | None:
    """Return what this process plans of a piece itself; None if a worker may plan it."""
    if isinstance(piece, list):
        return [piece]
    return (each.items(media) for each in [piece]) if piece.weight > MAX_CLIPS_SENT else None


def _until_error(pieces: Iterable[Piece | ReadGroup]) -> Iterator[Piece | ReadGroup | Exception]:
    """Yield pieces, and last the error that ends them: raised here, it would overtake the results of earlier ones."""
    try:
        yield from pieces
    except ENDING as error:
        yield error


def _raise(error: Exception) -> ReadGroup:
    raise error


def _in_pieces(steps: Iterator[Step], schema: pa.Schema) -> Iterator[PlannedRows]:
    """Yield the rows of steps, some at a time, up to the first error."""
    while True:
        rows = planned_rows(itertools.islice(steps, STEPS_AT_ONCE), schema)
        if len(rows.is_clip) or rows.error is not None:
            yield rows
        if len(rows.is_clip) < STEPS_AT_ONCE:
            return


def _results(outcome: Outcome[PlanningTask, PlannedRows], media: OpenMedia) -> Iterator[PlannedRows]:
    """Yield the result of a task. If it has none, yield the results of its smallest pieces one by one."""
    if outcome.result is not None:
        yield outcome.result
        return
    task = outcome.item
    pieces = [part for piece in task.pieces for part in piece.alone()]
    if len(pieces) > 1:
        alone = [replace(task, pieces=[piece]) for piece in pieces]
        for each in run_local(Calls(function=plan_task, items=alone, timeout_seconds=SECONDS_A_TASK), workers=1):
            yield from _results(each, media)
        return
    yield planned_rows(_failed(pieces[0].items(media), outcome), task.schema)


def _failed(found: ReadGroup, outcome: Outcome[PlanningTask, PlannedRows]) -> Iterator[Step]:
    """Yield the steps of a piece at which a process died: a failure in place of each clip, so that a run can go on."""
    kind, message = outcome.kind or "error", outcome.message or ""
    for item in found:
        wanted = item.wanted
        if isinstance(wanted, WantedClip):
            uri = None if item.medium is None else item.medium.medium.name
            wanted = Failure(clip_id=wanted.clip_id, uri=uri, kind=kind, message=message, traceback=outcome.traceback)
        yield Step(outcome=wanted, done=item.done)


def plan_task(task: PlanningTask) -> PlannedRows:
    """Return the rows of a task. Runs in a worker."""
    media = _open_media(task.index, task.options)
    return planned_rows(plan((piece.items(media) for piece in task.pieces), None), task.schema)


@functools.lru_cache(1)
def _open_media(path: Place, options: PlanningOptions) -> OpenMedia:
    return OpenMedia(Index(path, access=options.access), options)


MAX_FRAMES_A_GROUP = 1_000_000  # of the media of a group, unless it has one medium alone
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
        if group and weight + piece.weight > MAX_FRAMES_A_GROUP:
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
