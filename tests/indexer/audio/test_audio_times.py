"""Positions of audio packets from timestamps and headers: rounding makes no gap, gaps are found, nonsense refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from framedex.indexer.probing.audio_times import (
    AudioProblem,
    eac3_samples,
    flac_samples,
    opus_samples,
    positions,
    presented,
)


def test_counting_ignores_rounding_and_sees_gaps() -> None:
    samples = np.full(100, 1024, np.int64)
    true = np.cumsum(samples) - samples + 441
    true[60:] += 4410
    pts = np.round(true / 44.1).astype(np.int64)
    pts[[7, 31]] = np.iinfo(np.int64).min
    found = positions(pts, samples, Fraction(1, 1000), 44_100)
    assert np.abs(found - true).max() <= 2
    assert (np.diff(found) == np.where(np.arange(99) == 59, found[60] - found[59], 1024)).all()


def test_a_first_packet_between_two_milliseconds_makes_no_gap() -> None:
    """Opus in Matroska: a pre-skip of 6.5 ms puts the first packet at -7 ms and the second at 14, not 13.5 ms."""
    pts = np.array([-7, *range(14, 1000, 20)])
    found = positions(pts, np.full(len(pts), 960), Fraction(1, 1000), 48_000)
    assert found.tolist() == (np.arange(len(pts)) * 960 - 312).tolist()


def test_milliseconds_told_in_samples_make_no_gaps() -> None:
    true = np.arange(200) * 1536
    pts = np.round(np.round(true / 44.1) * 44.1).astype(np.int64)
    steps = np.diff(pts)
    assert ((steps != 1536) & (np.abs(steps - 1536) < 50)).any()
    assert positions(pts, np.full(200, 1536), Fraction(1, 44_100), 44_100).tolist() == true.tolist()
    later = pts.copy()
    later[80:] += 441  # 10 ms
    found = positions(later, np.full(200, 1536), Fraction(1, 44_100), 44_100)
    assert np.flatnonzero(np.diff(found) != 1536).tolist() == [79]


def test_a_single_timestamp_that_the_next_one_contradicts_is_no_gap() -> None:
    """libavformat states such times for Vorbis in Ogg if the block size changes at the beginning of a page."""
    samples = np.full(100, 1024, np.int64)
    true = np.cumsum(samples) - samples
    stated = true.copy()
    stated[[20, 40, 60]] += (448, 448, -600)
    assert positions(stated, samples, Fraction(1, 44_100), 44_100).tolist() == true.tolist()


def test_timestamps_that_turn_back_or_scatter_are_refused() -> None:
    samples = np.full(100, 1024, np.int64)
    pts = np.cumsum(samples) - samples
    with pytest.raises(AudioProblem, match="timestamps decrease"):
        positions(np.where(np.arange(100) > 50, pts - 3000, pts), samples, Fraction(1, 44_100), 44_100)
    with pytest.raises(AudioProblem, match="irregular"):
        positions(pts + np.arange(100) * 500, samples, Fraction(1, 44_100), 44_100)


def test_trimming_is_that_of_libavcodec() -> None:
    sample, samples, nothing = np.arange(5) * 100, np.full(5, 100, np.int64), np.zeros(5, np.bool_)
    assert presented(sample, samples, {}, nothing) == (0, 500)
    assert presented(sample, samples, {0: (130, 0), 4: (0, 60)}, nothing) == (130, 440)
    assert presented(sample, samples, {0: (100, 0)}, np.arange(5) == 0) == (100, 500)
    with pytest.raises(AudioProblem, match="in the middle"):
        presented(sample, samples, {2: (0, 60)}, nothing)
    with pytest.raises(AudioProblem, match="all audio samples"):
        presented(sample, samples, {0: (500, 0)}, nothing)


def test_headers_say_how_many_samples_packets_hold() -> None:
    assert [opus_samples(bytes([code << 3])) for code in (0, 3, 12, 16, 31)] == [480, 2880, 480, 120, 960]
    assert opus_samples(bytes([31 << 3 | 1])) == 1920
    assert opus_samples(bytes([31 << 3 | 3, 3])) == 2880
    assert opus_samples(b"") == 0
    assert flac_samples(b"\xff\xf8\xc9\x18\x00\xc2") == 4096
    assert flac_samples(b"\xff\xf8\x79\x18\x00\x0f\xff\x00") == 4096
    assert flac_samples(b"no header") == 0
    assert eac3_samples(b"\x0b\x77\x00\x00\x30\x80") == 1536
    assert eac3_samples(b"\x0b\x77\x00\x00\x00\x80") == 256
