"""Policies: what each makes of a timeline, and what it refuses to read."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.policies.places import BLOCK
from framedex.sharder.policies.reading import make_policy, read_policy
from framedex.sharder.policies.records import Sampling, Timeline
from framedex.sharder.policies.registry import POLICIES
from tests.support.policy_reference import Clips, Stretch, expected, frame_times, stretch_of_frames

CONFIGS = Path(__file__).resolve().parents[3] / "configs"

Document = dict[str, Any]


def timeline(gaps: list[int], base: int = 100, *, every_start: int = 1, name: str = "") -> Timeline:
    pts = np.concatenate([[7], 7 + np.cumsum(gaps)[:-1]]).astype(np.int64)
    return Timeline(
        pts=pts,
        duration_pts=int(sum(gaps)),
        time_base=Fraction(1, base),
        starts=np.arange(0, len(pts), every_start),
        name=name,
    )


def run(document: Document, video: Timeline, row: Document | None = None) -> Sampling:
    return make_policy(document, where="test").policy.sample(video, row or {})


def sample(document: Document, video: Timeline, row: Document | None = None) -> list[list[int]]:
    return [clip.frames.tolist() for clip in run(document, video, row).clips]


def clips_of(sampling: Sampling) -> Clips:
    return [(clip.frames.tolist(), clip.mask.tolist()) for clip in sampling.clips]


def kinds(sampling: Sampling) -> list[str]:
    return [missed.kind for missed in sampling.missed]


THIRTY = timeline([10] * 300, base=300, every_start=30)  # ten seconds at 30 fps, a key frame a second

# Documents and videos for hypothesis: gaps of zero are frames of equal pts.
GAPS = st.lists(st.integers(0, 200), min_size=1, max_size=60).filter(any)
VIDEOS = st.builds(timeline, GAPS, every_start=st.integers(1, 9))
RATES = st.fractions(Fraction(1, 5), 40, max_denominator=1001).map(str)
TIMES = st.fractions(0, 20, max_denominator=1001)
LENGTHS = st.integers(1, 9)
TERMS = st.fixed_dictionaries(
    {},
    optional={
        "choose": st.sampled_from(["nearest", "previous", "next"]),
        "last": st.sampled_from(["pad", "partial", "drop"]),
        "short": st.sampled_from(["skip", "pad"]),
        "pad": st.sampled_from(["none", "constant", "edge", "reflect_101", "reflect_1001"]),
    },
)
SEGMENT = st.fixed_dictionaries({"fps": RATES, "frames": st.integers(1, 4)}, optional={"offset": TIMES.map(str)})
OWN = {
    "fps": st.fixed_dictionaries({"fps": RATES}, optional={"frames": LENGTHS, "start_seconds": TIMES.map(str)}),
    "segments": st.fixed_dictionaries(
        {"segments": st.lists(SEGMENT, min_size=1, max_size=3)},
        optional={"every_seconds": st.integers(1, 4), "start_seconds": TIMES.map(str)},
    ),
    "stride": st.fixed_dictionaries({"stride": LENGTHS}, optional={"frames": LENGTHS, "start": st.integers(0, 70)}),
    "frames": st.fixed_dictionaries({"frames": st.lists(st.integers(0, 70), min_size=1, max_size=8)}),
    "seconds": st.fixed_dictionaries({"seconds": st.lists(TIMES.map(str), min_size=1, max_size=8)}),
    "keyframes": st.fixed_dictionaries({}, optional={"every": LENGTHS, "frames": LENGTHS}),
    "windows": st.one_of(
        st.fixed_dictionaries(
            {"frames": LENGTHS}, optional={"stride": LENGTHS, "step": LENGTHS, "start": st.integers(0, 70)}
        ),
        st.fixed_dictionaries(
            {"frames": LENGTHS, "fps": RATES}, optional={"step_seconds": RATES, "start_seconds": TIMES.map(str)}
        ),
    ),
    "uniform": st.fixed_dictionaries(
        {"frames": LENGTHS},
        optional={"by": st.sampled_from(["time", "number"]), "spread": st.sampled_from(["centres", "ends"])},
    ),
}
WAYS = st.one_of(
    st.fixed_dictionaries({"fps": RATES}, optional={"frames": LENGTHS}),
    st.fixed_dictionaries({"stride": LENGTHS}, optional={"frames": LENGTHS}),
    st.fixed_dictionaries({"uniform": LENGTHS}),
)


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), video=VIDEOS, terms=TERMS)
def test_a_policy_agrees_with_its_definition_on_any_timestamps(
    name: str, data: st.DataObject, video: Timeline, terms: Document
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


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), video=VIDEOS, terms=TERMS)
def test_a_clip_has_min_frames_or_is_not_made(name: str, data: st.DataObject, video: Timeline, terms: Document) -> None:
    document = {"policy": name} | data.draw(OWN[name]) | terms
    lengths = [len(mask) for _, mask in expected(document | {"last": "pad", "short": "pad", "pad": "constant"}, video)]
    document["min_frames"] = data.draw(st.integers(1, min(lengths, default=1)))
    found = clips_of(run(document, video))
    assert found == expected(document, video)
    assert all(sum(mask) >= document["min_frames"] for _, mask in found)


@given(video=VIDEOS, way=WAYS, terms=TERMS, ends=st.tuples(TIMES, TIMES))
def test_a_range_of_seconds_is_sampled_as_a_video_of_its_own(
    video: Timeline, way: Document, terms: Document, ends: tuple[Fraction, Fraction]
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
    video: Timeline, way: Document, ends: tuple[int, int], include_end: bool
) -> None:
    document = {"policy": "per_row", "unit": "frames", "include_end": include_end} | way
    sampling = run(document, video, {"start": float(ends[0]), "end": ends[1]})  # a file list's numbers are floats
    stretch = stretch_of_frames(video, *ends, include_end=include_end)
    if stretch is None:
        assert kinds(sampling) == ["row"]
        return
    assert clips_of(sampling) == expected(document, video, stretch)


@given(video=VIDEOS, cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True).map(sorted))
def test_cuts_give_the_ranges_between_them(video: Timeline, cuts: list[int]) -> None:
    document: Document = {"policy": "per_row", "fps": 2, "frames": 3}
    at_once = run(document | {"cuts": "shots"}, video, {"shots": cuts})
    one_by_one = [run(document, video, {"start": a, "end": b}) for a, b in itertools.pairwise(cuts)]
    assert clips_of(at_once) == [clip for sampling in one_by_one for clip in clips_of(sampling)]
    assert kinds(at_once) == [kind for sampling in one_by_one for kind in kinds(sampling)]
    assert [clip.number for clip in at_once.clips] == list(range(len(at_once.clips)))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"ends": 1, "start": 0}, "did you mean 'ends'"),
        ({}, "no columns for this medium"),
        ({"start": None, "end": 1}, "says nothing"),
        ({"start": math.nan, "end": 1}, "says nothing"),
        ({"start": "soon", "end": 1}, "must be a number"),
        ({"start": True, "end": 1}, "must be a number"),
        ({"start": math.inf, "end": 1}, "must be a number"),
        ({"start": 1, "end": 1}, "must end after it starts"),
        ({"start": -0.5, "end": 1}, "before the video"),
        ({"start": 10, "end": 11}, "no frame lies in the range"),
        ({"start": 0.001, "end": 0.002}, "no frame lies in the range"),
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


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_loads_and_samples(path: Path) -> None:
    made = read_policy(path)
    assert made.resolved["policy"] in POLICIES
    assert make_policy(made.resolved, where="resolved") == made, "what lies beside a dataset reads back the same"
    assert made.policy.sample(THIRTY, {"start": 1, "end": 6, "cuts": [0, 2.5, 7.1]}).clips


def test_every_policy_has_a_config_of_its_name() -> None:
    assert {read_policy(CONFIGS / f"{name}.yaml").resolved["policy"] for name in POLICIES} == POLICIES.keys()


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), terms=TERMS)
def test_what_is_resolved_reads_back_equal(name: str, data: st.DataObject, terms: Document) -> None:
    made = make_policy({"policy": name} | data.draw(OWN[name]) | terms, where="test")
    again = make_policy(made.resolved, where="resolved")
    assert again == made
    assert again.resolved == made.resolved


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
    bare = Timeline(pts=THIRTY.pts, duration_pts=THIRTY.duration_pts, time_base=THIRTY.time_base)
    assert kinds(run({"policy": "keyframes"}, bare)) == ["short"]


def test_windows_overlap_and_one_is_cut_as_dali_has_it() -> None:
    """readers.video with sequence_length 4, step 2 over ten frames: every whole sequence, and one padded tail."""
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


RANDOM = st.one_of(st.fixed_dictionaries({"fps": RATES}), st.fixed_dictionaries({"stride": LENGTHS})).flatmap(
    lambda way: st.fixed_dictionaries({"frames": LENGTHS, "seed": st.integers(0, 5)}).map(lambda own: way | own)
)


@given(video=VIDEOS, own=RANDOM, clips=st.integers(1, 6))
def test_random_clips_lie_inside_the_video_where_they_fit(video: Timeline, own: Document, clips: int) -> None:
    document: Document = {"policy": "random", "clips": clips, "short": "pad"} | own
    found = clips_of(run(document, video))
    frames = own["frames"]
    if "fps" in own:
        fits = (frames - 1) / Fraction(own["fps"]) < video.seconds
    else:
        fits = (frames - 1) * own["stride"] < len(video.pts)
    assert len(found) == (clips if fits else 1)
    assert all(all(mask) == fits for _, mask in found)
    for clip, _ in found:
        real = [frame for frame in clip if frame >= 0]
        assert real == sorted(real)
        if "stride" in own:
            assert (np.diff(real) == own["stride"]).all()


def test_random_places_depend_on_seed_video_and_number_alone() -> None:
    document = {"policy": "random", "clips": 5, "frames": 4, "fps": 3}
    one, other = (timeline([10] * 300, base=300, name=name) for name in ("one", "other"))
    five = sample(document, one)
    assert sample(document | {"clips": 2}, one) == five[:2]
    assert sample(document, other) != five
    assert sample(document | {"seed": 1}, one) != five
    assert len({tuple(clip) for clip in five}) > 2
    assert sample(document, timeline([10] * 300, base=300, name="one")) == five


def test_random_starts_are_spread_evenly() -> None:
    starts = np.array(sample({"policy": "random", "clips": 2000, "frames": 1, "stride": 1}, THIRTY))[:, 0]
    counts = np.histogram(starts, bins=10, range=(0, 300))[0]
    assert counts.min() > 150
    assert counts.max() < 250


def test_random_draws_are_the_same_for_ever() -> None:
    """Numbers written down: another version of NumPy or of the machine must not change a dataset."""
    document = {"policy": "random", "clips": 4, "frames": 1, "stride": 1, "seed": 3}
    assert sample(document, timeline([10] * 300, name="0123456789abcdef")) == [[221], [74], [297], [156]]


@given(video=VIDEOS, own=OWN["fps"], jitter=st.fractions(0, 3, max_denominator=100), seed=st.integers(0, 9))
def test_jitter_by_time_stays_near_in_order_and_inside(
    video: Timeline, own: Document, jitter: Fraction, seed: int
) -> None:
    document = {"policy": "fps", "choose": "previous", "seed": seed} | own
    still, moved = (clips_of(run(document | {"jitter_seconds": str(j)}, video)) for j in (0, jitter))
    assert [mask for _, mask in moved] == [mask for _, mask in still]
    assert moved == clips_of(run(document | {"jitter_seconds": str(jitter)}, video))
    times = frame_times(video)
    start, rate = Fraction(str(own.get("start_seconds", 0))), Fraction(own["fps"])
    places = iter(start + k / rate for k in range(10**6))
    for frames, mask in moved:
        real = [frame for frame, is_real in zip(frames, mask, strict=True) if is_real]
        assert real == sorted(real)
        for frame in real:
            place = next(places)
            shown_until = next((shown for shown in times if shown > times[frame]), video.seconds)
            assert times[frame] <= place + jitter
            assert shown_until > place - jitter or shown_until == video.seconds


@given(video=VIDEOS, numbers=st.lists(st.integers(0, 70), min_size=1, max_size=9), jitter=st.integers(0, 30))
def test_jitter_by_number_keeps_the_order_that_was_asked_for(video: Timeline, numbers: list[int], jitter: int) -> None:
    document = {"policy": "frames", "frames": numbers, "jitter_frames": jitter, "last": "pad"}
    for frames, mask in clips_of(run(document, video)):
        pairs = [(asked, got) for asked, got, real in zip(numbers, frames, mask, strict=True) if real]
        assert all(abs(asked - got) <= jitter and 0 <= got < len(video.pts) for asked, got in pairs)
        assert all(got <= later for asked, got in pairs for after, later in pairs if asked < after)


def test_jitter_moves_and_each_clip_differently() -> None:
    document = {"policy": "stride", "stride": 10, "frames": 5, "jitter_frames": 4}
    offsets = [tuple(np.array(clip) - clip[0]) for clip in sample(document, THIRTY)]
    assert len(set(offsets)) > 3
    assert sample({"policy": "fps", "fps": 3, "jitter_seconds": 0.1}, THIRTY) != sample(
        {"policy": "fps", "fps": 3}, THIRTY
    )


@given(video=VIDEOS, own=OWN["fps"], tolerance=st.fractions(0, 1, max_denominator=100), terms=TERMS)
def test_a_clip_beyond_the_tolerance_is_missed_and_no_other(
    video: Timeline, own: Document, tolerance: Fraction, terms: Document
) -> None:
    document = {"policy": "fps"} | own | terms
    everything = run(document, video)
    strict = run(document | {"tolerance_seconds": str(tolerance)}, video)
    start, rate, times = Fraction(str(own.get("start_seconds", 0))), Fraction(own["fps"]), frame_times(video)
    near, far = [], []
    for clip in everything.clips:
        first = clip.number * own.get("frames", 0)
        real = clip.frames[clip.mask].tolist()
        away = [abs(times[frame] - start - (first + k) / rate) for k, frame in enumerate(real)]
        (near if all(distance <= tolerance for distance in away) else far).append(clip)
    assert clips_of(strict) == clips_of(Sampling(clips=near, missed=[]))
    assert [clip.number for clip in strict.clips] == [clip.number for clip in near]
    assert [missed.number for missed in strict.missed if missed.kind == "tolerance"] == [clip.number for clip in far]
    assert not any(missed.counts for missed in strict.missed)


# What docs/policies.md says of clips that have too few frames: 5 frames at 1 fps; whole clips have 2 or 4 or 8 of them.
FIVE = timeline([100] * 5)
NO_CLIP = "row"


@pytest.mark.parametrize(
    ("frames", "terms", "end"),
    [
        (4, {}, [4, -1, -1, -1]),
        (4, {"last": "pad", "pad": "edge"}, [4, 4, 4, 4]),
        (4, {"last": "pad", "pad": "none"}, [4]),
        (4, {"last": "partial"}, [4]),
        (4, {"last": "partial", "pad": "edge"}, [4]),
        (4, {"last": "drop"}, None),
        (4, {"last": "pad", "short": "skip"}, [4, -1, -1, -1]),
        (4, {"last": "drop", "short": "pad"}, None),
        (4, {"last": "pad", "short": "error"}, [4, -1, -1, -1]),
        (4, {"last": "pad", "min_frames": 2}, None),
        (4, {"last": "partial", "min_frames": 2}, None),
        (8, {}, [0, 1, 2, 3, 4, -1, -1, -1]),
        (8, {"pad": "none"}, [0, 1, 2, 3, 4]),
        (8, {"pad": "reflect_101"}, [0, 1, 2, 3, 4, 3, 2, 1]),
        (8, {"pad": "reflect_1001"}, [0, 1, 2, 3, 4, 4, 3, 2]),
        (8, {"last": "partial"}, [0, 1, 2, 3, 4]),
        (8, {"last": "drop"}, NO_CLIP),
        (8, {"short": "skip"}, NO_CLIP),
        (8, {"last": "partial", "short": "skip"}, NO_CLIP),
        (8, {"last": "drop", "short": "pad"}, [0, 1, 2, 3, 4, -1, -1, -1]),
        (8, {"last": "drop", "short": "pad", "pad": "none"}, [0, 1, 2, 3, 4]),
        (8, {"short": "error"}, PolicyError),
        (8, {"min_frames": 5}, [0, 1, 2, 3, 4, -1, -1, -1]),
        (8, {"min_frames": 6}, NO_CLIP),
        (8, {"short": "pad", "min_frames": 6}, NO_CLIP),
    ],
)
@pytest.mark.parametrize(
    "policy", [{"policy": "fps", "fps": 1}, {"policy": "stride", "stride": 1}, {"policy": "windows"}]
)
def test_last_short_pad_and_min_frames_combine_as_documented(
    policy: Document, frames: int, terms: Document, end: object
) -> None:
    document = policy | {"frames": frames} | terms
    if end is PolicyError:
        with pytest.raises(PolicyError, match="too short for a clip of 8 frames"):
            run(document, FIVE)
        return
    sampling = run(document, FIVE)
    found = [clip.frames.tolist() for clip in sampling.clips]
    whole = [[0, 1, 2, 3]] if frames == 4 else []
    assert found == (whole if end in (None, NO_CLIP) else [*whole, end])
    assert [(missed.kind, missed.counts) for missed in sampling.missed] == (
        [("short", False)] if end == NO_CLIP else []
    )
    for clip in sampling.clips:
        assert clip.mask.tolist() == [
            place < min(5 - clip.frames[0], len(clip.frames)) for place in range(len(clip.frames))
        ]


def test_min_frames_holds_for_one_clip_a_video() -> None:
    assert sample({"policy": "fps", "fps": 1, "min_frames": 5}, FIVE) == [[0, 1, 2, 3, 4]]
    assert kinds(run({"policy": "fps", "fps": 1, "min_frames": 6, "short": "pad"}, FIVE)) == ["short"]


def test_a_start_past_the_end_is_too_short() -> None:
    assert kinds(run({"policy": "fps", "fps": 1, "start_seconds": 5, "short": "pad"}, FIVE)) == ["short"]
    with pytest.raises(PolicyError, match="too short"):
        run({"policy": "stride", "stride": 1, "start": 5, "short": "error"}, FIVE)


@pytest.mark.parametrize(
    "document",
    [
        {"policy": "windows", "frames": 2, "fps": 1, "step_seconds": "1e-9"},
        {"policy": "fps", "fps": "1e99"},
        {"policy": "fps", "fps": "1e99", "frames": 16},
        {"policy": "segments", "segments": [{"fps": 1, "frames": 1}], "every_seconds": "1e-9"},
        {"policy": "random", "clips": 2_000_000, "frames": 1, "fps": 1},
        {"policy": "random", "clips": 100_000, "frames": 1000, "stride": 1},
        {"policy": "per_row", "fps": "1e15"},
    ],
)
def test_too_many_clips_are_refused_before_they_fill_the_memory(document: Document) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PolicyError, match="too many clips out of one video"):
            run(document, THIRTY, {"start": 0, "end": 5})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


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


@pytest.mark.parametrize("name", POLICIES)
def test_an_empty_video_is_too_short(name: str) -> None:
    empty = Timeline(pts=np.zeros(0, np.int64), duration_pts=0, time_base=Fraction(1, 100))
    made = read_policy(CONFIGS / f"{name}.yaml")
    assert kinds(made.policy.sample(empty, {"start": 0, "end": 1})) == ["row" if name == "per_row" else "short"]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"policy": "fps", "fsp": 1}, "did you mean 'fps'"),
        ({"policy": "fps"}, "no fps"),
        ({"policy": "fps", "fps": 0}, "above zero"),
        ({"policy": "fps", "fps": "fast"}, "30000/1001"),
        ({"policy": "fps", "fps": "1/0"}, "30000/1001"),
        ({"policy": "fps", "fps": True}, "must be a number"),
        ({"policy": "fps", "fps": 1, "frames": 0}, "from 1 to"),
        ({"policy": "fps", "fps": 1, "frames": 10**12}, "from 1 to"),
        ({"policy": "fps", "fps": 1, "frames": 10**8}, "at most 20,000,000 frames"),
        ({"policy": ["fps"], "fps": 1}, "fps, segments, stride"),
        ({"policy": "fps", "fps": None}, "no fps"),
        ({"policy": "fps", "fps": 1, "frames": 1.5}, "whole number"),
        ({"policy": "fps", "fps": 1, "choose": "last"}, "nearest, previous, next"),
        ({"policy": "fps", "fps": 1, "last": "loop"}, "drop, partial, pad"),
        ({"policy": "fps", "fps": 1, "pad": "reflect"}, "none, constant, edge, reflect_101, reflect_1001"),
        ({"policy": "fps", "fps": 1, "short": "drop"}, "skip, pad, error"),
        ({"policy": "fps", "fps": 1, "seed": -1}, "a seed is"),
        ({"policy": "fps", "fps": 1, "seed": 1 << 63}, "a seed is"),
        ({"policy": "fps", "fps": 1, "tolerance_seconds": -1}, "not be negative"),
        ({"policy": "fps", "fps": 1, "jitter_frames": 1}, "jitter_seconds"),
        ({"policy": "fps", "fps": 1, "frames": 4, "min_frames": 5}, "more than a clip has"),
        ({"policy": "fps", "fps": float("nan")}, "must be a number"),
        ({"policy": "segments", "segments": []}, "{fps: 1, frames: 8}"),
        ({"policy": "segments", "segments": [3]}, "test: segments[0]"),
        ({"policy": "segments", "segments": [{"fps": 1}]}, "either frames or seconds"),
        ({"policy": "segments", "segments": [{"fps": 1, "frames": 1, "seconds": 1}]}, "either frames or seconds"),
        ({"policy": "segments", "segments": [{"fps": 1, "frames": 1, "colour": 1}]}, "unknown key"),
        ({"policy": "segments", "segments": [{"fps": "1e99", "seconds": "1e99"}]}, "at most"),
        ({"policy": "stride", "stride": 1, "start": -1}, "from 0 to"),
        ({"policy": "stride", "stride": 1, "jitter_seconds": 1}, "jitter_frames"),
        ({"policy": "frames", "frames": []}, "[0, 7, 3, 3]"),
        ({"policy": "frames", "frames": 3}, "[0, 7, 3, 3]"),
        ({"policy": "frames", "frames": [0, -1]}, "frames[1]"),
        ({"policy": "seconds", "seconds": [0, -1]}, "seconds[1]"),
        ({"policy": "windows", "frames": 2, "step_seconds": 1}, "step_seconds"),
        ({"policy": "windows", "frames": 2, "fps": 1, "stride": 1}, "go by time"),
        ({"policy": "random", "clips": 1, "frames": 2}, "either fps or stride"),
        ({"policy": "random", "clips": 1, "frames": 2, "fps": 1, "stride": 1}, "either fps or stride"),
        ({"policy": "uniform", "frames": 2, "by": "size"}, "time, number"),
        ({"policy": "per_row"}, "one of fps, stride and uniform"),
        ({"policy": "per_row", "fps": 1, "stride": 1}, "one of fps, stride and uniform"),
        ({"policy": "per_row", "uniform": 1, "frames": 1}, "how many frames a clip has"),
        ({"policy": "per_row", "fps": 1, "cuts": "a", "start": "b"}, "or by cuts"),
        ({"policy": "per_row", "fps": 1, "include_end": True}, "include_end"),
        ({"policy": "per_row", "fps": 1, "start": 3}, "name of a column"),
        ({"policy": "fps", "fps": 1, "filter": "width >"}, "test: filter, character"),
        ({"policy": "fps", "fps": 1, "filter": 3}, "expression in text"),
        ({"policy": "fps", "fps": 1, "split": {"share": {}}}, "did you mean 'shares'"),
        ({"policy": "window", "frames": 1}, "did you mean 'windows'"),
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


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_times_count_from_the_first_frame_wherever_the_clock_stands(path: Path) -> None:
    policy, row = read_policy(path).policy, {"start": 1, "end": 6, "cuts": [0, 2.5, 7.1]}
    late = dataclasses.replace(THIRTY, pts=THIRTY.pts + 123_456_789)
    assert clips_of(policy.sample(late, row)) == clips_of(policy.sample(THIRTY, row))


def test_no_two_blocks_of_clips_jitter_alike() -> None:
    video = timeline([1] * 300_000)
    document: Document = {"policy": "stride", "stride": 1, "frames": 1, "jitter_frames": 1000}
    moved = np.array(sample(document, video))[:, 0] - np.arange(300_000)
    assert abs(moved[2000:-2000].mean()) < 10
    assert (moved[2000:3000] != moved[2000 + BLOCK : 3000 + BLOCK]).mean() > 0.9
