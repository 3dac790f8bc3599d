"""BucketSampler: a sampler of batches of similar clips.

The buckets are a pure function of the clips' values. The batches of an epoch also depend on a seed and the epoch.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framedex.core.words import check_choices
from framedex.errors import FramedexError
from framedex.loader.arguments import Unit, check_counts
from framedex.loader.order import order
from framedex.loader.order.sampler import ElasticSampler, Selection

BUCKETS = 8  # default number of buckets by numbers, so small that even small datasets have full batches
# There is one bucket for each number of clips per batch up to this number. Above, there are this many buckets for each
# doubling of the number of clips per batch, such as one for 16 and 17, and one for 18 and 19.
FINEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """The division of clips into buckets and batches. Every epoch has the same number of batches.

    Attributes:
        clips: The numbers of the visited clips, sorted by bucket, int64 [visited clips].
        first: The index in `clips` of the first clip of each bucket, and the number of visited clips at the end, int64
            [buckets + 1].
        most: The number of clips in a full batch of each bucket, int64 [buckets].
        drops_last: Whether the last batch of each bucket is left out if it is not full.
    """

    clips: NDArray[np.int64]
    first: NDArray[np.int64]
    most: NDArray[np.int64]
    drops_last: bool

    @property
    def batches(self) -> NDArray[np.int64]:
        """The number of batches of each bucket in an epoch, int64 [buckets]."""
        sizes = np.diff(self.first)
        return sizes // self.most if self.drops_last else -(-sizes // self.most)

    def neighbours(self, number: int) -> NDArray[np.int64]:
        """Return all clips of the bucket that contains clip `number`. Raise KeyError if the clip is not visited."""
        place = np.flatnonzero(self.clips == number)
        if not len(place):
            raise KeyError(number)
        bucket = int(np.searchsorted(self.first, place[0], side="right")) - 1
        return self.clips[self.first[bucket] : self.first[bucket + 1]]


def epoch_batches(
    layout: BatchLayout, *, shuffle: bool, seed: int, epoch: int, alike: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the batches of an epoch. They are the same for every rank, and different in each epoch.

    Args:
        layout: The division of clips into batches.
        shuffle: Whether to shuffle the clips of each bucket and the order of the batches.
        seed: The seed of the shuffle.
        epoch: The number of the epoch.
        alike: The number of consecutive batches that are from the same bucket. If the number of batches of a bucket is
            not a multiple of `alike`, the remaining batches are at the end of the epoch.

    Returns:
        Three int64 arrays (clips, first, stop). Batch number i of the epoch has the clips from index first[i] up to,
        but not including, index stop[i] of the array of clips.
    """
    counts = layout.batches
    bucket, within = order.within_groups(counts)
    first = layout.first[bucket] + within * layout.most[bucket]
    stop = np.minimum(first + layout.most[bucket], layout.first[bucket + 1])
    if not shuffle:
        return layout.clips, first, stop
    rng = order.generator(seed, epoch)
    of_clip = np.repeat(np.arange(len(counts)), np.diff(layout.first))
    clips = layout.clips[np.lexsort((rng.permutation(len(layout.clips)), of_clip))]
    is_left_over = within >= counts[bucket] // alike * alike
    begins = within % alike == 0
    # Each group of `alike` consecutive batches of a bucket gets one random number, by which the groups are sorted.
    place = rng.permutation(len(bucket))[begins][np.cumsum(begins) - 1]
    ordered = np.lexsort((within, place, is_left_over))
    return clips, first[ordered], stop[ordered]


