"""Mixing and resampling: a sample is the same in every clip, level and phase are kept, and there is no aliasing."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.decoding.audio import LAYOUTS, margin, mix_matrix, remix, resample
from tests.support.ffmpeg import ffmpeg

RATES = [(44_100, 16_000), (48_000, 44_100), (22_050, 48_000), (8_000, 48_000), (48_000, 16_000), (11_025, 12_000)]


def resampled(samples: np.ndarray, rate: int, out_rate: int) -> tuple[int, np.ndarray]:
    """Return the output samples that have a full margin: the first one's index, and float32 [channels, count]."""
    count, around = samples.shape[1], margin(rate, out_rate)
    first, stop = -(-around * out_rate // rate), (count - around) * out_rate // rate - 1
    mask = np.ones(count, np.bool_)
    return first, resample(samples.astype(np.float32), mask, 0, rate, out_rate, first, stop - first)[0]


@given(st.sampled_from(RATES), st.integers(0, 2**32), st.integers(0, 1500), st.integers(0, 700))
def test_a_piece_resampled_is_that_piece_of_the_whole_resampled(
    rates: tuple[int, int], seed: int, begin: int, count: int
) -> None:
    rate, out_rate = rates
    whole = np.random.default_rng(seed).standard_normal((2, 10_000)).astype(np.float32)
    first, expected = resampled(whole, rate, out_rate)
    begin, count = first + min(begin, expected.shape[1]), min(count, max(expected.shape[1] - begin, 0))
    start = max(begin * rate // out_rate - margin(rate, out_rate), 0)
    end = -(-(begin + count) * rate // out_rate) + margin(rate, out_rate)
    piece = whole[:, start:end]
    samples, mask = resample(piece, np.ones(piece.shape[1], np.bool_), start, rate, out_rate, begin, count)
    # At most one float32 rounding step, because float64 sums depend on the order of their terms.
    np.testing.assert_allclose(samples, expected[:, begin - first : begin - first + count], rtol=1.2e-7, atol=1e-12)
    assert mask.all()


@pytest.mark.parametrize("rate, out_rate", RATES)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_sine_keeps_its_amplitude_and_phase(rate: int, out_rate: int, share: float) -> None:
    frequency = share * min(rate, out_rate) / 2
    first, samples = resampled(np.sin(2 * np.pi * frequency * np.arange(rate) / rate)[None], rate, out_rate)
    places = np.arange(first, first + samples.shape[1])
    np.testing.assert_allclose(samples[0], np.sin(2 * np.pi * frequency * places / out_rate), rtol=0, atol=2e-5)


@pytest.mark.parametrize("rate, out_rate", [pair for pair in RATES if pair[0] > pair[1]])
@pytest.mark.parametrize("share", [1.001, 1.05, 1.08])
def test_what_would_alias_is_100_db_down(rate: int, out_rate: int, share: float) -> None:
    frequency = share * out_rate / 2
    _, samples = resampled(np.sin(2 * np.pi * frequency * np.arange(rate) / rate)[None], rate, out_rate)
    assert np.abs(samples).max() < 10 ** (-100 / 20)


@pytest.mark.parametrize("rate, out_rate", RATES)
def test_a_constant_keeps_its_value(rate: int, out_rate: int) -> None:
    _, samples = resampled(np.full((1, 4000), 0.7), rate, out_rate)
    np.testing.assert_allclose(samples, 0.7, rtol=1.2e-7)


@pytest.mark.parametrize("rate, out_rate", RATES)
def test_ffmpegs_resampler_gives_the_same_sound(rate: int, out_rate: int) -> None:
    time = np.arange(2 * rate) / rate
    top = 0.8 * min(rate, out_rate) / 2
    sound = (0.4 * np.sin(2 * np.pi * (50 + top / 4 * time) * time)).astype(np.float32)[None]
    first, samples = resampled(sound, rate, out_rate)
    command = [ffmpeg(), "-v", "error", "-f", "f32le", "-ar", str(rate), "-ac", "1", "-i", "-"]
    filters = ["-af", f"aresample={out_rate}:filter_size=256:phase_shift=14:cutoff=0.95"]
    other = subprocess.run(
        [*command, *filters, "-f", "f32le", "-"], input=sound.tobytes(), capture_output=True, check=True
    )
    expected = np.frombuffer(other.stdout, "<f4")[first : first + samples.shape[1]]
    middle = slice(out_rate // 10, min(len(expected), samples.shape[1]) - out_rate // 10)
    np.testing.assert_allclose(samples[0][middle], expected[middle], rtol=0, atol=1e-4)


def test_the_mask_is_that_of_the_sample_under_each_and_silence_is_silent() -> None:
    mask = np.ones(4000, np.bool_)
    mask[2000:2500] = False
    sound = np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32)
    for out_rate in (16_000, 48_000):
        begin, count = out_rate * 500 // 44_100, out_rate * 3000 // 44_100
        samples, presented = resample(sound, mask, 0, 44_100, out_rate, begin, count)
        assert np.array_equal(presented, mask[np.arange(begin, begin + count) * 44_100 // out_rate])
        assert not samples[:, ~presented].any()


def test_the_same_rate_changes_nothing() -> None:
    sound = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
    samples, mask = resample(sound, np.ones(100, np.bool_), 30, 8000, 8000, 40, 20)
    assert np.array_equal(samples, sound[:, 10:30])
    assert mask.all()
    with pytest.raises(ValueError, match="samples 20 to"):
        resample(sound, np.ones(100, np.bool_), 30, 8000, 8000, 20, 20)


def test_resampling_without_its_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="both sides"):
        resample(np.zeros((1, 100), np.float32), np.ones(100, np.bool_), 0, 44_100, 16_000, 0, 10)


def test_mono_is_the_mean_and_copies_itself() -> None:
    sound = np.array([[1, 2, 3], [3, 2, 0]], np.float32)
    assert remix(sound, "stereo", 1).tolist() == [[2, 2, 1.5]]
    assert remix(sound[:1], "mono", 2).tolist() == [[1, 2, 3], [1, 2, 3]]
    assert remix(sound, "stereo", 2) is sound


def test_surround_to_stereo_is_by_bs_775() -> None:
    half = 0.5**0.5
    expected = [[1, 0, half, 0, half, 0], [0, 1, half, 0, 0, half]]
    for layout in ("5.1", "5.1(side)"):
        np.testing.assert_allclose(mix_matrix(layout, 6, 2), expected)
    mixed = remix(np.array([[1], [0], [1], [9], [0], [1]], np.float32), "5.1", 2)
    np.testing.assert_allclose(mixed, [[1 + half], [2 * half]], rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_mixes_to_two_sides_that_mirror_each_other(layout: str) -> None:
    matrix = mix_matrix(layout, len(LAYOUTS[layout]), 2)
    assert sorted(matrix[0]) == sorted(matrix[1])
    assert (matrix[:, [name == "LFE" for name in LAYOUTS[layout]]] == 0).all()


@pytest.mark.parametrize("layout, source, channels", [("5.1", 6, 4), ("hexagonal", 6, 2), ("stereo", 2, 6)])
def test_a_mix_without_a_rule_is_refused(layout: str, source: int, channels: int) -> None:
    with pytest.raises(PolicyError, match="cannot be mixed to"):
        mix_matrix(layout, source, channels)
