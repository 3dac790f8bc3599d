"""The planner keeps enough packets and no more, on any stream."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from framedex.errors import DamageError, PolicyError, UncuttableError
from framedex.indexer.parts.packets import Packets
from framedex.sharder.clips.clip import coalesce
from framedex.sharder.planning.planner import Planner
from tests.support.flags import CLOSED, CONTINUES, DAMAGED, LEADING, NON_REFERENCE, OPEN, RESET, START


def packets_of(flags: list[int], **columns: NDArray[np.int64]) -> Packets:
    """Return packets with these flags. Default: ten contiguous bytes each, in presentation order."""
    n = len(flags)
    plain = {"pts": np.arange(n), "offset": np.arange(n) * 10, "size": np.full(n, 10)} | columns
    return Packets(flags=np.array(flags, np.int32), read=np.ones(n, np.bool_), state=np.zeros(n, np.int32), **plain)


@st.composite
def streams(draw: st.DrawFn) -> Packets:
    """Draw closed or open GOPs of random length with leading and non-reference pictures and interleaved audio."""
    flags: list[int] = []
    for number in range(draw(st.integers(1, 5))):
        opened = number > 0 and draw(st.booleans())
        leading = draw(st.integers(0, 3)) if opened else 0
        flags.append(OPEN if opened else CLOSED)
        flags += [LEADING | (NON_REFERENCE if draw(st.booleans()) else 0) for _ in range(leading)]
        flags += [NON_REFERENCE if draw(st.booleans()) else 0 for _ in range(draw(st.integers(0, 6)))]
    n = len(flags)
    size = draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    gap = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    offset = np.cumsum(np.array(gap) * 7 + np.array([0, *size[:-1]]))
    # Leading pictures are shown before their start; all others are shown in decode order.
    pts = np.arange(n) * 10
    for at in np.flatnonzero(np.array(flags) & OPEN):
        count = 0
        while at + 1 + count < n and flags[at + 1 + count] & LEADING:
            count += 1
        pts[at : at + count + 1] = np.roll(pts[at : at + count + 1], 1)
        pts[at] = (at + count) * 10
    return packets_of(flags, pts=pts, offset=offset, size=np.array(size, np.int64))


def needed(packets: Packets, target: int) -> set[int]:
    """Return the packets that decoding `target` needs, from its start on (for a leading picture, the start before)."""
    starts = [number for number in range(target + 1) if packets.flags[number] & START]
    begin = starts[-2] if packets.flags[target] & LEADING else starts[-1]
    return {n for n in range(begin, target + 1) if not packets.flags[n] & NON_REFERENCE or n == target}


@given(streams(), st.data())
def test_plans_hold_what_every_wanted_frame_needs_and_nothing_droppable(packets: Packets, data: st.DataObject) -> None:
    planner = Planner(packets, drop_leading=False)
    n = len(packets.pts)
    frames = np.array(data.draw(st.lists(st.integers(-1, n - 1), min_size=1, max_size=8).filter(lambda f: max(f) >= 0)))
    recipe = planner.plan(frames)
    order = np.argsort(packets.pts, kind="stable")
    targets = set(order[frames[frames >= 0]].tolist())
    read = {
        offset + byte
        for offset, length in zip(recipe.range_offset.tolist(), recipe.range_length.tolist(), strict=True)
        for byte in range(length)
    }
    assert packets.offset is not None
    spans = [
        set(range(offset, offset + size))
        for offset, size in zip(packets.offset.tolist(), packets.size.tolist(), strict=True)
    ]
    kept = [number for number in range(n) if spans[number] <= read]
    assert set().union(*(spans[number] for number in kept)) == read, "ranges hold whole packets alone"
    assert set().union(*(needed(packets, target) for target in targets)) <= set(kept)
    assert all(not packets.flags[number] & NON_REFERENCE or number in targets for number in kept)
    assert packets.size[kept].tolist() == recipe.packet_size.tolist()

    runs = np.searchsorted(recipe.run_first, np.arange(len(kept)), side="right") - 1
    assert recipe.packet_rank[np.lexsort((packets.pts[kept], runs))].tolist() == list(range(len(kept)))
    assert (packets.flags[np.array(kept)[recipe.run_first]] & START).all(), "every run begins at a start point"
    for place, frame in enumerate(frames.tolist()):
        if frame < 0:
            assert recipe.position[place] == -1
        else:
            assert recipe.packet_rank[kept.index(int(order[frame]))] == recipe.position[place]


@given(streams(), st.data())
def test_leading_pictures_of_a_runs_own_start_can_be_dropped(packets: Packets, data: st.DataObject) -> None:
    frame = np.array([data.draw(st.integers(0, len(packets.pts) - 1))])
    with_leading = Planner(packets, drop_leading=False).plan(frame)
    without = Planner(packets, drop_leading=True).plan(frame)
    assert len(without.packet_size) <= len(with_leading.packet_size)
    assert without.position[0] >= 0


@pytest.mark.parametrize("frame", [3, 99, -2])
def test_a_frame_that_is_not_there_is_an_error_with_the_range(frame: int) -> None:
    packets = packets_of([CLOSED, 0, 0])
    with pytest.raises(PolicyError, match="allowed: 0 to 2"):
        Planner(packets, drop_leading=False).plan(np.array([0, frame]))


def test_runs_that_touch_are_one_run() -> None:
    planner = Planner(packets_of([CLOSED, 0, CLOSED, 0, CLOSED, 0]), drop_leading=False)
    assert planner.plan(np.array([1, 3])).run_first.tolist() == [0]
    assert planner.plan(np.array([1, 5])).run_first.tolist() == [0, 2]
    assert planner.plan(np.array([0, 2])).run_first.tolist() == [0, 1]


def test_no_run_goes_over_a_reset() -> None:
    planner = Planner(packets_of([CLOSED, 0, CLOSED | RESET, 0]), drop_leading=False)
    assert planner.plan(np.array([1, 3])).run_first.tolist() == [0, 2]
    assert planner.plan(np.array([2, 3])).run_first.tolist() == [0]


@given(streams(), st.data())
def test_clips_planned_together_are_those_planned_alone(packets: Packets, data: st.DataObject) -> None:
    """Some clips have errors: damaged GOPs, padding alone, frames that do not exist."""
    n = len(packets.pts)
    damaged = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    flags = packets.flags | np.where(damaged & data.draw(st.booleans()), DAMAGED, 0).astype(np.int32)
    planner = Planner(replace(packets, flags=flags), drop_leading=data.draw(st.booleans()))
    wanted = data.draw(st.lists(st.lists(st.integers(-1, n), min_size=1, max_size=8), min_size=1, max_size=9))
    clips, one_stream = list(map(np.array, wanted)), data.draw(st.booleans())
    together = planner.plan_together(clips, one_stream=one_stream)
    for frames, found in zip(clips, together, strict=True):
        try:
            alone: object = planner.plan(frames, one_stream=one_stream)
        except PolicyError as error:
            alone = error
        assert repr(found) == repr(alone)


def test_clips_of_many_packets_are_not_planned_at_once() -> None:
    planner = Planner(packets_of([CLOSED] + [0] * 50_000), drop_leading=False)
    clips = [np.array([frame]) for frame in range(49_000, 49_064)]
    tracemalloc.start()
    together = planner.plan_together(clips)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < kept + 20_000_000  # 0.6 GB for all 64 together
    assert [repr(found) for found in together] == [repr(planner.plan(frames)) for frames in clips]


def test_a_leading_picture_behind_a_reset_cannot_be_planned() -> None:
    packets = packets_of([CLOSED, 0, CLOSED | RESET, LEADING, 0])
    planner = Planner(packets, drop_leading=False)
    with pytest.raises(PolicyError, match="change of the decoder's configuration"):
        planner.plan(np.array([3]))
    assert planner.plan(np.array([4])).run_first.tolist() == [0]


def test_two_packets_of_a_picture_are_planned_as_one() -> None:
    packets = packets_of([CLOSED, CONTINUES, NON_REFERENCE, NON_REFERENCE | CONTINUES, 0, CONTINUES])
    planner = Planner(packets, drop_leading=False)
    recipe = planner.plan(np.array([2, 0]))
    assert recipe.packet_size.tolist() == [20, 20]
    assert recipe.range_offset.tolist() == [0, 40]
    assert recipe.position.tolist() == [1, 0]


def test_frames_of_damaged_gops_are_planned_on_demand_alone() -> None:
    packets = packets_of([CLOSED, 0, CLOSED | DAMAGED, DAMAGED])
    with pytest.raises(DamageError, match="packet 3"):
        Planner(packets, drop_leading=False).plan(np.array([1, 3]))
    assert not Planner(packets, drop_leading=False).plan(np.array([1])).damaged
    assert Planner(packets, drop_leading=False, keep_damaged=True).plan(np.array([1, 3])).damaged


def test_no_stream_of_one_clip_leads_over_a_damaged_gop() -> None:
    frames = np.array([0, 3])
    for middle, end in ((OPEN, OPEN), (OPEN, CLOSED)):
        packets = packets_of([CLOSED, middle | DAMAGED, DAMAGED, end, NON_REFERENCE])
        for keep_damaged in (False, True):
            planner = Planner(packets, drop_leading=False, keep_damaged=keep_damaged)
            assert planner.plan(frames).run_first.tolist() == [0, 1]
            if end == OPEN:
                with pytest.raises(UncuttableError, match="damaged GOP lies between"):
                    planner.plan(frames, one_stream=True)
            else:
                assert planner.plan(frames, one_stream=True).run_first.tolist() == [0, 1]


def test_runs_are_given_the_state_of_their_start() -> None:
    packets = replace(packets_of([CLOSED, 0, CLOSED, 0]), state=np.array([0, 0, 1, 0], np.int32))
    assert Planner(packets, drop_leading=False).plan(np.array([0, 3])).run_state.tolist() == [0, 1]


def test_packets_that_are_no_byte_ranges_cannot_be_pointed_at() -> None:
    packets = replace(packets_of([CLOSED, 0]), offset=None)
    planner = Planner(packets, drop_leading=False)
    with pytest.raises(PolicyError, match="--pack needed"):
        planner.plan(np.array([1]))


def test_ranges_are_joined_within_a_run_alone() -> None:
    offset, size = np.array([0, 10, 20, 35]), np.array([10, 10, 10, 5])
    joined = coalesce(offset, size, np.array([0, 2]))
    assert [column.tolist() for column in joined] == [[0, 20, 35], [20, 10, 5]]


def test_frames_before_the_first_start_are_not_planned() -> None:
    planner = Planner(packets_of([DAMAGED, CLOSED, 0]), drop_leading=False, keep_damaged=True)
    with pytest.raises(DamageError, match="packet 0"):
        planner.plan(np.array([0, 2]))
    with pytest.raises(DamageError, match="packet 0"):
        planner.joined(np.array([0]))
    assert planner.plan(np.array([2])).position.tolist() == [1]
