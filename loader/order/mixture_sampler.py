"""MixtureSampler: visits clips of several datasets at given rates.

Each dataset is a part of the mixture. A part has an endless order of its own, in which each clip comes once before any
clip comes again. An epoch takes the next clips from the order of each part, so that all clips of a part are used
equally often, however long an epoch is.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Unit, check_counts
from framedex.loader.order.order import RankShare, Uneven, generator, within_groups
from framedex.loader.order.sampler import ElasticSampler, Share

Until = Literal["first_exhausted", "all_exhausted"]
MAX_CLIPS = 10_000_000_000  # an order of more clips of a part does not fit the memory
# So many places of a small part share a random generator, because making one takes longer than a few draws.
PLACES_AT_ONCE = 4096


def epoch_counts(
    sizes: NDArray[np.int64], rates: NDArray[np.float64], *, until: Until, length: int | None
) -> NDArray[np.int64]:
    """Return int64 [parts]: how many clips of each part an epoch has.

    They are in proportion to the rates, to the nearest whole number.

    Args:
        sizes: int64 [parts], clips of each part, above 0.
        rates: float64 [parts], relative to each other, above 0.
        until: the part whose clips all come exactly once in an epoch: the part that is exhausted first, or the part
            that is exhausted last. Clips of other parts come at most once, or at least once.
        length: clips of an epoch, in place of `until`, if given.

    Raises:
        FramedexError: an epoch would have too many clips for the memory.
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
            "an epoch of these rates has too many clips",
            found=f"{rates.max() * passes[whole]:.3g} clips of one dataset",
            allowed=f"{MAX_CLIPS:,}",
            remedy="choose rates that differ less, until='first_exhausted', or a length",
        )
    counts = np.floor(rates * passes[whole] + 0.5).astype(np.int64)
    counts[whole] = sizes[whole]
    return np.minimum(counts, sizes) if until == "first_exhausted" else np.maximum(counts, sizes)


def part_order(size: int, first: int, stop: int, *, shuffle: bool, seed: int, part: int) -> NDArray[np.int64]:
    """Return int64 [stop - first]: the clips at these places of a part's endless order.

    Every `size` places, counted from place 0, have each clip of the part once.

    Args:
        size: clips of the part.
        first: the first place.
        stop: the place behind the last one.
        shuffle: whether each pass over the part is shuffled.
        seed: the seed of the shuffle.
        part: number of the part.
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
    """Return int64 [clips]: the part of the clip at each place of an epoch.

    For each part, the epoch is cut into equal spans of time, one for each clip of the part, and each clip comes at a
    random time in its span. So the first n clips contain about n × rate clips of each part; the difference is below
    1 + (parts - 2) × rate. Because times are random, ranks that take every k-th clip get clips of all parts.

    Args:
        counts: int64 [parts], how many clips of each part the epoch has.
        shuffle: whether times are random. Without it, clips come in the middle of their spans.
        seed: the seed of the times.
        epoch: number of the epoch.
    """
    part, span = within_groups(counts)
    within = generator(seed, epoch).random(len(part)) if shuffle else 0.5
    return part[np.argsort((span + within) / counts[part], kind="stable")]


def mixture_order(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], *, shuffle: bool, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Return int64 [clips of an epoch]: the order of an epoch, in numbers of the joined datasets' clips.

    Args:
        sizes: int64 [parts], clips of each part, above 0.
        counts: int64 [parts], how many clips of each part an epoch has.
        shuffle: whether to shuffle each part, and the order of parts.
        seed: the seed of the shuffle.
        epoch: number of the epoch.
    """
    parts = part_at(counts, shuffle=shuffle, seed=seed, epoch=epoch)
    order = np.empty(len(parts), np.int64)
    first = np.cumsum(sizes) - sizes
    for part, (size, count) in enumerate(zip(sizes.tolist(), counts.tolist(), strict=True)):
        own = part_order(size, epoch * count, (epoch + 1) * count, shuffle=shuffle, seed=seed, part=part)
        order[parts == part] = first[part] + own
    return order


class MixtureSampler(ElasticSampler[int]):
    """Visits clips of several datasets at rates, each dataset's clips without replacement.

    The clips of each dataset come once before any of them comes again, and each pass over a dataset is shuffled anew.
    An epoch continues in each dataset where the epoch before it stopped, so that every clip gets its turn. The rates
    hold from the beginning of an epoch on: among its first n clips, the number of clips of a dataset differs from
    n × rate by less than 1 + (datasets - 2) × rate.

    The order depends only on seed and epoch. Ranks share it, and states resume it, as with ClipSampler.

    Args:
        dataset: the datasets joined: a ConcatClips, or a torch ConcatDataset.
        rates: a number above 0 for each of `dataset.datasets`, relative to each other. Defaults to their sizes.
        until: the end of an epoch. "first_exhausted": one dataset has delivered all of its clips. "all_exhausted": all
            datasets have; smaller ones repeat clips until then.
        length: clips of an epoch, in place of `until`.
        shuffle: whether to shuffle each dataset, and the order of datasets. If not, datasets come in a regular pattern,
            so that one of several ranks may never get a clip of some dataset.
        seed: the seed of the shuffle.
        rank: number of this process in distributed training.
        world_size: number of processes in distributed training.
        uneven: as for ClipSampler.

    Attributes:
        counts: how many clips of each dataset an epoch has.

    Raises:
        FramedexError: an argument is out of range, a dataset is empty, or an epoch lacks clips of a dataset.
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
            part = int(np.argmin(self._counts))
            raise FramedexError(
                f"an epoch has no clip of dataset {part}",
                found=f"{self.counts} clips of the datasets, at rates {checked.tolist()}",
                remedy="give a greater length, until='all_exhausted', or a greater rate",
            )
        identity = {"sizes": self._sizes.tolist(), "counts": list(self.counts), "shuffle": shuffle, "seed": seed}
        ranks = RankShare(rank=rank, world_size=world_size, uneven=uneven)
        super().__init__(sum(self.counts), identity, seed=seed, ranks=ranks)

    def _visit(self, epoch: int, share: Share) -> Iterable[int]:
        order = mixture_order(self._sizes, self._counts, shuffle=self.shuffle, seed=self.seed, epoch=epoch)
        numbers: list[int] = share(order).tolist()
        return numbers


def _sizes_of(dataset: Any) -> NDArray[np.int64]:
    """Return int64 [datasets]: the number of clips of each. Raises FramedexError."""
    if not hasattr(dataset, "cumulative_sizes"):
        raise FramedexError(
            "a mixture is of several datasets",
            found=type(dataset).__name__,
            allowed="a ConcatClips, or a torch ConcatDataset",
            remedy="framedex.ConcatClips([first, second])",
        )
    ends = np.array([0, *dataset.cumulative_sizes], np.int64)
    sizes: NDArray[np.int64] = ends[1:] - ends[:-1]
    if not sizes.all():
        raise FramedexError(f"dataset {int(np.argmin(sizes))} of the mixture is empty", remedy="leave it out")
    return sizes


def _checked_rates(rates: Sequence[float] | None, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64 [datasets]: rates above 0. Raises FramedexError."""
    if rates is None:
        return sizes.astype(np.float64)
    try:
        found: NDArray[np.float64] = np.array(list(rates), np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != sizes.shape or not np.isfinite(found).all() or not (found > 0).all():
        raise FramedexError(
            "rates has a number for each dataset",
            found=repr(rates)[:80],
            allowed=f"{len(sizes)} finite numbers above 0",
            remedy="leave out datasets that are not to be visited",
        )
    relative: NDArray[np.float64] = found / found.max()
    return relative
