"""The order in which an epoch visits clips, and each rank's share: pure functions of numbers, a seed and an epoch."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Uneven = Literal["pad", "drop", "allow"]


def epoch_order(
    count: int, *, shuffle: bool, seed: int, epoch: int, blocks: NDArray[np.int64] | None = None, window: int = 1
) -> NDArray[np.int64]:
    """Return int64 [count]: a permutation of the clips. It is the same for every rank, and another one in each epoch.

    Args:
        count: number of clips.
        shuffle: whether to shuffle. Without it, the order is that of the dataset.
        seed: the seed of the shuffle.
        epoch: number of the epoch.
        blocks: int64 [count], the block of each clip, numbered from 0. Blocks are shuffled, and then the clips among
            every `window` consecutive blocks, so that clips that are read at the same time are in few blocks. None:
            clips are shuffled without blocks.
        window: how many consecutive blocks are mixed.
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    if blocks is not None:
        return in_blocks(blocks, window, generator(seed, epoch))
    return generator(seed, epoch).permutation(count).astype(np.int64)


def in_blocks(blocks: NDArray[np.int64], window: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return int64 [count]: an order of clips by blocks, as in `epoch_order`. `blocks`: the block of each clip."""
    place = rng.permutation(int(blocks.max(initial=-1)) + 1)  # of each block among all
    return np.lexsort((rng.permutation(len(blocks)), place[blocks] // window)).astype(np.int64)


def generator(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """Return a generator of random numbers that depends on nothing else.

    Args:
        seed: the seed, below 2**64.
        epoch: number of the epoch.
        stream: streams of one epoch are independent of each other.
    """
    key = np.array([seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], np.uint64)))


def rank_share(
    order: NDArray[np.int64], *, rank: int, world_size: int, uneven: Uneven = "pad", delivered: int = 0
) -> NDArray[np.int64]:
    """Return what one rank still visits of an epoch's order after the epoch's first `delivered` clips.

    The rest is dealt out clip by clip, so that the next n clips of every rank are together the next n × world_size
    clips of the order. So whenever all ranks have delivered the same number of clips, these clips are a prefix of the
    order.

    Args:
        order: int64, the order of the epoch.
        rank: number of this rank.
        world_size: number of ranks.
        uneven: what to do if the rest cannot be divided evenly: "pad" repeats the epoch's first clips, "drop" leaves
            out its last ones, and "allow" gives the first ranks one clip more.
        delivered: clips of the epoch that all ranks together have delivered.
    """
    rest = order[delivered:]
    odd = len(rest) % world_size
    if uneven == "drop":
        rest = rest[: len(rest) - odd]
    elif uneven == "pad" and odd:
        rest = np.concatenate([rest, np.resize(order, world_size - odd)])
    return rest[rank::world_size]


def share_length(left: int, *, rank: int, world_size: int, uneven: Uneven = "pad") -> int:
    """Return the length of `rank_share` when `left` clips of the epoch are left."""
    beyond = {"pad": world_size - 1, "drop": 0, "allow": world_size - 1 - rank}[uneven]
    return (left + beyond) // world_size


def sample_of(count: int, *, size: int | None, seed: int) -> NDArray[np.int64]:
    """Return int64 [size]: clips chosen by seed, ascending. If size is None or more than `count`, return all clips."""
    if size is None or size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False)).astype(np.int64)
