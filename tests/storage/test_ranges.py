"""Joining byte ranges into requests loses no bytes and wastes few."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framedex.storage.objects import coalesce

RANGES = st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 5_000)), max_size=40)


def requests(ranges: list[tuple[int, int]], **options: float) -> list[tuple[int, int]]:
    offset, length = np.array(ranges, np.int64).reshape(-1, 2).T
    made = coalesce(offset, length, **options)  # type: ignore[arg-type]
    return list(zip(made.begin.tolist(), made.end.tolist(), strict=True))


def test_ranges_that_lie_close_are_one_request() -> None:
    assert requests([(0, 1000), (1100, 1000)], gap=100, waste=1.0) == [(0, 2100)]
    assert requests([(1100, 1000), (0, 1000)], gap=99, waste=1.0) == [(0, 1000), (1100, 2100)]


def test_the_smallest_gaps_are_closed_first_until_too_much_is_wasted() -> None:
    asked = [(0, 100), (140, 100), (250, 100), (400, 100)]  # gaps 40, 10, 50; a quarter of 400 is 100
    assert requests(asked, gap=1000, waste=0.25) == [(0, 500)]
    assert requests(asked, gap=1000, waste=0.13) == [(0, 350), (400, 500)]
    assert requests(asked, gap=1000, waste=0.03) == [(0, 100), (140, 350), (400, 500)]


def test_a_long_request_is_cut() -> None:
    assert requests([(5, 25)], most=10) == [(5, 15), (15, 25), (25, 30)]


def test_nothing_asks_for_nothing() -> None:
    assert requests([]) == []


@given(RANGES, st.integers(0, 10_000), st.floats(0, 2), st.integers(500, 20_000))
def test_every_byte_wanted_is_asked_for_once(ranges: list[tuple[int, int]], gap: int, waste: float, most: int) -> None:
    asked = requests(ranges, gap=gap, waste=waste, most=most)
    wanted = np.zeros(110_000, np.bool_)
    for offset, length in ranges:
        wanted[offset : offset + length] = True
    got = np.zeros(110_000, np.int64)
    for begin, end in asked:
        assert 0 < end - begin <= most
        got[begin:end] += 1
    assert got.max() <= 1
    assert (got[wanted] == 1).all()
    assert np.count_nonzero(got) - np.count_nonzero(wanted) <= waste * np.count_nonzero(wanted)
    offset, length = np.array(ranges, np.int64).reshape(-1, 2).T
    made = coalesce(offset, length, gap=gap, waste=waste, most=most)
    for at, request in zip(offset.tolist(), made.request.tolist(), strict=True):
        assert made.begin[request] <= at < made.end[request]
