"""The correction of DALI's colours, against libswscale on the CPU. DALI's conversion is modelled after its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from framedex import ClipDataset, Index
from framedex.errors import DecodeError
from framedex.loader.routing.movie import (
    DALI_MATRIX,
    LUMA_WEIGHTS,
    NO_CORRECTION,
    correction,
    rgb_from_ycc,
)
from framedex.sharder.decoding.video import decode_frames, decode_pictures
from tests.support.datasets import shard_clips
from tests.support.pictures import (
    Planes,
    flat,
    frame_of,
    natural,
    patch_middles,
    pattern,
    planes_of,
    psnr,
    rgb_of,
    upsampled,
)
from tests.support.reading import encoded_clip

FULL = 2  # libav's number of full range
BT709, BT601, SMPTE240, BT2020 = 1, 6, 7, 9
# What `colour_obstacle` allows: any matrix with limited range, and BT.601 with full range. (Matrix, full range, bits.)
PASSED = [(matrix, False, bits) for matrix in (BT709, BT601, SMPTE240, BT2020) for bits in (8, 10)]
PASSED += [(BT601, True, bits) for bits in (8, 10)]


def dali(planes: Planes, bits: int) -> NDArray[np.uint8]:
    """Return the result of DALI 2.4 for planes whose header states full range.

    Planes of 10 bits are rounded to 8, halves up; this was derived from means on an H200. Chroma is interpolated and
    rounded to 8 bits. The matrix is BT.601. The result is clipped to 8 bits.
    """
    luma, *chroma = (_eight_bits(plane, bits) for plane in planes)
    blue, red = (np.rint(upsampled(plane)) - 128 for plane in chroma)
    rgb = np.stack([luma, blue, red], axis=-1) @ rgb_from_ycc(DALI_MATRIX).T
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def _eight_bits(plane: NDArray[np.integer], bits: int) -> NDArray[np.float64]:
    return np.floor(plane / 2 ** (bits - 8) + 0.5).clip(0, 255)


def on_gpu(planes: Planes, matrix: int, full_range: bool, bits: int) -> NDArray[np.uint8]:
    affine = correction(matrix, full_range=full_range, said_full=True, deep=bits > 8).astype(np.float64)
    return np.clip(np.rint(dali(planes, bits) @ affine[:, :3].T + affine[:, 3]), 0, 255).astype(np.uint8)


def on_cpu(planes: Planes, matrix: int, full_range: bool, bits: int) -> NDArray[np.uint8]:
    frame = frame_of(planes, matrix, full_range=full_range, bits=bits)
    return rgb_of(frame)


@pytest.mark.parametrize(("matrix", "full_range", "bits"), PASSED)
def test_both_decoders_agree_where_the_gate_lets_a_colour_pass(matrix: int, full_range: bool, bits: int) -> None:
    def both(rgb: NDArray[np.float64]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        planes = planes_of(rgb, matrix, full_range=full_range, bits=bits)
        return on_gpu(planes, matrix, full_range, bits), on_cpu(planes, matrix, full_range, bits)

    assert psnr(*both(natural())) > 45
    assert psnr(*both(pattern("testsrc2"))) > 30
    assert psnr(*both(pattern("smptebars"))) > 30
    for seed in range(5):
        one, other = (patch_middles(picture) for picture in both(flat(seed)))
        assert np.abs(one - other).max() <= (1 if bits == 8 else 2)


@pytest.mark.parametrize("matrix", [BT709, BT2020])
def test_full_range_of_another_matrix_is_what_dali_clips(matrix: int) -> None:
    planes = planes_of(pattern("testsrc2"), matrix, full_range=True, bits=8)
    assert psnr(on_gpu(planes, matrix, True, 8), on_cpu(planes, matrix, True, 8)) < 30


def test_the_cpu_converts_to_the_nearest_level_by_the_stated_matrix_and_range() -> None:
    for matrix in (BT709, BT601, SMPTE240, BT2020):
        for full_range in (False, True):
            planes = planes_of(flat(1), matrix, full_range=full_range, bits=8)
            got = patch_middles(on_cpu(planes, matrix, full_range, 8))
            assert np.abs(got - 255 * patch_middles(1000 * flat(1)) / 1000).max() <= 2


def test_a_stream_that_states_nothing_is_bt601_of_limited_range_on_the_cpu_whatever_its_size() -> None:
    planes = planes_of(np.tile(natural(), (4, 5, 1)), BT601, full_range=False, bits=8)
    frame = frame_of(planes, 2, full_range=False, bits=8)
    frame.color_range = 0
    stated = on_cpu(planes, BT601, False, 8)
    assert stated.shape[0] > 720
    assert np.array_equal(rgb_of(frame), stated)


@pytest.mark.parametrize("said_full", [False, True])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", LUMA_WEIGHTS)
def test_grey_black_and_white_are_where_the_range_puts_them(matrix: int, full_range: bool, said_full: bool) -> None:
    black, white = (0, 255) if full_range else (16, 235)
    seen = [black, white] if said_full else [255 * (value - 16) / 219 for value in (black, white)]
    affine = correction(matrix, full_range=full_range, said_full=said_full)
    assert affine @ [seen[0], seen[0], seen[0], 1] == pytest.approx([0, 0, 0], abs=1e-3)
    assert affine @ [seen[1], seen[1], seen[1], 1] == pytest.approx([255, 255, 255], abs=1e-3)


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
    seen = 255 * rgb_from_ycc(DALI_MATRIX) @ ycc
    affine = correction(matrix, full_range=True, said_full=True)
    assert affine @ [*seen, 1] == pytest.approx(255 * np.array(rgb), abs=1e-2)


def test_bt601_and_unstated_need_nothing_and_others_are_known_to_be_unknown() -> None:
    for matrix in (2, 5, 6):
        assert correction(matrix, full_range=True, said_full=True) == pytest.approx(NO_CORRECTION, abs=1e-6)
    assert BT709 in LUMA_WEIGHTS
    assert 0 not in LUMA_WEIGHTS
    assert 8 not in LUMA_WEIGHTS
    assert 10 not in LUMA_WEIGHTS


def test_dali_s_affine_map_rounds_and_saturates_as_assumed(rng: np.random.Generator) -> None:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def corrected() -> Any:
        frames = fn.external_source(name="frames", dtype=types.UINT8, ndim=4, layout="FHWC")
        affine = fn.external_source(name="affine", dtype=types.FLOAT, ndim=2)
        return fn.coord_transform(frames, MT=affine, dtype=types.UINT8)

    frames = rng.integers(0, 256, (2, 16, 24, 3)).astype(np.uint8)
    affine = correction(BT709, full_range=False, said_full=True)
    pipeline = corrected()
    pipeline.build()
    pipeline.feed_input("frames", [frames])
    pipeline.feed_input("affine", [affine])
    (output,) = pipeline.run()
    expected = np.clip(np.rint(frames @ affine[:, :3].T + affine[:, 3]), 0, 255)
    assert np.abs(output.as_array()[0] - expected).max() <= 1  # for the rounding of halves
    assert (output.as_array()[0] != expected).mean() < 1e-3


def _hevc_clip(index: Index, tmp_path: Path) -> tuple[ClipDataset, Any]:
    clips = [{"uri": "hevc_closed.mp4", "clip_id": "c", "frames": [3]}]
    dataset = ClipDataset(shard_clips(index.path, tmp_path / "D", clips))
    return dataset, dataset.clip(0)


def test_the_medium_s_colour_decides_where_the_stream_states_another(index: Index, tmp_path: Path) -> None:
    dataset, clip = _hevc_clip(index, tmp_path)
    encoded = encoded_clip(dataset, clip)
    stated = replace(clip, medium=replace(clip.medium, color_matrix=BT709, color_range="full"))
    ((_, picture),) = decode_pictures(stated, encoded)
    assert picture.colorspace != BT709  # FFmpeg's HEVC decoder uses the stream's value
    assert np.array_equal(decode_frames(stated, encoded)[0], rgb_of(picture, BT709, FULL))
    assert not np.array_equal(decode_frames(stated, encoded), decode_frames(clip, encoded))


@pytest.mark.parametrize("matrix", [8, 10, 14])
def test_a_matrix_that_is_not_linear_in_ycc_is_refused_in_words(index: Index, tmp_path: Path, matrix: int) -> None:
    dataset, clip = _hevc_clip(index, tmp_path)
    encoded = encoded_clip(dataset, clip)
    with pytest.raises(DecodeError, match=f"colour matrix {matrix}"):
        decode_frames(replace(clip, medium=replace(clip.medium, color_matrix=matrix)), encoded)
