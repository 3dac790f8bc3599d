"""ClipSampler: visits clips in order, shuffled, or drawn by weights with replacement.

Its base ElasticSampler is a torch Sampler. The order of an epoch depends on the sampler's state alone, so a run can
continue exactly, and ranks share an epoch exactly.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framedex.errors import FramedexError
from framedex.loader.arguments import Unit, check_counts
from framedex.loader.order import order
from framedex.loader.order.order import RankShare

MAX_EPOCHS = 1 << 63
Entry = TypeVar("Entry")

try:
    from torch.utils.data import Sampler
except ModuleNotFoundError:

    class Sampler(Generic[Entry]):  # type: ignore[no-redef]
        """Replaces torch's class if torch is not installed."""


# Returns the entries of an epoch's order that this rank still visits.
Share = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class ElasticSampler(Sampler[Entry], ABC):
    """Visits the entries of an epoch: clips, or batches of clips. All epochs have the same number of entries.

    The order of all entries depends only on seed and epoch. The ranks take entries from it in turn, so that whenever
    all ranks have delivered equally many, these are a prefix of the order. The prefix is the sampler's state, and a run
    can continue from it with any number of ranks and workers.

    Each iteration that begins is the next epoch. An iteration after `load_state_dict` is the rest of an epoch.

    Args:
        entries: how many entries an epoch has.
        identity: plain values by name. Samplers with the same values have the same epochs.
        seed: the seed of the order.
        ranks: the share of an epoch that this process visits.

    Raises:
        FramedexError: an argument is out of range.
    """

    UNIT: ClassVar[Unit]  # the name of the entries

    def __init__(self, entries: int, identity: Mapping[str, Any], *, seed: int, ranks: RankShare) -> None:
        if not 0 <= seed < 2**64:
            raise FramedexError("seed is out of range", found=seed, allowed="0 to 2**64 - 1")
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
        self._begun = False  # whether this iteration yielded an entry, or is empty
        self._given = 0  # entries that this iteration yielded; a DataLoader requests entries ahead
        self._delivered: int | None = None  # entries that this iteration delivered, if a loader counts them

    def _next(self) -> tuple[int, int]:
        """Return the epoch that the next iteration visits, and how many entries of that epoch were delivered before."""
        if self._delivered is not None:
            return self.epoch, self._place(self._delivered)
        return (self.epoch + 1, 0) if self._begun else (self.epoch, self._start)

    def _place(self, delivered: int) -> int:
        """Return how many entries of the epoch all ranks have delivered.

        Args:
            delivered: how many entries this rank has delivered in this iteration.
        """
        return min(self._start + min(delivered, self._length(self._start)) * self._ranks.world_size, self._entries)

    def _length(self, start: int) -> int:
        return self._ranks.length(self._entries - start)

    def __len__(self) -> int:
        """Return the number of entries that this rank visits in a whole epoch."""
        return self._length(0)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration visits, as a whole or from some place on."""
        return self._next()[0]

    @property
    def remaining(self) -> int:
        """How many entries the next iteration yields to this rank, of a whole epoch or of the rest of one."""
        return self._length(self._next()[1])

    def __iter__(self) -> Iterator[Entry]:
        """Begin an epoch, or the rest of one after `load_state_dict` or if deliveries are counted."""
        self._begin(*self._next())
        self._begun = self._length(self._start) == 0
        return self._give()

    def _give(self) -> Iterator[Entry]:
        # This runs at the first `next`, because loaders make iterators that they never use.
        share = partial(self._ranks.of, delivered=self._start)
        for given, entry in enumerate(self._visit(self.epoch, share), 1):
            self._given, self._begun = given, True
            yield entry

    def deliver(self, entries: int) -> None:
        """Count entries of this iteration as delivered. Loaders call this if they know the number.

        From the first call on, `state_dict` counts delivered entries instead of yielded entries, and the next iteration
        continues after the delivered ones.
        """
        self._delivered = (self._delivered or 0) + entries

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. It begins at its start, unless the iteration continues this epoch."""
        if not 0 <= epoch < MAX_EPOCHS:
            raise FramedexError("epoch is out of range", found=epoch, allowed=f"0 to {MAX_EPOCHS - 1}")
        coming, start = self._next()
        self._begin(epoch, start if epoch == coming else 0)

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """Return the plain values needed to continue after the delivered entries. They are the same on every rank.

        Args:
            delivered: how many entries this rank delivered since the last `iter`: clips, such as batches × batch size,
                or batches, for a sampler of batches. Pass it for a DataLoader with workers, which requests entries
                ahead. ClipLoader and StatefulDataLoader count deliveries themselves.

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
            FramedexError: `state` is not a state, or it belongs to another order.
        """
        order.check_state(state, type(self).__name__, self.state_dict().keys(), self._identity)
        epoch, delivered = state["epoch"], state["delivered"]
        are_whole = type(epoch) is int and type(delivered) is int
        if not are_whole or not 0 <= epoch < MAX_EPOCHS or not 0 <= delivered <= self._entries:
            raise FramedexError(
                "the sampler's state is out of range",
                found=f"epoch {epoch!r}, {delivered!r} {self.UNIT}",
                allowed=f"whole numbers: epochs from 0 on, 0 to {self._entries} {self.UNIT}",
            )
        self._begin(epoch, delivered)


