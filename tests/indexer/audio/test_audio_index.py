"""The index says where audio packets lie: in the file byte for byte, in time sample for sample as a full decode has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.codec.context import Flags2
from numpy.typing import NDArray

from framedex.indexer.audio import probe_audio as audio
from framedex.indexer.audio.audio_times import AudioProblem, positions, presented
from framedex.indexer.bitstream.audio import eac3_samples, flac_samples, opus_samples
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth, ProbeTask, probe_medium
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.indexer.timeline import NO_PTS
from tests.support.counted import some

Row = dict[str, Any]
SECONDS = 1.6


@dataclass(frozen=True, kw_only=True)
class Medium:
    """A video with audio. gap: (at sample, samples left out). start: of the audio; video_start: of the video, in seconds."""

    name: str
    codec: str
    rate: int = 44_100
    layout: str = "stereo"
    sample_format: str | None = None
    start: float = 0.0
    video_start: float = 0.0
    seconds: float = SECONDS
    gap: tuple[float, float] | None = None
    muxer: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


PLAYERS_DECODERS = {"mp3": "mp3float"}  # where libavformat's streams get another than that of the canonical name
UNOFFICIAL = {"strict": "-2"}
MEDIA = {
    medium.name: medium
    for medium in (
        Medium(name="aac.mp4", codec="aac"),
        Medium(name="aac.mkv", codec="aac"),
        Medium(name="aac.ts", codec="aac"),
        Medium(name="aac.flv", codec="aac"),
        Medium(name="aac_surround.mov", codec="aac", rate=48_000, layout="5.1"),
        Medium(name="aac_fragmented.mp4", codec="aac", muxer={"movflags": "frag_keyframe+empty_moov"}),
        Medium(name="aac_no_edit_list.mp4", codec="aac", muxer={"use_editlist": "0"}),
        Medium(name="mp3.mp4", codec="libmp3lame"),
        Medium(name="mp3.avi", codec="libmp3lame"),
        Medium(name="mp3.mkv", codec="libmp3lame"),
        Medium(name="opus.webm", codec="libopus", rate=48_000),
        Medium(name="opus.mp4", codec="libopus", rate=48_000),
        Medium(name="opus.ogg", codec="libopus", rate=48_000),
        Medium(name="opus_60ms.mkv", codec="libopus", rate=48_000, layout="mono", options={"frame_duration": "60"}),
        Medium(name="vorbis.webm", codec="vorbis"),
        Medium(name="vorbis.ogg", codec="vorbis"),
        Medium(name="flac.mkv", codec="flac"),
        Medium(name="flac.ogg", codec="flac"),
        Medium(name="flac.mp4", codec="flac", muxer=UNOFFICIAL),
        Medium(name="alac.mp4", codec="alac"),
        Medium(name="alac.mkv", codec="alac"),
        Medium(name="ac3.mkv", codec="ac3", rate=48_000),
        Medium(name="ac3.ts", codec="ac3", rate=48_000),
        Medium(name="eac3.mp4", codec="eac3", rate=48_000),
        Medium(name="mp2.ts", codec="mp2", rate=48_000),
        Medium(name="pcm_s16.mov", codec="pcm_s16le"),
        Medium(name="pcm_s16_mono.avi", codec="pcm_s16le", layout="mono"),
        Medium(name="pcm_s16.mkv", codec="pcm_s16le"),
        Medium(name="pcm_s24.mov", codec="pcm_s24le"),
        Medium(name="pcm_s24.mkv", codec="pcm_s24le"),
        Medium(name="pcm_f32.mov", codec="pcm_f32le"),
        Medium(name="pcm_f32.avi", codec="pcm_f32le", layout="mono"),
        Medium(name="pcm_u8.avi", codec="pcm_u8", layout="mono"),
        Medium(name="pcm_u8.mov", codec="pcm_u8"),
        Medium(name="pcm_surround.mov", codec="pcm_s16be", rate=48_000, layout="5.1"),
        Medium(name="pcm_surround.mkv", codec="pcm_s16le", rate=48_000, layout="5.1"),
        Medium(name="adpcm.avi", codec="adpcm_ms"),
        Medium(name="late.mp4", codec="aac", start=0.5),
        Medium(name="late.mkv", codec="aac", start=0.5),
        Medium(name="a_little_late.mp4", codec="aac", start=0.03),
        Medium(name="a_little_late_mp3.mp4", codec="libmp3lame", start=0.03),
        Medium(name="a_little_late_ac3.mp4", codec="ac3", rate=48_000, seconds=0.99, start=0.02),
        Medium(name="a_little_late_alac.mp4", codec="alac", start=0.03),
        Medium(name="a_little_late_flac.mp4", codec="flac", start=0.03, muxer=UNOFFICIAL),
        Medium(name="a_little_late_opus.mp4", codec="libopus", rate=48_000, seconds=0.993, start=0.01),
        Medium(name="whole_packets.mp4", codec="aac", rate=48_000, seconds=1.024),
        Medium(name="late_pcm.mov", codec="pcm_s16le", start=0.5),
        Medium(name="early_end.mp4", codec="aac", seconds=0.7),
        Medium(name="early_end.mkv", codec="libopus", rate=48_000, seconds=0.7),
        Medium(name="gap.mp4", codec="aac", gap=(0.6, 0.4)),
        Medium(name="gap.mkv", codec="aac", gap=(0.6, 0.4)),
        Medium(name="gap.ts", codec="aac", gap=(0.6, 0.4)),
        Medium(name="gap_flac.mp4", codec="flac", gap=(0.6, 0.4), muxer=UNOFFICIAL),
        Medium(name="video_at_10s.mkv", codec="aac", start=10.0, video_start=10.0),
        Medium(name="video_at_10s.ts", codec="aac", start=10.0, video_start=10.0),
        Medium(name="negative.mkv", codec="pcm_s16le", start=-0.25, muxer={"avoid_negative_ts": "disabled"}),
        Medium(name="negative.mp4", codec="aac", start=-0.25),
    )
}  # fmt: skip
# Media whose packets are not byte ranges of the file.
SCATTERED = (".ts", ".ogg")
VIDEO_CODECS = {".webm": "libvpx", ".ogg": "libvpx", ".flv": "flv"}


def make(medium: Medium, path: Path) -> Path:
    """Encode a medium: 2 s of video, and noise that tells every sample from every other."""
    with av.open(str(path), "w", options=medium.muxer) as out:
        video = out.add_stream(VIDEO_CODECS.get(path.suffix, "mpeg4"), rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = out.add_stream(medium.codec, rate=medium.rate, options=medium.options | UNOFFICIAL)
        sound.layout = medium.layout
        sound.time_base = Fraction(1, medium.rate)
        formats = sound.codec_context.codec.audio_formats or []
        packets: list[av.Packet[Any]] = []
        for number in range(50):
            frame = av.VideoFrame(64, 48, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes([number * 5]) * plane.buffer_size)
            frame.pts, frame.time_base = number + round(medium.video_start * 25), Fraction(1, 25)
            packets += video.encode(frame)
        packets += video.encode(None)
        packets += _encode(medium, sound, [one.name for one in formats])
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        for packet in packets:
            out.mux(packet)
    return path


def _encode(medium: Medium, sound: Any, formats: list[str]) -> list[av.Packet[Any]]:
    channels = av.AudioLayout(medium.layout).nb_channels
    noise = np.random.default_rng(7).integers(-8000, 8000, (1, round(medium.seconds * medium.rate) * channels))
    whole = av.AudioFrame.from_ndarray(noise.astype(np.int16), format="s16", layout=medium.layout)
    whole.sample_rate, whole.pts, whole.time_base = medium.rate, 0, Fraction(1, medium.rate)
    resampler = av.AudioResampler(
        format=formats[0] if formats else "s16", layout=medium.layout, rate=medium.rate, frame_size=0
    )
    size = sound.codec_context.frame_size
    if not size:
        sound.codec_context.open(strict=False)
        size = sound.codec_context.frame_size or 1024
    fifo = av.AudioFifo()
    for frame in resampler.resample(whole):
        fifo.write(frame)
    packets: list[av.Packet[Any]] = []
    at = 0
    while frame := fifo.read(size, partial=True):
        frame.pts, frame.time_base = at, Fraction(1, medium.rate)
        at += frame.samples
        packets += sound.encode(frame)
    packets += sound.encode(None)
    shift = round(medium.start * medium.rate)
    kept = []
    for packet in packets:
        assert packet.pts is not None
        seconds = float(packet.pts * packet.time_base)
        if medium.gap and medium.gap[0] <= seconds < sum(medium.gap):
            continue
        ticks = round(shift / medium.rate / packet.time_base)
        packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks
        kept.append(packet)
    return kept


@dataclass(frozen=True)
class Truth:
    """A full decode: what its frames say of their times, in samples, and all samples, [channels, samples]."""

    times: list[tuple[int, float]]  # (number of the sample among all, its time)
    samples: NDArray[Any]
    tick: float


def samples_of(frame: av.AudioFrame) -> NDArray[Any]:
    """Return [channels, samples]."""
    array = frame.to_ndarray()
    return array if frame.format.is_planar else array.reshape(-1, frame.layout.nb_channels).T


def full_decode(path: Path, rate: int) -> Truth:
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        assert stream.time_base is not None
        times, pieces, count = [], [], 0
        for frame in container.decode(stream):
            if frame.pts is not None:
                times.append((count, float(frame.pts * stream.time_base * rate)))
            pieces.append(samples_of(frame))
            count += frame.samples
        return Truth(times=times, samples=np.concatenate(pieces, axis=1), tick=float(stream.time_base * rate))


def packet_bytes(path: Path, offset: NDArray[np.int64] | None, size: NDArray[np.int64]) -> list[bytes]:
    """Return what the ranges hold; of a medium without ranges, what demuxing gives."""
    if offset is not None:
        content = path.read_bytes()
        return [content[a : a + n] for a, n in zip(offset.tolist(), size.tolist(), strict=True)]
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(container.streams.audio[0]) if packet.size]


def laid_out(video: Row, frames: Row, path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Decode all indexed packets with a fresh decoder, and lay them at their positions.

    Return [channels, samples] within the presented interval, holes left out, and the position of each sample.
    """
    decoder = av.CodecContext.create(PLAYERS_DECODERS.get(video["audio_codec"], video["audio_codec"]), "r")
    decoder.extradata, decoder.sample_rate = video["audio_extradata"], video["audio_rate"]
    decoder.layout = video["audio_layout"]
    decoder.flags2 |= Flags2.skip_manual.value
    pieces, places = [], []
    packets = packet_bytes(path, frames["audio_offset"], frames["audio_size"])
    for data, at in zip(packets, frames["audio_sample"].tolist(), strict=True):
        packet: av.Packet[Any] = av.Packet(len(data))
        packet.update(data)
        for frame in decoder.decode(packet):
            assert frame.format.name == video["audio_sample_format"]
            pieces.append(samples_of(frame))
            places.append(np.arange(at, at + frame.samples))
            at += frame.samples
    assert not decoder.decode(None)
    position = np.concatenate(places)
    assert (np.diff(position) > 0).all()
    inside = (position >= video["audio_first_sample"]) & (position < video["audio_end_sample"])
    return np.concatenate(pieces, axis=1)[:, inside], position[inside]


