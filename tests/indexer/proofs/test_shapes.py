"""The shapes of runs hold every frame, leave out every packet that a clip may leave out, and end at any frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from framedex.indexer.proofs.runs import SHORT, STARTS_BACK, Shape, crossing_shapes, drawn, shapes_of, shapes_of_some
from framedex.indexer.reach import Reach
from tests.support.flags import (
    CLOSED,
    CONTINUES,
    DAMAGED,
    HIDDEN,
    LEADING,
    NON_REFERENCE,
    OPEN,
    RESET,
    START,
    shown_packets,
)

Flags = NDArray[np.int32]


@st.composite
def streams(draw: st.DrawFn, most: int = 6) -> Flags:
    """Draw closed, open and damaged GOPs, resets, fields, hidden, leading and droppable pictures."""
    flags: list[int] = []
    for number in range(draw(st.integers(1, most))):
        opened = number > 0 and draw(st.booleans())
        damaged = DAMAGED if draw(st.integers(0, 5)) == 5 else 0
        start = OPEN if opened else CLOSED | (RESET if number and draw(st.integers(0, 4)) == 4 else 0)
        flags.append(start | damaged)
        flags += [
            LEADING | damaged | draw(st.sampled_from([0, NON_REFERENCE])) for _ in range(draw(st.integers(0, 3)))
        ] * opened
        for _ in range(draw(st.integers(0, 6))):
            kind = draw(st.sampled_from([0, NON_REFERENCE, HIDDEN]))
            flags += [kind | damaged] + [kind | damaged | CONTINUES] * draw(st.integers(0, 1))
    return np.array(flags, np.int32)


def runs_of(shape: Shape) -> dict[int, tuple[list[int], list[int]]]:
    """Return the packets and the wanted packets of each run."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for packet, run, wanted in zip(shape.packet.tolist(), shape.run.tolist(), shape.wanted.tolist(), strict=True):
        packets, targets = found.setdefault(run, ([], []))
        packets.append(packet)
        targets += [packet] * wanted
    return found


@given(streams(), st.booleans())
def test_every_sound_frame_is_reached_twice_or_alone_and_what_is_dropped_is_proved(
    flags: Flags, drop_leading: bool
) -> None:
    shapes = shapes_of(flags, drop_leading=drop_leading)
    reach = Reach(flags, drop_leading=drop_leading)
    frames = shown_packets(flags)
    frames = frames[(flags[frames] & DAMAGED) == 0]
    frames = frames[reach.is_reachable(frames)]
    begins, count = np.unique(reach.begins(frames), return_counts=True)
    several = begins[count > 1].tolist()  # a run to the only frame of a start point is one of the halves
    halves = shapes[: len(shapes) - bool(several)]
    reached = [packet for shape in halves for _, targets in runs_of(shape).values() for packet in targets]
    assert set(reached) == set(frames.tolist())
    if several:
        alone = runs_of(shapes[-1])
        assert sorted(packets[0] for packets, _ in alone.values()) == several
        assert all(len(targets) == 1 for _, targets in alone.values())
    droppable = set(frames[(flags[frames] & NON_REFERENCE) != 0].tolist())
    if droppable:
        assert set.intersection(*({*reached_in(shape)} for shape in halves)).isdisjoint(droppable)


@given(streams())
def test_runs_that_go_on_over_a_start_point_reach_a_frame_behind_it(flags: Flags) -> None:
    reach = Reach(flags, drop_leading=False)
    shapes, crossing = shapes_of(flags, drop_leading=False), crossing_shapes(flags, None)
    reached = {packet for shape in crossing for packet in shape.packet[shape.wanted & ~shape.over].tolist()}
    assert reached == {packet for shape in shapes for packet in shape.packet[shape.wanted].tolist()}
    firsts = [int(packets[0]) for shape in crossing for packets, _ in runs_of(shape).values()]
    for shape in crossing[1:]:
        assert not shape.over.any()
    for shape in crossing[:1]:
        for packet, run in zip(shape.packet[shape.over].tolist(), shape.run[shape.over].tolist(), strict=True):
            first = int(shape.packet[shape.run == run][0])
            crossed = reach.starts[reach.starts > first][0]
            assert crossed <= packet
            assert reach.begins(np.array([packet]))[0] == crossed
            assert not flags[crossed] & RESET
    assert set(firsts) <= set(reach.starts.tolist())


def reached_in(shape: Shape) -> list[int]:
    return shape.packet[shape.wanted].tolist()


@given(streams(), st.booleans())
def test_runs_of_every_shape_are_those_that_a_clip_with_their_frames_takes(flags: Flags, drop_leading: bool) -> None:
    reach = Reach(flags, drop_leading=drop_leading)
    for shape in shapes_of(flags, drop_leading=drop_leading):
        assert (np.diff(shape.packet) >= 0).all()
        for packets, targets in runs_of(shape).values():
            begins = np.unique(reach.begins(np.array(targets)))
            assert begins.tolist() == [packets[0]]
            assert flags[packets[0]] & START
            ends = reach.picture_end(np.array(targets[-1:]))
            assert packets == reach.needed(np.array(targets), begins, ends)[0].tolist()
            assert packets[-1] == ends[0]
    for shape in shapes_of(flags, drop_leading=drop_leading):
        assert np.count_nonzero(shape.last) == len(np.unique(shape.run))
        joined = np.flatnonzero(~shape.whole)
        for at in joined.tolist():  # the second field follows within its run
            later = np.flatnonzero((shape.run == shape.run[at]) & (shape.packet > shape.packet[at]))
            assert flags[shape.packet[later[0]]] & CONTINUES


@given(streams(), st.integers(1, 12))
def test_drawn_frames_are_sound_spread_and_the_same_each_time(flags: Flags, count: int) -> None:
    targets = drawn(flags, count, drop_leading=False)
    assert targets.tolist() == drawn(flags, count, drop_leading=False).tolist()
    frames = shown_packets(flags)
    frames = frames[(flags[frames] & DAMAGED) == 0]
    frames = frames[Reach(flags, drop_leading=False).is_reachable(frames)]
    assert len(targets) == min(count, len(frames))
    assert np.isin(targets, frames).all()
    assert (np.diff(targets) > 0).all()


@pytest.mark.parametrize(("gops", "back"), [(60, STARTS_BACK), (20, None)])
def test_a_decode_from_further_back_begins_two_start_points_earlier_or_with_a_short_file(
    gops: int, back: int | None
) -> None:
    flags = np.tile(np.array([CLOSED, 0, NON_REFERENCE, 0, NON_REFERENCE, 0], np.int32), gops)
    assert (len(flags) <= SHORT) == (back is None)
    targets = np.array([6 * 10 + 4, 6 * 15])
    clips, further = shapes_of_some(flags, targets, 2, drop_leading=False)
    assert list(runs_of(clips).values()) == [([60, 61, 63, 64], [64]), ([90], [90])]
    first = [0, 0] if back is None else [6 * (10 - back), 6 * (15 - back)]
    assert list(runs_of(further).values()) == [
        ([*range(begin, target + 3)], [target]) for begin, target in zip(first, targets.tolist(), strict=True)
    ]


def test_no_decode_runs_over_a_reset() -> None:
    flags = np.tile(np.array([CLOSED, 0, 0, 0], np.int32), 200)
    flags[4 * 9] |= RESET
    _, further = shapes_of_some(flags, np.array([4 * 10 + 1]), 0, drop_leading=False)
    assert further.packet.tolist() == [*range(36, 42)]
