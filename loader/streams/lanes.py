"""Compute which clips a stream delivers, and in which order: functions of the clips' tars, a seed and an epoch.

The reading order of an epoch has the tars in turn, each from its beginning to its end. It is cut into one contiguous
stretch for each worker of each rank, the worker's **lane**. A worker reads its lane in that order, and delivers it
through webdataset's shuffle buffer. Here, the numbers of clips pass through the buffer, before any clip is read. So the
order of delivery is known in advance, and a resumed worker does not read the clips that it delivered before.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import webdataset
from numpy.typing import NDArray

from framedex.loader.order.order import RankShare, Uneven

FIRST_CLIPS = 100  # the buffer has so many clips when it delivers the first: webdataset's default for `initial`


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many processes share an epoch.

    Attributes:
        world_size: ranks.
        per_rank: worker processes of each rank; 1 if the rank's own process reads.
    """

    world_size: int
    per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The values that determine the order of each epoch.

    Attributes:
        tar_of: int64 [clips], the tar of each clip.
        buffer: clips in the shuffle buffer. If 0, clips are delivered in the order of tars.
        seed: the seed of the shuffle.
        uneven: what to do if clips cannot be divided evenly among ranks.
        clips_crc32: checksum of the dataset and of the clips' numbers in it. Streams of other clips have another one.
    """

    tar_of: NDArray[np.int64]
    buffer: int
    seed: int
    uneven: Uneven
    clips_crc32: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of an epoch during which the number of workers did not change.

    Attributes:
        workers: the numbers of ranks and workers.
        passed: int64 [world_size, per_rank], how many clips of each lane were delivered or skipped.
    """

    workers: Workers
    passed: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The clips that one worker still has to deliver of an epoch.

    Attributes:
        clips: int64 [lane], the clips of the whole lane in reading order.
        deliver: int64 [left], the places in `clips` of the clips that are left, in the order of delivery.
        passed: how many clips of the lane were delivered or skipped before.
    """

    clips: NDArray[np.int64]
    deliver: NDArray[np.int64]
    passed: int


def reading_order(order: Order, epoch: int) -> NDArray[np.int64]:
    """Return int64 [clips]: all clips, tar by tar. The tars are shuffled in each epoch if there is a buffer."""
    count = len(order.tar_of)
    if not order.buffer:
        return np.arange(count, dtype=np.int64)
    tars, tar = np.unique(order.tar_of, return_inverse=True)
    rng = np.random.Generator(np.random.Philox(key=np.array([order.seed, epoch], np.uint64)))
    return np.argsort(rng.permutation(len(tars))[tar], kind="stable").astype(np.int64)


def rank_lengths(count: int, world_size: int, uneven: Uneven) -> NDArray[np.int64]:
    """Return int64 [world_size]: how many of `count` clips each rank delivers, as `ClipSampler` divides them."""
    ranks = (RankShare(rank=rank, world_size=world_size, uneven=uneven) for rank in range(world_size))
    return np.array([rank.length(count) for rank in ranks], np.int64)


def lane_lengths(count: int, workers: Workers, uneven: Uneven) -> NDArray[np.int64]:
    """Return int64 [world_size, per_rank]: the length of each lane. Ranks of the same length have the same lanes."""
    ranks = rank_lengths(count, workers.world_size, uneven)
    each, more = np.divmod(ranks, workers.per_rank)
    return each[:, None] + (np.arange(workers.per_rank) < more[:, None])


def lane_clips(clips: NDArray[np.int64], workers: Workers, rank: int, worker: int, uneven: Uneven) -> NDArray[np.int64]:
    """Return int64 [lane]: the contiguous stretch of a reading order that is a worker's lane.

    With uneven="pad", the first clips of the order follow again behind its end.
    """
    lengths = lane_lengths(len(clips), workers, uneven)
    begin = int(lengths.ravel()[: rank * workers.per_rank + worker].sum())
    places = np.arange(begin, begin + int(lengths[rank, worker]))
    return clips[places % max(1, len(clips))]


def delivery_order(length: int, buffer: int, key: str) -> NDArray[np.int64]:
    """Return int64 [length]: the places of a lane, in the order in which webdataset's shuffle buffer yields them."""
    if not buffer:
        return np.arange(length, dtype=np.int64)
    shuffle = webdataset.shuffle(buffer, initial=FIRST_CLIPS, rng=random.Random(key))
    return np.fromiter(shuffle(iter(range(length))), np.int64, length)


def split_stages(stages: Sequence[Stage], workers: Workers) -> tuple[Sequence[Stage], NDArray[np.int64]]:
    """Return the earlier stages, and how many clips each lane has passed in the current one, [world_size, per_rank].

    If the last stage had as many ranks and workers, it is the current stage, and its lanes continue. Otherwise, a new
    stage begins, and the clips that are left are divided anew.
    """
    if stages and stages[-1].workers == workers:
        return stages[:-1], stages[-1].passed
    return stages, np.zeros((workers.world_size, workers.per_rank), np.int64)


def lane_of(
    order: Order,
    epoch: int,
    stages: Sequence[Stage],
    workers: Workers,
    *,
    rank: int,
    worker: int,
    passed: int | None = None,
) -> Lane:
    """Return the clips that a worker still delivers of an epoch after some stages.

    Args:
        order: the clips, and the options of their order.
        epoch: the epoch.
        stages: the clips that were delivered before.
        workers: how many processes share the epoch now.
        rank: the rank.
        worker: the worker.
        passed: clips of the lane that were delivered or skipped. Defaults to the number in the last stage.
    """
    before, counts = split_stages(stages, workers)
    left = clips_left(order, epoch, before)
    clips, deliver = _whole_lane(order, epoch, len(before), left, workers, rank, worker)
    passed = int(counts[rank, worker]) if passed is None else passed
    return Lane(clips=clips, deliver=deliver[passed:], passed=passed)


def clips_left(order: Order, epoch: int, stages: Sequence[Stage]) -> NDArray[np.int64]:
    """Return int64 [left]: the clips that no lane of these stages passed, in reading order."""
    left = reading_order(order, epoch)
    for number, stage in enumerate(stages):
        gone = np.zeros(len(order.tar_of), np.bool_)
        for rank, worker in np.ndindex(stage.passed.shape):
            clips, deliver = _whole_lane(order, epoch, number, left, stage.workers, rank, worker)
            gone[clips[deliver[: int(stage.passed[rank, worker])]]] = True
        left = left[~gone[left]]
    return left


def _whole_lane(
    order: Order, epoch: int, stage: int, left: NDArray[np.int64], workers: Workers, rank: int, worker: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the clips of a lane in reading order, and their places in the order of delivery, both int64 [lane].

    Args:
        order: the options of the order.
        epoch: the epoch.
        stage: how many stages of the epoch came before.
        left: int64 [left], the clips that these stages left, in reading order.
        workers: the processes that share these clips.
        rank: the rank.
        worker: the worker.
    """
    clips = lane_clips(left, workers, rank, worker, order.uneven)
    key = f"{order.seed} {epoch} {stage} {rank}/{workers.world_size} {worker}/{workers.per_rank}"
    return clips, delivery_order(len(clips), order.buffer, key)
