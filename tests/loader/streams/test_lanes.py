"""Which clips each worker delivers, and in which order: pure functions."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from framedex.loader.streams.lanes import Lane, Order, Stage, Workers, lane_of, reading_order
from framedex.loader.streams.progress import Batching, delivered_clips, with_skips

ORDERS = st.builds(
    lambda sizes, buffer, seed: Order(
        tar_of=np.repeat(np.arange(len(sizes)), sizes).astype(np.int64), buffer=buffer, seed=seed, uneven="allow"
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.sampled_from([0, 1, 4, 100]),
    st.integers(0, 9),
)
WORKERS = st.builds(lambda ranks, each: Workers(world_size=ranks, per_rank=each), st.integers(1, 4), st.integers(1, 3))


def lanes(order: Order, epoch: int, stages: list[Stage], workers: Workers) -> dict[tuple[int, int], Lane]:
    """Return the lane of each worker of each rank."""
    return {
        place: lane_of(order, epoch, stages, workers, rank=place[0], worker=place[1])
        for place in np.ndindex(workers.world_size, workers.per_rank)
    }


def clips_of(found: dict[tuple[int, int], Lane]) -> list[int]:
    return sorted(clip for lane in found.values() for clip in lane.clips[lane.deliver].tolist())


@given(ORDERS, WORKERS, st.integers(0, 3))
def test_all_workers_together_deliver_each_clip_once(order: Order, workers: Workers, epoch: int) -> None:
    found = lanes(order, epoch, [], workers)
    assert clips_of(found) == list(range(len(order.tar_of)))
    lengths = [len(lane.clips) for lane in found.values()]
    assert max(lengths) - min(lengths) <= 2


@given(ORDERS, WORKERS)
def test_a_lane_reads_forwards_in_few_tars(order: Order, workers: Workers) -> None:
    found = lanes(order, 0, [], workers)
    for lane in found.values():
        tars = order.tar_of[lane.clips]
        changes = int(np.count_nonzero(np.diff(tars)))
        assert changes == max(0, len(np.unique(tars)) - 1)  # each tar is read in one go
        assert (np.diff(lane.clips)[np.diff(tars) == 0] == 1).all()
        assert np.sort(lane.deliver).tolist() == list(range(len(lane.clips)))
    assert found


@given(st.data(), ORDERS, st.lists(WORKERS, min_size=1, max_size=3))
@settings(max_examples=60)
def test_stops_with_other_numbers_of_workers_lose_and_repeat_nothing(
    data: st.DataObject, order: Order, runs: list[Workers]
) -> None:
    stages: list[Stage] = []
    delivered: list[int] = []
    for workers in runs[:-1]:
        found = lanes(order, 1, stages, workers)
        passed = np.zeros((workers.world_size, workers.per_rank), np.int64)
        for place, lane in found.items():
            count = data.draw(st.integers(0, len(lane.deliver)))
            delivered += lane.clips[lane.deliver[:count]].tolist()
            passed[place] = lane.passed + count
        if stages and stages[-1].workers == workers:
            stages.pop()
        stages.append(Stage(workers=workers, passed=passed))
    rest = clips_of(lanes(order, 1, stages, runs[-1]))
    assert sorted(delivered + rest) == list(range(len(order.tar_of)))


def order_of(uneven: str, buffer: int = 10) -> Order:
    return Order(tar_of=np.repeat(np.arange(5), 10), buffer=buffer, seed=1, uneven=uneven)  # type: ignore[arg-type]


def test_padded_ranks_have_as_many_clips_in_each_worker() -> None:
    found = lanes(order_of("pad"), 0, [], Workers(world_size=3, per_rank=2))
    assert [len(lane.clips) for lane in found.values()] == [9, 8, 9, 8, 9, 8]
    assert set(clips_of(found)) == set(range(50))
    dropped = lanes(order_of("drop"), 0, [], Workers(world_size=3, per_rank=2))
    assert [len(lane.clips) for lane in dropped.values()] == [8, 8, 8, 8, 8, 8]
    assert len(set(clips_of(dropped))) == 48


def test_epochs_and_seeds_have_other_orders_and_without_a_buffer_none() -> None:
    first = reading_order(order_of("pad"), 0).tolist()
    assert sorted(first) == list(range(50)) != first
    assert reading_order(order_of("pad"), 1).tolist() != first
    assert reading_order(order_of("pad"), 0).tolist() == first
    assert reading_order(order_of("pad", buffer=0), 7).tolist() == list(range(50))


def test_a_shuffle_buffer_changes_the_order_within_a_lane() -> None:
    lane = lane_of(order_of("pad", buffer=20), 0, [], Workers(world_size=1, per_rank=1), rank=0, worker=0)
    assert sorted(lane.deliver.tolist()) == list(range(50)) != lane.deliver.tolist()
    places = np.argsort(lane.deliver)  # when each clip of the lane is delivered
    assert (places >= np.arange(50) - 20).all()  # no clip comes before it can have been read


def test_batches_come_from_the_workers_in_turn() -> None:
    batching = Batching(size=4, workers=3, drop_last=False)
    lengths = np.array([10, 3, 9])
    counts = [delivered_clips(lengths, batches, batching).tolist() for batches in range(8)]
    assert counts == [
        [0, 0, 0], [4, 0, 0], [4, 3, 0], [4, 3, 4], [8, 3, 4], [8, 3, 8], [10, 3, 8], [10, 3, 9],
    ]  # fmt: skip
    full = Batching(size=4, workers=3, drop_last=True)
    assert delivered_clips(lengths, 9, full).tolist() == [8, 0, 8]


def test_skipped_clips_count_as_passed() -> None:
    assert with_skips(3, []) == 3
    assert with_skips(3, [0, 1]) == 5  # two skipped, three delivered
    assert with_skips(3, [3]) == 3  # nothing behind the third was reached
    assert with_skips(0, [0]) == 0
