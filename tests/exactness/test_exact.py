"""The central promise: framedex returns exactly the frames that a full in-order decode presents at these numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from framedex import Index
from tests.conftest import Truth
from tests.support.media import RECIPES, read_barcode
from tests.support.reading import Reader


@pytest.fixture
def reader(index: Index) -> Callable[[str], Reader]:
    return lambda name: Reader(index, name)


@pytest.mark.parametrize("name", RECIPES)
def test_index_numbers_and_times_frames_as_a_full_decode_does(
    name: str, reader: Callable[[str], Reader], truth: Callable[[str], Truth]
) -> None:
    assert reader(name).indexed.planner.pts.tolist() == truth(name).pts


@pytest.mark.parametrize("name", RECIPES)
def test_every_frame_alone_in_reverse_order_equals_the_full_decode(
    name: str, reader: Callable[[str], Reader], truth: Callable[[str], Truth]
) -> None:
    read = reader(name).read
    for number in reversed(range(len(truth(name).md5))):
        assert read([number]) == [(truth(name).pts[number], truth(name).md5[number])], f"frame {number}"


@pytest.mark.parametrize("name", RECIPES)
def test_every_frame_in_shuffled_clips_with_repeats_equals_the_full_decode(
    name: str, reader: Callable[[str], Reader], truth: Callable[[str], Truth], rng: np.random.Generator
) -> None:
    expected, read = truth(name), reader(name).read
    order = rng.permutation(len(expected.md5)).tolist()
    for at in range(0, len(order), 6):
        frames = order[at : at + 6] + order[at : at + 2]
        assert read(frames) == [(expected.pts[number], expected.md5[number]) for number in frames], frames


@pytest.mark.parametrize("name", RECIPES)
def test_consecutive_frames_from_anywhere_equal_the_full_decode(
    name: str, reader: Callable[[str], Reader], truth: Callable[[str], Truth]
) -> None:
    expected, read = truth(name), reader(name).read
    for first in range(0, len(expected.md5), 7):
        frames = list(range(first, min(first + 9, len(expected.md5))))
        assert [md5 for _, md5 in read(frames)] == [expected.md5[number] for number in frames], frames


@pytest.mark.parametrize("name", ["h264_b_pyramid.mkv", "hevc_open_gop.mp4", "h264_vfr.mp4"])
def test_rgb_frames_carry_the_barcode_of_their_number(name: str, reader: Callable[[str], Reader]) -> None:
    frames = [31, 4, 4, 0, 49, 17]
    assert [read_barcode(rgb) for rgb in reader(name).rgb(frames)] == frames


def test_planned_packets_leave_out_what_no_wanted_frame_needs(reader: Callable[[str], Reader]) -> None:
    planner = reader("h264_b_pyramid.mkv").indexed.planner  # Matroska: every packet was read
    assert len(planner.plan(np.array([20])).packet_size) < len(planner.plan(np.arange(21)).packet_size) - 5
