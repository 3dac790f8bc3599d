"""The index locates audio packets by byte in the file and by sample in time, exactly as a full decode does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.codec.context import Flags2
from numpy.typing import NDArray

import framedex
from framedex import Index
from framedex.indexer.probing import probe_audio as audio
from tests.support.counted import some
from tests.support.probed import facts_of, probed, rows_found
from tests.support.sounding_media import MEDIA, SCATTERED, make

Row = dict[str, Any]
PLAYERS_DECODERS = {"mp3": "mp3float"}  # libavformat's streams use a decoder other than that of the canonical name


@dataclass(frozen=True)
class Truth:
    """A full decode: the times that its frames state, in samples, and all samples, [channels, samples]."""

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
    """Return the bytes of the ranges, or, for a medium without ranges, the packets that demuxing returns."""
    if offset is not None:
        content = path.read_bytes()
        return [content[a : a + n] for a, n in zip(offset.tolist(), size.tolist(), strict=True)]
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(container.streams.audio[0]) if packet.size]


def laid_out(video: Row, frames: Row, path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Decode all indexed packets with a new decoder and place them at their positions.

    Returns:
        [channels, samples] within the presented interval without holes, and the position of each sample.
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


def probe(path: Path, depth: str) -> tuple[Row, Row]:
    return probed(path, depth=depth)


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
    """Return a function that returns a medium by name."""
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


@pytest.mark.parametrize(
    ("name", "start"),
    [("late.mp4", 0.5), ("late.mkv", 0.5), ("late_pcm.mov", 0.5), ("video_at_10s.mkv", 10.0), ("negative.mkv", -0.25)],
)
def test_audio_starts_where_it_does(name: str, start: float, sounding: Callable[[str], Path]) -> None:
    video, _ = probe(sounding(name), "auto")
    assert abs(video["audio_first_sample"] / video["audio_rate"] - start) < 0.03


def test_an_index_gives_audio_back(sounding: Callable[[str], Path], tmp_path: Path) -> None:
    names = ["aac.mp4", "opus.webm", "aac.ts"]
    (tmp_path / "media").mkdir()
    for name in names:
        (tmp_path / "media" / name).symlink_to(sounding(name))
    framedex.index(tmp_path / "media", tmp_path / "INDEX", workers=0, follow_symlinks=True, progress=False)
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
def test_corpus_audio_is_what_a_full_decode_presents_or_has_a_reason(corpus: Path, depth: str) -> None:
    found = {}
    for path in sorted(corpus.iterdir()):
        if path.suffix in {".md", ".py", ".json"} or not path.is_file():
            continue
        for video, frames in rows_found(facts_of(path, depth=depth))[:1]:
            if video.get("audio_stream_index") is None or video["status"] != "ok":
                continue
            found[path.name] = video.get("audio_problem")
            if video.get("audio_problem") is None:
                check(path, video, frames)
    assert {"audio_offset.mkv", "audio_offset.mp4", "audio_interleaved.ts", "audio_interleaved.avi"} <= found.keys()
    assert [name for name, problem in found.items() if problem and not name.startswith(("trunc", "corrupt"))] == []


@pytest.mark.parametrize("name", ["late.mkv", "mp3.mkv", "ac3.mkv"])
def test_tables_of_mp4_made_of_matroska_tell_all(
    name: str, sounding: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durations vary because they were rounded to milliseconds, and packets overlap; still, no audio is demuxed."""
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
