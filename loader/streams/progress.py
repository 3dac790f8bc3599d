"""How far an epoch has come: records, and the pure functions that count what was delivered.

How many clips of each lane a DataLoader has delivered after some batches: pure functions.

A torch DataLoader takes the batches of its workers in turn, and leaves a worker out once its lane has ended.

What happened to a stream in all of its processes: skipped clips, states that were loaded, lanes that began.

What happened in all processes of a stream: a log in memory that its workers share with the process that made it.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.streams.lanes import Order, Stage, Workers, clips_left, lane_lengths, split_stages


class Loader(Protocol):
    """The attributes of a torch DataLoader that say how it makes batches."""

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


def batching_of(loader: Loader) -> Batching:
    """Return how a DataLoader makes batches.

    Raises:
        FramedexError: the loader delivers batches in an order that depends on the speed of its workers.
    """
    if not getattr(loader, "in_order", True):
        raise FramedexError(
            "nobody can tell which clips were delivered of a loader that takes batches as they come",
            where="loader",
            found="in_order=False",
            allowed="in_order=True",
        )
    return Batching(size=loader.batch_size or 1, workers=max(1, loader.num_workers), drop_last=bool(loader.drop_last))


def delivered_clips(lengths: NDArray[np.int64], batches: int, batching: Batching) -> NDArray[np.int64]:
    """Return int64 [lanes]: how many clips of each lane of a rank are in its first batches.

    Args:
        lengths: int64 [lanes], clips that each lane of the rank has to deliver.
        batches: how many batches of the rank were delivered. If it has fewer, all of them.
        batching: how the loader makes batches.
    """
    counts = batching.counts(lengths)
    lane = np.repeat(np.arange(len(counts)), counts)
    turn = np.arange(len(lane)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.lexsort((lane, turn))[:batches]
    taken = np.bincount(lane[first], minlength=len(counts)).astype(np.int64)
    return np.minimum(taken * batching.size, lengths)


TOKEN_BYTES = 16


class SharedLog:
    """Records that all copies of this object on this machine share: forked, spawned or pickled.

    They are in anonymous memory, as the number of a `SharedNumber`. A copy that can no longer reach it begins a log of
    its own, with the last restart.
    """

    def __init__(self) -> None:
        self._create()

    def _create(self) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._descriptor = os.memfd_create("framedex-stream")
        os.write(self._descriptor, self._token)
        self._place = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def _begin_own(self, records: list[dict[str, Any]]) -> None:
        self._create()
        for record in records:
            self.add(record)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # a default, as `os` may be gone at exit
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record of plain values."""
        end = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(end, orjson.dumps(record) + b"\n")  # one write, so that records of two processes do not mix
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
        try:
            descriptor = os.open(state["place"], os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._begin_own(state["last"])
            return
        self._descriptor, self._place, self._token = descriptor, state["place"], state["token"]
        if os.pread(descriptor, TOKEN_BYTES, 0) != self._token:  # a later process has the same process id
            os.close(descriptor)
            self._begin_own(state["last"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A clip that a stream left out.

    Attributes:
        epoch: the epoch.
        rank: the rank that would have delivered it.
        worker: the worker.
        workers: how many workers the rank had.
        place: its place in the worker's order of delivery.
        clip: its number in the dataset.
        where: the tar that holds it.
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


class History:
    """The events of a stream in all of its processes: skipped clips, states that were loaded, lanes that began."""

    def __init__(self) -> None:
        self._log = SharedLog()

    def skip(self, skip: Skip) -> None:
        """Record a clip that was left out."""
        self._log.add({"event": "skip"} | asdict(skip))

    def skips(self) -> list[Skip]:
        """Return the clips that were left out."""
        return [Skip(**{name: record[name] for name in Skip.__slots__}) for record in self._log.records("skip")]

    def skips_now(self) -> list[Skip]:
        """Return the clips that were left out since each worker began its lane for the last time."""
        found: dict[int, list[Skip]] = {}
        for record in self._log.records("skip", "lane"):
            own = found.setdefault(record["worker"], [])
            if record["event"] == "skip":
                own.append(Skip(**{name: record[name] for name in Skip.__slots__}))
            elif not record["ended"]:
                own.clear()
        return [skip for own in found.values() for skip in own]

    def restart(self, version: int, *, resumed: bool) -> None:
        """Record that the next iteration begins from state `version`: the rest of an epoch, or a whole one."""
        self._log.add({"event": "restart", "version": version, "resumed": resumed})

    def restarted(self) -> tuple[int, bool]:
        """Return the version of the last state, and whether it is the rest of an epoch; (0, False) before any."""
        records = self._log.records("restart")
        return (records[-1]["version"], records[-1]["resumed"]) if records else (0, False)

    def begin(self, version: int, worker: int) -> None:
        """Record that a worker began its lane."""
        self._log.add({"event": "lane", "version": version, "worker": worker, "ended": False})

    def end(self, version: int, worker: int) -> None:
        """Record that a worker delivered its lane to the end."""
        self._log.add({"event": "lane", "version": version, "worker": worker, "ended": True})

    def has_begun(self, version: int) -> bool:
        """Return whether a worker began a lane from this state."""
        return any(record["version"] == version for record in self._log.records("lane"))

    def has_ended(self, version: int, workers: int) -> bool:
        """Return whether an iteration from this state was delivered to its end.

        Args:
            version: of the state.
            workers: how many workers delivered it.
        """
        ended, begun_again = self._lanes(version, workers)
        return begun_again or len(ended) == workers

    def is_consumed(self, version: int, workers: int) -> bool:
        """Return whether another iteration began after the one from this state had ended. Arguments as above."""
        return self._lanes(version, workers)[1]

    def _lanes(self, version: int, workers: int) -> tuple[set[int], bool]:
        """Return the workers that ended their lanes, and whether an iteration began after all had ended."""
        ended: set[int] = set()
        for record in self._log.records("lane"):
            if record["version"] != version:
                continue
            if record["ended"]:
                ended.add(record["worker"])
            elif len(ended) == workers:
                return ended, True
            else:  # an iteration that was broken off begins again
                ended.discard(record["worker"])
        return ended, False


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLane:
    """The progress of one worker, which a StatefulDataLoader keeps for each worker.

    Attributes:
        workers: how many ranks and workers there were.
        rank: the rank.
        worker: the worker.
        passed: clips of its lane that were delivered or skipped.
    """

    workers: Workers
    rank: int
    worker: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an epoch has come.

    Attributes:
        epoch: the epoch.
        stages: what was delivered, by the number of workers at that time.
        lane: the further progress of one worker. None: the stages say it of all.
    """

    epoch: int
    stages: tuple[Stage, ...] = ()
    lane: OneLane | None = None


@dataclass(slots=True, kw_only=True)
class Iteration:
    """The iteration that runs in this process, and how far it has come.

    Attributes:
        begun_from: the progress from which it began.
        workers: the processes that share the epoch.
        rank: the rank of this one.
        worker: its number among the workers of its rank.
        passed: clips of its lane that were delivered or skipped, those before this iteration included.
        delivered: clips that were delivered in this iteration.
    """

    begun_from: Progress
    workers: Workers
    rank: int
    worker: int
    passed: int
    delivered: int = 0

    def of_worker(self) -> Progress:
        """Return the progress of this worker alone."""
        one = OneLane(workers=self.workers, rank=self.rank, worker=self.worker, passed=self.passed)
        return Progress(epoch=self.begun_from.epoch, stages=self.begun_from.stages, lane=one)

    def of_all(self, order: Order) -> Progress:
        """Return the progress of all ranks, if each has no other workers and delivered as many clips as this one."""
        before, passed = split_stages(self.begun_from.stages, self.workers)
        left = lengths_left(order, self.begun_from, self.workers)
        passed = passed + np.minimum(self.delivered, left)
        passed[self.rank, self.worker] = self.passed
        return Progress(epoch=self.begun_from.epoch, stages=(*before, Stage(workers=self.workers, passed=passed)))


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
    """Return the progress after each rank delivered some batches of a DataLoader.

    Args:
        order: what the order depends on.
        start: the progress from which the loader's iteration began.
        workers: the processes that share the epoch.
        rank: this rank, whose skipped clips are known.
        batches: how many batches were delivered.
        batching: how the loader makes batches.
        skips: the clips that were skipped.

    Raises:
        FramedexError: this rank has fewer batches.
    """
    before, passed = split_stages(start.stages, workers)
    places = _skipped_places(skips, start.epoch, workers, rank, passed[rank])
    available = lengths_left(order, start, workers)
    available[rank] -= [len(found) for found in places]
    most = int(batching.counts(available[rank]).sum())
    if type(batches) is not int or not 0 <= batches <= most:
        raise FramedexError("batches is out of range", found=repr(batches), allowed=f"0 to {most}")
    moved = np.array([delivered_clips(lengths, batches, batching) for lengths in available], np.int64)
    moved[rank] = [with_skips(int(count), found) for count, found in zip(moved[rank], places, strict=True)]
    return Progress(epoch=start.epoch, stages=(*before, Stage(workers=workers, passed=passed + moved)))


def _skipped_places(
    skips: Iterable[Skip], epoch: int, workers: Workers, rank: int, passed: NDArray[np.int64]
) -> list[list[int]]:
    """Return the places that each worker of a rank skipped after the first `passed`, counted from there."""
    places: list[set[int]] = [set() for _ in range(workers.per_rank)]
    for skip in skips:
        if (skip.epoch, skip.rank, skip.workers) == (epoch, rank, workers.per_rank):
            places[skip.worker].add(skip.place - int(passed[skip.worker]))
    return [sorted(place for place in found if place >= 0) for found in places]


def with_skips(delivered: int, skipped: Sequence[int]) -> int:
    """Return how many clips of a lane were passed when some were delivered.

    Args:
        delivered: how many were delivered.
        skipped: the places that were skipped, ascending.
    """
    passed = delivered
    for place in skipped:
        passed += place < passed
    return passed
