"""The flags of packets and the order of frames are those of docs/format.md, as an independent reader has them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer import timeline
from tests.support import flags
from tests.support.counted import some

FORMAT = Path(__file__).resolve().parents[2] / "docs" / "format.md"
NAMES = [
    "CLOSED",
    "OPEN",
    "NON_REFERENCE",
    "LEADING",
    "HIDDEN",
    "SKIPPED",
    "CONTINUES",
    "DAMAGED",
    "RESET",
    "NOT_REPRODUCIBLE",
    "START",
]
PACKETS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0, flags.HIDDEN, flags.SKIPPED, flags.CONTINUES, flags.CLOSED])),
    max_size=30,
)


def test_bits_are_those_that_the_docs_state() -> None:
    (row,) = [line for line in FORMAT.read_text(encoding="utf-8").splitlines() if line.startswith("| `flags`")]
    for bit, words in some(flags.SAID.items(), 10):
        assert re.search(rf" {bit}(?: \(together with \d+\))?: {words}", row), words
    assert len(NAMES) == len(flags.SAID) + 1
    assert {name: getattr(flags, name) for name in NAMES} == {name: getattr(timeline, name) for name in NAMES}


@given(PACKETS)
def test_frames_are_in_the_order_of_the_reference(packets: list[tuple[int, int]]) -> None:
    pts, bits = (np.array([packet[column] for packet in packets], np.int64) for column in range(2))
    assert timeline.presentation_order(pts, bits).tolist() == flags.presentation_order(pts, bits).tolist()
