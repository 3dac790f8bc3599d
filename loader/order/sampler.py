"""ClipSampler: a torch Sampler whose order is a pure function of its state, so that it shards and resumes exactly."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.order.order import Uneven, epoch_order, rank_share, share_length

Number = TypeVar("Number")

try:
    from torch.utils.data import Sampler
except ModuleNotFoundError:

    class Sampler(Generic[Number]):  # type: ignore[no-redef]
        """Replaces torch's class if torch is not installed."""


Blocks = Literal["tar", "medium"] | int
ORDER = ("count", "shuffle", "seed", "locality")  # samplers that agree in these have the same epochs


class ClipSampler(Sampler[int]):
    """Visits the clips of a dataset once per epoch, in order or shuffled.

    Each iteration that begins is the next epoch, with another order if `shuffle` is on. An iteration after
    `load_state_dict` is the rest of an epoch.

    The order of all clips depends only on seed and epoch. The ranks take clips from it in turn, so that whenever all
    ranks have delivered the same number of clips, these clips are a prefix of the order. This prefix is the sampler's
    state, and a run can continue from it with any number of ranks and workers.

    Args:
        dataset: the clips.
        shuffle: whether to shuffle.
        seed: the seed of the shuffle.
        rank: number of this process in distributed training.
        world_size: number of processes in distributed training.
        uneven: what to do if clips cannot be divided evenly. "pad" repeats the epoch's first clips and "drop" leaves
            out its last ones, so that all ranks have the same number of clips and batches. "allow" gives the first
            ranks one clip more.
        blocks: keep the clips that are read at the same time in few places: shuffle whole blocks, and then the clips
            among every `window` consecutive blocks. A block is the clips of a tar ("tar"), of a medium ("medium"), or a
            number of neighbouring clips (an int). None: no blocks.
        window: how many consecutive blocks are mixed.

    Raises:
        FramedexError: an argument is out of range, or the dataset does not have such blocks.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: Uneven = "pad",
        blocks: Blocks | None = None,
        window: int = 8,
    ) -> None:
        if not 0 <= rank < world_size:
            raise FramedexError("rank is out of range", found=rank, allowed=f"0 to {world_size - 1}")
        if uneven not in get_args(Uneven):
            raise FramedexError("unknown uneven", found=repr(uneven), allowed=", ".join(map(repr, get_args(Uneven))))
        if not 0 <= seed < 2**64:
            raise FramedexError("seed is out of range", found=seed, allowed="0 to 2**64 - 1")
        if window < 1:
            raise FramedexError("window is out of range", found=window, allowed="1 or more")
        self._count = len(dataset)
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.world_size, self.uneven = rank, world_size, uneven
        self._blocks = None if blocks is None or not shuffle else _blocks_of(dataset, blocks)  # of each clip
        self._window = window
        self._locality = None if self._blocks is None else _named(self._blocks, window)
        self._begin(0, 0)

    def _begin(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self._start = start  # clips of the epoch that all ranks had delivered when this iteration began
        self._begun = False  # whether this iteration yielded a clip, or had none to yield
        self._given = 0  # clips that it yielded; a DataLoader requests clips ahead
        self._delivered: int | None = None  # clips that it delivered, if a loader counts them

    def _next(self) -> tuple[int, int]:
        """Return the epoch that the next iteration visits, and how many of its clips come before that iteration."""
        if self._delivered is not None:
            return self.epoch, self._place(self._delivered)
        return (self.epoch + 1, 0) if self._begun else (self.epoch, self._start)

    def _place(self, delivered: int) -> int:
        """Return how many clips of the epoch all ranks delivered, from what this rank delivered in this iteration."""
        return min(self._start + min(delivered, self._length(self._start)) * self.world_size, self._count)

    def _length(self, start: int) -> int:
        return share_length(self._count - start, rank=self.rank, world_size=self.world_size, uneven=self.uneven)

    def __len__(self) -> int:
        """Return the number of clips that this rank visits in a whole epoch."""
        return self._length(0)

    @property
    def remaining(self) -> int:
        """How many clips the next iteration yields to this rank: those of a whole epoch, or of the rest of one."""
        return self._length(self._next()[1])

    def __iter__(self) -> Iterator[int]:
        """Begin an epoch, or the rest of one after `load_state_dict` or if deliveries are counted."""
        self._begin(*self._next())
        self._begun = self._length(self._start) == 0
        return self._give()

    def _give(self) -> Iterator[int]:
        # Runs at the first `next`: loaders make iterators that they never use.
        order = epoch_order(
            self._count,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=self.epoch,
            blocks=self._blocks,
            window=self._window,
        )
        share = rank_share(order, rank=self.rank, world_size=self.world_size, uneven=self.uneven, delivered=self._start)
        for given, number in enumerate(map(int, share), 1):
            self._given, self._begun = given, True
            yield number

    def deliver(self, clips: int) -> None:
        """Count clips of this iteration as delivered. Loaders that know the number call this.

        From the first call on, `state_dict` refers to delivered clips instead of yielded ones, and the next iteration
        continues after them.
        """
        self._delivered = (self._delivered or 0) + clips

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration visit this epoch, from its start unless that iteration continues the same epoch."""
        if epoch < 0:
            raise FramedexError("epoch is out of range", found=epoch, allowed="0 or more")
        coming, start = self._next()
        self._begin(epoch, start if epoch == coming else 0)

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """Return the plain values needed to continue after the delivered clips. They are the same on every rank.

        Args:
            delivered: how many clips this rank delivered since the last `iter`, such as batches × batch size. Give it
                for a DataLoader with workers, which has requested more clips than it delivered. ClipLoader and
                StatefulDataLoader keep count themselves.

        Raises:
            FramedexError: `delivered` is below 0.
        """
        if delivered is None:
            delivered = self._given if self._delivered is None else self._delivered
        if delivered < 0:
            raise FramedexError("delivered is a number of clips", found=delivered, allowed="0 or more")
        return {
            "epoch": self.epoch,
            "delivered": self._place(delivered),
            "count": self._count,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "locality": self._locality,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after a state of any rank and world size: the next iteration yields the rest of its epoch.

        Raises:
            FramedexError: this is not a state, or it belongs to another order.
        """
        own = self.state_dict()
        if not isinstance(state, Mapping):
            raise FramedexError(
                "this is no state of a ClipSampler", found=repr(state)[:80], allowed="what state_dict() returned"
            )
        if missing := own.keys() - state.keys():
            raise FramedexError("this is no state of a ClipSampler", found=f"no {', '.join(sorted(missing))}")
        for name in ORDER:
            if state[name] != own[name]:
                raise FramedexError(f"the sampler's state has another {name}", found=state[name], allowed=own[name])
        if any(type(state[name]) is not int for name in ("epoch", "delivered")):
            found = f"epoch {state['epoch']!r}, {state['delivered']!r} clips"
            raise FramedexError("the sampler's state is no state", found=found, allowed="whole numbers")
        if state["epoch"] < 0 or not 0 <= state["delivered"] <= self._count:
            found = f"epoch {state['epoch']}, {state['delivered']} clips"
            raise FramedexError(
                "the sampler's state is out of range",
                found=found,
                allowed=f"epochs from 0 on, 0 to {self._count} clips",
            )
        self._begin(state["epoch"], state["delivered"])


def _blocks_of(dataset: Sized, blocks: Blocks) -> NDArray[np.int64]:
    """Return int64 [clips]: the block of each clip, numbered from 0. Raises FramedexError."""
    if isinstance(blocks, int) and blocks > 0:
        return np.arange(len(dataset), dtype=np.int64) // blocks
    if blocks not in ("tar", "medium"):
        raise FramedexError("unknown blocks", found=repr(blocks), allowed="'tar', 'medium', a number of clips")
    if not hasattr(dataset, "places"):
        found, remedy = type(dataset).__name__, "blocks=64, so many neighbouring clips"
        raise FramedexError("the dataset does not say where its clips lie", found=found, remedy=remedy)
    return np.unique(dataset.places(blocks), return_inverse=True)[1].astype(np.int64)


def _named(blocks: NDArray[np.int64], window: int) -> str:
    """Return a description of blocks for a state. It is enough to distinguish them from others."""
    return f"{window} blocks at a time, CRC-32 {zlib.crc32(blocks.tobytes()):08x}"
