"""Packets that a frame needs, by reference slots: compared with a decoder that notes what it used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.reach import SLOT_COUNT, needed_packets
from framedex.indexer.timeline import CLOSED, REFERENCES_KNOWN, REFRESHED_SHIFT, USED_SHIFT

packets = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.booleans()), max_size=30)


def flags_of(written: list[tuple[int, int, bool]]) -> np.ndarray:
    """Return the flags of a run: a key frame, then packets of (used slots, refreshed slots, known)."""
    found = [CLOSED | 0xFF << REFRESHED_SHIFT | REFERENCES_KNOWN]
    found += [
        used << USED_SHIFT | refreshed << REFRESHED_SHIFT | REFERENCES_KNOWN if known else 0
        for used, refreshed, known in written
    ]
    return np.array(found, np.int32)


def decoded(written: list[tuple[int, int, bool]]) -> list[frozenset[int]]:
    """Return the packets that the picture of each packet is made of, decoding them one by one."""
    made = [frozenset({0})]
    slots = [made[0]] * SLOT_COUNT
    for number, (used, refreshed, known) in enumerate(written, 1):
        sources = [slots[slot] for slot in range(SLOT_COUNT) if used >> slot & 1] if known else made
        made.append(frozenset({number}).union(*sources))
        slots = [made[-1] if refreshed >> slot & 1 or not known else slots[slot] for slot in range(SLOT_COUNT)]
    return made


@given(packets, st.sets(st.integers(0, 30), min_size=1, max_size=4))
def test_exactly_what_wanted_pictures_are_made_of_is_needed(
    written: list[tuple[int, int, bool]], wanted: set[int]
) -> None:
    made = decoded(written)
    chosen = {number % len(made) for number in wanted}
    targets = np.isin(np.arange(len(made)), list(chosen))
    found = np.flatnonzero(needed_packets(flags_of(written), targets)).tolist()
    if any(known for _, _, known in written) or not written:
        assert found == sorted(frozenset({0}).union(*(made[number] for number in chosen)))
    else:
        assert set(found) >= frozenset().union(*(made[number] for number in chosen))


def test_a_chain_of_references_is_followed_and_the_rest_left_out() -> None:
    # Packets 1 to 4 refresh slots 0 to 3. Packet 2 uses packet 1's slot, packet 4 packet 2's. 3 uses the key frame's.
    written = [(1, 1, True), (1, 2, True), (128, 4, True), (2, 8, True)]
    targets = np.array([False, False, False, False, True])
    assert needed_packets(flags_of(written), targets).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("flags", [[CLOSED, 0, 0], [0, 0, 0]])
def test_without_references_all_packets_are_needed(flags: list[int]) -> None:
    assert needed_packets(np.array(flags, np.int32), np.array([False, True, False])).all()
