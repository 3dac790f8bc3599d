"""The pad modes give the same results as those of DALI and of `numpy.pad`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.sharder.policies.sampling import PadMode, padded

NUMPY = {"edge": "edge", "reflect_101": "reflect", "reflect_1001": "symmetric"}


def pad_one(frames: list[int], wanted: int, mode: PadMode) -> list[int]:
    real = np.arange(wanted) < len(frames)
    return padded(np.array([frames + [0] * (wanted - len(frames))]), real[None], mode)[0].tolist()


@pytest.mark.parametrize(
    ("mode", "clip"),
    [("constant", "ABC---"), ("edge", "ABCCCC"), ("reflect_1001", "ABCCBA"), ("reflect_101", "ABCBAB")],
)
def test_the_modes_are_what_dali_draws(mode: PadMode, clip: str) -> None:
    assert "".join("-ABC"[frame] if frame > 0 else "-" for frame in pad_one([1, 2, 3], 6, mode)) == clip


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.integers(0, 40), st.sampled_from(list(NUMPY)))
def test_a_tail_of_any_length_is_numpys(frames: list[int], missing: int, mode: PadMode) -> None:
    found = pad_one(frames, len(frames) + missing, mode)
    assert found == np.pad(frames, (0, missing), NUMPY[mode]).tolist()  # type: ignore[call-overload]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.integers(0, 40), st.sampled_from(list(NUMPY)))
def test_a_hole_before_all_frames_is_numpys(frames: list[int], missing: int, mode: PadMode) -> None:
    real = np.arange(missing + len(frames)) >= missing
    found = padded(np.array([[0] * missing + frames]), real[None], mode)[0]
    assert found.tolist() == np.pad(frames, (missing, 0), NUMPY[mode]).tolist()  # type: ignore[call-overload]


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7).filter(any), min_size=1, max_size=9), st.data())
def test_clips_are_padded_apart_and_real_frames_stay(masks: list[list[bool]], data: st.DataObject) -> None:
    mode: PadMode = data.draw(st.sampled_from(["constant", *NUMPY]))
    real = np.array(masks)
    frames = np.arange(real.size).reshape(real.shape)
    found = padded(frames, real, mode)
    assert (found[real] == frames[real]).all()
    for row, mask, clip in zip(frames, real, found, strict=True):
        assert padded(row[None], mask[None], mode)[0].tolist() == clip.tolist()
        assert set(clip.tolist()) <= {*row[mask].tolist(), *([-1] if mode == "constant" else [])}
