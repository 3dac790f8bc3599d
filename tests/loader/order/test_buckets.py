"""BucketSampler: batches of like clips, within limits, in which each clip comes once per epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from framedex import BucketSampler, visual_tokens
from framedex.errors import FramedexError
from framedex.loader.order.bucket_sampler import buckets_by_fit, buckets_by_value
from tests.support.depth import EXAMPLES


class Shaped:
    """A dataset of clips of these shapes, with columns."""

    def __init__(self, shapes: Any, **columns: Any) -> None:
        self._shapes, self._columns = np.array(shapes, np.int64).reshape(-1, 3), columns

    def __len__(self) -> int:
        return len(self._shapes)

    def shapes(self) -> NDArray[np.int64]:
        """Return frames, height and width of each clip."""
        return self._shapes

    def column(self, name: str) -> Any:
        """Return a column."""
        return np.array(self._columns[name])


def random_clips(count: int, seed: int = 0) -> Shaped:
    rng = np.random.default_rng(seed)
    sizes = np.array([[224, 224], [224, 448], [448, 224], [336, 448]])[rng.integers(0, 4, count)]
    return Shaped(np.column_stack([rng.integers(1, 65, count), sizes]), kind=rng.choice(["a", "b"], count).tolist())


def clips_of(batches: Iterable[list[int]]) -> list[int]:
    """Return the clips of all batches, ascending."""
    return sorted(itertools.chain(*batches))


def pixels(shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a token for each 28 × 28 pixels of two frames."""
    return visual_tokens(shapes, patch=14, merge=2, temporal_patch=2)


SHAPES = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([28, 56, 112]), st.sampled_from([28, 56, 112])), max_size=120
)


