"""The offset of a packet's bytes in its file is found by comparing bytes; the demuxer's position is not trusted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from framedex.indexer.probing.by_packets import PayloadFinder

CONTENT = bytes(range(200)) + b"first frame" + b"second" + b"the third one" + bytes(100) + b"far away"


@pytest.fixture
def finder() -> Callable[[], PayloadFinder]:
    return lambda: PayloadFinder(lambda offset, length: CONTENT[offset : offset + length])


@pytest.mark.parametrize("behind", [0, 4, 12, 16, 7, 60])
def test_payloads_behind_their_headers_are_found(behind: int, finder: Callable[[], PayloadFinder]) -> None:
    found = finder()
    assert found.find(200 - behind, b"first frame") == 200
    assert found.find(211 - behind, b"second") == 211
    assert found.found_all


def test_laced_frames_of_one_block_follow_each_other(finder: Callable[[], PayloadFinder]) -> None:
    found = finder()
    assert [found.find(193, data) for data in (b"first frame", b"second", b"the third one")] == [200, 211, 217]


@pytest.mark.parametrize(
    ("position", "data"), [(None, b"second"), (-1, b"second"), (211, b"other"), (100, b"far away")]
)
def test_one_packet_that_is_not_there_makes_the_medium_unaddressable(
    position: int | None, data: bytes, finder: Callable[[], PayloadFinder]
) -> None:
    found = finder()
    assert found.find(position, data) == -1
    assert not found.found_all
    assert found.find(200, b"first frame") == -1
