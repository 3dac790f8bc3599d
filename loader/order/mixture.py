"""The order of a mixture of datasets: how many clips of each an epoch has, and which clip stands where.

The parts have places in an endless order of their own, in which each of their clips comes once before any comes again.
An epoch takes the next places of each part, so the parts' clips are used equally often, however long an epoch is.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.order.order import generator

Until = Literal["first_exhausted", "all_exhausted"]
MOST_CLIPS = 10_000_000_000  # of a part in an epoch
PLACES_AT_ONCE = 4096  # of the order of a small part, at least, that are made with one generator


def epoch_counts(
    sizes: NDArray[np.int64], rates: NDArray[np.float64], *, until: Until, length: int | None
) -> NDArray[np.int64]:
    """Return int64 [parts]: how many clips of each part an epoch has.

    They are in proportion to the rates, to the nearest whole number.

    Args:
        sizes: int64 [parts], clips of each part, above 0.
        rates: float64 [parts], relative to each other, above 0.
        until: which part has all of its clips once in an epoch: the first that is exhausted, or the last one. The other
            parts have at most, or at least, all of theirs.
        length: clips of an epoch, in place of `until`. None: as `until` says.

    Raises:
        FramedexError: an epoch would have more clips than any realistic use wants.
    """
    if length is not None:
        exact = length * (rates / rates.sum())
        counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
        largest = np.argsort(counts - exact, kind="stable")[: length - int(counts.sum())]
        counts[largest] += 1
        return counts
    passes = sizes / rates
    whole = int(np.argmin(passes) if until == "first_exhausted" else np.argmax(passes))
    if rates.max() * passes[whole] > MOST_CLIPS:
        raise FramedexError(
            "an epoch of these rates has too many clips",
            found=f"{rates.max() * passes[whole]:.3g} clips of one dataset",
            allowed=f"{MOST_CLIPS:,}",
            remedy="choose rates that differ less, until='first_exhausted', or a length",
        )
    counts = np.floor(rates * passes[whole] + 0.5).astype(np.int64)
    counts[whole] = sizes[whole]
    return np.minimum(counts, sizes) if until == "first_exhausted" else np.maximum(counts, sizes)


def part_order(size: int, first: int, stop: int, *, shuffle: bool, seed: int, part: int) -> NDArray[np.int64]:
    """Return int64 [stop - first]: the clips at these places of a part's endless order.

    Every stretch of `size` places from a multiple of `size` on has each clip of the part once.

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
    found = [_passes(size, passes, generator(seed, block, stream=part + 1)) for block in blocks]
    begin = first - blocks.start * each
    return np.concatenate([np.zeros(0, np.int64), *found])[begin : begin + stop - first]


def _passes(size: int, passes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return int64 [passes * size]: passes over a part one after the other."""
    if passes == 1:
        return rng.permutation(size).astype(np.int64)
    return rng.permuted(np.tile(np.arange(size, dtype=np.int64), (passes, 1)), axis=1).ravel()


def part_at(counts: NDArray[np.int64], *, shuffle: bool, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return int64 [clips]: the part whose clip stands at each place of an epoch.

    For each part, the epoch is cut into as many equal spans of time as it has clips of the part, and each of these
    clips comes at a random time in its span. So the first n clips have n × rate clips of each part, and never differ
    from that by as much as 1 + (parts - 2) × rate. Ranks that take every k-th clip still get clips of all parts,
    because their times are random.

    Args:
        counts: int64 [parts], how many clips of each part the epoch has.
        shuffle: whether times are random. Without it, clips come in the middle of their spans.
        seed: the seed of the times.
        epoch: number of the epoch.
    """
    part = np.repeat(np.arange(len(counts)), counts)
    span = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts)
    within = generator(seed, epoch).random(len(part)) if shuffle else 0.5
    return part[np.argsort((span + within) / counts[part], kind="stable")]


def mixture_order(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], *, shuffle: bool, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Return int64 [clips of an epoch]: the order of an epoch, in numbers of the parts' clips one after the other.

    Args:
        sizes: int64 [parts], clips of each part, above 0.
        counts: int64 [parts], how many clips of each part an epoch has.
        shuffle: whether to shuffle each part, and how parts follow each other.
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
