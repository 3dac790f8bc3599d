"""Buckets of like clips, and the batches of an epoch: pure functions of values, a seed and an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framedex.errors import FramedexError
from framedex.loader.order.columns import codes_of
from framedex.loader.order.order import generator

BUCKETS = 8  # of a number, if nothing else is said
FINEST = 8  # batches of up to so many clips have a bucket for each number of clips; larger ones for each eighth


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of an epoch.

    Attributes:
        clips: int64, clips, those of a batch one after the other.
        first: int64 [batches], where each batch begins in `clips`, in the order of the epoch.
        stop: int64 [batches], the place behind its last clip.
    """

    clips: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which clips share batches. Every epoch has the same number of batches.

    Attributes:
        count: clips of the dataset.
        clips: int64 [clips that are visited], sorted by bucket.
        first: int64 [buckets + 1], where the clips of each bucket begin among `clips`.
        most: int64 [buckets], clips of a full batch of each bucket.
        drops_last: whether the last batch of each bucket is left out if it is not full.
    """

    count: int
    clips: NDArray[np.int64]
    first: NDArray[np.int64]
    most: NDArray[np.int64]
    drops_last: bool

    @property
    def batches(self) -> NDArray[np.int64]:
        """int64 [buckets]: how many batches each bucket has in an epoch."""
        sizes = np.diff(self.first)
        return sizes // self.most if self.drops_last else -(-sizes // self.most)

    def bucket_of(self, number: int) -> int:
        """Return the bucket of a clip. Raises KeyError if no batch has the clip."""
        for bucket, (first, stop) in enumerate(zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True)):
            at = first + int(np.searchsorted(self.clips[first:stop], number))  # ascending in each bucket
            if at < stop and self.clips[at] == number:
                return bucket
        raise KeyError(number)


def laid_out(
    buckets: NDArray[np.int64], most: NDArray[np.int64], visited: NDArray[np.bool_], *, drops_last: bool
) -> Layout:
    """Return which clips share batches.

    Args:
        buckets: int64 [clips], the bucket of each clip, numbered from 0.
        most: int64 [buckets], clips of a full batch of each bucket.
        visited: bool [clips], False for clips that no batch has.
        drops_last: whether the last batch of each bucket is left out if it is not full.
    """
    clips = np.flatnonzero(visited)
    clips = clips[np.argsort(buckets[clips], kind="stable")]
    first = np.searchsorted(buckets[clips], np.arange(len(most) + 1))
    return Layout(count=len(buckets), clips=clips, first=first, most=most, drops_last=drops_last)


def epoch_batches(layout: Layout, *, shuffle: bool, seed: int, epoch: int, alike: int = 1) -> Batches:
    """Return the batches of an epoch: the same for every rank, and others in each epoch.

    Args:
        layout: which clips share batches.
        shuffle: whether to shuffle the clips of each bucket, and the batches.
        seed: the seed of the shuffle.
        epoch: number of the epoch.
        alike: how many batches that follow each other are of one bucket. Batches that are left over come at the end.
    """
    counts = layout.batches
    bucket = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(bucket)) - np.repeat(np.cumsum(counts) - counts, counts)  # number in its bucket
    first = layout.first[bucket] + within * layout.most[bucket]
    stop = np.minimum(first + layout.most[bucket], layout.first[bucket + 1])
    if not shuffle:
        return Batches(clips=layout.clips, first=first, stop=stop)
    rng = generator(seed, epoch)
    of_clip = np.repeat(np.arange(len(counts)), np.diff(layout.first))
    clips = layout.clips[np.lexsort((rng.permutation(len(layout.clips)), of_clip))]
    is_left_over = within >= counts[bucket] // alike * alike
    begins = within % alike == 0
    place = rng.permutation(len(bucket))[begins][np.cumsum(begins) - 1]  # all batches of a group share one
    order = np.lexsort((within, place, is_left_over))
    return Batches(clips=clips, first=first[order], stop=stop[order])


def numbered(values: NDArray[Any], buckets: int | Sequence[float] | None) -> NDArray[np.int64]:
    """Return int64 [clips]: the bucket of each clip by a value, numbered from 0.

    Args:
        values: [clips]. Equal values are always in one bucket.
        buckets: of numbers: how many buckets, of about equally many clips; or their bounds, ascending, each of which is
            the least number of a bucket. None: up to 8 buckets of numbers, and one for each value that is no number.

    Raises:
        FramedexError: values and buckets do not fit together.
    """
    is_number = values.dtype.kind in "iuf"
    if not is_number:
        if buckets is not None:
            raise FramedexError("buckets is for numbers", found=repr(values[:1].tolist()), remedy="leave out buckets")
        return codes_of(values)
    wrong = np.flatnonzero(np.isnan(values))
    if len(wrong):
        raise FramedexError("clips have no number to go by", found=f"{len(wrong):,} such clips, the first {wrong[0]}")
    if buckets is None or type(buckets) is int:
        return codes_of(np.searchsorted(_bounds(values, buckets or BUCKETS), values, side="right"))
    return codes_of(np.searchsorted(_given_bounds(buckets), values, side="right"))


def _bounds(values: NDArray[Any], buckets: int) -> NDArray[Any]:
    """Return the bounds of buckets of about equally many clips, or of a bucket for each value if these are enough."""
    distinct = np.unique(values)
    if len(distinct) <= buckets:
        return distinct[1:]
    return np.unique(np.sort(values)[np.arange(1, buckets) * len(values) // buckets])


def _given_bounds(buckets: ArrayLike) -> NDArray[np.float64]:
    try:
        bounds = np.asarray(buckets, np.float64)
    except (TypeError, ValueError):
        bounds = np.zeros((0, 0))
    if bounds.ndim != 1 or not (np.diff(bounds) > 0).all() or np.isnan(bounds).any():
        raise FramedexError(
            "buckets is a number of buckets, or their bounds", found=repr(buckets)[:80], allowed="ascending numbers"
        )
    return bounds


def by_fit(tokens: NDArray[np.int64], max_tokens: int, max_batch: int | None) -> NDArray[np.int64]:
    """Return int64 [clips]: buckets of clips of which equally many fit into a batch, the smallest clips first.

    So a batch is nearly full of tokens, whatever clip of its bucket is the largest.

    Args:
        tokens: int64 [clips], tokens of each clip, above 0.
        max_tokens: tokens of a batch at most, padding included.
        max_batch: clips of a batch at most. None: no limit.
    """
    fit = np.maximum(1, max_tokens // tokens)
    if max_batch is not None:
        fit = np.minimum(fit, max_batch)
    step = np.left_shift(1, np.maximum(0, np.log2(fit / FINEST)).astype(np.int64))
    return codes_of(-(fit // step * step))
