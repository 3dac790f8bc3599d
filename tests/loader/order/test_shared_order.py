"""ClipSampler(share=…): groups of clips of one medium stay on one rank, however a run is stopped and resumed."""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from framedex import ClipSampler
from framedex.errors import FramedexError
from tests.support.depth import EXAMPLES


class Media:
    """A dataset of which only the media of its clips are known."""

    def __init__(self, media: list[int]) -> None:
        self.media = np.array(media, np.int64)

    def __len__(self) -> int:
        return len(self.media)

    def places(self, kind: Literal["medium"]) -> NDArray[np.int64]:
        return self.media


def of_sizes(sizes: list[int]) -> Media:
    """Return media with these numbers of clips."""
    return Media(np.repeat(np.arange(len(sizes)), sizes).tolist())


DATASETS = st.one_of(
    st.lists(st.integers(1, 30), max_size=20).map(of_sizes), st.lists(st.integers(0, 5), max_size=60).map(Media)
)
HOW = st.fixed_dictionaries(
    {
        "share": st.integers(2, 9),
        "window": st.integers(1, 40),
        "spread": st.booleans(),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
        "uneven": st.sampled_from(["pad", "drop", "allow"]),
    }
)


def groups_of(dataset: Media, share: int) -> NDArray[np.int64]:
    """Return the group of each clip: the clips of a medium in their order, `share` at a time."""
    seen: dict[int, int] = {}
    found: dict[tuple[int, int], int] = {}
    groups = []
    for medium in dataset.media.tolist():
        key = (medium, seen.get(medium, 0) // share)
        seen[medium] = seen.get(medium, 0) + 1
        groups.append(found.setdefault(key, len(found)))
    return np.array(groups, np.int64)


@settings(max_examples=3 * EXAMPLES)
@given(dataset=DATASETS, how=HOW, world=st.integers(1, 8), epoch=st.integers(0, 3))
def test_ranks_have_equally_many_clips_each_once_and_hardly_any_group_is_cut(
    dataset: Media, how: dict[str, Any], world: int, epoch: int
) -> None:
    samplers = [ClipSampler(dataset, rank=rank, world_size=world, **how) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    visits = [list(sampler) for sampler in samplers]
    count = len(dataset)
    assert [len(visit) for visit in visits] == [len(sampler) for sampler in samplers]
    assert max(map(len, visits)) - min(map(len, visits)) <= (how["uneven"] == "allow")
    dealt = [clip for turn in itertools.zip_longest(*visits) for clip in turn if clip is not None]
    kept = count // world * world if how["uneven"] == "drop" else count
    assert len(set(dealt[:kept])) == kept <= len(dealt)
    padding = -count % world if how["uneven"] == "pad" and count else 0
    assert dealt[kept:] == [dealt[place % count] for place in range(padding)]
    groups = groups_of(dataset, how["share"])
    real = [visit[: -(-(kept - rank) // world)] for rank, visit in enumerate(visits)]
    own = [set(groups[visit].tolist()) for visit in real]
    assert sum(map(len, own)) - len(set().union(*own)) < world


@settings(max_examples=2 * EXAMPLES)
@given(dataset=DATASETS, how=HOW, world=st.integers(1, 4), rank=st.integers(0, 3))
def test_each_clip_is_announced_once_by_the_first_clip_of_its_group(
    dataset: Media, how: dict[str, Any], world: int, rank: int
) -> None:
    sampler = ClipSampler(dataset, rank=rank % world, world_size=world, **how)
    visit = list(sampler)
    groups = groups_of(dataset, how["share"])
    left = len(dataset) - rank % world
    real = min(len(visit), -(-left // world)) if left > 0 else 0  # the clips that are not repeated
    expected: dict[int, list[tuple[int, int]]] = {place: [] for place in range(len(visit))}
    first: dict[int, int] = {}
    for place, clip in enumerate(visit[:real]):
        begin = first.setdefault(int(groups[clip]), place)
        if begin != place:
            expected[begin].append((place, clip))
    if visit:
        grouped = sampler.grouped
        assert grouped is not None
        assert {place: grouped.later(place, clip) for place, clip in enumerate(visit)} == expected
        assert not any(grouped.later(place, clip + 1) for place, clip in enumerate(visit))
        assert grouped.later(len(visit), visit[0]) == []


@settings(max_examples=3 * EXAMPLES)
@given(
    dataset=DATASETS,
    how=HOW,
    stages=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=5),
    epoch=st.integers(0, 3),
)
def test_each_clip_is_visited_once_however_often_a_run_stops_and_changes(
    dataset: Media, how: dict[str, Any], stages: list[tuple[int, int]], epoch: int
) -> None:
    how["uneven"] = "allow"
    visited: list[int] = []
    state: dict[str, Any] | None = None
    for world, steps in [*stages, (stages[0][0], len(dataset) + 1)]:
        samplers = [ClipSampler(dataset, rank=rank, world_size=world, **how) for rank in range(world)]
        for sampler in samplers:
            if state is None:
                sampler.set_epoch(epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
            assert sampler.next_epoch == epoch
        iterators = [iter(sampler) for sampler in samplers]
        for _ in range(steps):
            turn = [next(iterator, None) for iterator in iterators]
            visited += [clip for clip in turn if clip is not None]
        states = [sampler.state_dict() for sampler in samplers]
        # With uneven="allow", ranks may differ by one clip at the end only.
        assert all(one == states[0] for one in states) or None in turn
        state = states[0]
        if state["delivered"] == len(dataset):
            break
    assert sorted(visited) == list(range(len(dataset)))


def test_a_rest_with_fewer_ranks_has_whole_groups() -> None:
    dataset = of_sizes([24] * 40)
    groups = groups_of(dataset, 8)
    before = [ClipSampler(dataset, shuffle=True, share=8, window=4, rank=rank, world_size=8) for rank in range(8)]
    for sampler in before:
        list(itertools.islice(sampler, 30))
    after = [ClipSampler(dataset, shuffle=True, share=8, window=4, rank=rank, world_size=4) for rank in range(4)]
    for sampler in after:
        sampler.load_state_dict(before[0].state_dict())
    owners = [set(groups[list(sampler)].tolist()) for sampler in after]
    assert sum(map(len, owners)) - len(set().union(*owners)) <= 7  # the groups that were cut for 8 ranks
    assert [sampler.state_dict()["lanes"] for sampler in after] == [8] * 4
    for sampler in after:
        sampler.set_epoch(1)
        assert sampler.state_dict()["lanes"] == 4


def test_spread_groups_mix_media_and_others_stay_in_one_batch() -> None:
    dataset = of_sizes([80] * 200)
    alone, shared = (ClipSampler(dataset, shuffle=True, share=share).distinct_media(32) for share in (None, 8))
    assert 29 < alone < 32
    assert 27 < shared < alone
    few = ClipSampler(dataset, shuffle=True, share=8, window=8).distinct_media(32)
    assert 8 < few < 16
    together = ClipSampler(dataset, shuffle=True, share=8, spread=False)
    visit = np.array(list(together)).reshape(-1, 8)
    assert (np.ptp(groups_of(dataset, 8)[visit], axis=1) == 0).all()
    assert 3.8 < together.distinct_media(32) <= 4
    assert list(ClipSampler(dataset, share=8)) == list(range(len(dataset)))


def test_draws_by_weights_form_groups_too() -> None:
    dataset = of_sizes([10] * 30)
    weights = np.arange(300) % 3
    sampler = ClipSampler(dataset, weights=weights, share=5, seed=3)
    plain = ClipSampler(dataset, weights=weights, seed=3)
    assert sorted(sampler) == sorted(plain)
    sampler.set_epoch(0)
    visit = list(sampler)
    groups, grouped = groups_of(dataset, 5), sampler.grouped
    assert grouped is not None
    later = {place: grouped.later(place, clip) for place, clip in enumerate(visit)}
    assert all(
        groups[visit[place]] == groups[clip] == groups[visit[other]]
        for place, others in later.items()
        for other, clip in others
    )
    counts = np.bincount(groups[visit])
    assert sum(map(len, later.values())) == (counts - -(-counts // 5)).sum()  # more draws than `share` are divided


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"share": 1}, "share is out of range"),
        ({"share": 8, "blocks": 4}, "share and blocks"),
        ({"share": 8, "window": 0}, "window is out of range"),
    ],
)
def test_wrong_arguments_are_refused(how: dict[str, Any], error: str) -> None:
    with pytest.raises(FramedexError, match=error):
        ClipSampler(of_sizes([4, 4]), shuffle=True, **how)
    with pytest.raises(FramedexError, match="no method places"):
        ClipSampler(range(8), shuffle=True, share=2)
    with pytest.raises(FramedexError, match="no full batch"):
        ClipSampler(of_sizes([4, 4])).distinct_media(9)


def test_a_state_of_other_groups_is_refused() -> None:
    dataset = of_sizes([16] * 4)
    sampler = ClipSampler(dataset, shuffle=True, share=8)
    next(iter(sampler))
    state = sampler.state_dict()
    for other in (
        ClipSampler(dataset, shuffle=True, share=4),
        ClipSampler(dataset, shuffle=True, share=8, window=2),
        ClipSampler(dataset, shuffle=True, share=8, spread=False),
        ClipSampler(of_sizes([20, 44]), shuffle=True, share=8),
    ):
        with pytest.raises(FramedexError, match="another locality"):
            other.load_state_dict(state)
    with pytest.raises(FramedexError):
        ClipSampler(dataset, shuffle=True).load_state_dict(state)
    with pytest.raises(FramedexError, match="lanes"):
        sampler.load_state_dict(state | {"lanes": 0})
