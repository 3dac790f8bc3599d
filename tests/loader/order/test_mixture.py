"""MixtureSampler: datasets at exact rates, each dataset's clips without replacement, over any number of epochs."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framedex import MixtureSampler
from framedex.errors import FramedexError
from framedex.loader.order.mixture_sampler import epoch_counts, mixture_order, part_at, part_order


class Joined:
    """Datasets of these sizes, joined as torch joins them."""

    def __init__(self, *sizes: int) -> None:
        self.cumulative_sizes = list(itertools.accumulate(sizes))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(lambda counts: np.array(counts, np.int64))


@given(counts=COUNTS, seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 9), shuffle=st.booleans())
def test_every_prefix_of_an_epoch_has_the_rates(counts: Any, seed: int, epoch: int, shuffle: bool) -> None:
    parts = part_at(counts, shuffle=shuffle, seed=seed, epoch=epoch)
    assert np.bincount(parts, minlength=len(counts)).tolist() == counts.tolist()
    rates = counts / counts.sum()
    so_far = np.cumsum(parts[:, None] == np.arange(len(counts)), axis=0)
    wanted = np.arange(1, len(parts) + 1)[:, None] * rates
    bound = 1 + (len(counts) - 2) * rates
    assert (np.abs(so_far - wanted) < bound + 1e-9).all()


@given(size=st.integers(1, 300), cuts=st.lists(st.integers(0, 10_000), min_size=1, max_size=6), shuffle=st.booleans())
def test_each_clip_of_a_part_comes_once_before_any_comes_again(size: int, cuts: list[int], shuffle: bool) -> None:
    edges = [0, *sorted(cuts)]
    pieces = [
        part_order(size, first, stop, shuffle=shuffle, seed=3, part=1) for first, stop in itertools.pairwise(edges)
    ]
    endless = np.concatenate(pieces)
    assert len(endless) == edges[-1]
    passes = [endless[first : first + size] for first in range(0, len(endless), size)]
    assert all(len(set(one.tolist())) == len(one) for one in passes)
    whole = [tuple(one) for one in passes if len(one) == size]
    if shuffle and size > 20:
        assert len(set(whole)) == len(whole), "each pass is shuffled anew"


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    until=st.sampled_from(["first_exhausted", "all_exhausted"]),
    data=st.data(),
)
def test_an_epoch_ends_when_the_first_or_the_last_dataset_is_exhausted(sizes: list[int], until: Any, data: Any) -> None:
    rates = data.draw(st.lists(st.floats(0.5, 2), min_size=len(sizes), max_size=len(sizes)))
    counts = epoch_counts(np.array(sizes), np.array(rates), until=until, length=None)
    passes = np.array(sizes) / rates
    whole = int(np.argmin(passes) if until == "first_exhausted" else np.argmax(passes))
    assert counts[whole] == sizes[whole]
    assert (counts <= sizes).all() if until == "first_exhausted" else (counts >= sizes).all()
    exact = np.array(rates) * passes[whole]
    assert (np.abs(counts - exact) <= 0.5 + 1e-9).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 1000))
def test_an_epoch_of_a_number_of_clips_has_the_rates_to_the_nearest_clip(rates: list[int], length: int) -> None:
    counts = epoch_counts(np.ones(len(rates), np.int64), np.array(rates, float), until="all_exhausted", length=length)
    assert counts.sum() == length
    assert (np.abs(counts - length * np.array(rates) / sum(rates)) < 1).all()


def test_epochs_go_on_where_the_last_one_stopped_so_that_no_clip_is_left_behind() -> None:
    sampler = MixtureSampler(Joined(1000, 10), rates=[3, 1], length=40, shuffle=True)
    assert sampler.counts == [30, 10]
    seen = [clip for _ in range(34) for clip in sampler]
    large = [clip for clip in seen if clip < 1000]
    assert len(set(large[:1000])) == 1000
    assert Counter(clip for clip in seen if clip >= 1000) == dict.fromkeys(range(1000, 1010), 34)


def test_without_rates_and_without_shuffling_each_clip_comes_once_in_its_datasets_order() -> None:
    order = list(MixtureSampler(Joined(6, 3)))
    assert sorted(order) == list(range(9))
    assert [clip for clip in order if clip < 6] == list(range(6))
    assert [clip for clip in order if clip >= 6] == [6, 7, 8]
    assert [clip >= 6 for clip in order] == [False, True, False] * 3


@pytest.mark.parametrize(
    ("epoch", "order"),
    [
        (2, [5004, 3011, 4997, 4270, 3536, 5002, 847, 5001, 3645, 5004, 121, 3040]),
        (700, [5000, 4678, 321, 3961, 5003, 3957, 5001, 1037, 4086, 3615, 5004, 2161]),  # the second pass over 5000
    ],
)
def test_a_seed_gives_the_same_order_in_every_version_so_that_runs_can_be_resumed(epoch: int, order: list[int]) -> None:
    sampler = MixtureSampler(Joined(5000, 5), rates=[2, 1], length=12, shuffle=True, seed=3)
    sampler.set_epoch(epoch)
    assert list(sampler) == order


def test_ranks_that_take_turns_see_all_datasets() -> None:
    ranks = [
        list(MixtureSampler(Joined(500, 500), rates=[1, 1], shuffle=True, rank=rank, world_size=2)) for rank in (0, 1)
    ]
    shares = [np.mean(np.array(rank) < 500) for rank in ranks]
    assert all(0.4 < share < 0.6 for share in shares)
    assert sorted(ranks[0] + ranks[1]) == list(range(1000))


def test_an_epoch_is_in_numbers_of_the_joined_datasets() -> None:
    order = mixture_order(np.array([4, 4]), np.array([4, 2]), shuffle=False, seed=0, epoch=1)
    assert [clip for clip in order.tolist() if clip < 4] == [0, 1, 2, 3]
    assert [clip for clip in order.tolist() if clip >= 4] == [6, 7], "epoch 0 had clips 4 and 5"


@pytest.mark.parametrize(
    ("sizes", "arguments", "message"),
    [
        ([5, 0], {}, "dataset 1 of the mixture is empty"),
        ([5, 5], {"rates": [1]}, "2 finite numbers above 0"),
        ([5, 5], {"rates": [1, 0]}, "2 finite numbers above 0"),
        ([5, 5], {"rates": [1, float("nan")]}, "2 finite numbers above 0"),
        ([5, 5], {"rates": 3}, "2 finite numbers above 0"),
        ([5, 5], {"rates": [1000, 1]}, "an epoch has no clip of dataset 1"),
        ([5, 5], {"until": "never"}, "unknown until"),
        ([5, 5], {"until": "all_exhausted", "length": 3}, "give one of them"),
        ([5, 5], {"length": 0}, "length is out of range"),
        ([5, 5], {"rank": 1}, "rank is out of range"),
    ],
)
def test_wrong_mixtures_are_errors(sizes: list[int], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        MixtureSampler(Joined(*sizes), **arguments)


def test_a_mixture_of_one_dataset_that_is_not_joined_is_an_error() -> None:
    with pytest.raises(FramedexError, match="ConcatClips"):
        MixtureSampler(range(5))


def test_a_state_of_another_mixture_is_refused() -> None:
    state = MixtureSampler(Joined(5, 6), rates=[1, 2], shuffle=True).state_dict()
    for other, message in (
        (MixtureSampler(Joined(6, 5), rates=[1, 2], shuffle=True), "another sizes"),
        (MixtureSampler(Joined(5, 6), rates=[1, 1], shuffle=True), "another counts"),
        (MixtureSampler(Joined(5, 6), rates=[1, 2]), "another shuffle"),
        (MixtureSampler(Joined(5, 6), rates=[1, 2], shuffle=True, seed=1), "another seed"),
    ):
        with pytest.raises(FramedexError, match=message):
            other.load_state_dict(state)