@settings(max_examples=3 * EXAMPLES // 2)
@given(
    shapes=SHAPES,
    by=st.sampled_from(["shape", "aspect", "frames", "tokens", ("aspect", "frames")]),
    max_batch=st.sampled_from([None, 1, 5, 16]),
    padding=st.sampled_from(["tokens", "shape"]),
    alike=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_each_clip_comes_once_in_batches_within_the_limit_that_are_equally_many_in_every_epoch(
    shapes: Any, by: Any, max_batch: int | None, padding: Any, alike: int, epoch: int
) -> None:
    clips, limit = Shaped(shapes), 400
    sampler = BucketSampler(
        clips,
        by=by,
        max_batch=max_batch,
        max_tokens=limit,
        tokens=pixels,
        padding=padding,
        alike=alike,
        too_large="alone",
        shuffle=True,
    )
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert clips_of(batches) == list(range(len(clips)))
    assert len(batches) == len(sampler) == sum(bucket.batches for bucket in sampler.buckets)
    assert max(map(len, batches), default=1) <= sampler.largest_batch <= (max_batch or len(clips) or 1)
    tokens = pixels(clips.shapes())
    for batch in batches:
        greatest = tokens[batch].max()
        if padding == "shape" and len(batch) > 1:
            greatest = pixels(clips.shapes()[batch].max(axis=0)[None])[0]
        assert len(batch) == 1 or len(batch) * greatest <= limit
    if by == "shape":
        assert all(len(np.unique(clips.shapes()[batch], axis=0)) == 1 for batch in batches)


def test_batches_and_their_clips_are_shuffled_anew_in_each_epoch() -> None:
    arguments: dict[str, Any] = {"by": "aspect", "max_batch": 8, "shuffle": True, "seed": 4}
    sampler = BucketSampler(random_clips(2000), **arguments)
    first, second = list(sampler), list(sampler)
    assert clips_of(first) == clips_of(second) == list(range(2000))
    assert not {tuple(sorted(batch)) for batch in first} & {tuple(sorted(batch)) for batch in second}
    assert list(BucketSampler(random_clips(2000), **arguments)) == first
    plain = list(BucketSampler(random_clips(2000), max_batch=8))
    assert all(batch == sorted(batch) for batch in plain)
    assert plain == list(BucketSampler(random_clips(2000), max_batch=8, seed=9))


def test_with_alike_ranks_in_step_have_batches_of_one_bucket() -> None:
    clips = random_clips(4000)
    arguments: dict[str, Any] = {"by": "tokens", "tokens": pixels, "max_tokens": 20_000, "shuffle": True, "alike": 4}
    whole = BucketSampler(clips, **arguments)
    steps = sum(bucket.batches // 4 for bucket in whole.buckets)
    tokens = pixels(clips.shapes())
    ranks = [list(BucketSampler(clips, rank=rank, world_size=4, **arguments)) for rank in range(4)]
    costs = np.array([[tokens[batch].max() * len(batch) for batch in rank] for rank in ranks])
    spread = np.ptp(costs[:, :steps], axis=0) / costs[:, :steps].max(axis=0)
    plain = [list(BucketSampler(clips, rank=rank, world_size=4, **arguments | {"alike": 1})) for rank in range(4)]
    plain_costs = np.array([[tokens[batch].max() * len(batch) for batch in rank] for rank in plain])
    assert spread.mean() < 0.5 * (np.ptp(plain_costs, axis=0) / plain_costs.max(axis=0)).mean()
    assert steps > 0.8 * len(ranks[0])


def test_batches_by_tokens_are_nearly_full() -> None:
    rng = np.random.default_rng(1)
    tokens = np.minimum(30_000, rng.lognormal(7, 1, 20_000)).astype(np.int64) + 1  # a long tail
    sampler = BucketSampler(range(20_000), by="tokens", tokens=tokens, max_tokens=32_000, shuffle=True)
    sums = [int(tokens[batch].sum()) for batch in sampler]
    assert max(sums) <= 32_000
    assert np.mean(sums) > 0.8 * 32_000
    assert len(sampler.buckets) < 70


@given(tokens=st.lists(st.integers(1, 5000), min_size=1, max_size=200), limit=st.integers(5000, 20_000))
def test_clips_of_a_bucket_fit_into_a_batch_nearly_equally_often(tokens: list[int], limit: int) -> None:
    values = np.array(tokens)
    buckets = buckets_by_fit(values, limit, None)
    fit = limit // values
    assert all(fit[buckets == bucket].max() < fit[buckets == bucket].min() * 1.13 + 1 for bucket in set(buckets))


def test_buckets_of_numbers_hold_about_equally_many_clips_or_have_given_bounds() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    assert np.bincount(buckets_by_value(values, 4)).tolist() == [250] * 4
    few = np.array([8, 8, 16, 8, 32])
    assert buckets_by_value(few, None).tolist() == [0, 0, 1, 0, 2], "few numbers have a bucket each"
    assert buckets_by_value(np.array([7, 8, 9, 15, 16]), [8, 16]).tolist() == [0, 1, 1, 1, 2]
    assert buckets_by_value(np.array(["b", "a", "b"], object), None).tolist() == [0, 1, 0]
    assert buckets_by_value(np.array([5, 5, 5]), 3).tolist() == [0, 0, 0]


def test_keys_are_columns_arrays_and_several_at_once() -> None:
    clips = random_clips(300)
    kind = np.array(clips.column("kind"))
    for by in ("kind", kind):
        assert all(len(set(kind[batch])) == 1 for batch in BucketSampler(clips, by=by, max_batch=8, shuffle=True))
    both = BucketSampler(clips, by=("shape", "kind", np.arange(300)), buckets=(None, None, [150]), max_batch=4)
    for batch in both:
        assert len(np.unique(clips.shapes()[batch], axis=0)) == 1
        assert len({(kind[clip], clip < 150) for clip in batch}) == 1
    sizes = clips.shapes() // 2
    sizes[0] = 0  # a clip without frames, say
    halved = BucketSampler(clips, shapes=sizes, by="frames", buckets=[10], max_batch=50)
    assert [bucket.clips for bucket in halved.buckets] == [
        int((sizes[:, 0] < 10).sum()),
        int((sizes[:, 0] >= 10).sum()),
    ]


def test_tokens_may_make_buckets_without_limiting_batches() -> None:
    sampler = BucketSampler(random_clips(100), by="tokens", tokens=pixels, buckets=2, max_batch=8)
    assert {len(batch) for batch in sampler} >= {8}
    assert sampler.largest_batch == 8


def test_a_clip_is_replaced_by_clips_of_its_own_bucket_alone() -> None:
    clips = random_clips(200)
    kind = clips.column("kind")
    sampler = BucketSampler(clips, by="kind", max_batch=8)
    for number in range(200):
        assert set(kind[sampler.replacements(number, 20)]) == {kind[number]}


def test_the_last_batch_of_a_bucket_is_delivered_or_left_out() -> None:
    clips = Shaped([[1, 8, 8]] * 11 + [[2, 8, 8]] * 3)
    assert [len(batch) for batch in BucketSampler(clips, max_batch=4)] == [4, 4, 3, 3]
    dropping = BucketSampler(clips, max_batch=4, last="drop", shuffle=True)
    assert [len(batch) for batch in dropping] == [4, 4]
    assert [(bucket.clips, bucket.batches, bucket.batch_size) for bucket in dropping.buckets] == [(11, 2, 4), (3, 0, 4)]


def test_clips_that_are_too_large_are_an_error_alone_or_left_out() -> None:
    tokens = np.array([10, 10, 500, 10, 700, 90])
    with pytest.raises(FramedexError, match=r"(?s)max_tokens=100.*700 tokens; 2 such clips, first clip 2"):
        BucketSampler(range(6), by=np.zeros(6), tokens=tokens, max_tokens=100)
    alone = list(BucketSampler(range(6), by=np.zeros(6), tokens=tokens, max_tokens=100, too_large="alone"))
    assert sorted(map(tuple, alone)) == [(0,), (1,), (2,), (3,), (4,), (5,)], "the clip of 90 tokens fills a batch"
    fitting = list(BucketSampler(range(6), by="tokens", tokens=tokens, max_tokens=100, too_large="alone"))
    assert sorted(map(tuple, fitting)) == [(0, 1, 3), (2,), (4,), (5,)]
    dropped = BucketSampler(range(6), by="tokens", tokens=tokens, max_tokens=100, too_large="drop")
    assert clips_of(dropped) == [0, 1, 3, 5]


def test_tokens_of_shapes_are_those_of_the_model() -> None:
    qwen = {"patch": 14, "merge": 2, "temporal_patch": 2}
    assert visual_tokens([[1, 28, 28], [2, 28, 28], [3, 28, 56], [16, 392, 644]], **qwen).tolist() == [
        1,
        1,
        4,
        8 * 14 * 23,
    ]
    assert visual_tokens([[4, 29, 16]], patch=16).tolist() == [4 * 2 * 1], "rounded up"
    with pytest.raises(FramedexError, match="patch is out of range"):
        visual_tokens([[1, 1, 1]], patch=0)
    with pytest.raises(FramedexError, match="frames, height and width"):
        visual_tokens([1, 2, 3], patch=14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the size of batches has no limit"),
        ({"max_batch": 0}, "max_batch is out of range"),
        ({"max_tokens": 100}, "max_tokens requires the number of tokens"),
        ({"max_batch": 4, "by": "tokens"}, "by='tokens' requires the number of tokens"),
        ({"max_batch": 4, "buckets": 3}, "always has a bucket for each shape"),
        ({"max_batch": 4, "by": "frames", "buckets": [3, 2]}, "ascending"),
        ({"max_batch": 4, "by": "frames", "buckets": 0}, "buckets is out of range"),
        ({"max_batch": 4, "by": "frames", "buckets": "many"}, "ascending"),
        ({"max_batch": 4, "by": ("frames", "aspect"), "buckets": 3}, "one value for each key"),
        ({"max_batch": 4, "by": ()}, "one value for each key"),
        ({"max_batch": 4, "by": [1, 2]}, "a value for each clip"),
        ({"max_batch": 4, "by": [1.0, float("nan"), 2.0]}, "some clips have no number"),
        ({"max_batch": 4, "by": ["a", "b", "c"], "buckets": 2}, "buckets can be given only if `by` refers to numbers"),
        ({"max_batch": 4, "tokens": [1, -1, 1]}, "tokens has a number below 0"),
        ({"max_batch": 4, "tokens": [1, 1, 1], "padding": "shape"}, "padding='shape'"),
        ({"max_batch": 4, "shapes": [[1, 2], [1, 2], [1, 2]]}, "frames, height and width"),
        ({"max_batch": 4, "padding": "none"}, "unknown padding"),
        ({"max_batch": 4, "too_large": "split"}, "unknown too_large"),
        ({"max_batch": 4, "last": "pad"}, "unknown last"),
        ({"max_batch": 4, "alike": 0}, "alike is out of range"),
        ({"max_batch": 4, "uneven": "none"}, "unknown uneven"),
    ],
)
def test_wrong_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        BucketSampler(Shaped([[1, 2, 3]] * 3), **arguments)


def test_a_dataset_without_shapes_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(FramedexError, match="give an array"):
        BucketSampler(range(3), max_batch=2)


def test_a_state_of_other_buckets_is_refused() -> None:
    clips = random_clips(50)
    state = BucketSampler(clips, max_batch=4).state_dict()
    for arguments, message in (
        ({"max_batch": 5}, "another buckets"),
        ({"max_batch": 4, "last": "drop"}, "another buckets"),
        ({"max_batch": 4, "by": "frames"}, "another buckets"),
        ({"max_batch": 4, "alike": 2}, "another alike"),
        ({"max_batch": 4, "shuffle": True}, "another shuffle"),
    ):
        with pytest.raises(FramedexError, match=message):
            BucketSampler(clips, **arguments).load_state_dict(state)
