"""Compute the order in which an epoch visits clips, each rank's share of this order, and the division into batches.

An order is a pure function of the number of clips, a seed and an epoch. Samplers may group clips by values, given as an
array or as a column of the dataset. `visual_tokens` computes one such value, a clip's number of tokens in a model.
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
        count: The number of clips.
        shuffle: Whether to shuffle. If not, clips keep the order of the dataset.
        seed: The seed of the shuffle.
        epoch: The number of the epoch.
        blocks: The block of each clip, int64 [count], numbered from 0. The order of blocks is shuffled first. Then the
            clips within each group of `window` consecutive blocks are shuffled, so that clips that are read at about
            the same time are in few blocks. If None, all clips are shuffled without blocks.
        window: The number of consecutive blocks whose clips are shuffled together.
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    if blocks is not None:
        return in_blocks(blocks, window, generator(seed, epoch))
    return generator(seed, epoch).permutation(count).astype(np.int64)


def in_blocks(blocks: NDArray[np.int64], window: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return int64 [count]: a shuffled order of clips in blocks, as described for `epoch_order`.

    Args:
        blocks: The block of each clip, int64 [count], numbered from 0.
        window: The number of consecutive blocks whose clips are shuffled together.
        rng: The random generator.
    """
    place = rng.permutation(int(blocks.max(initial=-1)) + 1)  # the place of each block in the order of blocks
    return np.lexsort((rng.permutation(len(blocks)), place[blocks] // window)).astype(np.int64)


def neighbour_groups(media: NDArray[np.int64], share: int) -> NDArray[np.int64]:
    """Divide clips into groups of up to `share` neighbours: clips of one medium, in the order of the dataset.

    Args:
        media: The medium of each clip, int64 [clips].
        share: The maximum number of clips of a group.

    Returns:
        The group of each clip, numbered from 0, int64 [clips].
    """
    by_medium = np.argsort(media, kind="stable")
    medium, within = within_groups(np.unique(media, return_counts=True)[1])
    groups = np.empty(len(media), np.int64)
    groups[by_medium] = np.cumsum((np.diff(medium, prepend=-1) != 0) | (within % share == 0)) - 1
    return groups


def in_groups(
    groups: NDArray[np.int64],
    *,
    lanes: int,
    share: int,
    window: int,
    spread: bool = True,
    rng: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Return int64 [entries]: an order of entries in which each group stays within one lane, as far as possible.

    All groups form a line, which is cut into `lanes` equal parts, so that at most `lanes` - 1 groups are cut. The order
    takes entries from the lanes in turn.

    Args:
        groups: The group of each entry, int64 [entries], numbered from 0.
        lanes: The number of lanes. If this is a multiple of the number of ranks, which take entries from the order in
            turn, each rank visits whole lanes.
        share: The number of entries of a full group.
        window: The number of groups whose entries are mixed, with `spread`.
        spread: Whether the entries of a group are spread over a lane. A lane is then a sequence of rounds, which are
            shuffled. Each round has one entry of about `window` groups. If not, they follow one another.
        rng: The random generator for the order of the groups and of the entries of each group. If None, groups are in
            ascending order, their entries are in the given order, and `spread` has no effect.
    """
    count = len(groups)
    place, among = groups, np.arange(count)
    if rng is not None:
        place, among = rng.permutation(int(groups.max(initial=-1)) + 1)[groups], rng.permutation(count)
    line = np.lexsort((among, place))
    lane, within_lane = within_groups(np.full(lanes, count // lanes) + (np.arange(lanes) < count % lanes))
    if spread and rng is not None:
        begins = (np.diff(groups[line], prepend=-1) != 0) | (within_lane == 0)
        number = np.cumsum(begins) - 1  # the number of the group, or of the part of a group, in the line
        first = np.flatnonzero(begins)
        begin_of_lane = np.arange(count) - within_lane
        within_group = np.arange(count) - first[number]
        rounds = (number - number[begin_of_lane]) * share // window + within_group
        line = line[np.lexsort((rng.permutation(count), rounds, lane))]
    order = np.empty(count, np.int64)
    order[within_lane * lanes + lane] = line
    return order


class GroupedVisit:
    """The clips of an iteration that are decoded together.

    Args:
        clips: The clip of each entry, int64 [entries].
        groups: The group of each entry, int64 [entries]. Larger groups than `share` are divided.
        share: The maximum number of entries that are decoded together.
    """

    def __init__(self, clips: NDArray[np.int64], groups: NDArray[np.int64], share: int) -> None:
        by_group = np.argsort(groups, kind="stable")
        _, within = within_groups(np.unique(groups, return_counts=True)[1])
        is_same = within[1:] % share != 0
        self.clips = clips
        self._is_first, self._following = np.ones(len(clips), np.bool_), np.full(len(clips), -1, np.int64)
        self._is_first[by_group[1:][is_same]] = False
        self._following[by_group[:-1][is_same]] = by_group[1:][is_same]

    def later(self, place: int, clip: int) -> list[tuple[int, int]]:
        """Return the later entries that are decoded together with an entry, as (index, clip), ascending.

        The list is empty if the entry is decoded together with an earlier one, or if it is not an entry of this visit.

        Args:
            place: The index of the entry.
            clip: The clip of the entry.
        """
        if place >= len(self.clips) or self.clips[place] != clip or not self._is_first[place]:
            return []
        found: list[tuple[int, int]] = []
        while (place := int(self._following[place])) >= 0:
            found.append((place, int(self.clips[place])))
        return found


def generator(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """Return a random generator whose numbers depend only on these arguments.

    Args:
        seed: The seed, below 2**64.
        epoch: The number of the epoch.
        stream: The number of a stream of random numbers. Streams of the same epoch are independent of each other.
    """
    key = np.array([seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], np.uint64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """The share of an epoch that one rank visits.

    Ranks take clips from the order in turn. So when all ranks have delivered the same number of clips, these are the
    first clips of the order.

    Attributes:
        rank: The number of this rank.
        world_size: The number of ranks.
        uneven: The treatment of clips that cannot be divided evenly. "pad" repeats the epoch's first clips, "drop"
            leaves out the epoch's last clips, and "allow" gives the first ranks one clip more.

    Raises:
        FramedexError: A value is out of range.
    """

    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise FramedexError("rank is out of range", found=self.rank, allowed=f"0 to {self.world_size - 1}")
        check_choices(uneven=(self.uneven, get_args(Uneven)))

    def of(self, order: NDArray[np.int64], delivered: int = 0) -> NDArray[np.int64]:
        """Return the clips that the rank still visits in an epoch.

        Args:
            order: The clips in the order of the epoch, int64.
            delivered: The number of clips of the epoch that all ranks together have delivered.
        """
        rest = order[delivered:]
        odd = len(rest) % self.world_size
        if self.uneven == "drop":
            rest = rest[: len(rest) - odd]
        elif self.uneven == "pad" and odd:
            rest = np.concatenate([rest, np.resize(order, self.world_size - odd)])
        return rest[self.rank :: self.world_size]

    def length(self, left: int, uneven: Uneven | None = None) -> int:
        """Return the number of clips that the rank still visits, if all ranks together have `left` clips left.

        `uneven` replaces the attribute with this name.
        """
        beyond = {"pad": self.world_size - 1, "drop": 0, "allow": self.world_size - 1 - self.rank}
        return (left + beyond[uneven or self.uneven]) // self.world_size


def sample_of(count: int, *, size: int | None, seed: int) -> NDArray[np.int64]:
    """Return int64 [size]: a random choice of clips, ascending. If `size` is None or too large, return all clips."""
    if size is None or size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False)).astype(np.int64)


# The key in states of ClipLoader and ClipStream of the options that decide which pictures are delivered. A sampler
# ignores it, so that it can continue from the state of a ClipLoader.
PICTURES = "pictures"


DATASET = "dataset"  # the key in states of samplers of the version of a dataset that was changed


def version_facts(dataset: object) -> dict[str, str]:
    """Return the version of a dataset for the state of a sampler. It is empty if the dataset was never changed."""
    version = getattr(dataset, "version", None)
    return {DATASET: version} if isinstance(version, str) else {}


def check_state(state: object, reader: str, names: Collection[str], order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a loaded state if it is a valid state of a sampler or stream. Raise FramedexError otherwise.

    Args:
        state: The user's argument.
        reader: The name of the class of the sampler or stream.
        names: The keys that a state must have.
        order: The values in a state that identify the order of clips.
    """
    problem = f"the loaded state is not a state of a {reader}"
    if not isinstance(state, Mapping):
        raise FramedexError(problem, found=repr(state)[:80], allowed="a state that state_dict() returned")
    if state.get(DATASET) != order.get(DATASET):
        raise FramedexError(
            "the state belongs to another version of the dataset, in which clips have other numbers",
            found=state.get(DATASET, "the dataset before it was changed"),
            allowed=order.get(DATASET, "a dataset that was never changed"),
            remedy="begin the next epoch by set_epoch instead, or use a copy of the dataset from before the change",
        )
    if missing := names - state.keys():
        raise FramedexError(problem, found=f"a state without {', '.join(sorted(missing))}")
    if other := state.keys() - names - {PICTURES}:
        raise FramedexError(problem, found=f"a state with unknown keys: {', '.join(sorted(map(str, other)))}")
    for name, value in order.items():
        if state[name] != value:
            raise FramedexError(
                f"the state belongs to a {reader} with another {name}",
                found=state[name],
                allowed=value,
                remedy=f"make the {reader} as it was when the state was saved, with the same versions of libraries",
            )
    return state


def method_of(dataset: Any, name: str, remedy: str) -> Callable[..., Any]:
    """Return a method of a dataset. Raise FramedexError with a remedy if the dataset does not have this method."""
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
    """Return an array [clips] with one value for each clip.

    Args:
        dataset: The dataset of clips.
        what: An array with one value for each clip, or the name of a column of the dataset.
        name: The name of the user's argument, for error texts.

    Raises:
        FramedexError: The column does not exist, or the array does not have one value for each clip.
    """
    if isinstance(what, str):
        column = method_of(dataset, "column", f"give {name} as an array with a value for each clip")
        return np.asarray(column(what))
    try:
        values: NDArray[Any] = np.asarray(what)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of unequal lengths, or torch tensors with gradients
        raise FramedexError(
            f"{name} must have a value for each clip", found=error, allowed=f"an array of {len(dataset):,} values"
        ) from error
    if values.shape != (len(dataset),):
        found = repr(what)[:80] if values.ndim == 0 else f"an array of shape {values.shape}"
        found = f"{len(values):,} values" if values.ndim == 1 else found
        raise FramedexError(f"{name} must have a value for each clip", found=found, allowed=f"{len(dataset):,} values")
    if isinstance(what, np.ma.MaskedArray) and np.ma.is_masked(what):
        clip = int(np.argmax(np.ma.getmaskarray(what)))
        raise FramedexError(f"{name} must have a value for each clip", found=f"a masked value for clip {clip}")
    return values


def numbers_of(dataset: Sized, what: object, name: str) -> NDArray[np.float64]:
    """Return float64 [clips]: a finite number of 0 or more for each clip.

    Args:
        dataset: The dataset of clips.
        what: An array with one number for each clip, or the name of a column of the dataset.
        name: The name of the user's argument, for error texts.

    Raises:
        FramedexError: The column does not exist, the array does not have one value for each clip, or a value is not a
            finite number of 0 or more.
    """
    values = values_of(dataset, what, name)
    if values.dtype.kind not in "biuf":
        has_texts = values.dtype.kind == "U" and not isinstance(what, str)
        own = list(cast("Sequence[Any]", what)) if has_texts else values.tolist()
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
    """Return whether a value is a finite number within the range of float64."""
    value = value.item() if isinstance(value, np.generic) else value
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _no_number(name: str, found: str, clip: int, more: str = "") -> FramedexError:
    return FramedexError(
        f"{name} must have one number for each clip",
        found=f"{found} for clip {clip}{more}",
        allowed="finite numbers",
        remedy="exclude clips without a number by where=, or give an array with one number for each clip",
    )


def codes_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """Number the distinct values from 0. Return int64 [clips]: the number assigned to each clip's value.

    If values are numbers or texts, the assigned numbers are in ascending order of the values. For objects, they are in
    the order of first occurrence. None also counts as a value.

    Raises:
        FramedexError: The values are not hashable, such as lists or dicts.
    """
    if values.dtype.kind in "biufUSM":
        return np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(-1)
    codes: dict[Any, int] = {}
    try:
        return np.fromiter((codes.setdefault(value, len(codes)) for value in values.tolist()), np.int64, len(values))
    except TypeError as error:
        raise FramedexError(
            "clips can be grouped only by numbers or texts", found=error, allowed="a column of numbers or texts"
        ) from error


def within_groups(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the group of each entry, and the entry's index within its group, both int64 [entries].

    Args:
        counts: The number of entries of each group, int64 [groups].
    """
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)


def joint_codes(codes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Number the distinct combinations of codes from 0. Return int64 [clips]: the number of each clip's combination.

    The numbers are in ascending order of the first codes, then of the second ones, and so on.

    Args:
        codes: Arrays of codes, int64 [clips]. Each code is 0 or more and below the number of clips.
    """
    found = codes[0]
    for other in codes[1:]:
        found = codes_of(found * (int(other.max(initial=0)) + 1) + other)
    return found


def visual_tokens(shapes: ArrayLike, *, patch: int, merge: int = 1, temporal_patch: int = 1) -> NDArray[np.int64]:
    """Return int64 [clips]: the number of visual tokens of each clip, for models that cut frames into square patches.

    Such a model cuts each group of `temporal_patch` frames into patches, and joins `merge` × `merge` patches into one
    token. Numbers of frames and of patches are rounded up.

    Args:
        shapes: The number of frames, height and width of each clip, [clips, 3], as returned by `ClipDataset.shapes`.
        patch: The side length of a patch in pixels.
        merge: The number of patches along each side of a token.
        temporal_patch: The number of consecutive frames that form one patch.

    Raises:
        FramedexError: `shapes` is malformed, or another argument is below 1.
    """
    check_counts(patch=(patch, 1), merge=(merge, 1), temporal_patch=(temporal_patch, 1))
    side = patch * merge
    tokens: NDArray[np.int64] = np.prod(-(-checked_shapes(shapes) // (temporal_patch, side, side)), axis=1)
    return tokens


def checked_shapes(shapes: ArrayLike, clips: int | None = None) -> NDArray[np.int64]:
    """Check shapes and return them as int64 [clips, 3]: the number of frames, height and width of each clip.

    Args:
        shapes: The user's argument.
        clips: The expected number of clips. If None, any number is allowed.

    Raises:
        FramedexError: `shapes` is not such an array of whole numbers of 0 or more.
    """
    found = np.asarray(shapes)
    expected = (*(found.shape[:1] if clips is None else (clips,)), 3)
    if found.shape != expected or found.dtype.kind not in "iu" or (found < 0).any():
        raise FramedexError(
            "shapes must have the number of frames, height and width of each clip",
            found=f"{found.dtype} {list(found.shape)}",
            allowed=f"whole numbers of 0 or more, [{'clips' if clips is None else clips}, 3]",
        )
    return found.astype(np.int64)


UNKNOWN_SIZE = 16  # assumed number of clips per batch if the sampler does not have the size of its largest batch


def groups_of_size(
    sampler: Iterator[int], *, clips: int, batch_size: int, last: Last
) -> Iterator[tuple[list[int], int]]:
    """Divide clips into batches of one size. Yield the clips of each batch, and the number of them that are padding.

    Args:
        sampler: An iterator over clip numbers.
        clips: The number of clips of the dataset.
        batch_size: The number of clips per batch.
        last: The treatment of a last batch that is not full. Padding is at the end of the batch.
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
    """Check the batches of a sampler. Yield the clips of each batch, and 0, the number of padded clips.

    Args:
        sampler: An iterator over lists of clip numbers.
        clips: The number of clips of the dataset.
        largest: The maximum number of clips in a batch. If None, batches may have any number of clips.
    """
    for batch in sampler:
        if isinstance(batch, str | bytes) or not isinstance(batch, Sized) or not len(batch):
            raise FramedexError(
                "batch_sampler must yield lists of clip numbers", found=repr(batch), allowed="a list of clip numbers"
            )
        if largest is not None and len(batch) > largest:
            raise FramedexError(
                "a batch has more clips than the sampler's maximum",
                found=f"{len(batch)} clips",
                allowed=f"{largest}, from the sampler's largest_batch or batch_size",
            )
        yield [checked_number(number, clips) for number in batch], 0


def checked_number(number: int, clips: int) -> int:
    """Return a clip number that a sampler yielded, as an int.

    Raises:
        FramedexError: The number is not a whole number.
        IndexError: The clip does not exist.
    """
    try:
        whole = operator.index(number)
    except TypeError as error:
        raise FramedexError(
            "the sampler must yield clip numbers", found=repr(number)[:80], allowed=f"whole numbers, 0 to {clips - 1}"
        ) from error
    if not -clips <= whole < clips:
        raise IndexError(f"the sampler asks for clip {number}, but the dataset has {clips} clips")
    return whole


def largest_batch(sampler: Iterable[Sequence[int]]) -> int | None:
    """Return the number of clips in the largest batch of a sampler of batches, or None if this number is unknown.

    It is read from the sampler's attribute `largest_batch` or `batch_size` (as in torch's BatchSampler), or computed if
    the sampler is a list of batches.
    """
    for name in ("largest_batch", "batch_size"):
        size = getattr(sampler, name, None)
        if type(size) is int:
            return max(1, size)
    if isinstance(sampler, list | tuple):
        return max([len(batch) for batch in sampler if isinstance(batch, Sized)], default=1) or 1
    return None
