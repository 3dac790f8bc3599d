"""The progress of an epoch of a stream, and the log of events that all processes of the stream share.

A torch DataLoader takes the batches of its workers in turn, and leaves a worker out once its lane has ended. So the
number of delivered batches determines how many clips of each lane were delivered.
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
    """How a DataLoader makes batches.

    Attributes:
        size: clips per batch.
        workers: lanes per rank.
        drop_last: whether the last batch of a lane is left out if it is not full.
    """

    size: int
    workers: int
    drop_last: bool

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [lanes]: how many batches lanes of these lengths give."""
        return lengths // self.size if self.drop_last else -(-lengths // self.size)


def delivered_clips(lengths: NDArray[np.int64], batches: int, batching: Batching) -> NDArray[np.int64]:
    """Return int64 [lanes]: how many clips of each lane are in the first batches of a rank.

    Args:
        lengths: int64 [lanes], the number of clips that each lane of the rank has to deliver.
        batches: how many batches the rank has delivered. A number beyond its last batch counts as all batches.
        batching: how the loader makes batches.
    """
    counts = batching.counts(lengths)
    lane, turn = within_groups(counts)
    first = np.lexsort((lane, turn))[:batches]
    taken = np.bincount(lane[first], minlength=len(counts)).astype(np.int64)
    return np.minimum(taken * batching.size, lengths)


TOKEN_BYTES = 16  # random bytes, so that two logs never have the same token


class SharedLog:
    """A list of records that all copies of this object on this machine share: forked, spawned or pickled.

    The records are in anonymous memory, like the number of a `SharedNumber`. A copy that cannot reach it begins a log
    of its own, which has the last restart.
    """

    def __init__(self) -> None:
        self._open_new()

    def _open_new(self) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._descriptor = os.memfd_create("framedex-stream")
        os.write(self._descriptor, self._token)
        self._place = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when Python exits
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record of plain values."""
        end = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(end, orjson.dumps(record) + b"\n")  # a single write: records of two processes do not mix
        finally:
            os.close(end)

    def records(self, *events: str) -> list[dict[str, Any]]:
        """Return the records of some kinds of events, in the order in which they were added."""
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
            os.close(descriptor)  # another process has that process id now
        self._open_new()
        for record in state["last"]:
            self.add(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A clip that a stream left out.

    Attributes:
        epoch: the epoch.
        rank: the rank that left it out.
        worker: the worker of that rank.
        workers: how many workers the rank had.
        place: its place in the worker's order of delivery.
        clip: its number in the dataset.
        where: its tar.
        kind: `stale`, `undecodable`, `damaged` or `error`, as in a ClipLoader's report.
        message: the reason.
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
    """The events of a stream in all of its processes: skipped clips, loaded states, and begun or ended lanes."""

    def skip(self, skip: Skip) -> None:
        """Record a clip that was left out."""
        self.add({"event": "skip"} | asdict(skip))

    def skips(self) -> list[Skip]:
        """Return the clips that were left out."""
        return [_as_skip(record) for record in self.records("skip")]

    def skips_now(self) -> list[Skip]:
        """Return the clips that were left out since each worker began its lane for the last time."""
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
            version: version of the state.
            resumed: whether the iteration delivers the rest of an epoch, and not a whole one.
        """
        self.add({"event": "restart", "version": version, "resumed": resumed})

    def restarted(self) -> tuple[int, bool]:
        """Return the version of the last state, and whether its iteration delivers the rest of an epoch.

        Before the first restart, return (0, False).
        """
        records = self.records("restart")
        return (records[-1]["version"], records[-1]["resumed"]) if records else (0, False)

    def begin(self, version: int, worker: int) -> None:
        """Record that a worker began its lane."""
        self.add({"event": "lane", "version": version, "worker": worker, "ended": False})

    def end(self, version: int, worker: int) -> None:
        """Record that a worker delivered its lane to the end."""
        self.add({"event": "lane", "version": version, "worker": worker, "ended": True})

    def has_begun(self, version: int) -> bool:
        """Return whether a worker began a lane from this state."""
        return any(record["version"] == version for record in self.records("lane"))

    def is_used(self, version: int, workers: int, *, iterating: bool) -> bool:
        """Return whether the iteration from a state has ended. The next iteration is then a whole epoch.

        Args:
            version: version of the state.
            workers: how many workers delivered the iteration.
            iterating: whether the next iteration begins now. If not, an iteration that has ended still counts as the
                current one, until another iteration begins.
        """
        ended: set[int] = set()
        for record in self.records("lane"):
            if record["version"] != version:
                continue
            if record["ended"]:
                ended.add(record["worker"])
            elif len(ended) == workers:
                return True
            else:  # the worker begins an interrupted iteration again
                ended.discard(record["worker"])
        return iterating and len(ended) == workers


def _as_skip(record: Mapping[str, Any]) -> Skip:
    return Skip(**{name: record[name] for name in Skip.__slots__})


@dataclass(slots=True, kw_only=True)
class OneLane:
    """The progress of one worker, which a StatefulDataLoader keeps for each worker.

    Attributes:
        workers: the numbers of ranks and workers.
        rank: the rank.
        worker: the worker.
        passed: how many clips of its lane were delivered or skipped.
    """

    workers: Workers
    rank: int
    worker: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an epoch.

    Attributes:
        epoch: the epoch.
        stages: the clips that were delivered, in one stage for each number of workers.
        lane: the progress of one worker beyond the stages. If None, the stages have the progress of all workers.
    """

    epoch: int
    stages: tuple[Stage, ...] = ()
    lane: OneLane | None = None


@dataclass(slots=True, kw_only=True)
class Iteration:
    """The iteration that runs in this process, and its progress.

    Attributes:
        begun_from: the progress from which it began.
        lane: the lane of this worker. Its passed clips include those before this iteration.
        delivered: clips that were delivered in this iteration.
    """

    begun_from: Progress
    lane: OneLane
    delivered: int = 0

    def of_worker(self) -> Progress:
        """Return the progress of this worker alone."""
        return replace(self.begun_from, lane=replace(self.lane))

    def of_all(self, order: Order) -> Progress:
        """Return the progress of all ranks, provided that each of them has a single worker and the same progress."""
        lane = self.lane
        before, passed = split_stages(self.begun_from.stages, lane.workers)
        passed = passed + np.minimum(self.delivered, lengths_left(order, self.begun_from, lane.workers))
        passed[lane.rank, lane.worker] = lane.passed
        return Progress(epoch=self.begun_from.epoch, stages=(*before, Stage(workers=lane.workers, passed=passed)))


def lengths_left(order: Order, progress: Progress, workers: Workers) -> NDArray[np.int64]:
    """Return int64 [world_size, per_rank]: how many clips each lane still has to deliver."""
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
    """Return the progress when each rank has delivered a number of batches of a DataLoader.

    Args:
        order: the clips, and the options of their order.
        start: the progress from which the loader's iteration began.
        workers: the processes that share the epoch.
        rank: this rank, whose skipped clips are known.
        batches: how many batches were delivered.
        batching: how the loader makes batches.
        skips: the clips that were skipped.

    Raises:
        FramedexError: this rank does not have so many batches.
    """
    before, passed = split_stages(start.stages, workers)
    skipped: list[set[int]] = [set() for _ in range(workers.per_rank)]  # places after the passed clips, by worker
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
    """Return how many clips a lane has passed: delivered clips, and skipped clips before the last of them.

    Args:
        delivered: how many clips were delivered.
        skipped: the places of skipped clips, ascending.
    """
    passed = delivered
    for place in skipped:
        passed += place < passed
    return passed
