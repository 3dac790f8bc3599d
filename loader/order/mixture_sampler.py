"""MixtureSampler: a sampler that mixes clips of several datasets at given rates.

Each dataset is a part of the mixture. The clips of each part have an endless order, in which every clip occurs once
before any clip occurs again. An epoch takes the next clips from the order of each part. So all clips of a part are used
equally often, regardless of the length of an epoch.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Unit, check_counts
from framedex.loader.order.order import RankShare, Uneven, generator, version_facts, within_groups
from framedex.loader.order.sampler import ElasticSampler, Selection

Until = Literal["first_exhausted", "all_exhausted"]
MAX_CLIPS = 10_000_000_000  # maximum number of clips of a part in an epoch; a longer order would not fit into memory
# Number of consecutive clips of a small part that one random generator draws, because making a generator is slow.
PLACES_AT_ONCE = 4096


def epoch_counts(
    sizes: NDArray[np.int64], rates: NDArray[np.float64], *, until: Until, length: int | None
) -> NDArray[np.int64]:
    """Return int64 [parts]: the number of clips of each part in an epoch.

    The numbers are proportional to the rates, rounded to whole numbers.

    Args:
        sizes: The number of clips of each part, above 0, int64 [parts].
        rates: The rate of each part, above 0 and relative to the others, float64 [parts].
        until: The end of an epoch. With "first_exhausted", the epoch has every clip of the part that is exhausted first
            exactly once, and clips of other parts at most once. With "all_exhausted", the epoch ends when all
            parts are exhausted. It has each clip of the part that ends last exactly once, and others at least once.
        length: The number of clips of an epoch. If given, `until` has no effect.

    Raises:
        FramedexError: An epoch would have too many clips to fit into memory.
    """
    if length is not None:
        exact = length * (rates / rates.sum())
        counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
        largest = np.argsort(counts - exact, kind="stable")[: length - int(counts.sum())]
        counts[largest] += 1
        return counts
    passes = sizes / rates
    whole = int(np.argmin(passes) if until == "first_exhausted" else np.argmax(passes))
    if rates.max() * passes[whole] > MAX_CLIPS:
        raise FramedexError(
            "an epoch with these rates has too many clips",
            found=f"{rates.max() * passes[whole]:.3g} clips of one dataset",
            allowed=f"at most {MAX_CLIPS:,} clips",
            remedy="choose rates that differ less, until='first_exhausted', or a length",
        )
    counts = np.floor(rates * passes[whole] + 0.5).astype(np.int64)
    counts[whole] = sizes[whole]
    return np.minimum(counts, sizes) if until == "first_exhausted" else np.maximum(counts, sizes)


def part_order(size: int, first: int, stop: int, *, shuffle: bool, seed: int, part: int) -> NDArray[np.int64]:
    """Return int64 [stop - first]: the clips at positions first to stop - 1 of a part's endless order.

    The order consists of passes of `size` positions. Each pass has every clip of the part once.

    Args:
        size: The number of clips of the part.
        first: The first position.
        stop: The position after the last one.
        shuffle: Whether each pass over the part is shuffled.
        seed: The seed of the shuffle.
        part: The number of the part.
    """
    if not shuffle:
        return np.arange(first, stop, dtype=np.int64) % size
    passes = max(1, PLACES_AT_ONCE // size)
    each = passes * size
    blocks = range(first // each, -(-stop // each))
    found = [np.zeros(0, np.int64)]
    for block in blocks:
        rng = generator(seed, block, stream=part + 1)
        if passes == 1:
            found.append(rng.permutation(size).astype(np.int64))
        else:
            found.append(rng.permuted(np.tile(np.arange(size, dtype=np.int64), (passes, 1)), axis=1).ravel())
    begin = first - blocks.start * each
    return np.concatenate(found)[begin : begin + stop - first]


def part_at(counts: NDArray[np.int64], *, shuffle: bool, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return int64 [clips]: the part to which the clip at each position of an epoch belongs.

    Think of the epoch as a time interval. For each part, this interval is cut into equal spans, one for each clip of
    the part, and each clip gets a random time within its span. The clips of all parts are then sorted by time. So the
    first n clips contain about n × rate clips of each part, with a difference below 1 + (parts - 2) × rate. Because
    times are random, ranks that take every k-th clip get clips of all parts.

    Args:
        counts: The number of clips of each part in the epoch, int64 [parts].
        shuffle: Whether times are random. If not, clips are in the middle of their spans.
        seed: The seed of the random times.
        epoch: The number of the epoch.
    """
    part, span = within_groups(counts)
    within = generator(seed, epoch).random(len(part)) if shuffle else 0.5
    return part[np.argsort((span + within) / counts[part], kind="stable")]


