"""Clips by reference and in tars carry the audio of the time that they show, sample for sample as in a full decode."""

from __future__ import annotations

import functools
import json
import math
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.audio.stream import AudioStream
from numpy.typing import NDArray

from framedex import ClipDataset, Index
from tests.support.datasets import run, write_clips
from tests.support.media import picture

RATE, FRAMES = 48_000, 50  # 25 frames per second


@dataclass(frozen=True, kw_only=True)
class Film:
    """A video with audio.

    Attributes:
        late: seconds by which the audio begins after the video.
        early: seconds by which the audio ends before the video.
    """

    name: str
    audio: str
    video: str = "libx264"
    late: Fraction = Fraction(0)
    early: Fraction = Fraction(0)
    options: tuple[tuple[str, str], ...] = ()


FILMS = {
    film.name: film
    for film in (
        Film(name="aac.mp4", audio="aac", options=(("aac_pns", "0"),)),
        Film(name="late.mp4", audio="aac", late=Fraction(1, 2), early=Fraction(1, 2), options=(("aac_pns", "0"),)),
        Film(name="flac.mkv", audio="flac"),
        Film(name="pcm.mov", audio="pcm_s16le"),
        Film(name="aac.ts", audio="aac", options=(("aac_pns", "0"),)),
        Film(name="mp3.mkv", audio="libmp3lame"),
        Film(name="wavpack.mkv", audio="wavpack"),
    )
}


IN_PIECES = ("aac.ts", "wavpack.mkv")  # their audio packets are not byte ranges of the file


def tone(count: int) -> NDArray[np.float32]:
    time = np.arange(count) / RATE
    left, right = np.sin(2 * np.pi * (220 + 200 * time) * time), np.sin(2 * np.pi * 1000 * time) * np.sin(3 * time)
    return (0.4 * np.stack([left, right])).astype(np.float32)


def make(film: Film, path: Path) -> Path:
    """Encode a film with synchronous pictures and sound."""
    with av.open(str(path), "w") as out:
        video = out.add_stream(film.video, rate=25, options={"g": "12", "bf": "2"})
        video.width, video.height, video.pix_fmt = 176, 144, "yuv420p"
        sound = out.add_stream(film.audio, rate=RATE, layout="stereo", options=dict(film.options))
        assert isinstance(sound, AudioStream)
        sound.codec_context.open(False)
        count = int((Fraction(FRAMES, 25) - film.late - film.early) * RATE)
        whole = av.AudioFrame.from_ndarray(tone(count), format="fltp", layout="stereo")
        whole.sample_rate, whole.pts, whole.time_base = RATE, int(film.late * RATE), Fraction(1, RATE)
        resampler = av.AudioResampler(
            sound.codec_context.format, "stereo", RATE, sound.codec_context.frame_size or 1024
        )
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(number, 176, 144), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
        for piece in [*resampler.resample(whole), *resampler.resample(None)]:
            out.mux(sound.encode(piece))
        out.mux(sound.encode(None))
    return path


def full_decode(path: Path) -> tuple[int, NDArray[np.float32]]:
    """Return the position of the first presented sample, and all samples, as a player decodes them."""
    with av.open(str(path)) as container:
        pieces = list(container.decode(container.streams.audio[0]))
    arrays = []
    for piece in pieces:
        values = piece.to_ndarray()
        values = values if piece.format.is_planar else values.reshape(-1, 2).T
        arrays.append(
            values / 2.0**15 if values.dtype == np.int16 else values / 2.0**31 if values.dtype == np.int32 else values
        )
    assert pieces[0].pts is not None
    assert pieces[0].time_base is not None
    return round(pieces[0].pts * pieces[0].time_base * RATE), np.concatenate(arrays, axis=1).astype(np.float32)


