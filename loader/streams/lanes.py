"""Compute the order in which a stream delivers clips, from the clips' tars, a seed and an epoch.

The reading order of an epoch goes through the tars one after the other, each from its beginning to its end. It is cut
into contiguous parts of about equal length, one for each worker of each rank. Such a part is the worker's **lane**. A
worker reads its lane in the reading order, and delivers it through webdataset's shuffle buffer. Here, not the clips but
their numbers pass through the buffer, before any clip is read. So the order of delivery is known in advance, and a
worker that resumes does not read the clips that it has already delivered.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import webdataset
from numpy.typing import NDArray

from framedex.loader.order.order import RankShare, Uneven

FIRST_CLIPS = 100  # number of clips in the buffer when the first one is delivered; webdataset's default for `initial`


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The number of processes that share an epoch.

    Attributes:
        world_size: The number of ranks.
        per_rank: The number of worker processes of each rank. It is 1 if the process of the rank itself reads clips.
    """

    world_size: int
    per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The values that determine the order of each epoch.

    Attributes:
        tar_of: The number of the tar of each clip, int64 [clips].
        buffer: The number of clips in the shuffle buffer. If 0, clips are delivered in the order of the tars.
        seed: The seed of the shuffle.
        uneven: The treatment of clips that cannot be divided evenly among ranks.
        clips_crc32: A checksum of the dataset and of the numbers of the stream's clips in it. It shows whether two
            streams have the same clips.
    """

    tar_of: NDArray[np.int64]
    buffer: int
    seed: int
    uneven: Uneven
    clips_crc32: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of an epoch during which the numbers of ranks and workers did not change.

    Attributes:
        workers: The numbers of ranks and workers.
        passed: The number of clips of each lane that were delivered or skipped, int64 [world_size, per_rank].
    """

    workers: Workers
    passed: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The lane of one worker, with the clips that the worker still has to deliver.

    Attributes:
        clips: The clips of the whole lane in reading order, int64 [lane].
        deliver: The indices in `clips` of the clips that are still to be delivered, in the order of delivery, int64
            [left].
        passed: The number of clips of the lane that were delivered or skipped before.
    """

    clips: NDArray[np.int64]
    deliver: NDArray[np.int64]
    passed: int


def reading_order(order: Order, epoch: int) -> NDArray[np.int64]:
    """Return int64 [clips]: all clips, tar by tar. If there is a shuffle buffer, the order of the tars is shuffled."""
    count = len(order.tar_of)
    if not order.buffer:
        return np.arange(count, dtype=np.int64)
    tars, tar = np.unique(order.tar_of, return_inverse=True)
    rng = np.random.Generator(np.random.Philox(key=np.array([order.seed, epoch], np.uint64)))
    return np.argsort(rng.permutation(len(tars))[tar], kind="stable").astype(np.int64)


def rank_lengths(count: int, world_size: int, uneven: Uneven) -> NDArray[np.int64]:
    """Return int64 [world_size]: the number of clips that each rank delivers out of `count`, as in `ClipSampler`."""
    ranks = (RankShare(rank=rank, world_size=world_size, uneven=uneven) for rank in range(world_size))
    return np.array([rank.length(count) for rank in ranks], np.int64)


def lane_lengths(count: int, workers: Workers, uneven: Uneven) -> NDArray[np.int64]:
    """Return int64 [world_size, per_rank]: the number of clips in each lane, if there are `count` clips."""
    each, more = np.divmod(rank_lengths(count, workers.world_size, uneven), workers.per_rank)
    return each[:, None] + (np.arange(workers.per_rank) < more[:, None])


def lane_clips(clips: NDArray[np.int64], workers: Workers, rank: int, worker: int, uneven: Uneven) -> NDArray[np.int64]:
    """Return int64 [lane]: the clips of a worker's lane, a contiguous part of the reading order `clips`.

    With uneven="pad", the first clips of the reading order are repeated at its end.
    """
    lengths = lane_lengths(len(clips), workers, uneven)
    begin = int(lengths.ravel()[: rank * workers.per_rank + worker].sum())
    places = np.arange(begin, begin + int(lengths[rank, worker]))
    return clips[places % max(1, len(clips))]


def delivery_order(length: int, buffer: int, key: str) -> NDArray[np.int64]:
    """Return int64 [length]: the indices of a lane's clips, in the order in which the shuffle buffer yields them."""
    if not buffer:
        return np.arange(length, dtype=np.int64)
    shuffle = webdataset.shuffle(buffer, initial=FIRST_CLIPS, rng=random.Random(key))
    return np.fromiter(shuffle(iter(range(length))), np.int64, length)


def split_stages(stages: Sequence[Stage], workers: Workers) -> tuple[Sequence[Stage], NDArray[np.int64]]:
    """Return the completed stages, and the number of clips that each lane has passed in the current stage.

    If the last stage had the same numbers of ranks and workers, it is the current stage, and its lanes continue.
    Otherwise, a new stage begins, and the remaining clips are divided into new lanes.

    Returns:
        The stages before the current stage, and the numbers of passed clips, int64 [world_size, per_rank].
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
    """Return the lane of a worker, with the clips that the worker still delivers in an epoch.

    Args:
        order: The values that determine the order of clips.
        epoch: The epoch.
        stages: The stages of the epoch so far.
        workers: The processes that now share the epoch.
        rank: The rank of the worker.
        worker: The number of the worker within the rank.
        passed: The number of clips of the lane that were delivered or skipped. Defaults to the number in the last
            stage.
    """
    before, counts = split_stages(stages, workers)
    clips, deliver = _whole_lane(order, epoch, len(before), clips_left(order, epoch, before), workers, rank, worker)
    passed = int(counts[rank, worker]) if passed is None else passed
    return Lane(clips=clips, deliver=deliver[passed:], passed=passed)


def clips_left(order: Order, epoch: int, stages: Sequence[Stage]) -> NDArray[np.int64]:
    """Return int64 [left]: the clips that were neither delivered nor skipped in these stages, in reading order."""
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
    """Return the clips of a whole lane in reading order, and their indices in the order of delivery, both int64 [lane].

    Args:
        order: The values that determine the order of clips.
        epoch: The epoch.
        stage: The number of earlier stages of the epoch.
        left: The clips that remained after the earlier stages, in reading order, int64 [left].
        workers: The processes that share these clips.
        rank: The rank of the worker.
        worker: The number of the worker within the rank.
    """
    clips = lane_clips(left, workers, rank, worker, order.uneven)
    key = f"{order.seed} {epoch} {stage} {rank}/{workers.world_size} {worker}/{workers.per_rank}"
    return clips, delivery_order(len(clips), order.buffer, key)
