"""ClipSampler: a sampler that visits clips in order or shuffled, or draws them by weights with replacement.

The base class ElasticSampler is a torch Sampler whose order depends only on its arguments and the epoch. So a run can
be resumed exactly, and every rank can compute its share of an epoch.
"""

import copy
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

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
        """A substitute for torch's class if torch is not installed."""


# A function that selects, from the order of an epoch, the entries that this rank still visits.
Selection = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class ElasticSampler(Sampler[Entry], ABC):
    """A base class of samplers whose entries are clips or batches of clips. All epochs have the same number of entries.

    The order of all entries depends only on the seed and the epoch. The ranks take entries from this order in turn. So
    when all ranks have delivered the same number of entries, these are the first entries of the order. Their number is
    the sampler's state. A run can continue from a state with any number of ranks and workers.

    Each iteration visits the next epoch. After `load_state_dict`, an iteration visits the rest of an epoch.

    Args:
        entries: The number of entries of an epoch.
        identity: Plain values that identify the order. If they are equal in two samplers of a class, all epochs are
            equal.
        seed: The seed of the order.
        ranks: The share of an epoch that this process visits.

    Raises:
        FramedexError: An argument is out of range.
    """

    UNIT: ClassVar[Unit]  # the kind of entries: clips or batches

    def __init__(self, entries: int, identity: Mapping[str, Any], *, seed: int, ranks: RankShare) -> None:
        if not 0 <= seed < 2**64:
            raise FramedexError("seed is out of range", found=seed, allowed="0 to 2**64 - 1")
        self.seed, self._ranks = seed, ranks
        self.rank, self.world_size, self.uneven = ranks.rank, ranks.world_size, ranks.uneven
        self._entries, self._identity = entries, dict(identity)
        self._begin(0, 0)

    @abstractmethod
    def _visit(self, epoch: int, select: Selection) -> Iterable[Entry]:
        """Return the entries that `select` selects from the order of an epoch."""

    def _begin(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self._start = start  # number of entries of the epoch that all ranks had delivered when this iteration began
        self._begun = False  # whether this iteration has yielded an entry, or has none to yield
        self._given = 0  # number of entries that this iteration yielded; a DataLoader requests entries ahead
        self._delivered: int | None = None  # number of entries delivered by this iteration, if a loader counts them

    def _next(self) -> tuple[int, int]:
        """Return the epoch of the next iteration, and the number of its entries that were delivered already."""
        if self._delivered is not None:
            return self.epoch, self._place(self._delivered)
        return (self.epoch + 1, 0) if self._begun else (self.epoch, self._start)

    def _place(self, delivered: int) -> int:
        """Return the number of entries of the epoch that all ranks together have delivered.

        Args:
            delivered: The number of entries that this rank has delivered in this iteration.
        """
        passed = min(delivered, self._length(self._start)) * self._ranks.world_size
        return min(self._start + passed, self._entries_now)

    def _length(self, start: int) -> int:
        return self._ranks.length(self._entries_now - start)

    @property
    def _entries_now(self) -> int:
        """The number of entries of this epoch."""
        return self._entries

    def __len__(self) -> int:
        """Return the number of entries that this rank visits in a whole epoch."""
        return self._ranks.length(self._entries)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration, which visits all entries of this epoch, or the entries that are left."""
        return self._next()[0]

    @property
    def remaining(self) -> int:
        """The number of entries that the next iteration yields on this rank."""
        return self._length(self._next()[1])

    def __iter__(self) -> Iterator[Entry]:
        """Begin an epoch. If a state was loaded or a loader counts deliveries, begin the rest of the epoch."""
        self._begin(*self._next())
        self._begun = self._length(self._start) == 0
        return self._give()

    def _give(self) -> Iterator[Entry]:
        # This code runs at the first `next` and not in `iter`, because loaders make iterators that they never use.
        for given, entry in enumerate(self._visit(self.epoch, partial(self._ranks.of, delivered=self._start)), 1):
            self._given, self._begun = given, True
            yield entry

    @property
    def group_size(self) -> int:
        """The number of clips that a loader decodes together."""
        return 1

    @property
    def grouped(self) -> order.GroupedVisit | None:
        """The clips of the newest iteration that a loader decodes together. None before the iteration's first entry."""
        return None

    def deliver(self, entries: int) -> None:
        """Count entries of this iteration as delivered. A loader calls this method when it delivers entries.

        From the first call on, `state_dict` counts delivered entries instead of yielded entries, and the next iteration
        continues after the delivered entries.

        Args:
            entries: The number of entries that were delivered now.
        """
        self._delivered = (self._delivered or 0) + entries

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        The iteration visits the whole epoch. But if it would continue this epoch anyway, it visits only the rest.
        """
        if not 0 <= epoch < MAX_EPOCHS:
            raise FramedexError("epoch is out of range", found=epoch, allowed=f"0 to {MAX_EPOCHS - 1}")
        coming, start = self._next()
        self._begin(epoch, start if epoch == coming else 0)

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """Return a state of plain values, with which a run can continue after the delivered entries.

        The state is the same on every rank.

        Args:
            delivered: The number of entries that this rank has delivered since the last `iter`. These are clips
                (batches × batch size), or batches for a sampler of batches. Give this number for a DataLoader with
                workers, which requests entries ahead. ClipLoader and StatefulDataLoader count deliveries themselves.

        Raises:
            FramedexError: `delivered` is below 0.
        """
        if delivered is None:
            delivered = self._given if self._delivered is None else self._delivered
        if delivered < 0:
            raise FramedexError(f"delivered must be a number of {self.UNIT}", found=delivered, allowed="0 or more")
        return {"epoch": self.epoch, "delivered": self._place(delivered), **self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state, saved by any rank with any world size. The next iteration yields the rest of the state's epoch.

        Raises:
            FramedexError: `state` is not a state of this class of samplers, or belongs to another order.
        """
        order.check_state(state, type(self).__name__, self.state_dict().keys(), self._identity)
        epoch, delivered = state["epoch"], state["delivered"]
        are_whole = type(epoch) is int and type(delivered) is int
        if not are_whole or not 0 <= epoch < MAX_EPOCHS or not 0 <= delivered <= self._entries_now:
            raise FramedexError(
                "the sampler's state is out of range",
                found=f"epoch {epoch!r}, {delivered!r} {self.UNIT}",
                allowed=f"whole numbers: epochs from 0 on, 0 to {self._entries_now} {self.UNIT}",
            )
        self._begin(epoch, delivered)


def weights_of(dataset: Sized, weights: object, balance: object) -> NDArray[np.float64] | None:
    """Return float64 [clips]: the relative frequency with which each clip is drawn.

    Return None if neither weights nor balance are given, because each clip is then visited once instead of drawn.

    Args:
        dataset: The dataset of clips.
        weights: A number for each clip, or the name of a column. If None, all clips have the same weight.
        balance: A value for each clip, or the name of a column. All values are drawn equally often, and the clips with
            the same value are drawn by their weights. If None, clips are drawn only by their weights.

    Raises:
        FramedexError: The column does not exist, a weight is not a number of 0 or more, or all weights are 0.
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
    found = found / found.max()  # scaled so that the sum is finite
    return found if balance is None else _balance(found, order.values_of(dataset, balance, "balance"))


def _balance(weights: NDArray[np.float64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Scale weights so that the sum of the weights of all clips with a value is the same for each value."""
    if values.dtype.kind == "O":
        is_missing = [value is None or (isinstance(value, float) and value != value) for value in values.tolist()]
        missing = np.flatnonzero(np.array(is_missing, np.bool_))
    else:
        missing = np.flatnonzero(values != values)  # NaN and NaT
    if len(missing):
        raise FramedexError(
            "balance must have a value for each clip",
            found=f"no value for clip {missing[0]}, {len(missing):,} such clips in all",
            remedy="exclude these clips by where=, or give an array with a value for each clip",
        )
    codes = order.codes_of(values)
    shares = np.bincount(codes, weights)
    if not shares.all():
        clip = int(np.argmax(shares[codes] == 0))
        raise FramedexError(
            "every value of balance must have a clip whose weight is above 0",
            found=f"no such clip for {values[clip : clip + 1].tolist()[0]!r}",
        )
    return np.divide(weights, shares[codes])


def drawn_order(weights: NDArray[np.float64], length: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return int64 [length]: clips drawn with replacement, with probabilities proportional to their weights.

    Args:
        weights: The weight of each clip, 0 or more, float64 [clips]. A clip with weight 0 is never drawn.
        length: The number of clips to draw.
        seed: The seed of the draws.
        epoch: The number of the epoch. Draws differ between epochs.
    """
    bounds = np.cumsum(weights)
    drawn = np.searchsorted(bounds, order.generator(seed, epoch).random(length) * bounds[-1], side="right")
    last = int(np.flatnonzero(weights)[-1])  # limits the result if rounding makes the product equal to the last bound
    return np.asarray(np.minimum(drawn, last), np.int64)


Blocks = Literal["tar", "medium"] | int
WINDOW_OF_BLOCKS, WINDOW_OF_GROUPS = 8, 64  # defaults of `window`, so that a batch has clips of many media


CARRIED = "carried"  # the key in a state of the state from before clips were removed


class _Carried(NamedTuple):
    """The rest of an epoch that began before clips were removed from the dataset.

    Attributes:
        state: The state from before.
        clips: int64 [clips left], the clips that are left, as numbers in the dataset as it is now.
    """

    state: dict[str, Any]
    clips: NDArray[np.int64]


class ClipSampler(ElasticSampler[int]):
    """A sampler that visits every clip of a dataset once per epoch, in order or shuffled, or draws clips by weights.

    Each iteration visits the next epoch. If clips are shuffled or drawn, each epoch has another order. An iteration
    after `load_state_dict` visits the rest of an epoch.

    The order of all clips depends only on the seed and the epoch. The ranks take clips from this order in turn. So when
    all ranks have delivered the same number of clips, these are the first clips of the order. Their number is the
    sampler's state. A run can continue from a state with any number of ranks and workers.

    Args:
        dataset: The dataset of clips.
        shuffle: Whether to shuffle.
        seed: The seed of the shuffle and of draws.
        rank: The rank of this process in distributed training.
        world_size: The number of ranks in distributed training.
        uneven: The treatment of clips that cannot be divided evenly among ranks. "pad" repeats the epoch's first clips
            and "drop" leaves out its last clips, so that all ranks have the same number of clips and batches. "allow"
            gives the first ranks one clip more.
        blocks: The unit in which clips are shuffled. A block consists of the clips of a tar ("tar"), of a medium
            ("medium"), or of a number of neighbouring clips (an int). The order of blocks is shuffled first. Then the
            clips within each group of `window` consecutive blocks are shuffled, so that clips that are read at about
            the same time are in few files. If None, all clips are shuffled without blocks.
        window: The number of consecutive blocks whose clips are shuffled together. Defaults to 8. With `share`, the
            number of groups whose clips are mixed, which defaults to 64.
        share: The number of clips that a ClipLoader decodes together, so that a picture of several clips is decoded
            once. Groups of this size are made of the clips of each medium, in the order of the dataset. Groups are
            shuffled instead of single clips. A whole group is visited by one rank, except for at most `world_size` - 1
            groups, which are cut. If a run continues with another number of ranks, and neither number is a multiple of
            the other, the remaining groups of this epoch are cut, too. If None, clips are not decoded together.
        spread: Whether the clips of a group are spread over batches, which also have clips of other groups. If not,
            they follow one another, as they always do without `shuffle`. They are then in one batch if the batch size
            is a multiple of `share`, and the number of clips of each medium is, too.
        weights: The relative frequency with which each clip is drawn, as an array [clips] or the name of a column.
            Clips are then drawn with replacement, regardless of `shuffle`, so an epoch may have a clip several times or
            not at all.
        balance: A value of each clip, as an array [clips] or the name of a column, such as the labels of a classifier.
            Clips are drawn so that all values are equally frequent. With `weights`, the clips with the same value are
            drawn by their weights.
        length: The number of clips of an epoch, with `weights` or `balance`. Defaults to the number of all clips.

    Raises:
        FramedexError: An argument is out of range, the dataset lacks a column or the requested blocks, or a weight is
            not a number of 0 or more.
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
        window: int | None = None,
        share: int | None = None,
        spread: bool = True,
        weights: ArrayLike | str | None = None,
        balance: ArrayLike | str | None = None,
        length: int | None = None,
    ) -> None:
        given = {"window": (window, 1), "share": (share, 2)}
        check_counts(**{name: (value, least) for name, (value, least) in given.items() if value is not None})
        if share is not None and blocks is not None:
            raise FramedexError("share and blocks both set the order of clips", remedy="give one of them")
        self._dataset, self._count = dataset, len(dataset)
        self._weights = weights_of(dataset, weights, balance)
        if length is not None:
            check_counts(length=(length, 1))
            if self._weights is None:
                raise FramedexError("length is allowed only if clips are drawn", remedy="give weights or balance, too")
        self.shuffle = shuffle
        mixed = shuffle or self._weights is not None
        self._blocks = _blocks_of(dataset, blocks) if blocks is not None and mixed else None  # block of each clip
        self._share, self._spread = share, spread
        self._groups = None if share is None else order.neighbour_groups(_blocks_of(dataset, "medium"), share)
        self._window = window or (WINDOW_OF_BLOCKS if share is None else WINDOW_OF_GROUPS)
        self._lanes = world_size  # the number of lanes of this epoch, for the order of groups
        self._grouped: order.GroupedVisit | None = None
        self._carried: _Carried | None = None
        self._order: dict[str, Any] = {
            "shuffle": shuffle,
            "seed": seed,
            "blocks": blocks,
            "window": window,
            "share": share,
            "spread": spread,
        }
        locality = None
        if self._blocks is not None:  # the state includes this checksum, because other blocks give another order
            locality = f"{self._window} blocks at a time, CRC-32 {zlib.crc32(self._blocks.tobytes()):08x}"
        elif self._groups is not None:
            mixed_groups = f"{self._window} groups at a time" if shuffle and spread else "groups"
            locality = f"{mixed_groups} of {share} clips, CRC-32 {zlib.crc32(self._groups.tobytes()):08x}"
        identity: dict[str, Any] = {"count": self._count, "shuffle": shuffle, "seed": seed, "locality": locality}
        entries = self._count
        if self._weights is not None:
            entries = identity["length"] = self._count if length is None else length
            identity["weights"] = f"CRC-32 {zlib.crc32(self._weights.tobytes()):08x}"
        identity |= order.version_facts(dataset)
        ranks = order.RankShare(rank=rank, world_size=world_size, uneven=uneven)
        super().__init__(entries, identity, seed=seed, ranks=ranks)

    @property
    def group_size(self) -> int:
        """The number of clips that a loader decodes together."""
        return self._share or 1

    @property
    def grouped(self) -> order.GroupedVisit | None:
        """The clips of the newest iteration that a loader decodes together. None before the iteration's first entry."""
        return self._grouped

    @property
    def _entries_now(self) -> int:
        return self._entries if self._carried is None else len(self._carried.clips)

    def _visit(self, epoch: int, select: Selection) -> Iterable[int]:
        if self._carried is not None:
            yield from self._visit_carried(self._carried.clips, select)
            return
        blocks, window, seed, shuffle = self._blocks, self._window, self.seed, self.shuffle
        if self._groups is not None:
            yield from self._visit_groups(self._groups, epoch, select)
            return
        if self._weights is None:
            clips = order.epoch_order(
                self._count, shuffle=shuffle, seed=seed, epoch=epoch, blocks=blocks, window=window
            )
        else:
            clips = drawn_order(self._weights, self._entries, seed=seed, epoch=epoch)
            if blocks is not None:  # stream 1 of random numbers, because the draw of clips used stream 0
                clips = clips[order.in_blocks(blocks[clips], window, order.generator(seed, epoch, stream=1))]
        yield from select(clips).tolist()

    def _visit_carried(self, clips: NDArray[np.int64], select: Selection) -> Iterable[int]:
        own = select(clips)
        if self._groups is not None:
            self._grouped = self._grouped_visit(own, self._groups[own])
        yield from own.tolist()

    def _visit_groups(self, groups: NDArray[np.int64], epoch: int, select: Selection) -> Iterable[int]:
        clips, rng = np.arange(self._count), None
        if self._weights is not None:
            clips = drawn_order(self._weights, self._entries, seed=self.seed, epoch=epoch)
        if self.shuffle or self._weights is not None:
            rng = order.generator(self.seed, epoch, stream=1)
        places = order.in_groups(
            groups[clips], lanes=self._lanes, share=self.group_size, window=self._window, spread=self._spread, rng=rng
        )
        own = clips[select(places)]
        self._grouped = self._grouped_visit(own, groups[own])
        yield from own.tolist()

    def _grouped_visit(self, clips: NDArray[np.int64], of_group: NDArray[np.int64]) -> order.GroupedVisit:
        of_group[self._ranks.length(self._entries_now - self._start, uneven="allow") :] = -1  # a repeated clip
        return order.GroupedVisit(clips, of_group, self.group_size)

    def _begin(self, epoch: int, start: int) -> None:
        super()._begin(epoch, start)
        self._grouped = None
        if self._carried is not None and self._carried.state["epoch"] != epoch:
            self._carried = None
        if not start:
            self._lanes = self._ranks.world_size

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """Return a state of plain values, as described for ElasticSampler. With `share`, it has the number of lanes.

        In an epoch that began before clips were removed from the dataset, it also has the state from before.
        """
        lanes = {} if self._share is None else {"lanes": self._lanes}
        carried = {} if self._carried is None else {CARRIED: self._carried.state}
        return super().state_dict(delivered=delivered) | lanes | carried

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state, saved by any rank with any world size.

        If clips were removed from the dataset since the state was saved, the rest of the epoch has the same order
        without these clips. Later epochs have the order of the dataset as it is now.

        Raises:
            FramedexError: As for ElasticSampler. Or the dataset was changed since the state was saved, and clips are
                drawn by weights, or the dataset does not have the records of the change.
        """
        self._carried = None
        given = dict(state) if isinstance(state, Mapping) else {}
        inner = given.pop(CARRIED, None)
        if given and given.get(order.DATASET) != self._identity.get(order.DATASET):
            self._carry(state)
            return
        lanes = given.get("lanes")
        if lanes is not None:
            check_counts(lanes=(lanes, 1))
        if inner is None:
            super().load_state_dict(state)
        else:
            self._carry(inner)
            super().load_state_dict({CARRIED: inner} | given)
        if self._start and lanes is not None:
            self._lanes = lanes

    def _carry(self, state: Any) -> None:
        """Begin the rest of the epoch of a state from before clips were removed. Raises FramedexError."""
        earlier_of = getattr(self._dataset, "earlier", None)
        version = state.get(order.DATASET) if isinstance(state, Mapping) else None
        clips = None if earlier_of is None or self._weights is not None else earlier_of(version)
        if clips is None or not isinstance(state, Mapping):
            order.check_state(state, type(self).__name__, self.state_dict().keys(), self._identity)
            raise FramedexError("the state was not saved before clips were removed", found=repr(state)[:80])
        then = ClipSampler(clips, uneven="allow", **self._order)
        then.load_state_dict({name: value for name, value in state.items() if name != order.PICTURES})
        rest = np.fromiter(then._visit(then.epoch, partial(then._ranks.of, delivered=then._start)), np.int64)
        now, new = clips.numbers[rest], np.setdiff1d(np.arange(self._count), clips.numbers)
        if len(new):  # appended clips follow, in the order that they have among themselves in an epoch of all clips
            every = order.epoch_order(self._count, shuffle=self.shuffle, seed=self.seed, epoch=then.epoch)
            new = every[np.isin(every, new)]
        self._carried = _Carried(state=dict(state), clips=np.concatenate([now[now >= 0], new]))
        self._begin(then.epoch, 0)

    def distinct_media(self, batch_size: int, *, epoch: int = 0) -> float:
        """Return the mean number of distinct media in a full batch of this rank, which is at most `batch_size`.

        Args:
            batch_size: The number of clips of a batch.
            epoch: The number of the epoch.

        Raises:
            FramedexError: The batch size is below 1, there is no full batch, or the dataset lacks the media of clips.
        """
        check_counts(batch_size=(batch_size, 1))
        other = copy.copy(self)
        other._begin(epoch, 0)
        media = _blocks_of(self._dataset, "medium")[np.fromiter(other._give(), np.int64)]
        batches = np.sort(media[: len(media) // batch_size * batch_size].reshape(-1, batch_size), axis=1)
        if not len(batches):
            raise FramedexError("there is no full batch", found=f"{len(media)} clips", allowed=f"{batch_size} or more")
        return float(1 + np.count_nonzero(np.diff(batches, axis=1), axis=1).mean())


def _blocks_of(dataset: Sized, blocks: Blocks) -> NDArray[np.int64]:
    """Return int64 [clips]: the block of each clip, numbered from 0. Raises FramedexError."""
    if isinstance(blocks, int) and blocks > 0:
        return np.arange(len(dataset), dtype=np.int64) // blocks
    if blocks not in ("tar", "medium"):
        raise FramedexError("unknown blocks", found=repr(blocks), allowed="'tar', 'medium', a number of clips")
    places = order.method_of(dataset, "places", "use a number, such as blocks=64 for blocks of 64 neighbouring clips")
    return np.unique(places(blocks), return_inverse=True)[1].astype(np.int64)
