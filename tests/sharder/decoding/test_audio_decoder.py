"""An interval of audio decoded from planned packets matches the same interval of a full decode."""

from __future__ import annotations

import functools
import itertools
import subprocess
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import AudioOptions
from framedex.core.pyav import audio_plane
from framedex.errors import DecodeError
from framedex.records.clip import AudioRecipe, ClipAudioPlan
from framedex.sharder.clips.clip import AudioFacts, plan_audio
from framedex.sharder.decoding import audio
from tests.support.audio_media import NOISY, RECIPES, Truth, encode, truth
from tests.support.depth import drawn
from tests.support.ffmpeg import ffmpeg, ffmpeg_version

CLIPS = 60
# Opus predicts from its earlier output, and players decode MP2 to 16 bits. docs/audio.md has the measurements.
TOLERANCE = {"opus": 1e-4, "mp2": 5e-5}
# The ffmpeg command has another version, which does its float arithmetic in another order.
COMMAND_TOLERANCE = 5e-5
LOSSLESS = ("flac", "alac", "pcm", "wavpack", "tta", "truehd")


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Truth]]:
    """A function that returns the file of an audio recipe and its truth."""
    folder = tmp_path_factory.mktemp("sound")

    @functools.cache
    def make(name: str) -> tuple[Path, Truth]:
        path = encode(RECIPES[name], folder / name)
        return path, truth(path)

    return make


def planned(plan: ClipAudioPlan) -> AudioRecipe:
    assert isinstance(plan.recipe, AudioRecipe)
    return plan.recipe


def decoded(known: Truth, begin: int, end: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    recipe = plan_audio(known.packets, known.facts, Fraction(begin, known.facts.rate), Fraction(end, known.facts.rate))
    return audio.decode_audio(known.facts, recipe, known.payload_of(recipe))


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in NOISY])
def test_any_stretch_equals_the_full_decode(
    sound: Callable[[str], tuple[Path, Truth]], rng: np.random.Generator, name: str
) -> None:
    _, known = sound(name)
    facts = known.facts
    for _ in range(CLIPS):
        begin = int(rng.integers(facts.first_sample - 3000, facts.end_sample))
        end = begin + int(rng.integers(1, 20_000))
        samples, mask = decoded(known, begin, end)
        expected, presented = known.cut(begin, end)
        assert np.array_equal(mask, presented)
        np.testing.assert_allclose(samples, expected, rtol=0, atol=TOLERANCE.get(facts.codec, 0))


