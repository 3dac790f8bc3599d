"""Plan clips that are not packed, in several processes, or in slices (shares of a run) on different machines.

Worker processes return manifest rows, and the main process writes them in the order of the plan. A plan consists of
pieces. A piece has the clips of one medium or scene, or a group of explicit clips.

If a run is divided into slices, the pieces of the plan form groups that depend only on the index and the policy. Slice
i of n plans the groups i, i + n, i + 2 n, …, and writes the rows of each group into a file in the folder `OUT.slices`.
If a slice runs again, groups whose files exist are skipped. The last step (`--finish`) writes the dataset, which is
byte-identical to the dataset of an undivided run.
"""

import functools
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from framedex.core.limits import groups_within
from framedex.errors import OutputError
from framedex.execution.engine import Calls, Outcome, Slice, alone_if_lost
from framedex.execution.engines import Workers
from framedex.files.outputs import LOCK_NAME, agreed_plan, check_all_there, opened_output, written_plan
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.samples import Step
from framedex.sharder.planning.indexed_medium import OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import Piece, PlanItem, ReadGroup, lost_clip, plan, skip_items
from framedex.sharder.writing.planned_rows import ENDING, PlannedRows, planned_rows, read_planned, write_planned
from framedex.sharder.writing.report import ShardReport
from framedex.storage.objects import delete
from framedex.storage.places import Place, Stored, names_in

Row = dict[str, Any]

# Limits of the total weight of pieces. The weight of a piece is its number of frames, which is the maximum number of
# its clips. Usually, a piece has far fewer clips. For example, windows of 16 frames give one clip per 16 frames.
MAX_CLIPS_A_TASK = 20_000
MAX_FRAMES_A_GROUP = 1_000_000  # only a group that consists of a single piece may exceed this limit
STEPS_AT_ONCE = 4096  # number of steps per portion that the main process plans, limited to save memory
# Maximum weight of a piece that is sent to a worker. The result of a heavier piece could be too large to send back, so
# the main process plans the piece in portions.
MAX_CLIPS_SENT = 400_000
TASKS_AT_FIRST = 8  # number of tasks that the main process plans itself before any workers are started
TASKS_IN_FLIGHT = 3  # number of tasks that are submitted at a time, per worker
# Number of media that the main process keeps open. Explicit clips may alternate between media, so the number is larger
# than in workers (KEPT_OPEN).
MEDIA_IN_MEMORY = 256
SECONDS_A_TASK = 3600.0  # timeout of a task in seconds
PLAN_NAME = "slices.json"
ROWS_FOLDER = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRun:
    """The arguments that the functions for planning the clips of a run share.

    Attributes:
        index: The index.
        options: The options of planning.
        schema: The schema of the dataset's `clips`.
        workers: The processes that plan.
    """

    index: Index
    options: PlanningOptions
    schema: pa.Schema
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningTask:
    """Consecutive pieces of a plan that one worker plans, or groups that the main process plans itself.

    Attributes:
        index: The folder of the index.
        options: The options of planning.
        schema: The schema of the dataset's `clips`.
        pieces: The pieces that a worker plans. Empty if `own` is given.
        own: The groups of items that the main process plans itself. None if a worker plans `pieces`.
    """

    index: Place
    options: PlanningOptions
    schema: pa.Schema
    pieces: list[Piece]
    own: Iterable[ReadGroup] | None = None


def plan_in_workers(run: PlanningRun, pieces: Iterable[Piece], *, done: int = 0) -> Iterator[PlannedRows]:
    """Plan pieces in worker processes, and yield the rows in the order of the plan, up to the first error.

    If a worker dies while it plans a medium, all clips of this medium become failures. If the clips are explicit, only
    the clip that the worker was planning becomes a failure.

    Args:
        run: The common arguments for planning.
        pieces: The pieces of the plan.
        done: The number of items of the plan to skip.
    """
    media = OpenMedia(run.index, run.options, kept=MEDIA_IN_MEMORY)
    calls = Calls(
        function=plan_task,
        items=_tasks(run, _skip_items(pieces, media, done), media),
        timeout_seconds=SECONDS_A_TASK,
        in_flight=TASKS_IN_FLIGHT,
        passes=lambda task: task.own is not None,
    )
    for outcome in run.workers.run(calls):
        own = outcome.item.own
        several: Iterator[PlannedRows]
        if own is None:
            several = (_result(each, media) for each in alone_if_lost(outcome, calls, _divided))
        else:
            several = _in_portions(plan(own, None), run.schema)
        for rows in several:
            yield rows
            if rows.error is not None:
                return


