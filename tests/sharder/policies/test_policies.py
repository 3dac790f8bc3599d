"""Each policy takes the frames that its definition states, by time or by number, for any timestamps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policies import (
    CONFIGS,
    THIRTY,
    Document,
    clips_of,
    kinds,
    policy_of,
    run,
    sample,
    timeline,
    video_of,
)
from tests.support.policy_reference import Video, expected
from tests.support.policy_strategies import OWN, TERMS, VIDEOS


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), video=VIDEOS, terms=TERMS)
def test_a_policy_agrees_with_its_definition_on_any_timestamps(
    name: str, data: st.DataObject, video: Video, terms: Document
) -> None:
    document = {"policy": name} | data.draw(OWN[name]) | terms
    sampling = run(document, video)
    found = clips_of(sampling)
    assert found == expected(document, video)
    assert kinds(sampling) == ([] if found else ["short"])
    for frames, mask in found:
        assert len(frames) == len(mask)
        assert all(-1 <= frame < len(video.pts) for frame in frames)
        assert all(frame >= 0 for frame, real in zip(frames, mask, strict=True) if real)


def test_fps_takes_frames_by_time() -> None:
    assert sample({"policy": "fps", "fps": 2, "frames": 8}, THIRTY) == [
        [0, 15, 30, 45, 60, 75, 90, 105],
        [120, 135, 150, 165, 180, 195, 210, 225],
        [240, 255, 270, 285, -1, -1, -1, -1],
    ]


def test_fps_above_the_video_repeats_frames() -> None:
    assert sample({"policy": "fps", "fps": 60, "frames": 6}, timeline([10] * 3, base=300)) == [[0, 0, 1, 1, 2, 2]]


def test_previous_nearest_and_next_differ_between_frames() -> None:
    video = timeline([100, 100, 100])
    document = {"policy": "fps", "fps": 1, "start_seconds": 0.9, "frames": 2, "last": "partial"}
    assert sample(document | {"choose": "previous"}, video) == [[0, 1], [2]]
    assert sample(document | {"choose": "nearest"}, video) == [[1, 2], [2]]
    document["start_seconds"] = 0.1
    assert sample(document | {"choose": "next"}, video) == [[1, 2], [2]]


def test_segments_join_several_rates() -> None:
    document = {"policy": "segments", "segments": [{"fps": 1, "frames": 3, "offset": 0}, {"fps": 2, "seconds": 2}]}
    assert sample(document, THIRTY) == [[0, 30, 60, 90, 105, 120, 135]]


def test_segments_with_a_gap_and_at_intervals() -> None:
    document = {
        "policy": "segments",
        "segments": [{"fps": 1, "frames": 2}, {"fps": 10, "frames": 2, "offset": 3}],
        "every_seconds": 5,
    }
    assert sample(document, THIRTY) == [[0, 30, 90, 93], [150, 180, 240, 243]]


def test_segments_past_the_end_are_padded_in_place() -> None:
    document: Document = {
        "policy": "segments",
        "segments": [{"fps": 1, "frames": 2, "offset": 9}, {"fps": 1, "frames": 1, "offset": 0}],
    }
    assert sample(document, THIRTY) == [[270, -1, 0]]
    assert sample(document | {"pad": "edge"}, THIRTY) == [[270, 270, 0]]
    assert sample(document | {"last": "partial"}, THIRTY) == [[270, 0]]
    assert sample(document | {"last": "drop"}, THIRTY) == []


def test_stride_counts_frames() -> None:
    assert sample({"policy": "stride", "stride": 100, "frames": 2, "start": 5, "last": "partial"}, THIRTY) == [
        [5, 105],
        [205],
    ]


def test_frames_and_seconds_keep_their_order_and_repeats() -> None:
    assert sample({"policy": "frames", "frames": [0, 7, 3, 3]}, THIRTY) == [[0, 7, 3, 3]]
    assert sample({"policy": "seconds", "seconds": [1, 0.5, 0.5]}, THIRTY) == [[30, 15, 15]]


def test_keyframes_are_start_points() -> None:
    assert sample({"policy": "keyframes", "every": 4, "frames": 2}, THIRTY) == [[0, 120], [240, -1]]
    bare = video_of(THIRTY.pts, THIRTY.duration_pts, THIRTY.time_base)
    assert kinds(run({"policy": "keyframes"}, bare)) == ["short"]


def test_windows_overlap_and_one_is_cut_as_dali_has_it() -> None:
    """Expect what DALI's readers.video gives for sequence_length 4, step 2: each whole sequence and one padded tail."""
    ten = timeline([10] * 10)
    document = {"policy": "windows", "frames": 4, "step": 2}
    assert sample(document, ten) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9], [8, 9, -1, -1]]
    assert sample(document | {"last": "drop"}, ten)[-1] == [6, 7, 8, 9]
    assert sample({"policy": "windows", "frames": 4, "last": "partial"}, ten)[-1] == [8, 9]