@pytest.fixture(scope="session")
def film(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("films")
    return functools.cache(lambda name: make(FILMS[name], folder / name))


def dataset(path: Path, folder: Path, clips: list[list[int]], *options: object) -> ClipDataset:
    """Index a film and shard explicit clips of it with audio."""
    run("index", path, "--out", folder / "INDEX")
    lines = write_clips(folder / "clips.jsonl", [{"uri": path.name, "frames": frames} for frames in clips])
    run("shard", folder / "INDEX", "--clips", lines, "--out", folder / "D", "--audio", *options)
    return ClipDataset(folder / "D")


def interval(item: dict[str, Any], frames: list[int]) -> tuple[int, int]:
    """Return the samples from the first frame's time to the last frame's end, at 25 frames per second."""
    start = Fraction(float(item["seconds"][0])).limit_denominator(1_000_000) - Fraction(frames[0], 25)
    begin, end = start + Fraction(min(frames), 25), start + Fraction(max(frames) + 1, 25)
    return math.ceil(begin * RATE), math.ceil(end * RATE)


CLIPS = [[0, 1, 2], [10, 30], [7, 3, 3], [40, 49], list(range(FRAMES)), [20]]


@pytest.mark.parametrize(
    ("name", "pack"),
    [(name, pack) for name in FILMS for pack in (None, "clips", "images") if name not in IN_PIECES or pack is not None],
)
def test_a_clips_sound_is_what_a_full_decode_has_at_its_time(
    film: Callable[[str], Path], tmp_path: Path, name: str, pack: str | None
) -> None:
    first, whole = full_decode(film(name))
    lossy_in_24_bits = 0 if pack is None or name.startswith(("flac", "pcm", "wavpack")) else 2.0**-24
    made = dataset(film(name), tmp_path, CLIPS, *([] if pack is None else ["--pack", pack]))
    (recorded,) = Index(tmp_path / "INDEX").videos["audio_first_sample"].to_pylist()
    assert abs(recorded - first) <= (RATE // 1000 if name == "mp3.mkv" else 0), "Matroska's times are milliseconds"
    first = recorded
    for number in np.random.default_rng(1).permutation(len(CLIPS)).tolist():
        item = made[number]
        begin, end = interval(item, CLIPS[number])
        assert item["audio"].shape == (2, end - begin)
        assert item["audio_rate"] == RATE
        shown = np.arange(begin, end)
        there = (shown >= first) & (shown < first + whole.shape[1])
        assert (item["audio_mask"] == there).all()
        np.testing.assert_allclose(
            item["audio"][:, there], whole[:, shown[there] - first], rtol=0, atol=lossy_in_24_bits
        )
        assert not item["audio"][:, ~there].any()


@pytest.mark.parametrize("pack", [None, "clips"])
def test_silence_before_a_late_track_and_after_an_early_end_is_masked(
    film: Callable[[str], Path], tmp_path: Path, pack: str | None
) -> None:
    item = dataset(film("late.mp4"), tmp_path, [list(range(FRAMES))], *([] if pack is None else ["--pack", pack]))[0]
    assert item["audio"].shape == (2, 2 * RATE)
    shown = np.flatnonzero(item["audio_mask"])
    frame = 1024  # of priming before, and of padding behind
    assert RATE // 2 - frame - RATE // 1000 <= shown[0] <= RATE // 2
    assert RATE * 3 // 2 <= shown[-1] + 1 <= RATE * 3 // 2 + 2 * frame
    assert (np.diff(shown) == 1).all()
    assert not item["audio"][:, ~item["audio_mask"]].any()
    assert np.abs(item["audio"][:, RATE // 2 : RATE]).max() > 0.2


@pytest.mark.parametrize(
    ("name", "options"), [("aac.ts", []), ("wavpack.mkv", []), ("wavpack.mkv", ["--pack", "needed"])]
)
def test_audio_that_is_no_byte_range_is_refused_with_advice(
    film: Callable[[str], Path], tmp_path: Path, name: str, options: list[str]
) -> None:
    with pytest.raises(AssertionError, match="--pack") as caught:
        dataset(film(name), tmp_path, [[0, 1]], *options)
    assert "there would be no clips" in str(caught.value)


def test_a_rate_channels_and_a_length_make_clips_that_stack(film: Callable[[str], Path], tmp_path: Path) -> None:
    made = dataset(
        film("aac.mp4"), tmp_path, CLIPS, "--audio-rate", 16000, "--audio-channels", 1, "--audio-seconds", "0.75"
    )
    items = [made[number] for number in range(len(CLIPS))]
    assert {item["audio"].shape for item in items} == {(1, 12_000)}
    mask = items[3]["audio_mask"]
    assert mask[:6400].all(), "the sound ends 0.4 s after frame 40 begins"
    assert not mask[6400 + 2 * 1024 // 3 :].any()
    # All clips are on one grid: where they overlap, they contain the same samples.
    again = made[0]["audio"][0, :4800]
    np.testing.assert_allclose(items[4]["audio"][0, :4800], again, atol=1e-6)
    header = json.loads((tmp_path / "D/dataset.json").read_text())
    assert header["audio"] == {"rate": 16000, "channels": 1, "seconds": "3/4"}


def test_tars_hold_the_sound_as_a_file_of_its_own(film: Callable[[str], Path], tmp_path: Path) -> None:
    made = dataset(film("pcm.mov"), tmp_path, [[0, 24], [25, 49]], "--pack", "clips", "--audio-format", "wav")
    with tarfile.open(next((tmp_path / "D/shards").glob("*.tar"))) as tar:
        names = tar.getnames()
        sound = tar.extractfile(names[2])
        text = tar.extractfile(names[1])
        assert sound is not None
        assert text is not None
        assert json.loads(text.read())["audio"] == {"rate": RATE, "channels": 2, "samples": RATE, "begin_seconds": 0.0}
        (tmp_path / "a.wav").write_bytes(sound.read())
    assert [name.split(".")[1] for name in names] == ["mp4", "json", "wav"] * 2
    with av.open(str(tmp_path / "a.wav")) as container:
        found = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1).reshape(-1, 2).T
    assert np.array_equal(found, made[0]["audio"])


def test_a_medium_without_sound_gives_silence_of_the_right_length(
    medium: Callable[[str], Path], tmp_path: Path
) -> None:
    path = medium("h264_default.mp4")
    item = dataset(path, tmp_path, [[0, 4]], "--audio-rate", 8000)[0]
    assert item["audio"].shape == (1, 1600)
    assert not item["audio_mask"].any()


def test_a_dataset_without_audio_says_nothing_of_it(film: Callable[[str], Path], tmp_path: Path) -> None:
    run("index", film("aac.mp4"), "--out", tmp_path / "INDEX")
    lines = write_clips(tmp_path / "c.jsonl", [{"uri": "aac.mp4", "frames": [0]}])
    run("shard", tmp_path / "INDEX", "--clips", lines, "--out", tmp_path / "D")
    assert not [name for name in ClipDataset(tmp_path / "D")[0] if name.startswith("audio")]


def test_audio_options_without_audio_are_a_usage_error(film: Callable[[str], Path], tmp_path: Path) -> None:
    run("index", film("aac.mp4"), "--out", tmp_path / "INDEX")
    lines = write_clips(tmp_path / "c.jsonl", [{"uri": "aac.mp4", "frames": [0]}])
    arguments = ["shard", tmp_path / "INDEX", "--clips", lines, "--out", tmp_path / "D"]
    assert "--audio-rate needs --audio" in run(*arguments, "--audio-rate", 8000, code=2).output
    assert "not a duration" in run(*arguments, "--audio", "--audio-seconds", "1.5/3", code=2).output
