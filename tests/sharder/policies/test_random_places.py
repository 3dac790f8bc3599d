"""Random clips and jitter: inside the video, in order, evenly spread, and always the same for one seed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policies import THIRTY, Document, clips_of, run, sample, timeline
from tests.support.policy_reference import Video, frame_times
from tests.support.policy_strategies import AT_RATE, LENGTHS, RATES, VIDEOS

RANDOM = st.one_of(st.fixed_dictionaries({"fps": RATES}), st.fixed_dictionaries({"stride": LENGTHS})).flatmap(
    lambda way: st.fixed_dictionaries({"frames": LENGTHS, "seed": st.integers(0, 5)}).map(lambda own: way | own)
)


@given(video=VIDEOS, own=RANDOM, clips=st.integers(1, 6))
def test_random_clips_lie_inside_the_video_where_they_fit(video: Video, own: Document, clips: int) -> None:
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
    """Compare with fixed numbers: another version of NumPy or another machine must not change a dataset."""
    document = {"policy": "random", "clips": 4, "frames": 1, "stride": 1, "seed": 3}
    assert sample(document, timeline([10] * 300, name="0123456789abcdef")) == [[221], [74], [297], [156]]


@given(video=VIDEOS, own=AT_RATE, jitter=st.fractions(0, 3, max_denominator=100), seed=st.integers(0, 9))
def test_jitter_by_time_stays_near_in_order_and_inside(
    video: Video, own: Document, jitter: Fraction, seed: int
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
def test_jitter_by_number_keeps_the_order_that_was_asked_for(video: Video, numbers: list[int], jitter: int) -> None:
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


def test_no_two_blocks_of_clips_jitter_alike() -> None:
    video = timeline([1] * 300_000)
    document: Document = {"policy": "stride", "stride": 1, "frames": 1, "jitter_frames": 1000}
    moved = np.array(sample(document, video))[:, 0] - np.arange(300_000)
    assert abs(moved[2000:-2000].mean()) < 10
    assert (moved[2000:3000] != moved[2000 + (1 << 18) : 3000 + (1 << 18)]).mean() > 0.9
