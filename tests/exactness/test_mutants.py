"""Mutants of small streams: clips return the frames of a full decode, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.difference import COMPARED, KINDS, UNWRITTEN, WRONG, counts, try_batch, wrong_of
from tests.support.depth import DEPTH, drawn, rounds

# Once wrong: a picture twice, FFV1 slices that a decoder repairs, parameter sets of another encode, moved timestamps,
# units with another type, slices beyond a picture, AV1 without some of its packets, HEVC without a slice or with a
# start point twice or with a slice of another type, pictures that an index does not present.
ONCE_WRONG = {
    "h264_more": (1472,),
    "hevc_more": (132, 749, 945, 1093, 2359),
    "mpeg2_more": (338,),
    "prores": (8864,),
    "hevc": (61, 316, 406, 571, 1381, 1396, 1606),
    "mpeg1": (140, 1175, 1370, 1925, 2270, 3800),
    "h264": (285,),
    "ffv1": (297, 477, 507, 1527, 1722, 1767, 1887),
    "mpeg2": (621, 726, 1191, 1326, 1596, 2151, 2991),
    "av1": (767, 1772, 2057, 4127, 6171, 7982, 8387),
    "vp8": (1213,),
    "msmpeg4v3": (7760,),
}

GROUPS = 2 if DEPTH == "quick" else 8  # of kinds, so that test processes share them


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the streams that mutants are made of."""
    return tmp_path_factory.mktemp("streams")


@pytest.mark.parametrize("kind", ONCE_WRONG)
def test_what_was_wrong_once_is_exact_or_refused(kind: str, streams: Path) -> None:
    numbers = drawn("media that were wrong once, of each kind", ONCE_WRONG[kind], seed=1)
    outcomes = try_batch([(kind, number) for number in numbers], {"depth": "auto"}, None, streams)
    assert not wrong_of(outcomes)
    # Another version of an encoder writes another stream, of which no container may take the same mutant.
    assert DEPTH != "full" or any(outcome["outcome"] != UNWRITTEN for outcome in outcomes.values())


@pytest.mark.parametrize("group", range(GROUPS))
def test_most_mutants_are_compared_and_none_is_wrong(group: int, streams: Path) -> None:
    names = list(KINDS)
    every = [(names[number % len(names)], number) for number in range(len(names) * rounds("mutants of each kind"))]
    mutants = [mutant for mutant in every if names.index(mutant[0]) % GROUPS == group]
    outcomes = try_batch(mutants, {"depth": "auto"}, None, streams)
    assert [outcome for outcome in outcomes.values() if outcome["outcome"] == WRONG] == []
    found = counts(outcomes)
    assert found.keys() == set(names[group::GROUPS])
    for name, counted in found.items():
        assert counted.get(COMPARED, 0) >= 1, name