def _skip_items(pieces: Iterable[Piece], media: OpenMedia, done: int) -> Iterator[Piece | ReadGroup]:
    """Yield the pieces of a plan, without the first `done` items of the plan.

    If only some items of a piece are skipped, the piece is replaced by a list of its other items.
    """
    for piece in pieces:
        if not done:
            yield piece
            continue
        items = piece.items(media)
        yield from skip_items([items], done)
        done = max(0, done - len(items))


def _tasks(run: PlanningRun, pieces: Iterable[Piece | ReadGroup], media: OpenMedia) -> Iterator[PlanningTask]:
    """Group the pieces of a plan into tasks. If an error occurs, a last task is yielded that raises it when planned."""
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

    try:
        for piece in pieces:
            if isinstance(piece, list):
                yield from flush()
                yield replace(task, own=[piece])
            elif piece.weight > MAX_CLIPS_SENT:
                yield from flush()
                yield replace(task, own=(large.items(media) for large in [piece]))
            else:
                if sum(each.weight for each in gathered) + piece.weight > MAX_CLIPS_A_TASK:
                    yield from flush()
                gathered.append(piece)
        yield from flush()
    except ENDING as error:  # not raised here, because the results of earlier tasks must come first
        yield from flush()
        yield replace(task, own=map(_raise, [error]))


def _raise(error: Exception) -> ReadGroup:
    raise error


def _in_portions(steps: Iterator[Step], schema: pa.Schema) -> Iterator[PlannedRows]:
    """Convert steps to rows, STEPS_AT_ONCE steps at a time, up to the first error."""
    while True:
        rows = planned_rows(itertools.islice(steps, STEPS_AT_ONCE), schema)
        if len(rows.is_clip) or rows.error is not None:
            yield rows
        if len(rows.is_clip) < STEPS_AT_ONCE:
            return


def _divided(task: PlanningTask) -> list[PlanningTask]:
    return [replace(task, pieces=[part]) for piece in task.pieces for part in piece.alone()]


def _result(outcome: Outcome[PlanningTask, PlannedRows], media: OpenMedia) -> PlannedRows:
    """Return the rows of a task. If the worker gave no result, all clips of the task become failures."""
    if outcome.result is not None:
        return outcome.result
    steps = [
        Step(outcome=lost_clip(outcome, item.wanted.clip_id, item.medium.medium.name), done=item.done)
        if isinstance(item, PlanItem)
        else item
        for piece in outcome.item.pieces
        for item in piece.items(media)
    ]
    return planned_rows(steps, outcome.item.schema)


def plan_task(task: PlanningTask) -> PlannedRows:
    """Plan the pieces of a task, and return their rows. Runs in a worker."""
    media = _open_media(task.index, task.options)
    return planned_rows(plan((piece.items(media) for piece in task.pieces), None), task.schema)


@functools.lru_cache(1)
def _open_media(path: Place, options: PlanningOptions) -> OpenMedia:
    return OpenMedia(Index(path, access=options.access), options)


def slices_of(out: Place) -> Place:
    """Return the folder or uri for the files of a dataset's slices."""
    return Stored(uri=f"{out.uri}.slices") if isinstance(out, Stored) else out.with_name(f"{out.name}.slices")


