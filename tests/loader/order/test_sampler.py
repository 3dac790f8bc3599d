"""ClipSampler: every clip once per epoch, shared by any number of ranks, and resumed with any other number of ranks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framedex import ClipDataset, ClipSampler, Index
from framedex.errors import FramedexError
from framedex.loader.order.order import RankShare, epoch_order
from tests.support.datasets import run, shard_clips
from tests.support.depth import EXAMPLES

UNEVEN = st.sampled_from(["pad", "drop", "allow"])


@given(
    count=st.integers(0, 200),
    world=st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    uneven=UNEVEN,
    delivered=st.integers(0, 200),
)
def test_ranks_share_the_rest_of_an_epoch_without_overlap_or_loss(
    count: int, world: int, seed: int, epoch: int, shuffle: bool, uneven: Any, delivered: int
) -> None:
    order = epoch_order(count, shuffle=shuffle, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, epoch_order(count, shuffle=shuffle, seed=seed, epoch=epoch))
    rest = order[delivered:].tolist()
    ranks = [RankShare(rank=rank, world_size=world, uneven=uneven) for rank in range(world)]
    shares = [share.of(order, delivered).tolist() for share in ranks]
    lengths = [len(share) for share in shares]
    assert lengths == [share.length(len(rest)) for share in ranks]
    dealt = [clip for turn in itertools.zip_longest(*shares) for clip in turn if clip is not None]
    if uneven == "drop":
        assert dealt == rest[: len(rest) // world * world]
    else:
        assert dealt[: len(rest)] == rest
        padding = dealt[len(rest) :]
        assert padding == (
            list(itertools.islice(itertools.cycle(order.tolist()), -len(rest) % world))
            if rest and uneven == "pad"
            else []
        )
    assert max(lengths) - min(lengths) <= (uneven == "allow")


def take(iterator: Iterator[int], batches: int, size: int) -> list[list[int]]:
    return [batch for _ in range(batches) if (batch := list(itertools.islice(iterator, size)))]


STAGES = st.lists(
    st.tuples(
        st.integers(1, 5).map(lambda world: ("world", world)),
        st.integers(1, 7).map(lambda size: ("batch", size)),
        st.integers(0, 6).map(lambda steps: ("steps", steps)),
        st.integers(0, 30).map(lambda ahead: ("ahead", ahead)),
        st.integers(0, 4).map(lambda rank: ("saver", rank)),
    ).map(dict),
    min_size=1,
    max_size=5,
)


@settings(max_examples=3 * EXAMPLES)
@given(
    count=st.integers(0, 120),
    stages=STAGES,
    uneven=UNEVEN,
    shuffle=st.booleans(),
    blocks=st.sampled_from([None, 1, 7, 500]),
)
def test_what_was_delivered_is_a_prefix_however_often_a_run_stops_and_changes(
    count: int, stages: list[dict[str, int]], uneven: Any, shuffle: bool, blocks: int | None
) -> None:
    numbers = range(count)
    order = list(ClipSampler(numbers, shuffle=shuffle, seed=3, blocks=blocks))
    state = ClipSampler(numbers, shuffle=shuffle, seed=3, blocks=blocks).state_dict()
    seen: list[int] = []
    for stage in [*stages, {"world": 1, "batch": 7, "steps": count, "ahead": 0, "saver": 0}]:
        world, size, before = stage["world"], stage["batch"], state["delivered"]
        delivered = []
        for rank in range(world):
            sampler = ClipSampler(
                numbers, shuffle=shuffle, seed=3, blocks=blocks, rank=rank, world_size=world, uneven=uneven
            )
            sampler.load_state_dict(json.loads(json.dumps(state)))
            remaining, iterator = sampler.remaining, iter(sampler)
            delivered.append(take(iterator, stage["steps"], size))
            ahead = list(itertools.islice(iterator, stage["ahead"]))  # a DataLoader requests numbers ahead
            assert len(ahead) == min(stage["ahead"], remaining - sum(map(len, delivered[-1])))
            if rank == (0 if uneven == "allow" else stage["saver"] % world):
                after = sampler.state_dict(delivered=len(delivered[-1]) * size)
        batches = [len(of_rank) for of_rank in delivered]
        assert max(batches) - min(batches) <= (uneven == "allow")
        clips = [clip for of_rank in delivered for batch in of_rank for clip in batch]
        state = after
        fresh = order[before : state["delivered"]]
        padding = list(itertools.islice(itertools.cycle(order), len(clips) - len(fresh)))
        assert sorted(clips) == sorted(fresh + padding)
        assert not padding or (uneven == "pad" and state["delivered"] == count and len(padding) < world)
        seen += fresh
    assert seen == order


@given(count=st.integers(2, 60), size=st.integers(1, 8), stop=st.integers(0, 9), world=st.integers(1, 3))
def test_a_run_resumed_with_the_same_ranks_is_the_run_undisturbed(count: int, size: int, stop: int, world: int) -> None:
    for rank in range(world):
        sampler = ClipSampler(range(count), shuffle=True, rank=rank, world_size=world)
        whole = [list(sampler), list(sampler)]
        first = list(itertools.chain(*take(iter(whole[0]), stop, size)))
        stopped, resumed = (ClipSampler(range(count), shuffle=True, rank=rank, world_size=world) for _ in range(2))
        iter(stopped)
        resumed.load_state_dict(stopped.state_dict(delivered=stop * size))
        assert [first + list(resumed), list(resumed)] == whole


def test_each_pass_that_is_begun_is_an_epoch() -> None:
    sampler = ClipSampler(range(50), shuffle=True, seed=5)
    epochs = [epoch_order(50, shuffle=True, seed=5, epoch=epoch).tolist() for epoch in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    iter(sampler), iter(sampler)  # no number is requested from them
    assert list(sampler) == epochs[0]
    assert next(iter(sampler)) == epochs[1][0]
    assert list(sampler) == epochs[2]
    sampler.set_epoch(3)
    assert list(sampler) == epochs[3]
    sampler.set_epoch(3)
    assert list(sampler) == epochs[3]
    assert list(ClipSampler(range(50), shuffle=True, seed=6)) != epochs[0]
    largest = [list(ClipSampler(range(50), shuffle=True, seed=2**64 - number)) for number in (1, 2)]
    assert largest[0] != largest[1]


def test_set_epoch_keeps_the_rest_of_an_epoch_that_is_to_go_on() -> None:
    sampler = ClipSampler(range(50), shuffle=True)
    order = list(sampler)
    resumed = ClipSampler(range(50), shuffle=True)
    state = resumed.state_dict(delivered=20)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert resumed.state_dict() == state
    assert list(resumed) == order[20:]
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert (len(list(resumed)), resumed.epoch) == (50, 1)


def test_where_deliveries_are_counted_an_iteration_goes_on_after_them() -> None:
    """Follow the protocol of ClipLoader: iter, deliver(0), deliver(each batch), set_epoch at the end."""
    sampler = ClipSampler(range(50), shuffle=True)
    order = epoch_order(50, shuffle=True, seed=0, epoch=0).tolist()

    def iterate(stop: int) -> list[int]:
        numbers = list(iter(sampler))  # all numbers are requested ahead
        sampler.deliver(0)
        for begin in range(0, len(numbers), 8)[:stop]:
            sampler.deliver(len(numbers[begin : begin + 8]))
        if stop * 8 >= len(numbers):
            sampler.set_epoch(sampler.epoch + 1)
        return numbers[: stop * 8]

    assert sampler.remaining == 50
    assert iterate(0) == [], "what failed before its first batch is not passed over"
    assert (sampler.epoch, sampler.remaining) == (0, 50)
    seen = iterate(2) + iterate(3)
    assert sampler.state_dict()["delivered"] == 40
    assert (sampler.remaining, len(sampler)) == (10, 50)
    assert seen + iterate(2) == order
    assert (sampler.epoch, sampler.state_dict()["delivered"], sampler.remaining) == (1, 0, 50)


def test_a_state_of_another_order_is_refused() -> None:
    state = ClipSampler(range(7), shuffle=True, blocks=2).state_dict()
    for what, other in {
        "count": ClipSampler(range(8), shuffle=True, blocks=2),
        "shuffle": ClipSampler(range(7), blocks=2),
        "seed": ClipSampler(range(7), shuffle=True, blocks=2, seed=1),
        "locality": ClipSampler(range(7), shuffle=True, blocks=3),
    }.items():
        with pytest.raises(FramedexError, match=f"another {what}"):
            other.load_state_dict(state)
    same = ClipSampler(range(7), shuffle=True, blocks=2, rank=1, world_size=4, uneven="drop")
    for wrong in ({"delivered": 8}, {"delivered": -1}, {"epoch": -1}):
        with pytest.raises(FramedexError, match="out of range"):
            same.load_state_dict(state | wrong)
    with pytest.raises(FramedexError, match="a state without delivered, locality"):
        same.load_state_dict({name: state[name] for name in ("epoch", "count", "shuffle", "seed")})


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 2, "world_size": 2},
        {"uneven": "none"},
        {"seed": -1},
        {"window": 0},
        {"shuffle": True, "blocks": 0},
        {"shuffle": True, "blocks": "shard"},
        {"shuffle": True, "blocks": "tar"},
    ],
)
def test_wrong_arguments_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(FramedexError):
        ClipSampler(range(7), **wrong)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 5), st.randoms())
def test_a_stretch_of_the_order_touches_few_blocks(sizes: list[int], window: int, chance: Any) -> None:
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    chance.shuffle(listed := blocks.tolist())  # the clips of a block need not be adjacent in the manifest
    blocks = np.array(listed)
    first, second = (
        epoch_order(len(blocks), shuffle=True, seed=1, epoch=epoch, blocks=blocks, window=window) for epoch in (0, 1)
    )
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(len(blocks)))
    visited = blocks[first]
    for block in range(len(sizes)):
        between = np.flatnonzero(visited == block)
        assert len(set(visited[between[0] : between[-1] + 1].tolist())) <= window


def test_blocks_are_shuffled_and_so_are_the_clips_of_a_window() -> None:
    blocks = np.arange(6400) // 64
    orders = [epoch_order(6400, shuffle=True, seed=1, epoch=epoch, blocks=blocks, window=8) for epoch in (0, 1)]
    windows = [
        [frozenset(part.tolist()) for part in np.split(blocks[order], range(512, 6400, 512))] for order in orders
    ]
    assert [len(window) for window in windows[0]] == [8] * 12 + [4]
    assert not set(windows[0]) & set(windows[1]), "other blocks meet in another epoch"
    assert all((np.diff(order) == 1).mean() < 0.01 for order in orders)
    batches = blocks[orders[0]].reshape(-1, 32)
    assert max(len(set(batch)) for batch in batches.tolist()) <= 8
    plain = blocks[epoch_order(6400, shuffle=True, seed=1, epoch=0)].reshape(-1, 32)
    assert np.mean([len(set(batch)) for batch in plain.tolist()]) > 25


def test_blocks_are_the_tars_and_media_of_a_dataset(index: Index, tmp_path: Path) -> None:
    names = ["h264_default.mp4", "hevc_closed.mp4", "h264_vfr.mkv"]
    clips = [{"uri": names[number // 4 % 3], "frames": [number], "half": number % 2} for number in range(24)]
    dataset = ClipDataset(shard_clips(index.path, tmp_path / "D", clips))
    media = [number // 4 % 3 for number in range(24)]
    assert dataset.places("medium").tolist() == media
    assert ClipDataset(dataset.manifest.path, where={"half": 1}).places("medium").tolist() == media[1::2]
    visited = [media[number] for number in ClipSampler(dataset, shuffle=True, blocks="medium", window=1)]
    assert len(list(itertools.groupby(visited))) == 3
    with pytest.raises(FramedexError, match="has no tars"):
        ClipSampler(dataset, shuffle=True, blocks="tar")
    arguments = ["--clips", tmp_path / "D.jsonl", "--out", tmp_path / "T", "--pack", "clips", "--shard-size", "40kB"]
    run("shard", index.path, *arguments)
    packed = ClipDataset(tmp_path / "T")
    tars = packed.places("tar")
    assert tars.max() >= 2
    assert (np.diff(tars) >= 0).all()
    assert [packed.clip(number).source.path.endswith(f"{tar:06d}.tar") for number, tar in enumerate(tars)] == [
        True
    ] * 24


@pytest.mark.parametrize("state", [None, [], "epoch", 3])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(FramedexError, match="not a state of a ClipSampler"):
        ClipSampler(range(5)).load_state_dict(state)


@pytest.mark.parametrize("change", [{"epoch": None}, {"delivered": "2"}, {"delivered": 1.5}, {"epoch": True}])
def test_a_state_of_other_types_is_refused(change: dict[str, Any]) -> None:
    sampler = ClipSampler(range(5))
    with pytest.raises(FramedexError, match="whole numbers"):
        sampler.load_state_dict(sampler.state_dict() | change)
