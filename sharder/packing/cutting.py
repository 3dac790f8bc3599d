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

from framedex.execution.engine import Calls, Engine, Outcome
from framedex.execution.local_pool import run_local
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.audio import AudioOptions
from framedex.sharder.clips.clip import Failure, WantedClip
from framedex.sharder.clips.samples import Step
from framedex.sharder.packing.clip_files import copies_ranges
from framedex.sharder.packing.pack import ClipPacking, Pack
from framedex.sharder.packing.pack_audio import AudioFormat, with_audio
from framedex.sharder.packing.recoding import SECONDS_A_CLIP
from framedex.sharder.planning.batches import Batch, Round, plan
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.spools import Spools
from framedex.storage.locations import OWN_STORE, Access
from framedex.storage.places import Place
from framedex.storage.uris import medium_name

CLIPS_A_TASK = 64
TASKS_IN_FLIGHT = 4  # per worker
TASKS_AT_FIRST = 4  # done in this process while workers start
OPEN_MEDIA = 16  # per process
BEHIND_COPYING = 10  # a worker's niceness: its results wait to be copied, and copying takes longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How clips are planned and packed.

    Attributes:
        access: Which sources workers may read.
        keep_damaged: Plan frames of damaged GOPs, too.
        pack: What tars hold; None for clips by reference.
        encoded: Encode clips again instead of copying their packets.
        audio: The clips' audio; None for no audio.
        audio_format: Format in which tars store audio.
    """

    access: Access = OWN_STORE
    keep_damaged: bool
    pack: Pack | None
    encoded: bool = False
    audio: AudioOptions | None
    audio_format: AudioFormat

    def open(self, index: Index, video: dict[str, object]) -> IndexedMedium:
        """Return a medium, ready for planning clips."""
        copied = self.pack == "clips" and not self.encoded
        one_stream = copied or (self.pack == "needed" and not video["byte_addressable"])
        return IndexedMedium(index, video, keep_damaged=self.keep_damaged, one_stream=one_stream, audio=self.audio)


class ClipCutter:
    """Plans and cuts clips in one process. `spools`: as for `plan`."""

    def __init__(self, index: Index, making: Making, spools: Spools | None) -> None:
        self._index, self._making, self._spools = index, making, spools
        self._packing = ClipPacking(needed=making.pack == "needed")
        self._medium = functools.lru_cache(OPEN_MEDIA)(self._open)

    def _open(self, identity: str) -> IndexedMedium:
        return self._making.open(self._index, self._index.video(identity))

    def steps(self, rounds: Iterable[Round]) -> Iterator[Step]:
        """Yield the steps of a plan, clips with their members."""
        return with_audio(self._packing.pack(plan(rounds, self._spools)), self._making.audio_format)

    def cut(self, parts: list[Part]) -> Iterator[Step]:
        """Yield the steps of parts of a plan."""
        media = [None if part.media_id is None else self._medium(part.media_id) for part in parts]
        return self.steps(
            [
                [
                    Batch(medium=medium, items=part.items, done=part.done)
                    for part, medium in zip(parts, media, strict=True)
                ]
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A batch, or some of its items, in the form that is sent to workers.

    Attributes:
        media_id: None if none of its clips can be made.
    """

    media_id: str | None
    items: list[WantedClip | Failure]
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingTask:
    """The unit of work of one worker.

    Attributes:
        own: A batch that this process handles instead, because it takes more than ranges of files.
        here: Whether this process does the task, because no worker is ready yet, or there is none.
    """

    index: Place
    making: Making
    parts: list[Part]
    own: Batch | None = None
    here: bool = False


def cut_in_workers(
    index: Index, making: Making, spools: Spools, rounds: Iterable[Round], *, workers: int, engine: Engine
) -> Iterator[Step]:
    """Yield the same steps as `ClipCutter`, in the same order, made in `workers` processes."""
    cutter = ClipCutter(index, making, spools)
    calls = Calls(
        function=cut,
        items=_tasks(index.path, making, rounds, workers=workers),
        timeout_seconds=SECONDS_A_CLIP,
        in_flight=TASKS_IN_FLIGHT,
        passes=lambda task: task.own is not None or task.here,
    )
    for outcome in engine(calls, workers=workers):
        task = outcome.item
        if task.own is not None:
            yield from cutter.steps([[task.own]])
        elif task.here:
            yield from cutter.cut(task.parts)
        else:
            yield from _steps(outcome)


def _tasks(index: Place, making: Making, rounds: Iterable[Round], *, workers: int) -> Iterator[CuttingTask]:
    """Yield the plan in tasks."""
    numbers = itertools.count()

    def task(parts: list[Part]) -> CuttingTask:
        here = workers == 0 or next(numbers) < TASKS_AT_FIRST
        return CuttingTask(index=index, making=making, parts=parts, here=here)

    gathered: list[Part] = []
    for batch in itertools.chain.from_iterable(rounds):
        if batch.medium is not None and not _ships(batch.medium):
            if gathered:
                yield task(gathered)
                gathered = []
            yield CuttingTask(index=index, making=making, parts=[], own=batch)
            continue
        for part in _parts(batch):
            gathered.append(part)
            if sum(len(each.items) for each in gathered) >= CLIPS_A_TASK:
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


def _parts(batch: Batch) -> Iterator[Part]:
    identity = None if batch.medium is None else batch.medium.medium.media_id
    for first in range(0, len(batch.items), CLIPS_A_TASK):
        yield Part(media_id=identity, items=batch.items[first : first + CLIPS_A_TASK], done=batch.done)


def _steps(outcome: Outcome[CuttingTask, list[Step]]) -> Iterator[Step]:
    """Yield the result of a task. If it has none, yield the results of its clips one by one."""
    if outcome.result is not None:
        yield from outcome.result
        return
    task = outcome.item
    parts = [replace(part, items=[item]) for part in task.parts for item in part.items]
    if len(parts) > 1:
        alone = [replace(task, parts=[part]) for part in parts]
        for each in run_local(Calls(function=cut, items=alone, timeout_seconds=SECONDS_A_CLIP), workers=1):
            yield from _steps(each)
        return
    [part] = parts
    [item] = part.items
    if isinstance(item, WantedClip):
        video = Index(task.index).video(part.media_id) if part.media_id else None
        uri = None if video is None else medium_name(video["uri"], video["member"])
        kind, message = outcome.kind or "error", outcome.message or ""
        item = Failure(clip_id=item.clip_id, uri=uri, kind=kind, message=message, traceback=outcome.traceback)
    yield Step(outcome=item, done=part.done)


def cut(task: CuttingTask) -> list[Step]:
    """Return the steps of a task. Runs in a worker."""
    return list(_bench(task.index, task.making).cut(task.parts))


@functools.lru_cache(1)
def _bench(index: Place, making: Making) -> ClipCutter:
    os.nice(BEHIND_COPYING)
    return ClipCutter(Index(index, access=making.access), making, None)
