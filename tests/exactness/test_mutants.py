"""Mutants of small streams: clips return the frames of a full decode, or are refused."""

from __future__ import annotations

import pytest

from fuzz.difference import COMPARED, KINDS, WRONG, counts, try_batch

# Once wrong: a picture twice, FFV1 slices that a decoder repairs, parameter sets of another encode, moved timestamps,
# units with another type, slices beyond a picture, AV1 without some of its packets.
ONCE_WRONG = (
    61, 140, 285, 297, 316, 406, 477, 507, 571, 621, 726, 767, 1175, 1191, 1326, 1370, 1381, 1396, 1527, 1596, 1606,
    1722, 1767, 1772, 1887, 1925, 2057, 2151, 2270, 2991, 3800, 4127, 7982, 8387,
)  # fmt: skip


@pytest.mark.parametrize("number", ONCE_WRONG)
def test_what_was_wrong_once_is_exact_or_refused(number: int) -> None:
    (outcome,) = try_batch(number, 1, "auto", None).values()
    assert "name" in outcome
    assert outcome["outcome"] != WRONG, outcome


def test_most_mutants_are_compared_and_none_is_wrong() -> None:
    outcomes = try_batch(0, 60, "auto", None)
    assert [outcome for outcome in outcomes.values() if outcome["outcome"] == WRONG] == []
    for name, counted in counts(outcomes).items():
        assert counted.get(COMPARED, 0) >= 1, name
    assert len(outcomes) == 60 == 4 * len(KINDS)
