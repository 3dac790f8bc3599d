"""In which order an epoch visits its clips: pure functions of (number of clips, seed, epoch, rank)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_order(count: int, *, shuffle: bool, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return int64 [count]: a permutation of the clips; the same for every rank, another one each epoch."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count).astype(np.int64)


def rank_share(order: NDArray[np.int64], *, rank: int, world_size: int, drop_uneven: bool) -> NDArray[np.int64]:
    """Return the part of an epoch's order that one rank visits; all ranks get equally many.

    Rank r takes every world_size-th clip from r on. Where that does not come out even, the first clips are repeated,
    or with drop_uneven the last ones are left out.
    """
    if drop_uneven:
        order = order[: len(order) // world_size * world_size]
    elif len(order):
        order = np.resize(order, -(-len(order) // world_size) * world_size)
    return order[rank::world_size]


def sample_of(count: int, *, size: int | None, seed: int) -> NDArray[np.int64]:
    """Return int64 [size]: clips chosen by seed, ascending; all of them where size is None or more than there are."""
    if size is None or size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False)).astype(np.int64)
