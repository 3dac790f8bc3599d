"""In which order an epoch visits its clips, and who takes which: pure functions of numbers, a seed and an epoch."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Uneven = Literal["pad", "drop", "allow"]


def epoch_order(
    count: int, *, shuffle: bool, seed: int, epoch: int, blocks: NDArray[np.int64] | None = None, window: int = 1
) -> NDArray[np.int64]:
    """Return int64 [count]: a permutation of the clips; the same for every rank, another one each epoch.

    blocks: int64 [count], which block each clip is of, numbered from 0. The blocks are shuffled, and then the clips among
    every `window` blocks that follow each other: what is read at a time lies in few blocks.
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    if blocks is None:
        return rng.permutation(count).astype(np.int64)
    place = rng.permutation(int(blocks.max(initial=-1)) + 1)  # of each block among all
    return np.lexsort((rng.permutation(count), place[blocks] // window)).astype(np.int64)


def rank_share(
    order: NDArray[np.int64], *, rank: int, world_size: int, uneven: Uneven = "pad", delivered: int = 0
) -> NDArray[np.int64]:
    """Return what one rank still visits of an epoch's order after its first `delivered` clips.

    The rest is dealt out clip by clip, so that n clips of every rank are together the next n × world_size of the order:
    whenever all ranks have delivered equally many, what was delivered is a prefix of it. Where the rest does not come
    out even, the epoch's first clips are repeated ("pad"), its last ones left out ("drop"), or the first ranks have one
    more ("allow").
    """
    rest = order[delivered:]
    odd = len(rest) % world_size
    if uneven == "drop":
        rest = rest[: len(rest) - odd]
    elif uneven == "pad" and odd:
        rest = np.concatenate([rest, np.resize(order, world_size - odd)])
    return rest[rank::world_size]


def share_length(left: int, *, rank: int, world_size: int, uneven: Uneven = "pad") -> int:
    """Return how long `rank_share` is where `left` clips of the epoch are left."""
    beyond = {"pad": world_size - 1, "drop": 0, "allow": world_size - 1 - rank}[uneven]
    return (left + beyond) // world_size


def sample_of(count: int, *, size: int | None, seed: int) -> NDArray[np.int64]:
    """Return int64 [size]: clips chosen by seed, ascending; all of them where size is None or more than there are."""
    if size is None or size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False)).astype(np.int64)
