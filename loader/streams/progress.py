"""How far an epoch has come: records, and the pure functions that count what was delivered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.streams.batches import Batching, delivered_clips
from framedex.loader.streams.history import Skip
from framedex.loader.streams.lanes import Order, Stage, Workers, clips_left, lane_lengths, split_stages


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
