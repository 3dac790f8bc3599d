"""Containers' own structure: whole or truncated, and how many edits."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.containers import TruncatedError, check_whole, iter_boxes, media_edits


@pytest.mark.parametrize("name", ["h264_default.mp4", "h264_fragmented.mp4", "hevc_main10.mov"])
def test_whole_files_pass_and_every_cut_of_them_does_not(
    name: str, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    content = medium(name).read_bytes()
    check_whole(str(medium(name)), "mp4")
    with open(medium(name), "rb") as file:
        edges = {box.end for box in iter_boxes(file, 0, len(content))}
    for cut in range(9, len(content), 997):
        (tmp_path / "cut").write_bytes(content[:cut])
        tail = cut - max(edge for edge in {0, *edges} if edge <= cut)
        if tail >= 8:
            with pytest.raises(TruncatedError):
                check_whole(str(tmp_path / "cut"), "mp4")


def test_matroska_is_measured_by_its_segment(medium: Callable[[str], Path], tmp_path: Path) -> None:
    content = medium("h264_vfr.mkv").read_bytes()
    check_whole(str(medium("h264_vfr.mkv")), "matroska")
    (tmp_path / "cut").write_bytes(content[:-1])
    with pytest.raises(TruncatedError):
        check_whole(str(tmp_path / "cut"), "matroska")


def test_edits_that_show_media_are_counted_by_track(medium: Callable[[str], Path]) -> None:
    assert media_edits(str(medium("h264_default.mp4"))) == {1: 1}
    assert media_edits(str(medium("h264_no_edit_list.mp4"))) == {1: 0}


@given(st.binary(max_size=300))
def test_any_bytes_end_in_boxes_or_truncation(data: bytes) -> None:
    try:
        boxes = list(iter_boxes(io.BytesIO(data), 0, len(data)))
    except (TruncatedError, struct.error):
        return
    assert all(0 < box.start <= box.end <= len(data) for box in boxes)
