"""Which clips make each batch: those of a sampler in turn, or those that a sampler of batches names."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

from framedex.errors import FramedexError
from framedex.loader.arguments import Last

UNKNOWN_SIZE = 16  # clips that a batch is expected to have if a sampler of batches does not say it


class Groups(Protocol):
    """The batches of an epoch: the clips of each, and how many at its end are padding."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[list[int], int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOfSize:
    """Batches of equally many clips, except perhaps the last one.

    Attributes:
        sampler: yields clip numbers.
        clips: clips of the dataset, for a sampler that has no length.
        batch_size: clips per batch.
        last: what to do with a last batch that is not full.
    """

    sampler: Iterable[int]
    clips: int
    batch_size: int
    last: Last

    def __len__(self) -> int:
        count = len(self.sampler) if isinstance(self.sampler, Sized) else self.clips
        return count // self.batch_size if self.last == "drop" else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        return self._groups(iter(self.sampler))

    def _groups(self, numbers_of_epoch: Iterator[int]) -> Iterator[tuple[list[int], int]]:
        numbers: list[int] = []
        for number in numbers_of_epoch:
            numbers.append(checked_number(number, self.clips))
            if len(numbers) == self.batch_size:
                yield numbers, 0
                numbers = []
        if numbers and self.last == "partial":
            yield numbers, 0
        elif numbers and self.last == "pad":
            padding = self.batch_size - len(numbers)
            yield [numbers[place % len(numbers)] for place in range(self.batch_size)], padding


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGroups:
    """Batches as a sampler of batches yields them.

    Attributes:
        sampler: yields lists of clip numbers.
        clips: clips of the dataset.
        largest: clips of the largest batch. None: any number.
    """

    sampler: Iterable[Sequence[int]]
    clips: int
    largest: int | None

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"{type(self.sampler).__name__} has no len(), so the number of batches is not known")
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        return self._groups(iter(self.sampler))

    def _groups(self, batches: Iterator[Sequence[int]]) -> Iterator[tuple[list[int], int]]:
        for batch in batches:
            if isinstance(batch, str | bytes) or not isinstance(batch, Sized) or not len(batch):
                raise FramedexError(
                    "batch_sampler yields the clips of a batch", found=repr(batch), allowed="a list of clip numbers"
                )
            if self.largest is not None and len(batch) > self.largest:
                raise FramedexError(
                    "a batch has more clips than its sampler says",
                    found=f"{len(batch)} clips",
                    allowed=f"{self.largest}, as largest_batch or batch_size of {type(self.sampler).__name__} says",
                )
            yield [checked_number(number, self.clips) for number in batch], 0


def checked_number(number: int, clips: int) -> int:
    """Return a clip number of a sampler as an int.

    Raises:
        FramedexError: it is no whole number.
        IndexError: there is no such clip.
    """
    try:
        whole = operator.index(number)
    except TypeError as error:
        raise FramedexError(
            "the sampler yields something that is no clip number",
            found=repr(number)[:80],
            allowed=f"whole numbers, 0 to {clips - 1}",
        ) from error
    if not -clips <= whole < clips:
        raise IndexError(f"the sampler asks for clip {number} of {clips}")
    return whole


def largest_batch(sampler: Iterable[Sequence[int]]) -> int | None:
    """Return how many clips the largest batch of a sampler of batches has; None if it does not say that.

    It is the sampler's `largest_batch`, or `batch_size` as in torch's BatchSampler, or that of a list of batches.
    """
    for name in ("largest_batch", "batch_size"):
        size = getattr(sampler, name, None)
        if type(size) is int:
            return max(1, size)
    if isinstance(sampler, list | tuple):
        return max([len(batch) for batch in sampler if isinstance(batch, Sized)], default=1) or 1
    return None
