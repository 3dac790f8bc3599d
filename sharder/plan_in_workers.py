"""Plans clips by reference in worker processes, which return finished rows. This process writes them, in order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from framedex.execution.choice import Workers
from framedex.execution.engine import Calls, Outcome
from framedex.execution.local_pool import run_local
from framedex.indexer.parts.index import Index
from framedex.records.dataset import Failure
from framedex.sharder.clips.clip import WantedClip
from framedex.sharder.clips.samples import Step
from framedex.sharder.planning.indexed_medium import OpenMedia, PlanningOptions
from framedex.sharder.planning.pieces import Piece
from framedex.sharder.planning.steps import ReadGroup, behind, plan
from framedex.sharder.writing.planned_rows import ENDING, PlannedRows, planned_rows
from framedex.storage.places import Place

MOST_CLIPS_A_TASK = 20_000  # by frames; a policy that takes 16 frames in a row gives a sixteenth of them
STEPS_AT_ONCE = 4096  # that become rows together, of what this process plans
MOST_CLIPS_SENT = 400_000  # of a medium; one that may have more is planned in this process, clip by clip
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
        if sum(each.weight for each in gathered) + piece.weight > MOST_CLIPS_A_TASK:
            yield from flush()
        gathered.append(piece)
    yield from flush()


def _own(piece: Piece | ReadGroup, media: OpenMedia) -> Iterable[ReadGroup] | None:
    """Return what this process plans of a piece itself; None if a worker may plan it."""
    if isinstance(piece, list):
        return [piece]
    return (each.items(media) for each in [piece]) if piece.weight > MOST_CLIPS_SENT else None


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
