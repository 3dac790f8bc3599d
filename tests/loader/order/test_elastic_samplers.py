"""Weighted, mixed and bucketed orders: shared by any number of ranks, stopped anywhere, resumed with other numbers."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from framedex import BucketSampler, ClipSampler, MixtureSampler
from tests.support.depth import EXAMPLES
from tests.support.sampler_run import Numbers

Sampler = ClipSampler | MixtureSampler | BucketSampler
Make = Callable[..., Sampler]
PARTS = ConcatDataset([Numbers(31), Numbers(12), Numbers(4)])
COUNT = 47


def weighted(**how: Any) -> Sampler:
    return ClipSampler(range(COUNT), weights=np.arange(COUNT) % 5, length=61, shuffle=True, **how)


def mixed(**how: Any) -> Sampler:
    return MixtureSampler(PARTS, rates=[2, 3, 1], until="all_exhausted", shuffle=True, **how)


def bucketed(**how: Any) -> Sampler:
    return BucketSampler(range(COUNT), by=np.arange(COUNT) % 7, max_batch=3, shuffle=True, **how)


SAMPLERS: dict[str, Make] = {"weighted": weighted, "mixed": mixed, "bucketed": bucketed}
STAGES = st.lists(
    st.tuples(
        st.integers(1, 5).map(lambda world: ("world", world)),
        st.integers(0, 12).map(lambda steps: ("steps", steps)),
        st.integers(0, 9).map(lambda ahead: ("ahead", ahead)),
        st.integers(0, 4).map(lambda rank: ("saver", rank)),
    ).map(dict),
    min_size=1,
    max_size=5,
)


def plain(entries: Any) -> list[Any]:
    """Return entries that can be sorted and compared."""
    return [tuple(entry) if isinstance(entry, list) else entry for entry in entries]


@settings(max_examples=3 * EXAMPLES // 2)
@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    stages=STAGES,
    uneven=st.sampled_from(["pad", "drop", "allow"]),
    epoch=st.integers(0, 3),
)
def test_what_was_delivered_is_a_prefix_however_often_a_run_stops_and_changes(
    name: str, stages: list[dict[str, int]], uneven: Any, epoch: int
) -> None:
    make = SAMPLERS[name]
    whole = make()
    whole.set_epoch(epoch)
    state, order = whole.state_dict(), plain(whole)
    seen: list[Any] = []
    for stage in [*stages, {"world": 1, "steps": len(order), "ahead": 0, "saver": 0}]:
        world, before, delivered = stage["world"], state["delivered"], []
        for rank in range(world):
            sampler = make(rank=rank, world_size=world, uneven=uneven)
            sampler.load_state_dict(json.loads(json.dumps(state)))
            iterator: Iterator[Any] = iter(sampler)
            delivered.append(plain(itertools.islice(iterator, stage["steps"])))
            list(itertools.islice(iterator, stage["ahead"]))  # a DataLoader requests entries ahead
            if rank == (0 if uneven == "allow" else stage["saver"] % world):
                after = sampler.state_dict(delivered=len(delivered[-1]))
        lengths = [len(of_rank) for of_rank in delivered]
        assert max(lengths) - min(lengths) <= (uneven == "allow")
        state = after
        fresh = order[before : state["delivered"]]
        entries = [entry for of_rank in delivered for entry in of_rank]
        padding = list(itertools.islice(itertools.cycle(order), len(entries) - len(fresh)))
        assert sorted(entries) == sorted(fresh + padding)
        assert not padding or (uneven == "pad" and state["delivered"] == len(order))
        seen += fresh
    assert seen == order


@pytest.mark.parametrize("name", SAMPLERS)
def test_epochs_differ_and_have_the_same_length_and_only_seed_and_epoch_decide(name: str) -> None:
    sampler, again, other = SAMPLERS[name](), SAMPLERS[name](), SAMPLERS[name](seed=1)
    epochs = [plain(sampler) for _ in range(3)]
    again.set_epoch(2)
    assert plain(again) == epochs[2]
    assert len({tuple(epoch) for epoch in [*epochs, plain(other)]}) == 4
    assert [len(epoch) for epoch in epochs] == [len(sampler)] * 3


def stateful(sampler: Sampler, workers: int) -> StatefulDataLoader:
    how: dict[str, Any] = {"num_workers": workers}
    if workers:
        how |= {"prefetch_factor": 3, "multiprocessing_context": "fork"}
    if isinstance(sampler, BucketSampler):
        return StatefulDataLoader(Numbers(COUNT), batch_sampler=sampler, **how)
    return StatefulDataLoader(Numbers(COUNT), batch_size=4, sampler=sampler, **how)


def entries_of(batches: Any, name: str) -> list[Any]:
    """Return the entries that batches were made of."""
    lists = [batch.tolist() for batch in batches]
    return plain(lists) if name == "bucketed" else list(itertools.chain(*lists))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's call of torch
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than some machines have cores
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_stateful_dataloader_goes_on_with_the_very_next_clip(name: str, workers: int) -> None:
    reference = SAMPLERS[name]()
    whole = [plain(reference) for _ in range(2)]
    resumed_epochs = []
    for stop in (0, 1, 5):  # batches
        loader = stateful(SAMPLERS[name](), workers)
        seen = entries_of(itertools.islice(iter(loader), stop), name)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        resumed = stateful(SAMPLERS[name](), workers)
        resumed.load_state_dict(state)
        resumed_epochs.append([seen + entries_of(resumed, name), entries_of(resumed, name)])
    assert resumed_epochs == [whole] * 3


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_dataloader_with_workers_is_resumed_by_other_ranks_with_other_workers(name: str) -> None:
    order = plain(SAMPLERS[name]())
    state = SAMPLERS[name]().state_dict()
    seen: list[Any] = []
    for world, workers, steps in ((1, 2, 2), (3, 1, 1), (2, 0, 100)):
        delivered, samplers = [], []
        for rank in range(world):
            samplers.append(SAMPLERS[name](rank=rank, world_size=world, uneven="allow"))
            samplers[-1].load_state_dict(state)
            given = (
                {"batch_sampler": samplers[-1]} if name == "bucketed" else {"sampler": samplers[-1], "batch_size": 4}
            )
            loader = DataLoader(
                Numbers(COUNT), num_workers=workers, multiprocessing_context="fork" if workers else None, **given
            )
            delivered.append(entries_of(itertools.islice(loader, steps), name))
        state = samplers[0].state_dict(delivered=len(delivered[0]))
        seen += [entry for turn in itertools.zip_longest(*delivered) for entry in turn if entry is not None]
        assert sorted(seen) == sorted(order[: state["delivered"]])
    assert seen == order