def test_noise_that_the_decoder_draws_has_the_level_of_a_full_decodes(
    sound: Callable[[str], tuple[Path, Truth]],
) -> None:
    _, known = sound("aac.mp4")
    second = known.facts.rate
    samples, mask = decoded(known, second // 3, second * 4 // 3)
    expected, presented = known.cut(second // 3, second * 4 // 3)
    assert np.array_equal(mask, presented)
    level = np.sqrt((samples**2).mean() / (expected**2).mean())
    assert abs(20 * np.log10(level)) < 0.3
    assert np.corrcoef(samples.ravel(), expected.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("name", drawn("many long cases", sorted(set(RECIPES) - NOISY - {"aac_gap.mp4"}), seed=1))
def test_any_stretch_equals_ffmpegs_own_cut(
    sound: Callable[[str], tuple[Path, Truth]], rng: np.random.Generator, name: str
) -> None:
    path, known = sound(name)
    facts = known.facts
    whole = cut_by_command(path, facts, None)
    # Before version 6, the command also presents the samples of Matroska's codec delay. Otherwise the counts agree.
    shown_before = whole.shape[1] - (facts.end_sample - facts.first_sample)
    assert shown_before in {0, facts.first_sample - int(known.packets.sample[0])}
    for _ in range(4):
        begin = int(rng.integers(0, facts.end_sample - facts.first_sample - 12_000))
        end = begin + int(rng.integers(1, 10_000))
        expected = cut_by_command(path, facts, (begin + shown_before, end + shown_before))
        samples, mask = decoded(known, begin + facts.first_sample, end + facts.first_sample)
        assert mask.all()
        exact = facts.codec.startswith(LOSSLESS)
        atol = 0 if exact else max(COMMAND_TOLERANCE, TOLERANCE.get(facts.codec, 0))
        np.testing.assert_allclose(samples, expected, rtol=0, atol=atol)


def cut_by_command(path: Path, facts: AudioFacts, interval: tuple[int, int] | None) -> NDArray[np.float32]:
    """Return the samples that the ffmpeg command presents, float32 [channels, samples].

    Vorbis is decoded by libvorbis in versions whose own decoder is wrong for stereo from FFmpeg's own encoder.

    Args:
        path: The file.
        facts: Its audio facts.
        interval: Samples for ffmpeg's atrim, counted from the first sample that the command presents; None for all.
    """
    command = [ffmpeg(), "-v", "error"] + ["-cons_noisegen", "1"] * (facts.codec in {"ac3", "eac3"})
    command += ["-c:a", "libvorbis"] * (facts.codec == "vorbis" and ffmpeg_version() < (8, 1, 2))
    command += ["-i", str(path), "-map", "0:a:0", "-f", "f32le", "-c:a", "pcm_f32le"]
    if interval is not None:
        command += ["-af", f"atrim=start_sample={interval[0]}:end_sample={interval[1]}"]
    cut = subprocess.run([*command, "-"], capture_output=True, check=True)
    return np.frombuffer(cut.stdout, "<f4").reshape(-1, facts.channels).T


@pytest.mark.parametrize("name", ["pcm_16.wav", "pcm_24.mov", "pcm_8.wav", "flac.flac", "flac_24.mkv", "alac.mp4"])
def test_integers_are_scaled_exactly(sound: Callable[[str], tuple[Path, Truth]], name: str) -> None:
    _, known = sound(name)
    bits = 8 if "_8" in name else 24 if "_24" in name else 16
    samples, _ = decoded(known, 0, 20_000)
    whole = samples.astype(np.float64) * 2 ** (bits - 1)
    assert np.array_equal(whole, np.rint(whole))
    np.testing.assert_allclose(samples, RECIPES[name].source[:, :20_000], rtol=0, atol=1.01 * 2.0 ** -(bits - 1))


def test_before_a_late_track_and_after_its_end_is_masked_silence(
    sound: Callable[[str], tuple[Path, Truth]],
) -> None:
    _, known = sound("aac_late.mp4")
    first, end = known.facts.first_sample, known.facts.end_sample
    assert first > known.facts.rate
    samples, mask = decoded(known, first - 500, end + 700)
    assert not mask[:500].any()
    assert mask[500:-700].all()
    assert not mask[-700:].any()
    assert not samples[:, ~mask].any()
    for begin, stop in ((0, 1000), (end, end + 10)):
        samples, mask = decoded(known, begin, stop)
        assert samples.shape == (2, stop - begin)
        assert not mask.any()


def test_a_gap_between_packets_is_masked_silence(sound: Callable[[str], tuple[Path, Truth]]) -> None:
    _, known = sound("aac_gap.mp4")
    gap = int(np.argmax(np.diff(known.packets.sample)))
    begin, end = int(known.packets.sample[gap]) + 1024, int(known.packets.sample[gap + 1])
    assert end - begin == 30 * 1024
    samples, mask = decoded(known, begin - 300, end + 300)
    assert np.array_equal(np.flatnonzero(~mask), np.arange(300, 300 + end - begin))
    assert not samples[:, ~mask].any()
    assert samples[:, mask].any()


def test_damaged_packets_and_missing_bytes_are_refused(sound: Callable[[str], tuple[Path, Truth]]) -> None:
    _, known = sound("flac.flac")
    recipe = plan_audio(known.packets, known.facts, Fraction(1), Fraction(2))
    payload = known.payload_of(recipe)
    with pytest.raises(DecodeError, match="bytes were read for packets"):
        audio.decode_audio(known.facts, recipe, payload[:-1])
    with pytest.raises(DecodeError, match="the decoder fails"):
        audio.decode_audio(known.facts, recipe, bytes(len(payload)))
    with pytest.raises(DecodeError, match="channels at"):
        audio.decode_audio(replace(known.facts, channels=1, layout="mono"), recipe, payload)


def test_each_packet_of_wanted_samples_must_decode(sound: Callable[[str], tuple[Path, Truth]]) -> None:
    _, known = sound("flac.flac")
    recipe = plan_audio(known.packets, known.facts, Fraction(1), Fraction(2))
    edges = np.append(0, np.cumsum(recipe.packet_size)).tolist()
    assert len(recipe.packet_size) > 5
    for first, stop in itertools.pairwise(edges):
        payload = bytearray(known.payload_of(recipe))
        payload[first:stop] = bytes(stop - first)
        with pytest.raises(DecodeError, match="the decoder fails"):
            audio.decode_audio(known.facts, recipe, payload)


def test_a_clips_audio_is_the_same_stretch_of_the_whole_files(
    sound: Callable[[str], tuple[Path, Truth]], rng: np.random.Generator
) -> None:
    _, known = sound("aac_surround.mp4")
    facts, options = known.facts, AudioOptions(rate=16_000, channels=2)
    seconds = Fraction(facts.end_sample - facts.first_sample, facts.rate)
    plan = audio.plan_clip_audio(facts, known.packets, Fraction(0), seconds, options)
    whole = audio.decode_clip_audio(facts, plan, planned(plan), known.payload_of(planned(plan)))
    for _ in range(CLIPS):
        begin = Fraction(int(rng.integers(-1000, 4000)), 1000)
        plan = audio.plan_clip_audio(facts, known.packets, begin, begin + Fraction(1, 3), options)
        clip = audio.decode_clip_audio(facts, plan, planned(plan), known.payload_of(planned(plan)))
        assert clip.samples.dtype == np.float32
        assert clip.samples.shape == (2, len(clip.mask)) == (2, plan.count)
        places = np.arange(clip.first, clip.first + plan.count)
        inside = (places >= 0) & (places < whole.samples.shape[1])
        assert np.array_equal(clip.mask, inside & np.isin(places, np.flatnonzero(whole.mask)))
        np.testing.assert_allclose(clip.samples[:, inside], whole.samples[:, places[inside]], rtol=0, atol=1e-7)
        assert not clip.samples[:, ~inside].any()


@pytest.mark.parametrize("channels", [1, 2, 6, 8])
@pytest.mark.parametrize("sample_format", ["u8", "s16p", "s32", "fltp", "dblp"])
def test_frames_of_up_to_eight_channels_become_floats(sample_format: str, channels: int) -> None:
    layout = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[channels]
    frame = av.AudioFrame(format=sample_format, layout=layout, samples=10)
    kind = sample_format.rstrip("p")
    values = np.arange(10 * channels).reshape(channels, 10).astype(audio.SAMPLE_TYPES[kind])
    planes = values if sample_format.endswith("p") else [np.ascontiguousarray(values.T).reshape(-1)]
    for plane, content in zip([audio_plane(frame, number) for number in range(len(planes))], planes, strict=True):
        padded = np.zeros(plane.buffer_size // content.itemsize, content.dtype)
        padded[: len(content)] = content
        plane.update(padded.tobytes())
    zero, scale = audio.INTEGERS.get(kind, (0, 1.0))
    assert np.array_equal(audio.as_float(frame), ((values.astype(np.float64) - zero) * scale).astype(np.float32))
