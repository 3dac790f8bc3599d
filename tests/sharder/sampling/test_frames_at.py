"""Choosing frames by time agrees with a brute-force reference in exact arithmetic, for any timestamps."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.sharder.policies.sampling import CHOICES, Choose, differences, frames_at, over_common_denominator

PTS = st.lists(st.integers(-50, 100_000), min_size=1, max_size=60).map(sorted)
TIME = st.fractions(min_value=-100, max_value=100_100, max_denominator=1001)


def brute_force(pts: list[int], time: Fraction, choose: Choose) -> int:
    """Return the frame that the documentation's rule chooses, by looking at every frame."""
    if choose == "nearest":
        return min(range(len(pts)), key=lambda number: (abs(pts[number] - time), pts[number], number))
    if choose == "next":
        following = [number for number in range(len(pts)) if pts[number] >= time]
        return pts.index(pts[following[0]] if following else pts[-1])
    shown = [number for number in range(len(pts)) if pts[number] <= time]
    return pts.index(pts[shown[-1]] if shown else pts[0])


@given(PTS, st.lists(TIME, min_size=1, max_size=10), st.sampled_from(CHOICES))
def test_any_times_agree_with_brute_force(pts: list[int], times: list[Fraction], choose: Choose) -> None:
    found = frames_at(np.array(pts), *over_common_denominator(times), choose)
    assert found.tolist() == [brute_force(pts, time, choose) for time in times]


@given(
    PTS,
    TIME,
    st.fractions(min_value=Fraction(1, 100), max_value=5000, max_denominator=30_030),
    st.sampled_from(CHOICES),
)
def test_grids_agree_with_brute_force(pts: list[int], start: Fraction, step: Fraction, choose: Choose) -> None:
    found = frames_at(np.array(pts), *over_common_denominator([start + k * step for k in range(12)]), choose)
    assert found.tolist() == [brute_force(pts, start + k * step, choose) for k in range(12)]


@pytest.mark.parametrize("choose", CHOICES)
def test_sampling_at_the_frame_rate_visits_every_frame_once(choose: str) -> None:
    """Sample timestamps of 30 fps in units of 1/90000 s at 30 fps: with floats, some frames would be off by one."""
    pts = np.arange(10_000) * 3000
    times, denominator = over_common_denominator([k * Fraction(1, 30) * 90_000 for k in range(10_000)])
    assert frames_at(pts, times, denominator, cast(Choose, choose)).tolist() == list(range(10_000))


def test_numbers_too_large_for_int64_are_exact_all_the_same() -> None:
    pts = np.array([0, 1 << 60, (1 << 60) + 3])
    times, denominator = over_common_denominator([Fraction((1 << 61) + 3, 2), Fraction((1 << 61) + 4, 2)])
    assert frames_at(pts, times, denominator, "nearest").tolist() == [1, 2]


@given(PTS, st.lists(TIME, min_size=1, max_size=10), st.sampled_from(CHOICES), st.sampled_from([1, 1 << 50]))
def test_distances_are_exact_at_any_size(pts: list[int], times: list[Fraction], choose: Choose, scale: int) -> None:
    numerators, denominator = over_common_denominator(times)
    frames = frames_at(np.array(pts), numerators, denominator, choose)
    found = np.abs(differences(np.array(pts), frames, numerators.astype(object) * scale, denominator * scale))
    assert [Fraction(int(away), denominator * scale) for away in found] == [
        abs(pts[frame] - time) for frame, time in zip(frames.tolist(), times, strict=True)
    ]


@pytest.mark.parametrize("choose", CHOICES)
def test_times_beyond_64_bits_give_the_first_and_the_last_frame(choose: str) -> None:
    times, denominator = over_common_denominator([Fraction(-(10**30)), Fraction(10**30)])
    assert frames_at(np.array([5, 6, 7]), times, denominator, cast(Choose, choose)).tolist() == [0, 2]
