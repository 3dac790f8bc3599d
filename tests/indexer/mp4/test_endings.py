"""The container structure shows whether a file is whole or cut off at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.mp4.boxes import ENDINGS, TruncatedError, iter_boxes
from tests.support.media import Recipe, encode


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: content[offset : offset + length]


def ending(content: bytes, container: str) -> str | None:
    return ENDINGS[container](reader(content), len(content))


@pytest.mark.parametrize("name", ["h264_default.mp4", "h264_fragmented.mp4", "hevc_main10.mov"])
def test_whole_files_pass_and_every_cut_of_them_does_not(name: str, medium: Callable[[str], Path]) -> None:
    content = medium(name).read_bytes()
    assert ending(content, "mp4") is None
    edges = {end for _, _, end in iter_boxes(reader(content), 0, len(content))}
    for cut in range(9, len(content), 997):
        tail = cut - max(edge for edge in {0, *edges} if edge <= cut)
        if tail >= 8:
            assert "past the end" in str(ending(content[:cut], "mp4"))


def test_matroska_is_measured_by_its_segment(medium: Callable[[str], Path]) -> None:
    content = medium("h264_vfr.mkv").read_bytes()
    assert ending(content, "matroska") is None
    assert "Segment" in str(ending(content[:-1], "matroska"))


def test_other_containers_show_what_is_cut_off(tmp_path: Path) -> None:
    for container, name in (("avi", "a.avi"), ("flv", "a.flv"), ("mpegts", "a.ts")):
        encode(Recipe(name=name, frames=8), tmp_path / name)
        content = (tmp_path / name).read_bytes()
        assert ending(content, container) is None
        assert ending(content[: len(content) * 3 // 4 + 1], container) is not None


@given(st.binary(max_size=300))
def test_any_bytes_end_in_boxes_or_truncation(data: bytes) -> None:
    try:
        boxes = list(iter_boxes(reader(data), 0, len(data)))
    except TruncatedError:
        return
    assert all(0 < start <= end <= len(data) for _, start, end in boxes)
