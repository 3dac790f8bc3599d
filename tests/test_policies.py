"""Policies: what each makes of a timeline, and what it refuses to read."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.policies import POLICIES, Track, make_policy, read_policy

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

GAPS = st.lists(st.integers(1, 200), min_size=1, max_size=80)


def track(gaps: list[int], base: int = 100) -> Track:
    pts = np.concatenate([[7], 7 + np.cumsum(gaps)[:-1]]).astype(np.int64)
    return Track(pts=pts, duration_pts=int(sum(gaps)), time_base=Fraction(1, base))


def sample(document: dict[str, object], video: Track) -> list[list[int]]:
    return [clip.tolist() for clip in make_policy(document, where="test")[0].sample(video)]


THIRTY = track([10] * 300, base=300)  # ten seconds at 30 fps


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_loads_and_samples(path: Path) -> None:
    policy, resolved = read_policy(path)
    assert resolved["policy"] in POLICIES
    assert make_policy(resolved, where="resolved")[0] == policy, "what is written beside a dataset reads back the same"
    assert policy.sample(THIRTY)


def test_every_policy_has_a_config() -> None:
    assert {read_policy(path)[1]["policy"] for path in CONFIGS.glob("*.yaml")} == POLICIES.keys()


def test_fps_takes_frames_by_time() -> None:
    assert sample({"policy": "fps", "fps": 2, "frames": 8}, THIRTY) == [
        [0, 15, 30, 45, 60, 75, 90, 105],
        [120, 135, 150, 165, 180, 195, 210, 225],
        [240, 255, 270, 285, -1, -1, -1, -1],
    ]


@pytest.mark.parametrize(("last", "end"), [("drop", []), ("partial", [[240, 270]]), ("pad", [[240, 270, -1, -1]])])
def test_a_short_last_clip(last: str, end: list[list[int]]) -> None:
    clips = sample({"policy": "fps", "fps": 1, "frames": 4, "last": last}, THIRTY)
    assert clips == [[0, 30, 60, 90], [120, 150, 180, 210], *end]


def test_fps_above_the_video_repeats_frames() -> None:
    assert sample({"policy": "fps", "fps": 60, "frames": 6}, track([10] * 3, base=300)) == [[0, 0, 1, 1, 2, 2]]


def test_previous_and_nearest_differ_between_frames() -> None:
    video = track([100, 100, 100])
    document = {"policy": "fps", "fps": 1, "start_seconds": 0.9, "frames": 2, "last": "partial"}
    assert sample(document | {"choose": "previous"}, video) == [[0, 1], [2]]
    assert sample(document | {"choose": "nearest"}, video) == [[1, 2], [2]]


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
    document = {
        "policy": "segments",
        "segments": [{"fps": 1, "frames": 2, "offset": 9}, {"fps": 1, "frames": 1, "offset": 0}],
    }
    assert sample(document, THIRTY) == [[270, -1, 0]]
    assert sample(document | {"last": "partial"}, THIRTY) == [[270, 0]]
    assert sample(document | {"last": "drop"}, THIRTY) == []


def test_stride_counts_frames() -> None:
    assert sample({"policy": "stride", "stride": 100, "frames": 2, "start": 5, "last": "partial"}, THIRTY) == [
        [5, 105],
        [205],
    ]


@given(
    GAPS,
    st.fractions(Fraction(1, 10), 60, max_denominator=1001),
    st.integers(1, 9),
    st.sampled_from(["drop", "partial", "pad"]),
)
def test_fps_clips_are_in_order_in_bounds_and_complete(gaps: list[int], fps: Fraction, frames: int, last: str) -> None:
    video = track(gaps)
    clips = make_policy({"policy": "fps", "fps": str(fps), "frames": frames, "last": last}, where="test")[0].sample(
        video
    )
    wanted = np.concatenate([clip[clip >= 0] for clip in clips] or [np.zeros(0, np.int64)])
    assert (np.diff(wanted) >= 0).all()
    assert ((wanted >= 0) & (wanted < len(video.pts))).all()
    samples = -(-video.duration_pts * fps // 100)
    assert len(wanted) == (samples // frames * frames if last == "drop" else samples)
    assert all(len(clip) == frames for clip in (clips if last != "partial" else clips[:-1]))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"policy": "fps", "fsp": 1}, "did you mean 'fps'"),
        ({"policy": "fps"}, "no fps"),
        ({"policy": "fps", "fps": 0}, "above zero"),
        ({"policy": "fps", "fps": "fast"}, "30000/1001"),
        ({"policy": "fps", "fps": True}, "must be a number"),
        ({"policy": "fps", "fps": 1, "frames": 0}, "from 1 to"),
        ({"policy": "fps", "fps": 1, "frames": 10**12}, "from 1 to"),
        ({"policy": ["fps"], "fps": 1}, "fps, segments, stride"),
        ({"policy": "fps", "fps": None}, "no fps"),
        ({"policy": "fps", "fps": 1, "frames": 1.5}, "whole number"),
        ({"policy": "fps", "fps": 1, "choose": "next"}, "nearest, previous"),
        ({"policy": "fps", "fps": 1, "last": "loop"}, "drop, partial, pad"),
        ({"policy": "fps", "fps": float("nan")}, "must be a number"),
        ({"policy": "segments", "segments": []}, "list of segments"),
        ({"policy": "segments", "segments": [{"fps": 1}]}, "either frames or seconds"),
        ({"policy": "segments", "segments": [{"fps": 1, "frames": 1, "seconds": 1}]}, "either frames or seconds"),
        ({"policy": "segments", "segments": [{"fps": 1, "frames": 1, "colour": 1}]}, "unknown key"),
        ({"policy": "stride", "stride": 1, "start": -1}, "from 0 to"),
        ({"policy": "magic"}, "fps, segments, stride"),
        (["fps"], "mapping"),
        (None, "mapping"),
    ],
)
def test_a_wrong_document_is_refused_with_what_is_allowed(document: object, says: str) -> None:
    with pytest.raises(PolicyError, match="test") as refused:
        make_policy(document, where="test")
    assert says in str(refused.value)


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("policy: [fps")
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(path)
