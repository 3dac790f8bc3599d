"""The policy `per_row` samples each range of a listing like a separate video; a row without a range is a failure."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policies import THIRTY, Document, clips_of, kinds, run
from tests.support.policy_reference import Stretch, Video, expected, frame_times, stretch_of_frames
from tests.support.policy_strategies import TERMS, TIMES, VIDEOS, WAYS


@given(video=VIDEOS, way=WAYS, terms=TERMS, ends=st.tuples(TIMES, TIMES))
def test_a_range_of_seconds_is_sampled_as_a_video_of_its_own(
    video: Video, way: Document, terms: Document, ends: tuple[Fraction, Fraction]
) -> None:
    start, end = min(ends), max(ends)
    document = {"policy": "per_row"} | way | terms
    sampling = run(document | {"start": "from", "end": "to"}, video, {"from": str(start), "to": str(end)})
    end = min(end, video.seconds)
    inside = [frame for frame, shown in enumerate(frame_times(video)) if start <= shown < end]
    if not inside:
        assert kinds(sampling) == ["row"]
        return
    stretch = Stretch(inside[0], inside[-1] + 1, start, end)
    assert clips_of(sampling) == expected(document, video, stretch)
    assert all(frame in inside for frames in sampling.clips for frame in frames.frames[frames.mask])


@given(video=VIDEOS, way=WAYS, ends=st.tuples(st.integers(-70, 70), st.integers(-70, 70)), include_end=st.booleans())
def test_a_range_of_frames_is_a_python_slice(
    video: Video, way: Document, ends: tuple[int, int], include_end: bool
) -> None:
    document = {"policy": "per_row", "unit": "frames", "include_end": include_end} | way
    sampling = run(document, video, {"start": float(ends[0]), "end": ends[1]})  # the numbers in a file list are floats
    stretch = stretch_of_frames(video, *ends, include_end=include_end)
    if stretch is None:
        assert kinds(sampling) == ["row"]
        return
    assert clips_of(sampling) == expected(document, video, stretch)


@given(video=VIDEOS, cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True).map(sorted))
def test_cuts_give_the_ranges_between_them(video: Video, cuts: list[int]) -> None:
    document: Document = {"policy": "per_row", "fps": 2, "frames": 3}
    at_once = run(document | {"cuts": "shots"}, video, {"shots": cuts})
    one_by_one = [run(document, video, {"start": a, "end": b}) for a, b in itertools.pairwise(cuts)]
    assert clips_of(at_once) == [clip for sampling in one_by_one for clip in clips_of(sampling)]
    assert kinds(at_once) == [kind for sampling in one_by_one for kind in kinds(sampling)]
    assert [clip.number for clip in at_once.clips] == list(range(len(at_once.clips)))


@given(video=VIDEOS, cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True).map(sorted))
def test_any_policy_samples_the_ranges_between_cuts(video: Video, cuts: list[int]) -> None:
    document: Document = {"policy": "windows", "frames": 3, "step": 2, "max_clips": 2}
    at_once = run(document | {"range": {"cuts": "shots"}}, video, {"shots": cuts})
    between = {"range": {"start": "start", "end": "end"}}
    one_by_one = [run(document | between, video, {"start": a, "end": b}) for a, b in itertools.pairwise(cuts)]
    assert clips_of(at_once) == [clip for sampling in one_by_one for clip in clips_of(sampling)]
    assert kinds(at_once) == [kind for sampling in one_by_one for kind in kinds(sampling)]
    assert len({clip.number for clip in at_once.clips}) == len(at_once.clips)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"ends": 1, "start": 0}, "did you mean 'ends'"),
        ({}, "no columns for this medium"),
        ({"start": None, "end": 1}, "cell is empty"),
        ({"start": math.nan, "end": 1}, "cell is empty"),
        ({"start": "soon", "end": 1}, "must be a number"),
        ({"start": True, "end": 1}, "must be a number"),
        ({"start": math.inf, "end": 1}, "must be a number"),
        ({"start": 1, "end": 1}, "must end after it starts"),
        ({"start": -0.5, "end": 1}, "before the start of the video"),
        ({"start": 10, "end": 11}, "the range contains no frame"),
        ({"start": 0.001, "end": 0.002}, "the range contains no frame"),
    ],
)
def test_a_row_of_nonsense_is_a_failure_with_its_reason(row: Document, says: str) -> None:
    (missed,) = run({"policy": "per_row", "fps": 1}, THIRTY, row).missed
    assert missed.kind == "row"
    assert missed.counts
    assert says in missed.message


@pytest.mark.parametrize("cuts", [None, 3, "0 1", [0], [0, 0], [1, 0], [0, None], {"a": 1}])
def test_cuts_of_nonsense_are_a_failure(cuts: object) -> None:
    (missed,) = run({"policy": "per_row", "fps": 1, "cuts": "cuts"}, THIRTY, {"cuts": cuts}).missed
    assert (missed.kind, missed.counts) == ("row", True)


def test_clips_of_ranges_keep_the_numbers_that_they_have_without_a_limit() -> None:
    document = {"policy": "per_row", "fps": 2, "frames": 2, "cuts": "c"}
    row = {"c": [0, 4, 7, 10]}
    everything = {clip.number: clip.frames.tolist() for clip in run(document, THIRTY, row).clips}
    limited = run(document | {"max_clips": 1}, THIRTY, row).clips
    assert [clip.number for clip in limited] == [2, 5, 8]
    assert [clip.frames.tolist() for clip in limited] == [everything[clip.number] for clip in limited]


def test_a_limit_keeps_the_same_clips_in_all_epochs() -> None:
    document = {"policy": "per_row", "fps": 2, "frames": 2, "cuts": "c", "jitter_seconds": "0.2"}
    document |= {"tolerance_seconds": "0.01", "max_clips": 2}
    numbers = [
        {clip.number for clip in run(document, dataclasses.replace(THIRTY, epoch=epoch), {"c": [0, 4, 7, 10]}).clips}
        for epoch in range(30)
    ]
    assert len(set(map(frozenset, numbers))) > 3, "the tolerance leaves out some"
    assert set().union(*numbers) <= {1, 3, 4, 6, 7, 9}
