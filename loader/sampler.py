"""ClipSampler: a torch Sampler whose order is a pure function of its state, so that it shards and resumes exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from framedex.errors import FramedexError, MissingExtraError
from framedex.loader.order import epoch_order, rank_share

try:
    from torch.utils.data import Sampler
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "torch", "ClipSampler") from error


class ClipSampler(Sampler[int]):
    """Visits the clips of a dataset once an epoch, in order or shuffled.

    Shuffling depends on seed and epoch alone. Each pass through the sampler is an epoch; `set_epoch` chooses another.
    rank, world_size: this process' share in distributed training; every rank gets equally many clips, the first ones
    repeated where needed, or with drop_uneven the last ones left out.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_uneven: bool = False,
    ) -> None:
        if not 0 <= rank < world_size:
            raise FramedexError("rank is out of range", found=rank, allowed=f"0 to {world_size - 1}")
        self._count = len(dataset)
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.world_size, self.drop_uneven = rank, world_size, drop_uneven
        self.epoch = 0
        self.position = 0
        self.asked = 0  # how often a position was asked for by hand, which a loader respects

    def _share(self) -> list[int]:
        order = epoch_order(self._count, shuffle=self.shuffle, seed=self.seed, epoch=self.epoch)
        share = rank_share(order, rank=self.rank, world_size=self.world_size, drop_uneven=self.drop_uneven)
        numbers: list[int] = share.tolist()
        return numbers

    def __len__(self) -> int:
        """Return how many clips this rank visits in a whole epoch."""
        if self.drop_uneven:
            return self._count // self.world_size
        return -(-self._count // self.world_size)

    def __iter__(self) -> Iterator[int]:
        """Yield the rest of the current epoch, then move on to the next one."""
        for number in self._share()[self.position :]:
            self.position += 1
            yield number
        self.epoch, self.position = self.epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Begin the given epoch from its start."""
        self.epoch, self.position, self.asked = epoch, 0, self.asked + 1

    def state_dict(self, *, epoch: int | None = None, position: int | None = None) -> dict[str, Any]:
        """Return what resuming needs.

        A DataLoader asks for clips ahead of those it delivers; pass the epoch and position that were delivered, or use
        ClipLoader.state_dict, which counts them.
        """
        return {
            "seed": self.seed,
            "epoch": self.epoch if epoch is None else epoch,
            "position": self.position if position is None else position,
            "count": self._count,
            "world_size": self.world_size,
            "shuffle": self.shuffle,
            "drop_uneven": self.drop_uneven,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken. Raises FramedexError for another dataset's or another world's."""
        own = self.state_dict()
        for name in ("count", "world_size", "seed", "shuffle", "drop_uneven"):
            if state.get(name) != own[name]:
                raise FramedexError(f"the sampler's state has another {name}", found=state.get(name), allowed=own[name])
        self.epoch, self.position, self.asked = state["epoch"], state["position"], self.asked + 1
