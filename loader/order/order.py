"""The order in which an epoch visits clips, and each rank's share: pure functions of numbers, a seed and an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.hints import check_choices
from framedex.errors import FramedexError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """Which share of an epoch one rank visits.

    Clips are dealt out one by one, so that the next n clips of every rank are together the next n × world_size clips of
    the order. So whenever all ranks have delivered the same number of clips, these clips are a prefix of the order.

    Attributes:
        rank: number of this rank.
        world_size: number of ranks.
        uneven: what to do if clips cannot be divided evenly: "pad" repeats the epoch's first clips, "drop" leaves out
            its last ones, and "allow" gives the first ranks one clip more.

    Raises:
        FramedexError: a value is out of range.
    """

    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise FramedexError("rank is out of range", found=self.rank, allowed=f"0 to {self.world_size - 1}")
        check_choices(uneven=(self.uneven, get_args(Uneven)))

    def of(self, order: NDArray[np.int64], delivered: int = 0) -> NDArray[np.int64]:
        """Return what the rank still visits of an epoch's order.

        Args:
            order: int64, the order of the epoch.
            delivered: clips of the epoch that all ranks together have delivered.
        """
        rest = order[delivered:]
        odd = len(rest) % self.world_size
        if self.uneven == "drop":
            rest = rest[: len(rest) - odd]
        elif self.uneven == "pad" and odd:
            rest = np.concatenate([rest, np.resize(order, self.world_size - odd)])
        return rest[self.rank :: self.world_size]

    def length(self, left: int) -> int:
        """Return the length of `of` when `left` clips of the epoch are left."""
        beyond = {"pad": self.world_size - 1, "drop": 0, "allow": self.world_size - 1 - self.rank}[self.uneven]
        return (left + beyond) // self.world_size


def sample_of(count: int, *, size: int | None, seed: int) -> NDArray[np.int64]:
    """Return int64 [size]: clips chosen by seed, ascending. If size is None or more than `count`, return all clips."""
    if size is None or size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False)).astype(np.int64)
