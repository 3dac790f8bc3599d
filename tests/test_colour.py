"""The correction of DALI's colours, and the facts that route a clip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.loader.colour import LUMA_WEIGHTS, correction, has_correction, rgb_from_ycc


@pytest.mark.parametrize("matrix", LUMA_WEIGHTS)
def test_grey_stays_grey(matrix: int) -> None:
    assert correction(matrix) @ np.array([90, 90, 90]) == pytest.approx([90, 90, 90], abs=1e-3)


@pytest.mark.parametrize("matrix", LUMA_WEIGHTS)
def test_white_and_the_primaries_have_their_luma(matrix: int) -> None:
    red, blue = LUMA_WEIGHTS[matrix]
    ycc_from_rgb = np.linalg.inv(rgb_from_ycc(matrix))
    assert ycc_from_rgb[0] == pytest.approx([red, 1 - red - blue, blue])
    assert ycc_from_rgb @ [1, 0, 0] == pytest.approx([red, -red / (2 * (1 - blue)), 0.5])


@given(st.sampled_from(sorted(LUMA_WEIGHTS)), st.tuples(*[st.floats(0.2, 0.8)] * 3))
def test_decoding_with_601_and_correcting_is_decoding_with_the_right_matrix(
    matrix: int, rgb: tuple[float, float, float]
) -> None:
    ycc = np.linalg.inv(rgb_from_ycc(matrix)) @ rgb
    assert correction(matrix) @ (rgb_from_ycc(6) @ ycc) == pytest.approx(rgb, abs=1e-5)


def test_bt601_and_unstated_need_nothing_and_others_are_known_to_be_unknown() -> None:
    for matrix in (2, 5, 6):
        assert np.array_equal(correction(matrix), np.eye(3))
    assert has_correction(1)
    assert not has_correction(0)
    assert not has_correction(8)
