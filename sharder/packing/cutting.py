"""Plans clips and cuts their tiny files in worker processes, while this process copies the results into tars.

A clip's packets never pass between processes: a worker returns the names of ranges of files. Media whose clips cannot
be returned in this way are handled in this process, in their turn.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from framedex.execution.engine import Calls, Outcome
from framedex.execution.engines import Workers, run_local
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import WantedClip
from framedex.sharder.clips.samples import Step
from framedex.sharder.packing.clip_files import copies_ranges
from framedex.sharder.packing.pack import SECONDS_A_CLIP, ClipPacking
from framedex.sharder.packing.sample_recipes import AudioFormat, with_audio
from framedex.sharder.planning.indexed_medium import IndexedMedium, OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import PlanItem, ReadGroup, Spools, plan
from framedex.storage.places import Place
from framedex.storage.uris import medium_name

CLIPS_A_TASK = 64
TASKS_IN_FLIGHT = 4  # per worker
TASKS_AT_FIRST = 4  # done in this process while workers start
BEHIND_COPYING = 10  # a worker's niceness: its results wait to be copied, and copying takes longest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFileOptions:
    """How clips are planned and cut into files of their own.

    Attributes:
        needed: Cut only clips of media whose packets are not byte ranges of a file.
        audio_format: Format in which tars store audio.
    """

    planning: PlanningOptions
    needed: bool = False
    audio_format: AudioFormat = "flac"


class ClipCutter:
    """Plans and cuts clips in one process. `spools`: as for `plan`."""

    def __init__(self, index: Index, options: ClipFileOptions, spools: Spools | None) -> None:
        self._options, self._spools = options, spools
        self._packing = ClipPacking(needed=options.needed)
        self._media = OpenMedia(index, options.planning)

    def steps(self, groups: Iterable[ReadGroup]) -> Iterator[Step]:
        """Yield the steps of a plan, clips with their members."""
        return with_audio(self._packing.pack(plan(groups, self._spools)), self._options.audio_format)

    def cut(self, sent: list[SentItem]) -> Iterator[Step]:
        """Yield the steps of items of a plan."""
        media = [None if item.media_id is None else self._media.of(item.media_id) for item in sent]
        return self.steps(
            [
                [
                    PlanItem(medium=medium, wanted=item.wanted, done=item.done)
                    for item, medium in zip(sent, media, strict=True)
                ]
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentItem:
    """An item of a plan, in the form that is sent to workers. `media_id`: its medium; None if that is not known."""

    media_id: str | None
    wanted: WantedClip | Failure
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingTask:
    """The unit of work of one worker.

    Attributes:
        own: What this process cuts instead, because it takes more than ranges of files.
        here: Whether this process does the task, because no worker is ready yet.
    """

    index: Place
    options: ClipFileOptions
    sent: list[SentItem]
    own: ReadGroup | None = None
    here: bool = False


def cut_in_workers(
    index: Index, options: ClipFileOptions, spools: Spools, groups: Iterable[ReadGroup], workers: Workers
) -> Iterator[Step]:
    """Yield the same steps as `ClipCutter`, in the same order, made in worker processes."""
    cutter = ClipCutter(index, options, spools)
    calls = Calls(
        function=cut,
        items=_tasks(index.path, options, groups),
        timeout_seconds=SECONDS_A_CLIP,
        in_flight=TASKS_IN_FLIGHT,
        passes=lambda task: task.own is not None or task.here,
    )
    for outcome in workers.run(calls):
        task = outcome.item
        if task.own is not None:
            yield from cutter.steps([task.own])
        elif task.here:
            yield from cutter.cut(task.sent)
        else:
            yield from _steps(outcome)


def _tasks(index: Place, options: ClipFileOptions, groups: Iterable[ReadGroup]) -> Iterator[CuttingTask]:
    """Yield the plan in tasks."""
    numbers = itertools.count()

    def task(sent: list[SentItem]) -> CuttingTask:
        return CuttingTask(index=index, options=options, sent=sent, here=next(numbers) < TASKS_AT_FIRST)

    gathered: list[SentItem] = []
    for medium, items in itertools.groupby(itertools.chain.from_iterable(groups), lambda item: item.medium):
        if medium is not None and not _ships(medium):
            if gathered:
                yield task(gathered)
                gathered = []
            while own := list(itertools.islice(items, CLIPS_A_TASK)):
                yield CuttingTask(index=index, options=options, sent=[], own=own)
            continue
        for item in items:
            media_id = None if medium is None else medium.medium.media_id
            gathered.append(SentItem(media_id=media_id, wanted=item.wanted, done=item.done))
            if len(gathered) >= CLIPS_A_TASK:
                yield task(gathered)
                gathered = []
    if gathered:
        yield task(gathered)


def _ships(medium: IndexedMedium) -> bool:
    """Return whether workers can cut a medium's clips, which they do only as ranges of the medium's own file."""
    audio = medium.audio_packets
    if medium.is_spooled:
        return False
    return copies_ranges(medium.medium) and medium.addressable and (audio is None or audio.offset is not None)


def _steps(outcome: Outcome[CuttingTask, list[Step]]) -> Iterator[Step]:
    """Yield the result of a task. If it has none, yield the results of its clips one by one."""
    if outcome.result is not None:
        yield from outcome.result
        return
    task = outcome.item
    if len(task.sent) > 1:
        alone = [replace(task, sent=[item]) for item in task.sent]
        for each in run_local(Calls(function=cut, items=alone, timeout_seconds=SECONDS_A_CLIP), workers=1):
            yield from _steps(each)
        return
    [item] = task.sent
    wanted = item.wanted
    if isinstance(wanted, WantedClip):
        video = Index(task.index).video(item.media_id) if item.media_id else None
        uri = None if video is None else medium_name(video["uri"], video["member"])
        kind, message = outcome.kind or "error", outcome.message or ""
        wanted = Failure(clip_id=wanted.clip_id, uri=uri, kind=kind, message=message, traceback=outcome.traceback)
    yield Step(outcome=wanted, done=item.done)


def cut(task: CuttingTask) -> list[Step]:
    """Return the steps of a task. Runs in a worker."""
    return list(_cutter(task.index, task.options).cut(task.sent))


@functools.lru_cache(1)
def _cutter(index: Place, options: ClipFileOptions) -> ClipCutter:
    os.nice(BEHIND_COPYING)
    return ClipCutter(Index(index, access=options.planning.access), options, None)