def probe(path: Path, depth: Depth) -> tuple[Row, Row]:
    (row,) = probe_medium(ProbeTask(path=str(path), depth=depth))
    return row


def check(path: Path, video: Row, frames: Row) -> None:
    """Assert that the indexed audio is the audio of a full decode."""
    truth = full_decode(path, video["audio_rate"])
    samples, position = laid_out(video, frames, path)
    assert np.array_equal(samples, truth.samples)
    assert (video["audio_first_sample"], video["audio_end_sample"]) == (position[0], position[-1] + 1)
    rounding = 0 if truth.tick == 1 else truth.tick + 1
    assert max(abs(position[number] - time) for number, time in truth.times) <= rounding


@pytest.fixture(scope="module")
def sounding(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a medium by name."""
    folder = tmp_path_factory.mktemp("sounding")
    return functools.cache(lambda name: make(MEDIA[name], folder / name))


@pytest.mark.parametrize("name", MEDIA)
def test_indexed_packets_decode_to_what_a_full_decode_presents(name: str, sounding: Callable[[str], Path]) -> None:
    video, frames = probe(sounding(name), "packets")
    assert (video["status"], video.get("audio_problem")) == ("ok", None)
    check(sounding(name), video, frames)
    assert (frames["audio_offset"] is None) == name.endswith(SCATTERED)


@pytest.mark.parametrize("name", [name for name in MEDIA if "gap" not in name])
def test_audio_without_gaps_has_none(name: str, sounding: Callable[[str], Path]) -> None:
    video, frames = probe(sounding(name), "packets")
    _, position = laid_out(video, frames, sounding(name))
    assert (np.diff(position) == 1).all()


@pytest.mark.parametrize("name", [name for name in MEDIA if name.endswith((".mp4", ".mov"))])
def test_both_depths_say_the_same_of_audio(name: str, sounding: Callable[[str], Path]) -> None:
    rows = [probe(sounding(name), depth) for depth in ("packets", "auto")]
    for one, other in some(zip(*rows, strict=True)):
        for key in some([key for key in one.keys() | other.keys() if key.startswith("audio_")]):
            assert np.array_equal(one[key], other[key]), key


def test_ranges_hold_exactly_the_demuxed_bytes(sounding: Callable[[str], Path]) -> None:
    for name in ("aac.mp4", "opus.webm", "mp3.avi", "aac.flv", "pcm_s16.mov"):
        _, frames = probe(sounding(name), "packets")
        with av.open(str(sounding(name))) as container:
            demuxed = b"".join(bytes(p) for p in container.demux(container.streams.audio[0]) if p.size)
        assert b"".join(packet_bytes(sounding(name), frames["audio_offset"], frames["audio_size"])) == demuxed


@pytest.mark.parametrize(("name", "seconds"), [("gap.mp4", 0.4), ("gap.mkv", 0.4), ("gap.ts", 0.4)])
def test_a_gap_stays_where_it_is(name: str, seconds: float, sounding: Callable[[str], Path]) -> None:
    video, frames = probe(sounding(name), "packets")
    _, position = laid_out(video, frames, sounding(name))
    holes = np.diff(position)[np.diff(position) > 1]
    assert len(holes) == 1
    assert abs(holes[0] / video["audio_rate"] - seconds) < 0.03


@pytest.mark.parametrize(("name", "start"), [("late.mp4", 0.5), ("late.mkv", 0.5), ("late_pcm.mov", 0.5), ("video_at_10s.mkv", 10.0), ("negative.mkv", -0.25)])  # fmt: skip
def test_audio_starts_where_it_does(name: str, start: float, sounding: Callable[[str], Path]) -> None:
    video, _ = probe(sounding(name), "auto")
    assert abs(video["audio_first_sample"] / video["audio_rate"] - start) < 0.03


def test_an_index_gives_audio_back(sounding: Callable[[str], Path], tmp_path: Path) -> None:
    names = ["aac.mp4", "opus.webm", "aac.ts"]
    (tmp_path / "media").mkdir()
    for name in names:
        (tmp_path / "media" / name).symlink_to(sounding(name))
    build_index(
        IndexOptions(sources=[str(tmp_path / "media")], out=tmp_path / "INDEX", workers=1, follow_symlinks=True)
    )
    index = Index(tmp_path / "INDEX")
    for row in some(index.videos.to_pylist()):
        audio = index.audio(row["media_id"])
        _, frames = probe(sounding(Path(row["uri"]).name), "auto")
        assert audio is not None
        assert audio.sample.tolist() == frames["audio_sample"].tolist()
        assert audio.size.tolist() == frames["audio_size"].tolist()
        assert (audio.offset is None) == (frames["audio_offset"] is None)
        if audio.offset is not None:
            assert audio.offset.tolist() == frames["audio_offset"].tolist()


def test_a_video_without_audio_has_none(index: Index) -> None:
    row = next(row for row in index.videos.to_pylist() if row["uri"].endswith("h264_default.mp4"))
    assert index.audio(row["media_id"]) is None
    assert (row["audio_stream_index"], row["audio_problem"]) == (None, None)


@pytest.mark.parametrize("depth", ["auto", "packets"])
def test_corpus_audio_is_what_a_full_decode_presents_or_has_a_reason(corpus: Path, depth: Depth) -> None:
    found = {}
    for path in sorted(corpus.iterdir()):
        if path.suffix in {".md", ".py", ".json"} or not path.is_file():
            continue
        for video, frames in probe_medium(ProbeTask(path=str(path), depth=depth))[:1]:
            if video.get("audio_stream_index") is None or video["status"] != "ok":
                continue
            found[path.name] = video.get("audio_problem")
            if video.get("audio_problem") is None:
                check(path, video, frames)
    assert {"audio_offset.mkv", "audio_offset.mp4", "audio_interleaved.ts", "audio_interleaved.avi"} <= found.keys()
    assert [name for name, problem in found.items() if problem and not name.startswith(("trunc", "corrupt"))] == []


def test_counting_ignores_rounding_and_sees_gaps() -> None:
    samples = np.full(100, 1024, np.int64)
    true = np.cumsum(samples) - samples + 441
    true[60:] += 4410
    pts = np.round(true / 44.1).astype(np.int64)
    pts[[7, 31]] = NO_PTS
    found = positions(pts, samples, Fraction(1, 1000), 44_100)
    assert np.abs(found - true).max() <= 2
    assert (np.diff(found) == np.where(np.arange(99) == 59, found[60] - found[59], 1024)).all()


def test_a_first_packet_between_two_milliseconds_makes_no_gap() -> None:
    """Opus in Matroska: a pre-skip of 6.5 ms puts the first packet at -7 ms, and the second at 14 in place of 13.5."""
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
    """libavformat states such times in Ogg, of Vorbis whose blocks change their size at the beginning of a page."""
    samples = np.full(100, 1024, np.int64)
    true = np.cumsum(samples) - samples
    stated = true.copy()
    stated[[20, 40, 60]] += (448, 448, -600)
    assert positions(stated, samples, Fraction(1, 44_100), 44_100).tolist() == true.tolist()


def test_timestamps_that_turn_back_or_scatter_are_refused() -> None:
    samples = np.full(100, 1024, np.int64)
    pts = np.cumsum(samples) - samples
    with pytest.raises(AudioProblem, match="turn back"):
        positions(np.where(np.arange(100) > 50, pts - 3000, pts), samples, Fraction(1, 44_100), 44_100)
    with pytest.raises(AudioProblem, match="irregular"):
        positions(pts + np.arange(100) * 500, samples, Fraction(1, 44_100), 44_100)


def test_trimming_is_that_of_libavcodec() -> None:
    sample, samples, nothing = np.arange(5) * 100, np.full(5, 100, np.int64), np.zeros(5, np.bool_)
    assert presented(sample, samples, {}, nothing) == (0, 500)
    assert presented(sample, samples, {0: (130, 0), 4: (0, 60)}, nothing) == (130, 440)
    assert presented(sample, samples, {0: (100, 0)}, np.arange(5) == 0) == (100, 500)
    with pytest.raises(AudioProblem, match="in between"):
        presented(sample, samples, {2: (0, 60)}, nothing)
    with pytest.raises(AudioProblem, match="all samples"):
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


@pytest.mark.parametrize("name", ["late.mkv", "mp3.mkv", "ac3.mkv"])
def test_tables_of_mp4_made_of_matroska_tell_all(
    name: str, sounding: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its durations waver as milliseconds do, and packets overlap; the audio is not demuxed for that."""
    path = tmp_path / "remuxed.mp4"
    with av.open(str(sounding(name))) as source, av.open(str(path), "w") as out:
        streams = {stream.index: out.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream_index]
                out.mux(packet)
    with monkeypatch.context() as patch:
        patch.setattr(audio, "_from_packets", lambda *arguments: pytest.fail("demuxed"))
        tables = probe(path, "auto")
    monkeypatch.setattr(audio, "_from_tables", lambda *arguments: None)
    demuxed = probe(path, "auto")
    assert tables[0].get("audio_problem") is None
    for column in ("audio_first_sample", "audio_end_sample"):
        assert tables[0][column] == demuxed[0][column]
    for column in ("audio_sample", "audio_offset", "audio_size"):
        assert np.array_equal(tables[1][column], demuxed[1][column])
    assert (np.diff(tables[1]["audio_sample"]) == tables[1]["audio_sample"][1] - tables[1]["audio_sample"][0]).all()
