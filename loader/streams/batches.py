"""How many clips of each lane a DataLoader has delivered after some batches: pure functions.

A torch DataLoader takes the batches of its workers in turn, and leaves a worker out once its lane has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError


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
