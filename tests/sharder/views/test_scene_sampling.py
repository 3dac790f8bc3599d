"""Frames of views at the times of a clock, beside a reference that tries every frame of every view."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.policies.scene_sampling import SceneSampling, SceneView, sample_scene
from tests.support import policy_reference
from tests.support.depth import EXAMPLES
from tests.support.policies import policy_of, video_of
from tests.support.policy_strategies import OWN, TERMS, VIDEOS

VIEWS = {"group": "scene", "view": "camera", "clock": "a", "missing": "mask"}
STRIDE = {"policy": "stride", "stride": 2, "frames": 3}


def policy_with(views: dict[str, Any], **document: Any) -> Any:
    own = document if "policy" in document else STRIDE | document
    return policy_of(own | {"views": VIEWS | views}).policy


def timeline(pts: list[int], base: int, last: int = 3, name: str = "") -> policy_reference.Video:
    """Return a video. `last`: how long its last frame lasts."""
    return video_of(np.array(pts, np.int64), pts[-1] - pts[0] + last, Fraction(1, base), name=name)


def sampled(
    policy: Any, scene: dict[str, Any], rows: dict[str, Any] | None = None, names: tuple[str, ...] = ("a", "b")
) -> SceneSampling:
    views = {view: SceneView(timeline=one, row=(rows or {}).get(view, {})) for view, one in scene.items()}
    return sample_scene(policy, views, names, name="s")


@dataclass(frozen=True)
class Video:
    """A random video. `gaps`: between its frames, in ticks of `base` a second."""

    first: int
    gaps: list[int]
    base: int

    @property
    def timeline(self) -> policy_reference.Video:
        return timeline(np.cumsum([self.first, *self.gaps]).tolist(), self.base)


videos = st.builds(
    Video,
    first=st.integers(-50, 50),
    gaps=st.lists(st.integers(1, 9), min_size=3, max_size=12),
    base=st.sampled_from([24, 25, 30, 90_000]),
)
fractions = st.fractions(Fraction(-1, 2), Fraction(1, 2), max_denominator=100)


def reference(
    clock: policy_reference.Video,
    frame: int,
    view: policy_reference.Video,
    offset: Fraction,
    rate: Fraction,
    choose: str,
    tolerance: Fraction | None,
) -> int | None:
    """Return the frame of a view for the time of a frame of the clock, or None if none is close enough."""
    seconds = int(clock.pts[frame] - clock.pts[0]) * clock.time_base
    wanted = offset + rate * seconds
    times = [int(pts - view.pts[0]) * view.time_base for pts in view.pts]
    numbers = range(len(times))
    if choose == "nearest":
        found = min(numbers, key=lambda number: (abs(times[number] - wanted), number))
    elif choose == "previous":
        found = max([number for number in numbers if times[number] <= wanted], default=0)
    else:
        found = min([number for number in numbers if times[number] >= wanted], default=len(times) - 1)
    away = abs(times[found] - wanted)
    if tolerance is None:
        return found if away < view.duration_pts * view.time_base / len(times) else None
    return found if away <= tolerance else None


@settings(max_examples=3 * EXAMPLES)
@given(
    clock=videos,
    view=videos,
    offset=fractions,
    rate=st.fractions(Fraction(1, 2), Fraction(2), max_denominator=50),
    choose=st.sampled_from(["nearest", "previous", "next"]),
    tolerance=st.none() | st.fractions(0, 1, max_denominator=50),
)
def test_each_place_has_the_frame_that_is_meant(
    clock: Video, view: Video, offset: Fraction, rate: Fraction, choose: str, tolerance: Fraction | None
) -> None:
    own = {"offset_seconds": str(offset), "rate": str(rate)}
    more = {} if tolerance is None else {"tolerance_seconds": str(tolerance)}
    policy = policy_with({"each": {"b": own}}, choose=choose, **more)
    found = sampled(policy, {"a": clock.timeline, "b": view.timeline})
    assert found.clips
    for clip in found.clips:
        of_clock = clip.views["a"].sampled
        assert np.array_equal(clip.views["a"].away_seconds, np.where(of_clock.mask, 0, np.nan), equal_nan=True)
        expected = [
            reference(clock.timeline, frame, view.timeline, offset, rate, choose, tolerance) if real else None
            for frame, real in zip(of_clock.frames.tolist(), of_clock.mask.tolist(), strict=True)
        ]
        if all(frame is None for frame in expected):
            assert list(clip.views) == ["a"]
            continue
        own_clip = clip.views["b"].sampled
        assert own_clip.frames.tolist() == [-1 if frame is None else frame for frame in expected]
        assert own_clip.mask.tolist() == [frame is not None for frame in expected]


@settings(max_examples=2 * EXAMPLES)
@given(
    document=st.sampled_from(sorted(OWN)).flatmap(lambda name: OWN[name].map(lambda own: {"policy": name} | own)),
    terms=TERMS,
    video=VIDEOS,
)
def test_two_views_of_equal_times_show_the_frames_that_one_video_has(
    document: dict[str, Any], terms: dict[str, Any], video: policy_reference.Video
) -> None:
    alone = policy_of(document | terms).policy.sample(video, {})
    found = sampled(policy_with({"missing": "error"}, **document, **terms), {"a": video, "b": video})
    assert [clip.number for clip in found.clips] == [clip.number for clip in alone.clips]
    for clip, expected in zip(found.clips, alone.clips, strict=True):
        for own in clip.views.values():
            assert np.array_equal(own.sampled.mask, expected.mask)
            assert np.array_equal(own.sampled.frames < 0, expected.frames < 0)
            assert np.array_equal(video.pts[own.sampled.frames], video.pts[expected.frames])


def test_long_timestamps_are_exact() -> None:
    far = 1 << 55
    clock, view = timeline([far, far + 3, far + 7], 90_000), timeline([far + 1, far + 5, far + 8], 89_999)
    found = sampled(policy_with({}, policy="frames", frames=[0, 1, 2]), {"a": clock, "b": view})
    [clip] = found.clips
    assert clip.views["b"].sampled.frames.tolist() == [0, 1, 2]
    assert np.abs(clip.views["b"].away_seconds).max() < 2 / 89_999


def test_a_clip_that_a_view_lacks_is_left_out_masked_or_an_error() -> None:
    scene = {"a": timeline(list(range(0, 30, 3)), 30), "b": timeline(list(range(0, 15, 3)), 30)}
    skipped = sampled(policy_with({"missing": "skip"}), scene)
    assert [clip.number for clip in skipped.clips] == [0]
    view, missed = skipped.missed[0]
    assert (view, missed.kind, missed.number, missed.counts) == ("b", "view", 1, False)
    assert (
        "view 'b' has no frame within 0.1 s of 2 wanted times; for one of them, the nearest frame is 0.4 s away"
        in missed.message
    )
    masked = sampled(policy_with({}), scene).clips[1]
    assert list(masked.views) == ["a"]  # it has none of the times of clip 1
    with pytest.raises(PolicyError, match="clip 1: view 'b' has no frame within"):
        sampled(policy_with({"missing": "error"}), scene)


@pytest.mark.parametrize(
    ("pad", "frames"),
    [("constant", [0, 2, -1]), ("edge", [0, 2, 2]), ("reflect_101", [0, 2, 0]), ("ends", [0, 2, 3])],
)
def test_masked_places_are_padded_as_the_policy_says(pad: str, frames: list[int]) -> None:
    scene = {"a": timeline(list(range(0, 30, 3)), 30), "b": timeline([0, 3, 6, 9], 30, last=2)}
    clip = sampled(policy_with({}, pad=pad), scene).clips[0]
    own = clip.views["b"].sampled
    assert own.frames.tolist() == frames
    assert own.mask.tolist() == [True, True, False]


def test_a_clock_of_its_own_counts_until_the_last_view_ends() -> None:
    scene = {"a": timeline(list(range(0, 60, 3)), 30), "b": timeline(list(range(0, 90, 3)), 30)}
    policy = policy_with({"clock": None, "clock_fps": 5}, stride=1, frames=3)
    found = sampled(policy, scene)
    assert [list(clip.views) for clip in found.clips] == [["a", "b"]] * 4 + [["b"]]
    assert found.clips[1].views["a"].sampled.frames.tolist() == [6, 8, 10]
    assert found.clips[4].views["b"].sampled.frames.tolist() == [24, 26, 28]


def test_offsets_and_rates_come_out_of_columns_too() -> None:
    scene = {"a": timeline(list(range(0, 30, 3)), 30), "b": timeline(list(range(0, 60, 3)), 30)}
    columns = {"offset_column": "offset", "rate_column": "rate"}
    found = sampled(policy_with(columns), scene, {"b": {"offset": 0.1, "rate": "2"}, "a": {"offset": None, "rate": 1}})
    assert found.clips[0].views["b"].sampled.frames.tolist() == [1, 5, 9]
    wrong = sampled(policy_with(columns), scene, {"b": {"offset": "soon", "rate": 1}, "a": {"offset": 0, "rate": 1}})
    [(view, missed)] = [one for one in wrong.missed if one[1].kind == "row"]
    assert (view, missed.counts) == ("b", True)
    assert "view 'b': column 'offset': must be a number" in missed.message


def test_an_offset_and_a_rate_of_the_clock_count_too() -> None:
    scene = {"a": timeline(list(range(0, 60, 3)), 30), "b": timeline(list(range(0, 60, 3)), 30)}
    policy = policy_with({"offset_column": "offset", "rate_column": "rate"})
    same = sampled(policy, scene, {"a": {"offset": 0.5, "rate": 2}, "b": {"offset": 0.5, "rate": 2}})
    for clip in same.clips:
        assert np.array_equal(clip.views["a"].sampled.frames, clip.views["b"].sampled.frames)
    apart = sampled(policy, scene, {"a": {"offset": 0.5, "rate": 1}, "b": {"offset": 0.8, "rate": 1}})
    assert apart.clips[0].views["b"].sampled.frames.tolist() == [3, 5, 7]


def test_a_clock_that_counts_too_much_is_an_error() -> None:
    scene = {"a": timeline([0, 3, 6], 30), "b": timeline([0, 3, 6], 30)}
    views = {"clock": None, "clock_fps": 1000, "each": {"b": {"offset_seconds": -1_764_000_000}}}
    with pytest.raises(PolicyError, match="the clock would have too many frames"):
        sampled(policy_with(views), scene)


def test_a_masked_view_needs_min_frames() -> None:
    scene = {"a": timeline(list(range(0, 30, 3)), 30), "b": timeline([0, 3, 6, 9], 30, last=2)}
    enough = sampled(policy_with({}, min_frames=2), scene).clips[0]
    assert list(enough.views) == ["a", "b"]
    assert list(sampled(policy_with({}, min_frames=3), scene).clips[0].views) == ["a"]


def test_ranges_of_per_row_are_those_of_each_view() -> None:
    scene = {"a": timeline(list(range(0, 60, 3)), 30), "b": timeline(list(range(0, 90, 3)), 30)}
    policy = policy_with({}, policy="per_row", stride=2, frames=3)
    found = sampled(policy, scene, {"a": {"start": 0.5, "end": 1.5}, "b": {"start": 1.0, "end": 2.0}})
    assert found.clips[0].views["a"].sampled.frames.tolist() == [5, 7, 9]
    assert found.clips[0].views["b"].sampled.frames.tolist() == [10, 12, 14]
    with pytest.raises(PolicyError, match="this policy needs a view as the clock"):
        policy_with({"clock": None, "clock_fps": 5}, policy="per_row", stride=2, frames=3)


def test_a_range_is_where_the_time_of_a_view_begins() -> None:
    scene = {"a": timeline(list(range(0, 60, 3)), 30), "b": timeline(list(range(0, 90, 3)), 30)}
    policy = policy_with({}, range={"start": "start", "end": "end"})
    found = sampled(policy, scene, {"a": {"start": 0.5, "end": 1.5}, "b": {"start": 1.0, "end": 2.0}})
    assert found.clips[0].views["a"].sampled.frames.tolist() == [5, 7, 9]
    assert found.clips[0].views["b"].sampled.frames.tolist() == [10, 12, 14]
    assert found.clips[0].views["b"].sampled.stretch == (10, 20)
    beyond = sampled(policy_with({"missing": "skip"}, range={"start": "start", "end": "end"}), scene,
                     {"a": {"start": 0.5, "end": 1.5}, "b": {"start": 9, "end": 10}})  # fmt: skip
    assert [(view, missed.kind) for view, missed in beyond.missed] == [("b", "row")]
    assert not beyond.clips


def test_each_view_may_want_its_own_times() -> None:
    scene = {"a": timeline(list(range(0, 30, 3)), 30), "b": timeline(list(range(0, 30, 3)), 30)}
    around = {"policy": "around", "seconds": [-0.1, 0], "pad": "ends"}
    policy = policy_with({"each": {"b": {"seconds": [-0.2, 0, 0.1]}}}, **around)
    found = sampled(policy, scene)
    assert [clip.number for clip in found.clips] == list(range(10))
    assert found.clips[0].views["a"].sampled.frames.tolist() == [0, 0]
    assert found.clips[0].views["b"].sampled.frames.tolist() == [0, 0, 1]
    assert found.clips[0].views["b"].sampled.mask.tolist() == [False, True, True]
    assert found.clips[5].views["b"].sampled.frames.tolist() == [3, 5, 6]
    assert found.clips[5].views["b"].sampled.anchor == 5


WRONG = {
    "clock": ({"clock": None}, "views need either clock or clock_fps"),
    "both": ({"clock_fps": 5}, "views need either clock or clock_fps"),
    "names": ({"names": ["b", "c"]}, "clock must be one of names"),
    "twice": ({"names": ["a", "b", "b"]}, "each value may be given only once"),
    "moved": ({"each": {"a": {"rate": 2}}}, "cannot have an offset or a rate"),
    "offsets": (
        {"offset_column": "o", "each": {"b": {"offset_seconds": 1}}},
        "either by offset_column or by offset_seconds",
    ),
    "rates": ({"rate_column": "o", "each": {"b": {"rate": 2}}}, "either by rate_column or by rate"),
    "stranger": ({"names": ["a", "b"], "each": {"c": {"rate": 2}}}, "no view has this name"),
    "seconds": ({"each": {"b": {"seconds": [0]}}}, "seconds of a view can only be used"),
    "key": ({"cameras": 3}, "unknown key"),
    "rate": ({"each": {"b": {"rate": 0}}}, "a rate must be above zero"),
}


@pytest.mark.parametrize("name", WRONG)
def test_views_that_contradict_themselves_are_refused(name: str) -> None:
    views, message = WRONG[name]
    with pytest.raises(PolicyError) as error:
        policy_with(views)
    assert message in str(error.value)


def test_keyframes_need_a_view_as_clock() -> None:
    with pytest.raises(PolicyError, match="this policy needs a view as the clock"):
        policy_with({"clock": None, "clock_fps": 5}, policy="keyframes", frames=3)


def test_a_policy_with_views_is_written_as_it_was_read() -> None:
    views = VIEWS | {"each": {"b": {"offset_seconds": "1/30", "rate": "1.0001"}}}
    file = policy_of({**STRIDE, "views": views})
    again = policy_of(file.resolved)
    assert again.policy == file.policy
    assert file.resolved["views"]["each"]["b"]["rate"] == "10001/10000"