def test_uniform_ends_are_dalis_uniform_sample() -> None:
    document = {"policy": "uniform", "frames": 5, "by": "number", "spread": "ends"}
    assert sample(document, timeline([10] * 3)) == [[0, 1, 1, 2, 2]]
    for count in range(1, 30):
        (found,) = sample(document | {"frames": 7}, timeline([10] * count))
        assert found == np.floor(np.linspace(0, count - 1, 7) + 0.5).astype(int).tolist()


def test_uniform_clips_are_spread_over_the_places_where_a_clip_fits() -> None:
    document = {"policy": "uniform", "clips": 3, "frames": 4, "stride": 10}  # 31 frames long, of 300
    assert [clip[0] for clip in sample(document | {"spread": "ends"}, THIRTY)] == [0, 135, 269]
    assert [clip[0] for clip in sample(document | {"spread": "ends", "rounding": "down"}, THIRTY)] == [0, 134, 269]
    assert [clip[0] for clip in sample(document | {"spread": "starts"}, THIRTY)] == [0, 90, 180]
    assert [clip[0] for clip in sample(document, THIRTY)] == [45, 135, 225]
    by_time = {"policy": "uniform", "clips": 3, "frames": 4, "fps": 3}
    assert [clip[0] for clip in sample(by_time | {"spread": "ends"}, THIRTY)] == [0, 134, 269]
    assert sample(by_time, THIRTY)[1] == [135, 145, 155, 165]


def test_a_video_without_room_for_a_clip_gives_one_and_terms_say_what_becomes_of_it() -> None:
    document = {"policy": "uniform", "clips": 3, "frames": 4, "stride": 2}
    assert sample(document, timeline([10] * 6)) == [[0, 2, 4, -1]]
    assert sample(document | {"short": "skip"}, timeline([10] * 6)) == []
    assert sample(document, timeline([10] * 7)) == [[0, 2, 4, 6]] * 3


def test_fps_keeps_its_rate_until_a_bound_spreads_the_frames_evenly() -> None:
    assert sample({"policy": "fps", "fps": 1, "max_frames": 10}, THIRTY) == [list(range(0, 300, 30))]
    assert sample({"policy": "fps", "fps": 1, "max_frames": 4}, THIRTY) == [[0, 100, 199, 299]]
    assert sample({"policy": "fps", "fps": "0.1", "least_frames": 3}, THIRTY) == [[0, 149, 299]]
    assert sample({"policy": "fps", "fps": 1, "multiple": 4}, THIRTY) == [list(range(0, 240, 30))]
    assert sample({"policy": "fps", "fps": "0.1", "multiple": 2}, THIRTY) == [[0, 299]]


def test_of_more_clips_than_allowed_those_that_are_spread_evenly_are_kept_with_their_numbers() -> None:
    document = {"policy": "windows", "frames": 30, "max_clips": 3}
    assert [clip.number for clip in run(document, THIRTY).clips] == [1, 5, 8]
    assert len(run(document | {"max_clips": 11}, THIRTY).clips) == 10


def test_only_the_first_seconds_are_sampled() -> None:
    assert sample({"policy": "fps", "fps": 1, "max_seconds": 2.5}, THIRTY) == [[0, 30, 60]]
    assert sample({"policy": "uniform", "frames": 2, "by": "number", "spread": "ends", "max_seconds": 1}, THIRTY) == [
        [0, 29]
    ]
    assert sample({"policy": "fps", "fps": 1, "max_seconds": 1000}, THIRTY) == [list(range(0, 300, 30))]


@pytest.mark.parametrize(
    "document",
    [
        {"policy": "fps", "fps": "1e-99", "frames": 2},
        {"policy": "seconds", "seconds": ["1e99", 0]},
        {"policy": "fps", "fps": "3/999999999999989", "frames": 2, "jitter_seconds": "1e99"},
        {"policy": "windows", "frames": 2, "fps": "999999999999989/999999999999999", "jitter_seconds": "0.1"},
        {"policy": "random", "clips": 3, "frames": 2, "fps": "999999999999989/999999999999999"},
        {
            "policy": "segments",
            "segments": [{"fps": 1, "frames": 1, "offset": "1e90"}, {"fps": 1, "frames": 1, "offset": 0}],
        },
    ],
)
def test_numbers_far_beyond_64_bits_are_exact(document: Document) -> None:
    found = clips_of(run(document, THIRTY))
    assert found
    if "jitter_seconds" not in document and document["policy"] != "random":
        assert found == expected(document, THIRTY)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_times_count_from_the_first_frame_wherever_the_clock_stands(path: Path) -> None:
    policy, row = policy_of(path).policy, {"start": 1, "end": 6, "cuts": [0, 2.5, 7.1]}
    late = dataclasses.replace(THIRTY, pts=THIRTY.pts + 123_456_789)
    assert clips_of(policy.sample(late, row)) == clips_of(policy.sample(THIRTY, row))
