"""ElasticSampler: a torch Sampler whose order is a function of its state, so that it shards and resumes exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.arguments import Unit
from framedex.loader.order.order import RankShare

MOST_EPOCHS = 1 << 63
Entry = TypeVar("Entry")
Share = Callable[[NDArray[np.int64]], NDArray[np.int64]]
("Returns what this rank still visits of the order of an epoch.")

try:
    from torch.utils.data import Sampler
except ModuleNotFoundError:

    class Sampler(Generic[Entry]):  # type: ignore[no-redef]
        """Replaces torch's class if torch is not installed."""


class ElasticSampler(Sampler[Entry], ABC):
    """Visits the entries of an epoch: clips, or batches of clips. Every epoch has equally many.

    The order of all entries depends only on seed and epoch. The ranks take entries from it in turn, so that whenever
    all ranks have delivered equally many, these are a prefix of the order. The prefix is the sampler's state, and a run
    can continue from it with any number of ranks and workers.

    Each iteration that begins is the next epoch. An iteration after `load_state_dict` is the rest of an epoch.

    Args:
        entries: how many entries an epoch has.
        identity: plain values by name; samplers that agree in them have the same epochs.
        seed: the seed of the order.
        ranks: which share of an epoch this process visits.

    Raises:
        FramedexError: an argument is out of range.
    """

    UNIT: ClassVar[Unit]  # what the entries are

    def __init__(self, entries: int, identity: Mapping[str, Any], *, seed: int, ranks: RankShare) -> None:
        check_seed(seed)
        self.seed, self._ranks = seed, ranks
        self.rank, self.world_size, self.uneven = ranks.rank, ranks.world_size, ranks.uneven
        self._entries, self._identity = entries, dict(identity)
        self._begin(0, 0)

    @abstractmethod
    def _visit(self, epoch: int, share: Share) -> Iterable[Entry]:
        """Return the entries that `share` takes from the order of an epoch."""

    def _begin(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self._start = start  # entries of the epoch that all ranks had delivered when this iteration began
        self._begun = False  # whether this iteration yielded an entry, or had none to yield
        self._given = 0  # entries that it yielded; a DataLoader requests entries ahead
        self._delivered: int | None = None  # entries that it delivered, if a loader counts them

    def _next(self) -> tuple[int, int]:
        """Return the epoch that the next iteration visits, and how many of its entries come before that iteration."""
        if self._delivered is not None:
            return self.epoch, self._place(self._delivered)
        return (self.epoch + 1, 0) if self._begun else (self.epoch, self._start)

    def _place(self, delivered: int) -> int:
        """Return how many entries of the epoch all ranks delivered, from what this rank delivered in this iteration."""
        return min(self._start + min(delivered, self._length(self._start)) * self._ranks.world_size, self._entries)

    def _length(self, start: int) -> int:
        return self._ranks.length(self._entries - start)

    def __len__(self) -> int:
        """Return the number of entries that this rank visits in a whole epoch."""
        return self._length(0)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration visits, from its start or the rest of it."""
        return self._next()[0]

    @property
    def remaining(self) -> int:
        """How many entries the next iteration yields to this rank: those of a whole epoch, or of the rest of one."""
        return self._length(self._next()[1])

    def __iter__(self) -> Iterator[Entry]:
        """Begin an epoch, or the rest of one after `load_state_dict` or if deliveries are counted."""
        self._begin(*self._next())
        self._begun = self._length(self._start) == 0
        return self._give()

    def _give(self) -> Iterator[Entry]:
        # Runs at the first `next`: loaders make iterators that they never use.
        share = partial(self._ranks.of, delivered=self._start)
        for given, entry in enumerate(self._visit(self.epoch, share), 1):
            self._given, self._begun = given, True
            yield entry

    def deliver(self, entries: int) -> None:
        """Count entries of this iteration as delivered. Loaders that know the number call this.

        From the first call on, `state_dict` refers to delivered entries instead of yielded ones, and the next iteration
        continues after them.
        """
        self._delivered = (self._delivered or 0) + entries

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration visit this epoch, from its start unless that iteration continues the same epoch."""
        if not 0 <= epoch < MOST_EPOCHS:
            raise FramedexError("epoch is out of range", found=epoch, allowed=f"0 to {MOST_EPOCHS - 1}")
        coming, start = self._next()
        self._begin(epoch, start if epoch == coming else 0)

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """Return the plain values needed to continue after the delivered entries. They are the same on every rank.

        Args:
            delivered: how many entries this rank delivered since the last `iter`: clips, such as batches × batch size,
                or batches of a sampler of batches. Give it for a DataLoader with workers, which has requested more than
                it delivered. ClipLoader and StatefulDataLoader keep count themselves.

        Raises:
            FramedexError: `delivered` is below 0.
        """
        if delivered is None:
            delivered = self._given if self._delivered is None else self._delivered
        if delivered < 0:
            raise FramedexError(f"delivered is a number of {self.UNIT}", found=delivered, allowed="0 or more")
        return {"epoch": self.epoch, "delivered": self._place(delivered), **self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after a state of any rank and world size: the next iteration yields the rest of its epoch.

        Raises:
            FramedexError: this is not a state, or it belongs to another order.
        """
        own, what = self.state_dict(), f"this is no state of a {type(self).__name__}"
        if not isinstance(state, Mapping):
            raise FramedexError(what, found=repr(state)[:80], allowed="what state_dict() returned")
        if missing := own.keys() - state.keys():
            raise FramedexError(what, found=f"no {', '.join(sorted(missing))}")
        if other := state.keys() - own.keys():
            raise FramedexError(what, found=f"also {', '.join(sorted(map(str, other)))}")
        for name, value in self._identity.items():
            if state[name] != value:
                raise FramedexError(f"the sampler's state has another {name}", found=state[name], allowed=value)
        if any(type(state[name]) is not int for name in ("epoch", "delivered")):
            found = f"epoch {state['epoch']!r}, {state['delivered']!r} {self.UNIT}"
            raise FramedexError("the sampler's state is no state", found=found, allowed="whole numbers")
        if state["epoch"] < 0 or not 0 <= state["delivered"] <= self._entries:
            raise FramedexError(
                "the sampler's state is out of range",
                found=f"epoch {state['epoch']}, {state['delivered']} {self.UNIT}",
                allowed=f"epochs from 0 on, 0 to {self._entries} {self.UNIT}",
            )
        self._begin(state["epoch"], state["delivered"])


def check_seed(seed: int) -> None:
    """Raise FramedexError for a seed that is out of range."""
    if not 0 <= seed < 2**64:
        raise FramedexError("seed is out of range", found=seed, allowed="0 to 2**64 - 1")
