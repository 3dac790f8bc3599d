"""From packets to presentation order, and the checks that refuse what would be numbered wrongly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.pictures import BitstreamError, Pictures
from framedex.indexer.timeline import (
    CLOSED,
    HIDDEN,
    NO_PTS,
    NON_REFERENCE,
    SKIPPED,
    check_order,
    check_reorder_depth,
    packet_flags,
    presentation_order,
    reorder_depth_needed,
    summarise,
)


def pictures(order: list[int], starts: list[int] | None = None) -> Pictures:
    """Return facts of packets with the given output order, all in one period."""
    n = len(order)
    none = np.zeros(n, np.bool_)
    return Pictures(
        start=np.isin(np.arange(n), [0] if starts is None else starts).astype(np.uint8),
        non_reference=none, leading=none, skipped=none, field_coded=none,
        period=np.zeros(n, np.int64), order=np.array(order), preamble=b"",
        inband_sets=False, inner_start_codes=False, chroma_format=1, max_ref_frames=4,
    )  # fmt: skip


def test_frames_are_numbered_by_pts_without_hidden_and_skipped_packets() -> None:
    pts = np.array([0, 40, 20, 10, NO_PTS])
    flags = np.array([HIDDEN, 0, 0, 0, SKIPPED], np.uint8)
    assert presentation_order(pts, flags).tolist() == [3, 2, 1]


def test_timestamps_that_agree_with_the_output_order_pass() -> None:
    facts = pictures([0, 3, 1, 2])
    check_order(np.array([0, 30, 10, 20]), packet_flags(facts, np.zeros(4, np.bool_)), facts)
    assert packet_flags(facts, np.zeros(4, np.bool_))[0] == CLOSED


@pytest.mark.parametrize(
    ("pts", "order", "starts", "kind"),
    [
        ([0, 10, 20, 30], [0, 3, 1, 2], None, "output_order"),
        ([0, 10, 10, 20], [0, 2, 1, 3], None, "output_order"),
        ([0, NO_PTS, 10, 20], [0, 1, 2, 3], None, "no_pts"),
        ([0, 10, 20, 30], [0, 1, 2, 3], [2], "no_start"),
    ],
)
def test_what_would_be_numbered_wrongly_is_refused(
    pts: list[int], order: list[int], starts: list[int] | None, kind: str
) -> None:
    facts = pictures(order, starts)
    with pytest.raises(BitstreamError) as refused:
        check_order(np.array(pts), packet_flags(facts, np.zeros(4, np.bool_)), facts)
    assert refused.value.kind == kind


def test_equal_timestamps_in_output_order_pass() -> None:
    facts = pictures([0, 1, 2, 3])
    check_order(np.array([0, 10, 10, 20]), packet_flags(facts, np.zeros(4, np.bool_)), facts)


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
    with pytest.raises(BitstreamError, match="over 1 places, the stream states 0"):
        check_reorder_depth(flags, facts, 0)


def test_summary_of_a_variable_rate_timeline() -> None:
    flags = np.array([CLOSED, NON_REFERENCE, 0, CLOSED, 0], np.uint8)
    summary = summarise(np.array([0, 10, 20, 30, 60]), flags, last_duration=0, time_base_seconds=0.001)
    assert (summary.frame_count, summary.keyframe_count) == (5, 2)
    assert summary.is_vfr
    assert summary.max_gap_seconds == pytest.approx(0.03)
    assert summary.duration_pts == 70
    assert (summary.min_gop, summary.mean_gop, summary.max_gop) == (2, 2.5, 3)
    assert summary.non_reference_share == pytest.approx(0.2)


def test_rounding_to_the_time_base_is_not_a_variable_rate() -> None:
    pts = np.round(np.arange(100) * 1000 / 30).astype(np.int64)  # milliseconds, as Matroska has them
    assert not summarise(pts, np.full(100, CLOSED, np.uint8), last_duration=33, time_base_seconds=0.001).is_vfr
