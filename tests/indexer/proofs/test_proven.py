"""What a full decode shows of pictures, and what becomes of start points whose runs give other pictures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from framedex.indexer.proofs.full_decode import FullDecoder, Trials, fields_in, proven_pictures, shown_pictures
from framedex.indexer.reach import Reach
from tests.support.flags import NON_REFERENCE, RESET, START, shown_packets
from tests.support.mpeg2_fields import B_FIELD, BOTTOM, I_FIELD, P_FIELD, TOP, field, group, sequence
from tests.support.planned import (
    CLOSED_START,
    NO_START,
    OPEN_START,
    Pictures,
    Stream,
    packet_of,
    pictures_of,
    presented,
    wrong_frames,
)

Flags = NDArray[np.int32]
Differing = Callable[[Flags, int, int], bool]  # (flags, start point, frame) → whether that run gives another picture


def field_pairs(second: int) -> list[tuple[bytes, bytes]]:
    """Return frames as pairs of field pictures: four open GOPs of I B B P B B."""
    frames = []
    for number in range(4):
        head = sequence() + group()
        level = 10 + 11 * number
        after = field(I_FIELD, BOTTOM, 2, -level) if second == I_FIELD else field(P_FIELD, BOTTOM, 2, select=0)
        frames.append((head + field(I_FIELD, TOP, 2, level), after))
        frames += [(field(B_FIELD, TOP, place), field(B_FIELD, BOTTOM, place)) for place in (0, 1)]
        frames.append((field(P_FIELD, TOP, 5, select=1), field(P_FIELD, BOTTOM, 5, select=number % 2)))
        frames += [(field(B_FIELD, TOP, place), field(B_FIELD, BOTTOM, place)) for place in (3, 4)]
    return frames


@pytest.mark.parametrize("second", [I_FIELD, P_FIELD])
@pytest.mark.parametrize("apart", [lambda n: False, lambda n: True, lambda n: n % 2 == 0])
def test_field_pictures_are_kept_together(second: int, apart: Callable[[int], bool]) -> None:
    packets: list[bytes] = []
    for number, pair in enumerate(field_pairs(second)):
        packets += pair if apart(number) else [b"".join(pair)]
    stream = Stream(decoder="mpeg2video", codec="mpeg2video", packets=tuple(packets), reorder_depth=1)
    decoder = FullDecoder(stream.open_decoder())
    for packet in packets:
        decoder.feed(packet_of(packet))
    pictures = shown_pictures(decoder.finish(), [fields_in("mpeg2video", packet) for packet in packets])
    full = stream.decode(range(len(packets)))
    assert presented(pictures) == [number for number, _ in full]
    truth = {number: md5 for number, md5 in full if number is not None}
    assert wrong_frames(stream, pictures, truth, seed=3) == []
    # Behind an I field pair that comes first, decoders drop the two leading frames.
    given = [number for number in range(24) if second == P_FIELD or number not in (1, 2)]
    assert np.count_nonzero(pictures.continues) == sum(apart(number) for number in given)
    assert pictures.field_coded.all()
    assert np.count_nonzero(pictures.start) == 4


def gops(*kinds: str) -> Pictures:
    """Return pictures: a start point S or O (open), needed N, droppable D and leading L pictures."""
    text = "".join(kinds)
    start = [{"S": CLOSED_START, "O": OPEN_START}.get(kind, NO_START) for kind in text]
    return pictures_of(
        np.array(start, np.uint8),
        non_reference=np.array([kind in "DL" for kind in text]),
        leading=np.array([kind == "L" for kind in text]),
    )


def proven(pictures: Pictures, differs: Differing, *, crossed: bool = False) -> tuple[Flags, list[int]]:
    """Return the flags of proven pictures, and the frames that no run gives.

    Args:
        pictures: as a full decode shows them.
        differs: tells whether a run gives another picture.
        crossed: whether runs that go on over a start point give another one, unless none may.
    """
    n = len(pictures.start)

    def differing(flags: Flags, starts: NDArray[np.int64] | None) -> tuple[NDArray[np.bool_], bool]:
        frames = shown_packets(flags)
        begins = Reach(flags, drop_leading=False).begins(frames)
        wrong = np.zeros(n, np.bool_)
        for frame, begin in zip(frames.tolist(), begins.tolist(), strict=True):
            wrong[frame] = (starts is None or begin in starts) and differs(flags, begin, frame)
        return wrong, crossed and not (flags & RESET).any()

    trials = Trials(np.zeros(n, np.bool_), np.zeros(n, np.bool_), differing)
    found, wrong = proven_pictures(pictures, trials)
    return trials.flags(found), np.flatnonzero(wrong).tolist()


def starts_of(flags: Flags) -> list[int]:
    return np.flatnonzero(flags & START).tolist()


THREE = gops("SNDN", "SNDN", "SNDN")


def test_start_points_that_hold_in_all_trials_stay() -> None:
    flags, wrong = proven(THREE, lambda *_: False)
    assert (starts_of(flags), wrong) == ([0, 4, 8], [])
    assert np.flatnonzero(flags & NON_REFERENCE).tolist() == [2, 6, 10]


def test_a_start_point_that_needs_what_came_before_is_none() -> None:
    flags, wrong = proven(THREE, lambda _, begin, frame: begin == 8)
    assert (starts_of(flags), wrong) == ([0, 4], [])


def test_several_of_them_are_decoded_from_the_last_right_one() -> None:
    flags, wrong = proven(THREE, lambda _, begin, frame: begin > 0)
    assert (starts_of(flags), wrong) == ([0], [])


def test_where_one_picture_cannot_be_left_out_none_is() -> None:
    flags, wrong = proven(THREE, lambda flags, begin, frame: frame == 7 and bool(flags[6] & NON_REFERENCE))
    assert (starts_of(flags), wrong) == ([0, 4, 8], [])
    assert not (flags & NON_REFERENCE).any()


def test_frames_that_no_run_gives_are_told_and_their_start_point_stays() -> None:
    flags, wrong = proven(THREE, lambda _, begin, frame: frame == 5)
    assert (starts_of(flags), wrong) == ([0, 4, 8], [5])
    assert not (flags & NON_REFERENCE).any()


def test_what_follows_a_wrong_frame_in_a_longer_run_is_not_believed() -> None:
    flags, wrong = proven(THREE, lambda _, begin, frame: frame == 5 or begin == 8)
    assert starts_of(flags) == [0, 4, 8]
    assert wrong == [5, 8, 9, 10, 11]


def test_frames_that_the_first_start_point_does_not_give_are_told() -> None:
    flags, wrong = proven(THREE, lambda _, begin, frame: begin == 0)
    assert (starts_of(flags), wrong) == ([0, 4, 8], [0, 1, 2, 3])


def test_leading_pictures_of_a_false_start_point_are_decoded_as_others() -> None:
    flags, wrong = proven(gops("SNN", "OLN", "SN"), lambda _, begin, frame: begin == 3)
    assert (starts_of(flags), wrong) == ([0, 6], [])


def test_runs_over_start_points_that_change_what_follows_are_not_planned() -> None:
    flags, wrong = proven(gops("SN", "OLN", "SN", "SN"), lambda *_: False, crossed=True)
    assert (starts_of(flags), wrong) == ([0, 5, 7], [])
    assert np.flatnonzero(flags & RESET).tolist() == [5, 7]
