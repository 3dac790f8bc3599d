"""Audio files in memory preserve the samples and have the same bytes every time."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from framedex.errors import DecodeError, PolicyError
from framedex.sharder.clips.clip import AudioFacts
from framedex.sharder.decoding.audio import decode_file, encode_flac, encode_wav, flac_bits


def integers(rng: np.random.Generator, channels: int, count: int, bits: int) -> np.ndarray:
    values = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (channels, count))
    return (values * 2.0 ** -(bits - 1)).astype(np.float32)


@pytest.mark.parametrize("bits", [16, 24])
@pytest.mark.parametrize("channels", [1, 2, 6, 8])
@pytest.mark.parametrize("count", [0, 1, 4097])
def test_flac_keeps_integers_bit_for_bit(rng: np.random.Generator, bits: int, channels: int, count: int) -> None:
    sound = integers(rng, channels, count, bits)
    samples = decode_file(encode_flac(sound, 44_100, bits), channels=channels, count=count, rate=44_100)
    assert samples.dtype == np.float32
    assert np.array_equal(samples, sound)


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("count", [0, 1, 9000])
def test_wav_keeps_floats_bit_for_bit(rng: np.random.Generator, channels: int, count: int) -> None:
    sound = (3 * rng.standard_normal((channels, count))).astype(np.float32)
    samples = decode_file(encode_wav(sound, 16_000), channels=channels, count=count, rate=16_000)
    assert np.array_equal(samples, sound)


def test_flac_has_the_bits_of_the_mediums_own_samples() -> None:
    known = AudioFacts(
        stream_index=1, codec="flac", codec_tag=None, rate=8000, channels=1, layout="mono", sample_format="s16",
        bits_per_coded_sample=None, extradata=None, first_sample=0, end_sample=1,
    )  # fmt: skip
    formats = {"u8": 16, "s16p": 16, "s32": 24, "fltp": 24}
    assert {name: flac_bits(replace(known, sample_format=name)) for name in formats} == formats
    assert flac_bits(replace(known, codec="mp2")) == 24


def test_flac_rounds_floats_to_24_bits_and_clips_them() -> None:
    sound = np.array([[0.1, -0.3, 1.5, -2.0]], np.float32)
    samples = decode_file(encode_flac(sound, 48_000, 24), channels=1, count=4, rate=48_000)
    np.testing.assert_allclose(samples[0, :2], sound[0, :2], rtol=0, atol=2.0**-24)
    assert samples[0, 2:].tolist() == [1 - 2.0**-23, -1]


def test_files_are_the_same_bytes_every_time_and_name_no_version(rng: np.random.Generator) -> None:
    sound = integers(rng, 2, 20_000, 16)
    for encode in (lambda: encode_flac(sound, 44_100, 16), lambda: encode_wav(sound, 44_100)):
        data = encode()
        assert data == encode()
        assert b"Lav" not in data[:200]


def test_what_cannot_be_written_or_read_is_refused() -> None:
    sound = np.zeros((9, 5), np.float32)
    with pytest.raises(PolicyError, match="too many channels"):
        encode_flac(sound, 44_100, 16)
    with pytest.raises(PolicyError, match="have 16 or 24 bits"):
        encode_flac(sound[:2], 44_100, 20)
    with pytest.raises(DecodeError, match="does not decode"):
        decode_file(b"no sound", channels=1, count=1, rate=8000)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"channels": 1}, "2 channels at 8000 Hz"),
        ({"rate": 16_000}, "2 channels at 8000 Hz"),
        ({"count": 99_999}, "100,000 samples instead of 99,999|more than 99,999 samples"),
        ({"count": 100_001}, "100,000 samples instead of 100,001"),
        ({"count": 10}, "more than 10 samples"),
    ],
)
def test_a_file_with_other_samples_than_a_clip_has_is_refused(changed: dict[str, int], found: str) -> None:
    data = encode_flac(np.zeros((2, 100_000), np.float32), 8000, 16)
    with pytest.raises(DecodeError, match="does not belong to the clip") as caught:
        decode_file(data, **{"channels": 2, "count": 100_000, "rate": 8000} | changed)
    assert re.fullmatch(found, str(caught.value.found))