def buckets_by_value(values: NDArray[Any], buckets: int | Sequence[float] | None) -> NDArray[np.int64]:
    """Divide clips into buckets by a value. Return int64 [clips]: the bucket of each clip, numbered from 0.

    Args:
        values: The value of each clip, [clips]. Clips with equal values are always in the same bucket.
        buckets: If values are numbers, the number of buckets (which then have about the same number of clips), or the
            lower bounds of all buckets but the first, ascending. Defaults to at most 8 buckets. If values are not
            numbers, it must be None, and each distinct value has a bucket.

    Raises:
        FramedexError: `buckets` is malformed or not possible for these values, or a value is NaN.
    """
    if values.dtype.kind not in "iuf":
        if buckets is not None:
            raise FramedexError(
                "buckets can be given only if `by` refers to numbers",
                found=repr(values[:1].tolist()),
                remedy="leave out buckets",
            )
        return order.codes_of(values)
    wrong = np.flatnonzero(np.isnan(values))
    if len(wrong):
        raise FramedexError("some clips have no number", found=f"{len(wrong):,} such clips, first clip {wrong[0]}")
    bounds: NDArray[Any]
    if buckets is None or type(buckets) is int:
        bounds, count = np.unique(values)[1:], buckets or BUCKETS
        if len(bounds) >= count:  # otherwise, each distinct value has a bucket
            bounds = np.unique(np.sort(values)[np.arange(1, count) * len(values) // count])
    else:
        try:
            bounds = np.asarray(buckets, np.float64)
        except (TypeError, ValueError):
            bounds = np.zeros((0, 0))
        if bounds.ndim != 1 or not (np.diff(bounds) > 0).all() or np.isnan(bounds).any():
            raise FramedexError(
                "buckets must be the number of buckets, or their bounds",
                found=repr(buckets)[:80],
                allowed="ascending numbers",
            )
    return order.codes_of(np.searchsorted(bounds, values, side="right"))


def buckets_by_fit(tokens: NDArray[np.int64], max_tokens: int, max_batch: int | None) -> NDArray[np.int64]:
    """Divide clips into buckets by how many clips of their size fit into a batch. Buckets of small clips come first.

    So the number of tokens of a batch is close to `max_tokens`, even if the batch has the smallest clips of its bucket.

    Args:
        tokens: The number of tokens of each clip, above 0, int64 [clips].
        max_tokens: The maximum number of tokens of a batch, including padding.
        max_batch: The maximum number of clips of a batch. If None, there is no such limit.

    Returns:
        The bucket of each clip, numbered from 0, int64 [clips].
    """
    fit = np.maximum(1, max_tokens // tokens)
    if max_batch is not None:
        fit = np.minimum(fit, max_batch)
    step = np.left_shift(1, np.maximum(0, np.log2(fit / FINEST)).astype(np.int64))
    return order.codes_of(-(fit // step * step))


Key = str | ArrayLike
Tokens = str | ArrayLike | Callable[[NDArray[np.int64]], ArrayLike]
Padding = Literal["tokens", "shape"]
TooLarge = Literal["error", "alone", "drop"]
LastBatch = Literal["partial", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Statistics of a bucket, a group of clips that are in the same batches.

    Attributes:
        clips: The number of clips in the bucket.
        batches: The number of batches of the bucket in an epoch.
        batch_size: The number of clips in a full batch.
        tokens: The maximum number of tokens of a clip of the bucket in a batch, including padding. None if numbers of
            tokens are unknown.
    """

    clips: int
    batches: int
    batch_size: int
    tokens: int | None


class BucketSampler(ElasticSampler[list[int]]):
    """A sampler of batches of similar clips. It yields lists of clip numbers.

    Pass it as `batch_sampler` to ClipLoader or DataLoader. Each clip belongs to one bucket, and all clips of a batch
    are from the same bucket. With `shuffle`, the clips of each bucket and the order of all batches are shuffled in each
    epoch. Every clip is visited once per epoch. All epochs have the same number of batches.

    The order of the batches depends only on the seed and the epoch. The ranks take batches from this order in turn. So
    when all ranks have delivered the same number of batches, these are the first batches of the order. Their number is
    the sampler's state. A run can continue from a state with any number of ranks and workers.

    Args:
        dataset: the clips.
        by: the property by which clips are divided into buckets. With "shape", the clips of a bucket have the same
            number of frames, height and width, so that batches need no padding. With "aspect" (width / height),
            "frames" or "tokens", the clips of a bucket have similar aspects, numbers of frames or numbers of tokens.
            With the name of a column, or an array [clips], they have similar numbers, or if the values are not numbers,
            the same value. With a tuple of these, the clips of a bucket have all of these properties in common.
        buckets: if `by` refers to numbers, the number of buckets, which then have about equally many clips. Or the
            lower bounds of all buckets but the first, as a list. Defaults to 8 buckets. But for "tokens" with
            `max_tokens`, by default, a bucket has clips of which about the same number fits into a batch. Values that
            are not numbers have one bucket for each distinct value. If `by` is a tuple, this is a tuple, too.
        max_batch: the maximum number of clips in a batch. If None, only `max_tokens` limits this number.
        max_tokens: the maximum number of tokens in a batch, including padding. It is computed as the number of clips
            times the number of tokens of the largest clip of the bucket. If None, only `max_batch` limits batches.
        tokens: the number of tokens of each clip: an array [clips], the name of a column, or a function that computes
            the numbers from the shapes, int64 [clips, 3] (frames, height, width), for example by `visual_tokens`.
        shapes: [clips, 3], the number of frames, height and width of each clip. Defaults to `dataset.shapes()`. It is
            needed only if the loader gives clips other sizes than the dataset.
        padding: the way in which the clips of a batch are padded. With "tokens", all clips get the number of tokens of
            the clip with the most tokens. With "shape", all clips get the greatest number of frames, height and width,
            as with `collate="pad"`. "shape" requires that `tokens` is a function.
        too_large: the treatment of a clip that alone has more than `max_tokens`: "error" raises, "alone" puts it into a
            batch of its own, "drop" leaves it out.
        last: the treatment of the last batch of a bucket if it is not full: "partial" delivers it, "drop" leaves it
            out.
        alike: The number of consecutive batches that are from the same bucket. If this is a multiple of the number of
            ranks, all ranks have similar batches at the same time.
        shuffle: Whether to shuffle. If not, buckets and clips are in ascending order.
        seed: The seed of the shuffle.
        rank: The rank of this process in distributed training.
        world_size: The number of ranks in distributed training.
        uneven: The treatment of batches that cannot be divided evenly among ranks. "pad" repeats the epoch's first
            batches, "drop" leaves out its last batches, and "allow" gives the first ranks one batch more.

    Raises:
        FramedexError: An argument is wrong, the dataset lacks a column or method that `by` or `tokens` requires, or a
            clip is too large.
    """

    UNIT: ClassVar[Unit] = "batches"

    def __init__(
        self,
        dataset: Sized,
        *,
        by: Key | tuple[Key, ...] = "shape",
        buckets: Any = None,
        max_batch: int | None = None,
        max_tokens: int | None = None,
        tokens: Tokens | None = None,
        shapes: ArrayLike | None = None,
        padding: Padding = "tokens",
        too_large: TooLarge = "error",
        last: LastBatch = "partial",
        alike: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: order.Uneven = "pad",
    ) -> None:
        check_choices(
            padding=(padding, get_args(Padding)),
            too_large=(too_large, get_args(TooLarge)),
            last=(last, get_args(LastBatch)),
        )
        check_counts(alike=(alike, 1))
        clips = _Clips(dataset, tokens=tokens, shapes=shapes, padding=padding)
        given = {"max_batch": max_batch, "max_tokens": max_tokens}
        check_counts(**{name: (value, 1) for name, value in given.items() if value is not None})
        if max_batch is None and max_tokens is None:
            raise FramedexError("the size of batches has no limit", remedy="give max_batch, max_tokens, or both")
        if max_tokens is not None and not clips.has_tokens:
            raise FramedexError(
                "max_tokens requires the number of tokens of each clip",
                allowed="an array, a column's name, or a function of shapes",
                remedy="give tokens=lambda shapes: framedex.visual_tokens(shapes, patch=14, merge=2, temporal_patch=2)",
            )
        number = clips.buckets(by, buckets, max_tokens, max_batch)
        visited = np.ones(len(number), np.bool_)
        if max_tokens is not None:
            visited, number = clips.split_large(number, max_tokens, too_large)
        self._tokens = clips.most_tokens(number, visited) if clips.has_tokens else None
        most = np.full(int(number.max(initial=-1)) + 1, max_batch or max(1, len(number)))
        if max_tokens is not None and self._tokens is not None:
            most = np.minimum(most, np.maximum(1, max_tokens // self._tokens))
        sorted_clips = np.flatnonzero(visited)
        sorted_clips = sorted_clips[np.argsort(number[sorted_clips], kind="stable")]
        first = np.searchsorted(number[sorted_clips], np.arange(len(most) + 1))
        self._layout = layout = BatchLayout(clips=sorted_clips, first=first, most=most, drops_last=last == "drop")
        self.shuffle, self._alike = shuffle, alike
        # The state includes this checksum, because other buckets give other batches.
        parts = (layout.clips, layout.first, layout.most, np.array([layout.drops_last]))
        checksum = zlib.crc32(b"".join(part.tobytes() for part in parts))
        identity = {
            "count": len(dataset),
            "shuffle": shuffle,
            "seed": seed,
            "buckets": f"{len(layout.most)} buckets, CRC-32 {checksum:08x}",
            "alike": alike,
        } | order.version_facts(dataset)
        ranks = order.RankShare(rank=rank, world_size=world_size, uneven=uneven)
        super().__init__(int(layout.batches.sum()), identity, seed=seed, ranks=ranks)

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets that contain clips."""
        layout, tokens = self._layout, self._tokens
        sizes, batches = np.diff(layout.first).tolist(), layout.batches.tolist()
        return [
            Bucket(
                clips=sizes[bucket],
                batches=batches[bucket],
                batch_size=int(layout.most[bucket]),
                tokens=None if tokens is None else int(tokens[bucket]),
            )
            for bucket in np.flatnonzero(sizes).tolist()
        ]

    @property
    def largest_batch(self) -> int:
        """The number of clips in the largest batch."""
        sizes = np.minimum(np.diff(self._layout.first), self._layout.most)
        return int(sizes[self._layout.batches > 0].max(initial=1))

    def replacements(self, number: int, count: int) -> list[int]:
        """Return clips with which ClipLoader may replace a clip. They are drawn from the clip's own bucket.

        Args:
            number: The number of the clip, which is also the seed of the draw.
            count: The number of clips to draw.
        """
        drawn: list[int] = np.random.default_rng(number).choice(self._layout.neighbours(number), count).tolist()
        return drawn

    def _visit(self, epoch: int, select: Selection) -> Iterable[list[int]]:
        layout = self._layout
        clips, first, stop = epoch_batches(layout, shuffle=self.shuffle, seed=self.seed, epoch=epoch, alike=self._alike)
        for batch in select(np.arange(len(first))).tolist():
            yield clips[first[batch] : stop[batch]].tolist()


class _Clips:
    """The tokens and shapes of the clips of a dataset, and their buckets. Shapes are read on first use."""

    def __init__(self, dataset: Any, *, tokens: Tokens | None, shapes: ArrayLike | None, padding: Padding) -> None:
        self.dataset, self._padding = dataset, padding
        self._shapes = None if shapes is None else order.checked_shapes(shapes, len(dataset))
        self._function = tokens if callable(tokens) else None
        self.has_tokens = tokens is not None
        if padding == "shape" and self._function is None:
            raise FramedexError(
                "padding='shape' requires a function that computes the number of tokens of any shape",
                allowed="tokens as a function of shapes",
                remedy="use padding='tokens'",
            )
        self.tokens = np.ones(len(dataset), np.int64)
        if tokens is not None:
            given = tokens if self._function is None else self._function(self.shapes)
            self.tokens = np.maximum(1, np.ceil(order.numbers_of(dataset, given, "tokens"))).astype(np.int64)

    @property
    def shapes(self) -> NDArray[np.int64]:
        """The number of frames, height and width of each clip, int64 [clips, 3]."""
        if self._shapes is None:
            shapes = order.method_of(self.dataset, "shapes", "give an array with a value for each clip")
            self._shapes = order.checked_shapes(shapes(), len(self.dataset))
        return self._shapes

    def buckets(
        self, by: Key | tuple[Key, ...], buckets: Any, max_tokens: int | None, max_batch: int | None
    ) -> NDArray[np.int64]:
        """Return int64 [clips]: the bucket of each clip, numbered from 0. Raises FramedexError."""
        keys = by if isinstance(by, tuple) else (by,)
        each = buckets if isinstance(by, tuple) and buckets is not None else [buckets] * len(keys)
        if not keys or not isinstance(each, tuple | list) or len(each) != len(keys):
            raise FramedexError("buckets must have one value for each key of by", found=f"{by!r:.80}, {buckets!r:.80}")
        pairs = zip(keys, each, strict=True)
        return order.joint_codes([self._buckets_by(key, wanted, max_tokens, max_batch) for key, wanted in pairs])

    def _buckets_by(
        self, key: Key, buckets: int | Sequence[float] | None, max_tokens: int | None, max_batch: int | None
    ) -> NDArray[np.int64]:
        """Return int64 [clips]: the bucket of each clip by one property."""
        if type(buckets) is int:
            check_counts(buckets=(buckets, 1))
        name = key if isinstance(key, str) else ""  # comparing an array with a name would give an array
        if name == "shape":
            if buckets is not None:
                raise FramedexError("by='shape' always has a bucket for each shape", found=f"buckets={buckets!r}")
            return order.joint_codes([order.codes_of(sides) for sides in self.shapes.T])
        if name == "frames":
            return buckets_by_value(self.shapes[:, 0], buckets)
        if name == "aspect":
            return buckets_by_value(self.shapes[:, 2] / self.shapes[:, 1], buckets)
        if name != "tokens":
            return buckets_by_value(order.values_of(self.dataset, key, "by"), buckets)
        if not self.has_tokens:
            raise FramedexError("by='tokens' requires the number of tokens of each clip", remedy="give tokens, too")
        if buckets is None and max_tokens is not None:
            return buckets_by_fit(self.tokens, max_tokens, max_batch)
        return buckets_by_value(self.tokens, buckets)

    def split_large(
        self, buckets: NDArray[np.int64], max_tokens: int, too_large: TooLarge
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Apply `too_large` to clips that are too large for a batch.

        Returns:
            Whether each clip is visited, bool [clips], and the bucket of each clip, int64 [clips].

        Raises:
            FramedexError: `too_large` is "error", and a clip is too large.
        """
        large = self.tokens > max_tokens
        if too_large == "error" and large.any():
            raise FramedexError(
                f"a clip has more than max_tokens={max_tokens:,} tokens",
                found=f"{self.tokens.max():,} tokens; {large.sum():,} such clips, first clip {np.argmax(large)}",
                remedy="use a greater max_tokens, a smaller size=, or too_large='alone' or 'drop'",
            )
        if too_large == "drop" or not large.any():
            return ~large, buckets
        # Too large clips get separate buckets. Their batches have one clip, because a second clip would not fit.
        return np.ones_like(large), order.codes_of(np.where(large, buckets + int(buckets.max()) + 1, buckets))

    def most_tokens(self, buckets: NDArray[np.int64], visited: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return int64 [buckets]: the maximum number of tokens of a clip in a batch of each bucket, with padding."""
        count = int(buckets.max(initial=-1)) + 1
        own = np.zeros(count, np.int64)
        np.maximum.at(own, buckets[visited], self.tokens[visited])
        if self._padding == "tokens" or self._function is None:
            return np.maximum(own, 1)
        shapes = np.ones((count, 3), np.int64)
        np.maximum.at(shapes, buckets[visited], self.shapes[visited])
        padded = np.ceil(np.asarray(self._function(shapes), np.float64)).astype(np.int64)
        return np.maximum(own, np.maximum(padded, 1))
