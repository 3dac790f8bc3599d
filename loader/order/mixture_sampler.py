"""MixtureSampler: visits clips of several datasets at rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.hints import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Unit, check_counts
from framedex.loader.order.elastic import ElasticSampler, Share
from framedex.loader.order.mixture import Until, epoch_counts, mixture_order
from framedex.loader.order.order import RankShare, Uneven


class MixtureSampler(ElasticSampler[int]):
    """Visits clips of several datasets at rates, each dataset's clips without replacement.

    The clips of each dataset come once before any of them comes again, and each pass over a dataset is shuffled anew.
    An epoch goes on where the epoch before it stopped in each dataset, so that no clip is left behind. Every prefix of
    an epoch has the rates: it never differs from n × rate clips by as much as 1 + (datasets - 2) × rate.

    The order depends only on seed and epoch. It is shared by ranks, saved and resumed as that of ClipSampler.

    Args:
        dataset: the datasets joined: a ConcatClips, or a torch ConcatDataset.
        rates: a number above 0 for each of `dataset.datasets`, relative to each other. None: in proportion to their
            sizes.
        until: what an epoch is. "first_exhausted": it ends when one dataset has delivered all of its clips.
            "all_exhausted": it ends when all datasets have; the others repeat clips until then.
        length: what an epoch is, in place of `until`: a number of clips.
        shuffle: whether to shuffle each dataset, and how datasets follow each other. Without it, datasets come in a
            regular pattern, so that with several ranks a rank may never see a dataset.
        seed: the seed of the shuffle.
        rank: number of this process in distributed training.
        world_size: number of processes in distributed training.
        uneven: as for ClipSampler.

    Attributes:
        counts: how many clips of each dataset an epoch has.

    Raises:
        FramedexError: an argument is out of range, a dataset is empty, or an epoch has no clip of a dataset.
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
                raise FramedexError("until and length say what an epoch is", remedy="give one of them")
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
