"""Presentation order from packets, and the checks that refuse streams whose frames would be numbered wrongly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.base import BitstreamError, Pictures, pictures_of
from framedex.indexer.timeline import (
    CLOSED,
    CONTAINER,
    CONTINUES,
    COUNTED,
    DEALT,
    FILLED,
    HIDDEN,
    JOINED,
    NON_REFERENCE,
    SKIPPED,
    check_reorder_depth,
    packet_flags,
    packets_to_frames,
    presentation_order,
    reorder_depth_needed,
    settle_timestamps,
    spread_over_gops,
    summarise,
)
from framedex.records.clip import NO_PTS


def pictures(order: list[int], starts: list[int] | None = None) -> Pictures:
    """Return facts of packets with the given output order, all in one output period."""
    start = np.isin(np.arange(len(order)), [0] if starts is None else starts).astype(np.uint8)
    return pictures_of(start, order=np.array(order))


def settle(
    pts: list[int], order: list[int], *, dts: list[int] | None = None, stated: bool = True
) -> tuple[list[int], str]:
    facts = pictures(order)
    n = len(pts)
    times = np.full(n, NO_PTS) if dts is None else np.array(dts)
    flags = packet_flags(facts, np.zeros(n, np.bool_))
    settled, source = settle_timestamps(np.array(pts), times, np.full(n, 10), flags, facts, stated=stated)
    return settled.tolist(), source


def test_frames_are_numbered_by_pts_without_hidden_and_skipped_packets() -> None:
    pts = np.array([0, 40, 20, 10, NO_PTS])
    flags = np.array([HIDDEN, 0, 0, 0, SKIPPED], np.uint8)
    assert presentation_order(pts, flags).tolist() == [3, 2, 1]


def test_second_fields_present_nothing() -> None:
    assert presentation_order(np.array([0, NO_PTS, 40]), np.array([CLOSED, CONTINUES, 0])).tolist() == [0, 2]


def test_timestamps_that_agree_with_the_output_order_pass() -> None:
    assert settle([0, 30, 10, 20], [0, 3, 1, 2]) == ([0, 30, 10, 20], CONTAINER)
    assert settle([0, 10, 10, 20], [0, 1, 2, 3]) == ([0, 10, 10, 20], CONTAINER)


@pytest.mark.parametrize(
    ("pts", "order"),
    [([0, 10, 20, 30], [0, 3, 1, 2]), ([0, 10, 10, 20], [0, 2, 1, 3]), ([30, 20, 10, 0], [0, 1, 2, 3])],
)
def test_timestamps_that_contradict_the_output_order_are_refused(pts: list[int], order: list[int]) -> None:
    with pytest.raises(BitstreamError) as refused:
        settle(pts, order)
    assert refused.value.kind == "output_order"


def test_missing_timestamps_are_filled_between_their_neighbours_and_counted_on_at_the_ends() -> None:
    assert settle([NO_PTS, 30, 10, NO_PTS], [0, 3, 1, 2]) == ([0, 30, 10, 20], FILLED)
    assert settle([0, NO_PTS, 20, NO_PTS], [0, 1, 2, 3]) == ([0, 10, 20, 30], FILLED)


def test_timestamps_that_turn_back_go_on_behind_the_joint() -> None:
    pts = [*range(0, 200, 10), *range(0, 100, 10)]
    assert settle(pts, list(range(30))) == (list(range(0, 300, 10)), JOINED)


def test_where_a_container_states_no_times_the_bitstream_orders_frames() -> None:
    assert settle([2, 4, 6, 8], [0, 3, 1, 2], dts=[0, 2, 4, 6], stated=False) == ([0, 6, 2, 4], DEALT)
    assert settle([NO_PTS] * 4, [0, 3, 1, 2]) == ([0, 30, 10, 20], COUNTED)


def test_damage_spreads_over_its_gop_and_what_leads_the_next_open_one() -> None:
    start = np.array([1, 0, 0, 2, 0, 0, 1, 0], np.uint8)
    none = np.zeros(8, bool)
    damaged, leading = none.copy(), none.copy()
    damaged[1], leading[4] = True, True
    spread = spread_over_gops(pictures_of(start, leading=leading), damaged)
    assert np.flatnonzero(spread).tolist() == [0, 1, 2, 4]


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_reorder_depth_agrees_with_counting_by_hand(shifts: list[int]) -> None:
    rank = np.argsort(
        np.argsort(np.arange(len(shifts)) + np.array(shifts, np.int64) * 1.5, kind="stable"), kind="stable"
    )
    by_hand = max((int((rank[:at] > rank[at]).sum()) for at in range(len(rank))), default=0)
    assert reorder_depth_needed(rank) == by_hand


def test_a_stream_that_states_too_small_a_reorder_depth_is_refused() -> None:
    facts = pictures([0, 3, 1, 2])
    flags = packet_flags(facts, np.zeros(4, np.bool_))
    check_reorder_depth(flags, facts, 1)
    with pytest.raises(BitstreamError, match="reorder depth of 0, but its pictures need 1"):
        check_reorder_depth(flags, facts, 0)


def test_summary_of_a_variable_rate_timeline() -> None:
    flags = np.array([CLOSED, NON_REFERENCE, 0, CLOSED, 0], np.int32)
    summary = summarise(np.array([0, 10, 20, 30, 60]), flags, last_duration=0, time_base_seconds=0.001)
    assert (summary.frame_count, summary.keyframe_count) == (5, 2)
    assert summary.is_vfr
    assert summary.max_gap_seconds == pytest.approx(0.03)
    assert summary.duration_pts == 70
    assert (summary.min_gop, summary.mean_gop, summary.max_gop) == (2, 2.5, 3)
    assert summary.non_reference_share == pytest.approx(0.2)
    assert summary.seek_packets == pytest.approx((1 + 2 + 3 + 1 + 2) / 5)


def test_rounding_to_the_time_base_is_not_a_variable_rate() -> None:
    pts = np.round(np.arange(100) * 1000 / 30).astype(np.int64)  # milliseconds, as in Matroska
    assert not summarise(pts, np.full(100, CLOSED, np.int32), last_duration=33, time_base_seconds=0.001).is_vfr


def test_packets_to_frames_agrees_with_counting_by_hand(rng: np.random.Generator) -> None:
    order = rng.permutation(40)
    starts = np.array([3, 11, 12, 30])  # packets before the first start count from 0
    by_hand = [packet - max((start for start in (0, *starts) if start <= packet), default=0) + 1 for packet in order]
    assert packets_to_frames(order, starts).tolist() == by_hand