def plan_slice(out: Place, job: Row, pieces: Iterable[Piece], run: PlanningRun, part: Slice) -> ShardReport:
    """Plan one slice of a dataset.

    Args:
        out: The folder or uri of the dataset.
        job: The values that identify the job. All slices of a dataset must have equal values.
        pieces: The pieces of the whole plan.
        run: The common arguments for planning.
        part: The slice to plan.

    Returns:
        The report of this slice alone.

    Raises:
        OutputError: Earlier slices belong to another job, or another run is planning the same slice.
        PolicyError: The policy does not fit the index.
    """
    place = slices_of(out)
    clips = frames = resumed = 0
    media: set[str] = set()
    failures: list[Row] = []
    with opened_output(place, shared=True) as output:
        wanted = {"slices": part.count, "job": _digest(job)}
        with opened_output(place, lock=f"{LOCK_NAME}-plan", wait=True):
            _check_same(place, written_plan(place, PLAN_NAME) or agreed_plan(output, PLAN_NAME, wanted), wanted)
        with opened_output(place, lock=f"{LOCK_NAME}-{part.number}"):
            for number, group in enumerate(_groups(pieces)):
                if number % part.count != part.number:
                    continue
                name = f"{ROWS_FOLDER}/{_group_name(number)}"
                if (place / name).exists():
                    rows = read_planned(place / name)
                    resumed += sum(len(each.is_clip) for each in rows)
                else:
                    rows = list(plan_in_workers(run, group))
                    if rows and rows[-1].error is not None:
                        raise rows[-1].error
                    (output.local / ROWS_FOLDER).mkdir(exist_ok=True)
                    write_planned(output.local / name, rows)
                    output.publish(output.local / name)
                for each in rows:
                    clips += len(each.frames)
                    frames += int(each.frames.sum())
                    media |= {row["media_id"] for row in each.media}
                    failures += map(asdict, each.failures)
    return ShardReport(
        out=place, clips=clips, media=len(media), frames=frames, shards=0, resumed=resumed, failures=failures
    )


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Divide the pieces of a plan into groups. The groups must be the same in all slices and in the last step."""
    return groups_within(pieces, MAX_FRAMES_A_GROUP, lambda piece: piece.weight)


def _check_same(place: Place, stored: Row, plan: Row) -> None:
    if stored == plan:
        return
    same_count = stored["slices"] == plan["slices"]
    difference = "index, policy and options" if same_count else "number of slices"
    raise OutputError(
        f"other slices of this dataset were planned with another {difference}",
        where=str(place / PLAN_NAME),
        found=None if same_count else plan["slices"],
        allowed=None if same_count else stored["slices"],
        remedy=f"use the same command for all slices and for --finish, or delete {place} to begin again",
    )


def _digest(job: Row) -> str:
    return hashlib.blake2b(json.dumps(job, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _group_name(number: int) -> str:
    return f"group-{number:06d}.parquet"


def read_slices(out: Place, job: Row, pieces: Iterable[Piece], *, done: int) -> Iterator[PlannedRows]:
    """Yield the rows that the slices of a dataset planned, in the order of the plan.

    Args:
        out: The folder or uri of the dataset.
        job: The values that identify the job. All slices must have been planned with equal values.
        pieces: The pieces of the whole plan.
        done: The number of items of the plan to skip.

    Raises:
        OutputError: Slices are missing, or belong to another job.
    """
    place = slices_of(out)
    if (stored := written_plan(place, PLAN_NAME)) is None:
        raise OutputError("there are no slices to finish", where=str(place), remedy="run each slice with --task I/N")
    _check_same(place, stored, stored | {"job": _digest(job)})
    present = set(names_in(place / ROWS_FOLDER))
    names = [_group_name(number) for number, _ in enumerate(_groups(pieces))]
    missing = [number for number, name in enumerate(names) if name not in present]
    check_all_there(place, len(names), "groups of clips", missing, slices=stored["slices"])
    for name in names:
        for rows in read_planned(place / ROWS_FOLDER / name):
            if done < len(rows.is_clip):
                yield rows.behind(done)
            done = max(0, done - len(rows.is_clip))


def remove_slices(out: Place) -> None:
    """Remove the folder of the slices of a complete dataset."""
    place = slices_of(out)
    if isinstance(place, Stored):
        delete([f"{place.uri}/{name}" for name in place.names()])
    else:
        shutil.rmtree(place, ignore_errors=True)
