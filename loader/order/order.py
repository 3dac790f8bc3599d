"""Compute the order in which an epoch visits clips, each rank's share of it, and its division into batches.

Orders are pure functions of numbers, a seed and an epoch. Samplers sort clips by values, which are arrays or columns of
the dataset. `visual_tokens` computes one such value: how many tokens a model makes of a clip.
"""

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Last, check_counts

Uneven = Literal["pad", "drop", "allow"]


def epoch_order(
    count: int, *, shuffle: bool, seed: int, epoch: int, blocks: NDArray[np.int64] | None = None, window: int = 1
) -> NDArray[np.int64]:
    """Return int64 [count]: a permutation of the clips. It is the same for every rank, and different in each epoch.

    Args:
        count: number of clips.
        shuffle: whether to shuffle. If not, clips keep the order of the dataset.
        seed: the seed of the shuffle.
        epoch: number of the epoch.
        blocks: int64 [count], the block of each clip, numbered from 0. Blocks are shuffled, and then the clips among
            every `window` consecutive blocks, so that clips that are read at the same time are in few blocks. If None,
            clips are shuffled without blocks.
        window: how many consecutive blocks are mixed.
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    if blocks is not None:
        return in_blocks(blocks, window, generator(seed, epoch))
    return generator(seed, epoch).permutation(count).astype(np.int64)


def in_blocks(blocks: NDArray[np.int64], window: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return int64 [count]: an order of clips by blocks, as `epoch_order` describes it.

    Args:
        blocks: int64 [count], the block of each clip, numbered from 0.
        window: how many consecutive blocks are mixed.
        rng: the source of random numbers.
    """
    place = rng.permutation(int(blocks.max(initial=-1)) + 1)  # the place of each block in the order of blocks
    return np.lexsort((rng.permutation(len(blocks)), place[blocks] // window)).astype(np.int64)


def generator(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """Return a generator of random numbers that depends on these arguments alone.

    Args:
        seed: the seed, below 2**64.
        epoch: number of the epoch.
        stream: number of a stream of random numbers. The streams of an epoch are independent of each other.
    """
    key = np.array([seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], np.uint64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """The share of an epoch that one rank visits.

    Ranks take clips from the order in turn. So whenever all ranks have delivered the same number of clips, these clips
    are a prefix of the order.

    Attributes:
        rank: number of this rank.
        world_size: number of ranks.
        uneven: what to do if clips cannot be divided evenly: "pad" repeats the epoch's first clips, "drop" leaves out
            its last ones, and "allow" gives the first ranks one clip more.

    Raises:
        FramedexError: a value is out of range.
    """

    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise FramedexError("rank is out of range", found=self.rank, allowed=f"0 to {self.world_size - 1}")
        check_choices(uneven=(self.uneven, get_args(Uneven)))

    def of(self, order: NDArray[np.int64], delivered: int = 0) -> NDArray[np.int64]:
        """Return the rest of the clips that the rank visits in an epoch.

        Args:
            order: int64, the order of the epoch.
            delivered: clips of the epoch that all ranks together have delivered.
        """
        rest = order[delivered:]
        odd = len(rest) % self.world_size
        if self.uneven == "drop":
            rest = rest[: len(rest) - odd]
        elif self.uneven == "pad" and odd:
            rest = np.concatenate([rest, np.resize(order, self.world_size - odd)])
        return rest[self.rank :: self.world_size]

    def length(self, left: int) -> int:
        """Return how many clips the rank still visits when all ranks together have `left` clips left."""
        beyond = {"pad": self.world_size - 1, "drop": 0, "allow": self.world_size - 1 - self.rank}[self.uneven]
        return (left + beyond) // self.world_size


def sample_of(count: int, *, size: int | None, seed: int) -> NDArray[np.int64]:
    """Return int64 [size]: a random choice of clips, ascending, or all clips without a `size` below `count`."""
    if size is None or size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False)).astype(np.int64)


def check_state(state: object, reader: str, names: Collection[str], order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a sampler or stream. Raise FramedexError if it cannot be its state.

    Args:
        state: the user's argument.
        reader: the class of the sampler or stream.
        names: the names of a state's values.
        order: the values that identify the order of clips.
    """
    problem = f"this is not a state of a {reader}"
    if not isinstance(state, Mapping):
        raise FramedexError(problem, found=repr(state)[:80], allowed="what state_dict() returned")
    if missing := names - state.keys():
        raise FramedexError(problem, found=f"no {', '.join(sorted(missing))}")
    if other := state.keys() - names:
        raise FramedexError(problem, found=f"also {', '.join(sorted(map(str, other)))}")
    for name, value in order.items():
        if state[name] != value:
            raise FramedexError(
                f"the state belongs to another {reader}: it has another {name}",
                found=state[name],
                allowed=value,
                remedy=f"make the {reader} as it was when the state was saved, with the same versions of libraries",
            )
    return state


def method_of(dataset: Any, name: str, remedy: str) -> Callable[..., Any]:
    """Return a method of a dataset. Raise FramedexError with a remedy if the dataset lacks it."""
    if not hasattr(dataset, name):
        raise FramedexError(
            f"the dataset has no method {name}",
            found=type(dataset).__name__,
            allowed="a ClipDataset, MultiViewDataset or ConcatClips",
            remedy=remedy,
        )
    method: Callable[..., Any] = getattr(dataset, name)
    return method


def values_of(dataset: Sized, what: object, name: str) -> NDArray[Any]:
    """Return [clips]: a value for each clip.

    Args:
        dataset: the clips.
        what: an array with a value for each clip, or the name of a column of the dataset.
        name: the name of the argument, for errors.

    Raises:
        FramedexError: the column does not exist, or the array does not have a value for each clip.
    """
    if isinstance(what, str):
        column = method_of(dataset, "column", f"give {name} as an array with a value for each clip")
        return np.asarray(column(what))
    try:
        values: NDArray[Any] = np.asarray(what)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of several lengths; torch tensors with gradients
        raise FramedexError(
            f"{name} has a value for each clip", found=error, allowed=f"an array of {len(dataset):,} values"
        ) from error
    if values.shape != (len(dataset),):
        found = repr(what)[:80] if values.ndim == 0 else f"an array of shape {values.shape}"
        found = f"{len(values):,} values" if values.ndim == 1 else found
        raise FramedexError(f"{name} has a value for each clip", found=found, allowed=f"{len(dataset):,} values")
    if isinstance(what, np.ma.MaskedArray) and np.ma.is_masked(what):
        clip = int(np.argmax(np.ma.getmaskarray(what)))
        raise FramedexError(f"{name} has a value for each clip", found=f"a masked one for clip {clip}")
    return values


def numbers_of(dataset: Sized, what: object, name: str) -> NDArray[np.float64]:
    """Return float64 [clips]: a finite number of 0 or more for each clip.

    Args:
        dataset: as for `values_of`.
        what: as for `values_of`.
        name: as for `values_of`.

    Raises:
        FramedexError: as for `values_of`, or a value is not a finite number of 0 or more.
    """
    values = values_of(dataset, what, name)
    if values.dtype.kind not in "biuf":
        own = (
            values.tolist() if isinstance(what, str) or values.dtype.kind != "U" else list(cast("Sequence[Any]", what))
        )
        wrong = next((place for place, value in enumerate(own) if not _is_number(value)), None)
        if wrong is not None or values.dtype.kind != "O":
            raise _no_number(name, f"{own[wrong or 0]!r}"[:40] if own else str(values.dtype), wrong or 0)
    numbers: NDArray[np.float64] = values.astype(np.float64)
    places = np.flatnonzero(~np.isfinite(numbers))
    if len(places):
        raise _no_number(name, f"{numbers[places[0]]}", int(places[0]), f", {len(places):,} such clips in all")
    if (numbers < 0).any():
        at = int(np.argmax(numbers < 0))
        raise FramedexError(f"{name} has a number below 0", found=f"{numbers[at]} for clip {at}", allowed="0 or more")
    return numbers


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number in the range of float64."""
    value = value.item() if isinstance(value, np.generic) else value
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _no_number(name: str, found: str, clip: int, more: str = "") -> FramedexError:
    return FramedexError(
        f"{name} has a number for each clip",
        found=f"{found} for clip {clip}{more}",
        allowed="finite numbers",
        remedy="leave out clips without a number by where=, or give an array with a number for each clip",
    )


def codes_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return int64 [clips]: a number for each value, from 0 on, and the same number for equal values.

    Numbers and texts are numbered in ascending order, and objects in the order of their first occurrence. None is a
    value, too.

    Raises:
        FramedexError: the values are lists or dicts, which have no hash.
    """
    if values.dtype.kind in "biufUSM":
        return np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(-1)
    codes: dict[Any, int] = {}
    try:
        return np.fromiter((codes.setdefault(value, len(codes)) for value in values.tolist()), np.int64, len(values))
    except TypeError as error:
        raise FramedexError(
            "clips are grouped by numbers or texts", found=error, allowed="a column of numbers or texts"
        ) from error


def within_groups(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the group of each entry, and its number in its group, both int64 [entries].

    Args:
        counts: int64 [groups], how many entries each group has.
    """
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)


def joint_codes(codes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return int64 [clips]: a number for each combination of codes, from 0 on, sorted by the first codes.

    Args:
        codes: arrays int64 [clips] of codes, each 0 or more and below the number of clips.
    """
    found = codes[0]
    for other in codes[1:]:
        found = codes_of(found * (int(other.max(initial=0)) + 1) + other)
    return found


def visual_tokens(shapes: ArrayLike, *, patch: int, merge: int = 1, temporal_patch: int = 1) -> NDArray[np.int64]:
    """Return int64 [clips]: the visual tokens of each clip, for models that cut frames into square patches.

    A model cuts every `temporal_patch` frames into patches, and joins `merge` × `merge` patches into one token. The
    numbers of frames and patches are rounded up.

    Args:
        shapes: [clips, 3], the frames, height and width of each clip, such as `ClipDataset.shapes` returns.
        patch: side of a patch in pixels.
        merge: patches along each side of a token.
        temporal_patch: frames that share their tokens.

    Raises:
        FramedexError: `shapes` has another shape, or a number is below 1.
    """
    check_counts(patch=(patch, 1), merge=(merge, 1), temporal_patch=(temporal_patch, 1))
    side = patch * merge
    tokens: NDArray[np.int64] = np.prod(-(-checked_shapes(shapes) // (temporal_patch, side, side)), axis=1)
    return tokens


def checked_shapes(shapes: ArrayLike, clips: int | None = None) -> NDArray[np.int64]:
    """Return int64 [clips, 3]: the frames, height and width of each clip. Raise FramedexError for other values.

    Args:
        shapes: the user's argument.
        clips: number of clips. If None, any number.
    """
    found = np.asarray(shapes)
    expected = (*(found.shape[:1] if clips is None else (clips,)), 3)
    if found.shape != expected or found.dtype.kind not in "iu" or (found < 0).any():
        raise FramedexError(
            "shapes has the frames, height and width of each clip",
            found=f"{found.dtype} {list(found.shape)}",
            allowed=f"whole numbers of 0 or more, [{'clips' if clips is None else clips}, 3]",
        )
    return found.astype(np.int64)


UNKNOWN_SIZE = 16  # assumed number of clips per batch, for a sampler that does not know its largest batch


def groups_of_size(
    sampler: Iterator[int], *, clips: int, batch_size: int, last: Last
) -> Iterator[tuple[list[int], int]]:
    """Divide clips into batches of one size. Yield the clips of each batch, and how many of them are padding.

    Args:
        sampler: iterator over clip numbers.
        clips: number of clips of the dataset.
        batch_size: clips per batch.
        last: the treatment of a last batch that is not full. Padding is at its end.
    """
    numbers: list[int] = []
    for number in sampler:
        numbers.append(checked_number(number, clips))
        if len(numbers) == batch_size:
            yield numbers, 0
            numbers = []
    if numbers and last == "partial":
        yield numbers, 0
    elif numbers and last == "pad":
        padding = batch_size - len(numbers)
        yield [numbers[place % len(numbers)] for place in range(batch_size)], padding


def given_groups(
    sampler: Iterator[Sequence[int]], *, clips: int, largest: int | None
) -> Iterator[tuple[list[int], int]]:
    """Check the batches of a sampler of batches. Yield the clips of each batch, and 0, because no clip is padding.

    Args:
        sampler: iterator over lists of clip numbers.
        clips: number of clips of the dataset.
        largest: number of clips of the largest batch. If None, batches may have any number of clips.
    """
    for batch in sampler:
        if isinstance(batch, str | bytes) or not isinstance(batch, Sized) or not len(batch):
            raise FramedexError(
                "batch_sampler yields the clips of a batch", found=repr(batch), allowed="a list of clip numbers"
            )
        if largest is not None and len(batch) > largest:
            raise FramedexError(
                "a batch has more clips than its sampler says",
                found=f"{len(batch)} clips",
                allowed=f"{largest}, the largest_batch or batch_size of the sampler",
            )
        yield [checked_number(number, clips) for number in batch], 0


def checked_number(number: int, clips: int) -> int:
    """Return a clip number of a sampler as an int.

    Raises:
        FramedexError: it is not a whole number.
        IndexError: the clip does not exist.
    """
    try:
        whole = operator.index(number)
    except TypeError as error:
        raise FramedexError(
            "the sampler yields something that is not a clip number",
            found=repr(number)[:80],
            allowed=f"whole numbers, 0 to {clips - 1}",
        ) from error
    if not -clips <= whole < clips:
        raise IndexError(f"the sampler asks for clip {number} of {clips}")
    return whole


def largest_batch(sampler: Iterable[Sequence[int]]) -> int | None:
    """Return how many clips the largest batch of a sampler of batches has, or None if it is unknown.

    The number comes from the sampler's `largest_batch`, or from its `batch_size` as in torch's BatchSampler, or from a
    list of batches.
    """
    for name in ("largest_batch", "batch_size"):
        size = getattr(sampler, name, None)
        if type(size) is int:
            return max(1, size)
    if isinstance(sampler, list | tuple):
        return max([len(batch) for batch in sampler if isinstance(batch, Sized)], default=1) or 1
    return None
