"""The progress of a stream within an epoch, and a log of events that all processes of the stream share.

A lane is the part of an epoch that one worker delivers (see `lanes`). A torch DataLoader takes batches from its workers
in turn, and omits workers whose lanes have ended. So the number of delivered batches determines the number of delivered
clips of each lane.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.order.order import within_groups
from framedex.loader.streams.lanes import Order, Stage, Workers, clips_left, lane_lengths, split_stages


class Loader(Protocol):
    """The attributes of a torch DataLoader that determine its batches."""

    batch_size: int | None
    num_workers: int
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The options with which a DataLoader makes batches.

    Attributes:
        size: The number of clips per batch.
        workers: The number of workers of a rank, each of which has a lane.
        drop_last: Whether the last batch of a lane is left out if it is not full.
    """

    size: int
    workers: int
    drop_last: bool

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [lanes]: the number of batches that are made from lanes with the given numbers of clips."""
        return lengths // self.size if self.drop_last else -(-lengths // self.size)


def delivered_clips(lengths: NDArray[np.int64], batches: int, batching: Batching) -> NDArray[np.int64]:
    """Return int64 [lanes]: the number of clips of each lane that are in the first batches of a rank.

    Args:
        lengths: The number of clips that each lane of the rank has to deliver, int64 [lanes].
        batches: The number of batches that the rank has delivered. If the rank has fewer batches, this means all of
            them.
        batching: The options with which the loader makes batches.
    """
    counts = batching.counts(lengths)
    lane, turn = within_groups(counts)
    first = np.lexsort((lane, turn))[:batches]
    taken = np.bincount(lane[first], minlength=len(counts)).astype(np.int64)
    return np.minimum(taken * batching.size, lengths)


TOKEN_BYTES = 16  # length of the random bytes that identify a log; so long that they are unique


class SharedLog:
    """An append-only list of records that all copies of this object on this machine share.

    A copy is made by pickling, or by forking or spawning a process. The records are in anonymous memory, like the
    number of a `SharedNumber`. If a copy has no access to this memory, it begins a new log, which contains only the
    last record of a restart (see `History`).
    """

    def __init__(self) -> None:
        self._open_new()

    def _open_new(self) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._descriptor = os.memfd_create("framedex-stream")
        os.write(self._descriptor, self._token)
        self._place = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be deleted at exit
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record that consists of plain values."""
        end = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(end, orjson.dumps(record) + b"\n")  # one write per record, so that records do not interleave
        finally:
            os.close(end)

    def records(self, *events: str) -> list[dict[str, Any]]:
        """Return the records of events of the given kinds, in the order in which they were added."""
        size = os.fstat(self._descriptor).st_size
        lines = os.pread(self._descriptor, size - TOKEN_BYTES, TOKEN_BYTES).splitlines()
        return [record for record in map(orjson.loads, lines) if record["event"] in events]

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place, "token": self._token, "last": self.records("restart")[-1:]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(state["place"], os.O_RDWR | os.O_CLOEXEC)
            if os.pread(descriptor, TOKEN_BYTES, 0) == state["token"]:
                self._descriptor, self._place, self._token = descriptor, state["place"], state["token"]
                return
            os.close(descriptor)  # the process id now belongs to another process
        self._open_new()
        for record in state["last"]:
            self.add(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A clip that a stream skipped.

    Attributes:
        epoch: The epoch.
        rank: The rank that skipped the clip.
        worker: The number of the worker within the rank.
        workers: The number of workers of the rank.
        place: The index of the clip in the worker's order of delivery.
        clip: The number of the clip in the dataset.
        where: The path of the tar, or of the dataset if the clip's row in the manifest is damaged.
        kind: The kind of fault: `stale`, `undecodable`, `damaged` or `error`, as in the report of a ClipLoader.
        message: The reason.
    """

    epoch: int
    rank: int
    worker: int
    workers: int
    place: int
    clip: int
    where: str
    kind: str
    message: str


class History(SharedLog):
    """The log of a stream's events in all of its processes.

    Events are skipped clips, restarts from a state or with a new epoch, and lanes that begin or end.
    """

    def skip(self, skip: Skip) -> None:
        """Record that a clip was skipped."""
        self.add({"event": "skip"} | asdict(skip))

    def skips(self) -> list[Skip]:
        """Return all clips that were skipped so far."""
        return [_as_skip(record) for record in self.records("skip")]

    def skips_now(self) -> list[Skip]:
        """Return the clips that each worker skipped since it last began a lane."""
        found: dict[int, list[Skip]] = {}
        for record in self.records("skip", "lane"):
            own = found.setdefault(record["worker"], [])
            if record["event"] == "skip":
                own.append(_as_skip(record))
            elif not record["ended"]:
                own.clear()
        return [skip for own in found.values() for skip in own]

    def restart(self, version: int, *, resumed: bool) -> None:
        """Record that the next iteration begins from state `version`.

        Args:
            version: The version of the state.
            resumed: Whether the iteration delivers only the rest of an epoch.
        """
        self.add({"event": "restart", "version": version, "resumed": resumed})

    def restarted(self) -> tuple[int, bool]:
        """Return the version of the last state, and whether the iteration from it delivers only the rest of an epoch.

        Return (0, False) if there was no restart yet.
        """
        records = self.records("restart")
        return (records[-1]["version"], records[-1]["resumed"]) if records else (0, False)

    def begin(self, version: int, worker: int) -> None:
        """Record that a worker began its lane, in an iteration from state `version`."""
        self.add({"event": "lane", "version": version, "worker": worker, "ended": False})

    def end(self, version: int, worker: int) -> None:
        """Record that a worker delivered its lane to the end, in an iteration from state `version`."""
        self.add({"event": "lane", "version": version, "worker": worker, "ended": True})

    def has_begun(self, version: int) -> bool:
        """Return whether a worker began a lane in an iteration from state `version`."""
        return any(record["version"] == version for record in self.records("lane"))

    def is_used(self, version: int, workers: int, *, iterating: bool) -> bool:
        """Return whether the iteration from a state has ended, so that the next iteration delivers a whole epoch.

        Args:
            version: The version of the state.
            workers: The number of workers that delivered the iteration.
            iterating: Whether the next iteration begins now. If not, an iteration that has ended counts as the current
                iteration until another one begins.
        """
        ended: set[int] = set()
        for record in self.records("lane"):
            if record["version"] != version:
                continue
            if record["ended"]:
                ended.add(record["worker"])
            elif len(ended) == workers:
                return True
            else:  # the worker repeats an interrupted iteration
                ended.discard(record["worker"])
        return iterating and len(ended) == workers


def _as_skip(record: Mapping[str, Any]) -> Skip:
    return Skip(**{name: record[name] for name in Skip.__slots__})


@dataclass(slots=True, kw_only=True)
class OneLane:
    """The progress of a single worker. A StatefulDataLoader stores such progress for each worker.

    Attributes:
        workers: The numbers of ranks and workers.
        rank: The rank of the worker.
        worker: The number of the worker within the rank.
        passed: The number of clips of the worker's lane that were delivered or skipped.
    """

    workers: Workers
    rank: int
    worker: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a stream within an epoch.

    Attributes:
        epoch: The epoch.
        stages: The stages of the epoch so far, with the numbers of delivered clips. A stage begins when the number of
            ranks or workers changes.
        lane: The progress of one worker in addition to the stages. If None, the stages contain the progress of all
            workers.
    """

    epoch: int
    stages: tuple[Stage, ...] = ()
    lane: OneLane | None = None


@dataclass(slots=True, kw_only=True)
class Iteration:
    """The current iteration in this process, and its progress.

    Attributes:
        begun_from: The progress from which the iteration began.
        lane: The progress of this worker, which includes clips passed before this iteration.
        delivered: The number of clips that were delivered in this iteration.
    """

    begun_from: Progress
    lane: OneLane
    delivered: int = 0

    def of_worker(self) -> Progress:
        """Return the progress of only this worker."""
        return replace(self.begun_from, lane=replace(self.lane))

    def of_all(self, order: Order) -> Progress:
        """Return the progress of all ranks, if each has one worker and has delivered as many clips as this rank."""
        lane = self.lane
        before, passed = split_stages(self.begun_from.stages, lane.workers)
        passed = passed + np.minimum(self.delivered, lengths_left(order, self.begun_from, lane.workers))
        passed[lane.rank, lane.worker] = lane.passed
        return Progress(epoch=self.begun_from.epoch, stages=(*before, Stage(workers=lane.workers, passed=passed)))


def lengths_left(order: Order, progress: Progress, workers: Workers) -> NDArray[np.int64]:
    """Return int64 [world_size, per_rank]: the number of clips that each lane still has to deliver."""
    before, passed = split_stages(progress.stages, workers)
    count = len(clips_left(order, progress.epoch, before)) if before else len(order.tar_of)
    return lane_lengths(count, workers, order.uneven) - passed


def after_batches(
    order: Order,
    start: Progress,
    workers: Workers,
    rank: int,
    *,
    batches: int,
    batching: Batching,
    skips: Iterable[Skip],
) -> Progress:
    """Return the progress after each rank has delivered a number of batches through a DataLoader.

    Args:
        order: The values that determine the order of clips.
        start: The progress from which the loader's iteration began.
        workers: The processes that share the epoch.
        rank: The rank of this process. Skipped clips are known only for this rank.
        batches: The number of batches that each rank has delivered.
        batching: The options with which the loader makes batches.
        skips: The clips that this rank skipped.

    Raises:
        FramedexError: This rank has fewer than `batches` batches.
    """
    before, passed = split_stages(start.stages, workers)
    # For each worker, the indices of skipped clips, counted from the first clip of this iteration.
    skipped: list[set[int]] = [set() for _ in range(workers.per_rank)]
    for skip in skips:
        if (skip.epoch, skip.rank, skip.workers) == (start.epoch, rank, workers.per_rank):
            place = skip.place - int(passed[rank, skip.worker])
            if place >= 0:
                skipped[skip.worker].add(place)
    available = lengths_left(order, start, workers)
    available[rank] -= [len(found) for found in skipped]
    most = int(batching.counts(available[rank]).sum())
    if type(batches) is not int or not 0 <= batches <= most:
        raise FramedexError("batches is out of range", found=repr(batches), allowed=f"0 to {most}")
    moved = np.array([delivered_clips(lengths, batches, batching) for lengths in available], np.int64)
    moved[rank] = [with_skips(int(count), sorted(found)) for count, found in zip(moved[rank], skipped, strict=True)]
    return Progress(epoch=start.epoch, stages=(*before, Stage(workers=workers, passed=passed + moved)))


def with_skips(delivered: int, skipped: Sequence[int]) -> int:
    """Return the number of a lane's clips that were delivered, or were skipped before the last delivered clip.

    Args:
        delivered: The number of clips that were delivered.
        skipped: The indices of skipped clips in the order of delivery, ascending.
    """
    passed = delivered
    for place in skipped:
        passed += place < passed
    return passed