def mixture_order(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], *, shuffle: bool, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Return int64 [clips of an epoch]: the clip numbers in the joined dataset, in the order of an epoch.

    Args:
        sizes: The number of clips of each part, above 0, int64 [parts].
        counts: The number of clips of each part in an epoch, int64 [parts].
        shuffle: Whether to shuffle the clips of each part, and the order of parts.
        seed: The seed of the shuffle.
        epoch: The number of the epoch.
    """
    parts = part_at(counts, shuffle=shuffle, seed=seed, epoch=epoch)
    order = np.empty(len(parts), np.int64)
    first = np.cumsum(sizes) - sizes
    for part, (size, count) in enumerate(zip(sizes.tolist(), counts.tolist(), strict=True)):
        own = part_order(size, epoch * count, (epoch + 1) * count, shuffle=shuffle, seed=seed, part=part)
        order[parts == part] = first[part] + own
    return order


class MixtureSampler(ElasticSampler[int]):
    """A sampler that mixes clips of several datasets at given rates, without replacement within each dataset.

    Every clip of a dataset is visited once before any clip of this dataset is visited again. Each pass over a dataset
    has another random order. In each dataset, an epoch continues where the last epoch ended, so that every clip is
    visited eventually. The rates hold throughout an epoch. Among its first n clips, the number of clips of a dataset
    differs from n × rate by less than 1 + (datasets - 2) × rate.

    The order depends only on the seed and the epoch. The clips are divided among ranks as by ClipSampler, and the
    sampler's state is also the number of delivered clips.

    Args:
        dataset: The joined datasets, as a ConcatClips or a torch ConcatDataset.
        rates: A number above 0 for each of `dataset.datasets`, relative to the others. Defaults to the sizes of the
            datasets.
        until: The end of an epoch. With "first_exhausted", an epoch ends when one dataset has delivered all of its
            clips. With "all_exhausted", it ends when every dataset has delivered all of its clips, and smaller datasets
            repeat clips until then.
        length: The number of clips of an epoch, as an alternative to `until`.
        shuffle: Whether to shuffle the clips of each dataset, and the order of datasets. If not, datasets alternate in
            a regular pattern, so that a rank may never get a clip of some dataset.
        seed: The seed of the shuffle.
        rank: The rank of this process in distributed training.
        world_size: The number of ranks in distributed training.
        uneven: The treatment of clips that cannot be divided evenly among ranks, as for ClipSampler.

    Attributes:
        counts: The number of clips of each dataset in an epoch.

    Raises:
        FramedexError: An argument is out of range, a dataset is empty, or an epoch has no clip of some dataset.
    """

    UNIT: ClassVar[Unit] = "clips"

    def __init__(
        self,
        dataset: Any,
        *,
        rates: Sequence[float] | None = None,
        until: Until | None = None,
        length: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: Uneven = "pad",
    ) -> None:
        if until is not None:
            check_choices(until=(until, get_args(Until)))
        if length is not None:
            check_counts(length=(length, 1))
            if until is not None:
                raise FramedexError("until and length both set the length of an epoch", remedy="give one of them")
        self._sizes = _sizes_of(dataset)
        self.shuffle = shuffle
        checked = _checked_rates(rates, self._sizes)
        self._counts = epoch_counts(self._sizes, checked, until=until or "first_exhausted", length=length)
        self.counts: list[int] = self._counts.tolist()
        if not self._counts.all():
            raise FramedexError(
                f"an epoch has no clip of dataset {int(np.argmin(self._counts))}",
                found=f"{self.counts} clips of the datasets, at rates {checked.tolist()}",
                remedy="use a greater length, until='all_exhausted', or a greater rate",
            )
        identity = {"sizes": self._sizes.tolist(), "counts": list(self.counts), "shuffle": shuffle, "seed": seed}
        identity |= version_facts(dataset)
        ranks = RankShare(rank=rank, world_size=world_size, uneven=uneven)
        super().__init__(sum(self.counts), identity, seed=seed, ranks=ranks)

    def _visit(self, epoch: int, select: Selection) -> Iterable[int]:
        order = mixture_order(self._sizes, self._counts, shuffle=self.shuffle, seed=self.seed, epoch=epoch)
        yield from select(order).tolist()


def _sizes_of(dataset: Any) -> NDArray[np.int64]:
    """Return int64 [datasets]: the number of clips of each dataset. Raises FramedexError if a dataset is empty."""
    if not hasattr(dataset, "cumulative_sizes"):
        raise FramedexError(
            "a mixture needs several joined datasets",
            found=type(dataset).__name__,
            allowed="a ConcatClips, or a torch ConcatDataset",
            remedy="join them by framedex.ConcatClips([first, second])",
        )
    ends = np.array([0, *dataset.cumulative_sizes], np.int64)
    sizes: NDArray[np.int64] = ends[1:] - ends[:-1]
    if not sizes.all():
        raise FramedexError(f"dataset {int(np.argmin(sizes))} of the mixture is empty", remedy="leave it out")
    return sizes


def _checked_rates(rates: Sequence[float] | None, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64 [datasets]: the rates. Raises FramedexError if a rate is not above 0."""
    if rates is None:
        return sizes.astype(np.float64)
    try:
        found: NDArray[np.float64] = np.array(list(rates), np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != sizes.shape or not np.isfinite(found).all() or not (found > 0).all():
        raise FramedexError(
            "rates must have one number above 0 for each dataset",
            found=repr(rates)[:80],
            allowed=f"{len(sizes)} finite numbers above 0",
            remedy="to leave out a dataset, do not join it",
        )
    relative: NDArray[np.float64] = found / found.max()
    return relative
