"""Clips with too few frames, or frames too far from the requested places, are padded, cut or missed as documented."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from tests.support.policies import CONFIGS, NAMES, Document, clips_of, kinds, policy_of, run, sample, timeline, video_of
from tests.support.policy_reference import Video, expected, frame_times
from tests.support.policy_strategies import AT_RATE, ENDS, OWN, TERMS, VIDEOS


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), video=VIDEOS, terms=TERMS)
def test_a_clip_has_min_frames_or_is_not_made(name: str, data: st.DataObject, video: Video, terms: Document) -> None:
    document = {"policy": name} | data.draw(OWN[name]) | terms
    lengths = [len(mask) for _, mask in expected(document | {"last": "pad", "short": "pad", "pad": "constant"}, video)]
    document["min_frames"] = data.draw(st.integers(1, min(lengths, default=1)))
    found = clips_of(run(document, video))
    assert found == expected(document, video)
    assert all(sum(mask) >= document["min_frames"] for _, mask in found)


@given(video=VIDEOS, own=AT_RATE, tolerance=st.fractions(0, 1, max_denominator=100), terms=ENDS)
def test_a_clip_beyond_the_tolerance_is_missed_and_no_other(
    video: Video, own: Document, tolerance: Fraction, terms: Document
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
    assert clips_of(strict) == [(clip.frames.tolist(), clip.mask.tolist()) for clip in near]
    assert [clip.number for clip in strict.clips] == [clip.number for clip in near]
    assert [missed.number for missed in strict.missed if missed.kind == "tolerance"] == [clip.number for clip in far]
    assert not any(missed.counts for missed in strict.missed)


# What docs/policies.md says about clips with too few frames: 5 frames at 1 fps; whole clips have 2, 4 or 8 frames.
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


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_video_is_too_short(name: str) -> None:
    empty = video_of(np.zeros(0, np.int64), 0, Fraction(1, 100))
    made = policy_of(CONFIGS / f"{name}.yaml")
    assert kinds(made.policy.sample(empty, {"start": 0, "end": 1})) == ["row" if name == "per_row" else "short"]