def weights_of(dataset: Sized, weights: object, balance: object) -> NDArray[np.float64] | None:
    """Return float64 [clips]: how often each clip is drawn, relative to other clips, or None if clips are not drawn.

    Args:
        dataset: the clips.
        weights: a number for each clip, or the name of a column. If None, all clips have the same weight.
        balance: a value for each clip, or the name of a column. All values are drawn equally often, and the clips of
            one value by their weights. If None, clips are drawn by their weights alone.

    Raises:
        FramedexError: the column does not exist, a weight is not a number of 0 or more, or all weights are 0.
    """
    if weights is None and balance is None:
        return None
    found = np.ones(len(dataset)) if weights is None else order.numbers_of(dataset, weights, "weights")
    if not (found > 0).any():
        raise FramedexError(
            "no clip has a weight above 0",
            found=f"a weight of 0 for each of {len(found):,} clips",
            allowed="numbers of 0 or more, at least one of them above 0",
        )
    found = found / found.max()  # their sum is finite
    return found if balance is None else _balance(found, order.values_of(dataset, balance, "balance"))


def _balance(weights: NDArray[np.float64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Scale weights so that the clips of each value have the same sum of weights."""
    if values.dtype.kind == "O":
        is_missing = [value is None or (isinstance(value, float) and value != value) for value in values.tolist()]
        missing = np.flatnonzero(np.array(is_missing, np.bool_))
    else:
        missing = np.flatnonzero(values != values)  # NaN and NaT
    if len(missing):
        raise FramedexError(
            "balance needs a value for each clip",
            found=f"none for clip {missing[0]}, {len(missing):,} such clips in all",
            remedy="leave these clips out with where=, or give an array with a value for each clip",
        )
    codes = order.codes_of(values)
    shares = np.bincount(codes, weights)
    if not shares.all():
        clip = int(np.argmax(shares[codes] == 0))
        raise FramedexError(
            "every value of balance needs a clip whose weight is above 0",
            found=f"none for {values[clip : clip + 1].tolist()[0]!r}",
        )
    balanced: NDArray[np.float64] = np.divide(weights, shares[codes])
    return balanced


def drawn_order(weights: NDArray[np.float64], length: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return int64 [length]: clips drawn with replacement, each with a probability proportional to its weight.

    Args:
        weights: float64 [clips], 0 or more. A clip of weight 0 is never drawn.
        length: how many clips are drawn.
        seed: the seed of the draws.
        epoch: number of the epoch. Draws differ between epochs.
    """
    bounds = np.cumsum(weights)
    drawn = np.searchsorted(bounds, order.generator(seed, epoch).random(length) * bounds[-1], side="right")
    last = int(np.flatnonzero(weights)[-1])  # needed if rounding makes the product equal to the last bound
    return np.asarray(np.minimum(drawn, last), np.int64)


Blocks = Literal["tar", "medium"] | int


class ClipSampler(ElasticSampler[int]):
    """Visits the clips of a dataset once per epoch, in order or shuffled, or draws them by weights.

    Each iteration visits the next epoch, in another order if clips are shuffled or drawn. An iteration after
    `load_state_dict` visits the rest of an epoch.

    The order of all clips depends only on seed and epoch. The ranks take clips from it in turn, so that whenever all
    ranks have delivered the same number of clips, these clips are a prefix of the order. This prefix is the sampler's
    state, and a run can continue from it with any number of ranks and workers.

    Args:
        dataset: the clips.
        shuffle: whether to shuffle.
        seed: the seed of the shuffle and of draws.
        rank: number of this process in distributed training.
        world_size: number of processes in distributed training.
        uneven: the treatment of clips that cannot be divided evenly. "pad" repeats the epoch's first clips and "drop"
            leaves out its last clips, so that all ranks have the same number of clips and batches. "allow" gives the
            first ranks one clip more.
        blocks: shuffle whole blocks, and then the clips among every `window` consecutive blocks, so that clips that are
            read at the same time are in few places. A block consists of the clips of a tar ("tar"), of a medium
            ("medium"), or of a number of neighbouring clips (an int). If None, clips are shuffled without blocks.
        window: how many consecutive blocks are mixed.
        weights: [clips], how often each clip is drawn relative to the others, or the name of a column with these
            numbers. Clips are then drawn with replacement, whatever `shuffle` says: an epoch may have a clip several
            times, or not at all.
        balance: the name of a column, or its values [clips]. Clips are drawn so that all values are equally likely,
            such as the labels of a classifier. With `weights`, the clips of each value are drawn by their weights.
        length: how many clips an epoch draws with `weights` or `balance`. Defaults to the number of all clips.

    Raises:
        FramedexError: an argument is out of range, the dataset lacks the blocks or columns, or a weight is not a number
            of 0 or more.
    """

    UNIT: ClassVar[Unit] = "clips"

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: order.Uneven = "pad",
        blocks: Blocks | None = None,
        window: int = 8,
        weights: ArrayLike | str | None = None,
        balance: ArrayLike | str | None = None,
        length: int | None = None,
    ) -> None:
        check_counts(window=(window, 1))
        self._count = len(dataset)
        self._weights = weights_of(dataset, weights, balance)
        if length is not None:
            check_counts(length=(length, 1))
            if self._weights is None:
                raise FramedexError("length needs clips that are drawn", remedy="give weights or balance, too")
        self.shuffle = shuffle
        mixed = shuffle or self._weights is not None
        self._blocks = _blocks_of(dataset, blocks) if blocks is not None and mixed else None  # by clip
        self._window, locality = window, None
        if self._blocks is not None:  # a state has this checksum, because other blocks give another order
            locality = f"{window} blocks at a time, CRC-32 {zlib.crc32(self._blocks.tobytes()):08x}"
        identity = {"count": self._count, "shuffle": shuffle, "seed": seed, "locality": locality}
        entries = self._count
        if self._weights is not None:
            entries = identity["length"] = self._count if length is None else length
            identity["weights"] = f"CRC-32 {zlib.crc32(self._weights.tobytes()):08x}"
        ranks = order.RankShare(rank=rank, world_size=world_size, uneven=uneven)
        super().__init__(entries, identity, seed=seed, ranks=ranks)

    def _visit(self, epoch: int, share: Share) -> Iterable[int]:
        blocks, window, seed = self._blocks, self._window, self.seed
        if self._weights is None:
            clips = order.epoch_order(
                self._count, shuffle=self.shuffle, seed=seed, epoch=epoch, blocks=blocks, window=window
            )
        else:
            clips = drawn_order(self._weights, self._entries, seed=seed, epoch=epoch)
            if blocks is not None:  # stream 1, because stream 0 drew the clips
                clips = clips[order.in_blocks(blocks[clips], window, order.generator(seed, epoch, stream=1))]
        numbers: list[int] = share(clips).tolist()
        return numbers


def _blocks_of(dataset: Sized, blocks: Blocks) -> NDArray[np.int64]:
    """Return int64 [clips]: the block of each clip, numbered from 0. Raises FramedexError."""
    if isinstance(blocks, int) and blocks > 0:
        return np.arange(len(dataset), dtype=np.int64) // blocks
    if blocks not in ("tar", "medium"):
        raise FramedexError("unknown blocks", found=repr(blocks), allowed="'tar', 'medium', a number of clips")
    places = order.method_of(dataset, "places", "blocks=64, so many neighbouring clips")
    return np.unique(places(blocks), return_inverse=True)[1].astype(np.int64)
