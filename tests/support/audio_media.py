"""Recipes of audio media, what an index would state about their packets, and what a player's full decode presents."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags2
from numpy.typing import NDArray

from framedex.records.clip import AudioRecipe
from framedex.records.medium import AudioPackets
from framedex.sharder.clips.clip import AudioFacts
from tests.support.ffmpeg import ffmpeg

DATA = Path(__file__).parents[1] / "data"
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1"}


@dataclass(frozen=True, kw_only=True)
class AudioMedium:
    """One medium of synthetic sound.

    Attributes:
        lost: packets that are left out, which makes a gap.
        late_seconds: the time at which the sound begins.
        by_command: encoded by the ffmpeg command, because PyAV does not include the encoder.
        stored: a file in tests/data, encoded by FFmpeg 5.1, because few builds of FFmpeg include the encoder.
    """

    name: str
    codec: str
    rate: int = 44_100
    channels: int = 2
    format: str | None = None
    seconds: float = 4.0
    options: dict[str, str] = field(default_factory=dict)
    lost: range = range(0)
    late_seconds: int = 0
    by_command: bool = False
    stored: bool = False

    @property
    def source(self) -> NDArray[np.float32]:
        """Sweeps, noise, clicks and silence, float32 [channels, samples], so that every tool of a codec is used."""
        rng = np.random.default_rng(len(self.name))
        count = int(self.seconds * self.rate)
        time = np.arange(count) / self.rate
        sound = np.stack([0.3 * np.sin(2 * np.pi * (200 + 150 * c + 400 * time) * time) for c in range(self.channels)])
        sound += 0.05 * rng.standard_normal(sound.shape) * (np.sin(5 * time) > 0)
        sound[:, rng.integers(0, count, 8)] += 0.5
        sound[:, (time > 1.5) & (time < 1.7)] = 0
        return np.clip(sound, -0.99, 0.99).astype(np.float32)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        AudioMedium(name="aac.mp4", codec="aac"),
        AudioMedium(name="aac_without_noise.mp4", codec="aac", options={"aac_pns": "0"}),
        AudioMedium(name="aac_surround.mp4", codec="aac", rate=48_000, channels=6, options={"aac_pns": "0"}),
        AudioMedium(name="aac.mkv", codec="aac", options={"aac_pns": "0"}),
        AudioMedium(name="aac.ts", codec="aac", rate=48_000, options={"aac_pns": "0"}),
        AudioMedium(name="aac_late.mp4", codec="aac", options={"aac_pns": "0"}, late_seconds=2),
        AudioMedium(name="aac_gap.mp4", codec="aac", options={"aac_pns": "0"}, lost=range(60, 90)),
        AudioMedium(name="mp3.mp3", codec="libmp3lame", options={"b": "128000"}),
        AudioMedium(name="mp3_low.mkv", codec="libmp3lame", rate=22_050, channels=1, options={"b": "16000"}),
        AudioMedium(name="mp3_variable.mp4", codec="libmp3lame", rate=48_000, options={"q": "4"}),
        AudioMedium(name="mp2.ts", codec="mp2", rate=48_000),
        AudioMedium(name="mp2.mkv", codec="mp2"),
        AudioMedium(name="opus.ogg", codec="libopus", rate=48_000),
        AudioMedium(name="opus.mp4", codec="libopus", rate=48_000, options={"frame_duration": "60"}),
        AudioMedium(name="opus_voice.mkv", codec="libopus", rate=48_000, channels=1,
                    options={"b": "16000", "application": "voip"}),
        AudioMedium(name="vorbis.ogg", codec="vorbis", options={"strict": "experimental"}),
        AudioMedium(name="vorbis.mkv", codec="vorbis", options={"strict": "experimental"}),
        AudioMedium(name="ac3.mp4", codec="ac3", rate=48_000),
        AudioMedium(name="ac3_surround.ts", codec="ac3", rate=48_000, channels=6, options={"b": "384000"}),
        AudioMedium(name="eac3.mkv", codec="eac3", rate=48_000),
        AudioMedium(name="flac.flac", codec="flac", format="s16"),
        AudioMedium(name="flac_24.mkv", codec="flac", format="s32"),
        AudioMedium(name="alac.mp4", codec="alac", format="s16p"),
        AudioMedium(name="alac_24.mov", codec="alac", format="s32p"),
        AudioMedium(name="pcm_16.wav", codec="pcm_s16le"),
        AudioMedium(name="pcm_24.mov", codec="pcm_s24le"),
        AudioMedium(name="pcm_float.mov", codec="pcm_f32le"),
        AudioMedium(name="pcm_8.wav", codec="pcm_u8", rate=8_000, channels=1),
        AudioMedium(name="pcm_surround.mkv", codec="pcm_s16le", rate=48_000, channels=6),
        AudioMedium(name="wavpack.mkv", codec="wavpack", format="s16p"),
        AudioMedium(name="tta.mkv", codec="tta", format="s16"),
        AudioMedium(name="dts.mkv", codec="dca", rate=48_000, by_command=True),
        AudioMedium(name="truehd.mkv", codec="truehd", rate=48_000, by_command=True),
        AudioMedium(name="speex.ogg", codec="libspeex", rate=16_000, channels=1, stored=True),
        AudioMedium(name="libvorbis.ogg", codec="libvorbis", by_command=True),
    )
}  # fmt: skip

NOISY = {
    "aac.mp4"
}  # its encoder codes noise by its level only, and every decode draws new noise (ISO/IEC 14496-3 4.6.13)


def encode(recipe: AudioMedium, path: Path) -> Path:
    """Encode a recipe into a file; return its path."""
    layout = LAYOUTS[recipe.channels]
    if recipe.stored:
        shutil.copy(DATA / recipe.name, path)
        return path
    if recipe.by_command:
        raw = ["-f", "f32le", "-ar", str(recipe.rate), "-ac", str(recipe.channels), "-i", "-"]
        command = [ffmpeg(), "-v", "error", "-y", *raw, "-c:a", recipe.codec, "-strict", "experimental", str(path)]
        subprocess.run(command, input=recipe.source.T.tobytes(), check=True)
        return path
    with av.open(str(path), "w") as out:
        stream = out.add_stream(recipe.codec, rate=recipe.rate, layout=layout, options=recipe.options)
        assert isinstance(stream, AudioStream)
        if recipe.format:
            stream.codec_context.format = recipe.format
        stream.codec_context.open(False)
        whole = av.AudioFrame.from_ndarray(recipe.source, format="fltp", layout=layout)
        whole.sample_rate = recipe.rate
        whole.pts, whole.time_base = recipe.late_seconds * recipe.rate, Fraction(1, recipe.rate)
        resampler = av.AudioResampler(
            stream.codec_context.format, layout, recipe.rate, stream.codec_context.frame_size or 1024
        )
        number = 0
        for frame in [*resampler.resample(whole), *resampler.resample(None), None]:
            for packet in stream.encode(frame):
                if number not in recipe.lost:
                    out.mux(packet)
                number += 1
    return path


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What an index states about a medium, and what a player presents.

    Samples are float32 [channels, samples] from facts.first_sample on. The mask is bool [samples] and False in gaps.
    """

    packets: AudioPackets
    facts: AudioFacts
    samples: NDArray[np.float32]
    mask: NDArray[np.bool_]
    payload: list[bytes]

    def payload_of(self, recipe: AudioRecipe) -> bytes:
        """Return the result of reading a recipe's packets."""
        if not len(recipe.packet_sample):
            return b""
        first = int(np.searchsorted(self.packets.sample, recipe.packet_sample[0]))
        return b"".join(self.payload[first : first + len(recipe.packet_size)])

    def cut(self, begin: int, end: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return samples and mask of the half-open interval; samples that the player does not present are zero."""
        samples, mask = np.zeros((self.facts.channels, end - begin), np.float32), np.zeros(end - begin, np.bool_)
        low, high = max(begin, self.facts.first_sample), min(end, self.facts.end_sample)
        if low < high:
            here, there = (
                slice(low - begin, high - begin),
                slice(low - self.facts.first_sample, high - self.facts.first_sample),
            )
            samples[:, here], mask[here] = self.samples[:, there], self.mask[there]
        return samples, mask


def as_float(frame: av.AudioFrame) -> NDArray[np.float32]:
    """Return a frame converted by swresample to float32 [channels, samples], with the same rate and channels."""
    converted = av.AudioResampler("fltp", frame.layout, frame.sample_rate).resample(frame)
    return np.concatenate([part.to_ndarray() for part in converted], axis=1)


def decoded_by_packet(path: Path, *, raw: bool) -> Iterator[tuple[av.Packet, list[av.AudioFrame]]]:
    """Yield packets and their frames as a player gets them, or with `raw` without any skipping or discarding."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        if raw:
            stream.codec_context.flags2 |= Flags2.skip_manual
        if stream.codec_context.name in {"ac3", "eac3"}:
            # The only difference from a player's defaults: the dither does not depend on what was decoded before.
            stream.codec_context.options = {"cons_noisegen": "1"}
        for packet in container.demux(stream):
            if packet.size:
                yield packet, stream.codec_context.decode(packet)


def truth(path: Path) -> Truth:
    """Return what an index and a player state about a file's first audio stream."""
    sizes = [sum(frame.samples for frame in frames) for _, frames in decoded_by_packet(path, raw=True)]
    played = list(decoded_by_packet(path, raw=False))
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        context = stream.codec_context
        rate, index = context.sample_rate, stream.index
        known = {
            "codec": context.codec.canonical_name, "codec_tag": context.codec_tag or None, "rate": rate,
            "channels": len(context.layout.channels), "layout": context.layout.name,
            "sample_format": context.format.name,
            "bits_per_coded_sample": None, "extradata": context.extradata,
        }  # fmt: skip
    position = _positions(sizes, played, rate)
    pieces = []
    for number, (_, frames) in enumerate(played):
        if frames:
            whole = np.concatenate([as_float(frame) for frame in frames], axis=1)
            trimmed_in_front = sizes[number] - whole.shape[1] if not pieces and number + 1 < len(played) else 0
            pieces.append((position[number] + trimmed_in_front, whole))
    first, end = pieces[0][0], max(place + whole.shape[1] for place, whole in pieces)
    samples, mask = np.zeros((known["channels"], end - first), np.float32), np.zeros(end - first, np.bool_)
    for place, whole in pieces:
        samples[:, place - first : place - first + whole.shape[1]] = whole
        mask[place - first : place - first + whole.shape[1]] = True
    payload = [bytes(packet) for packet, _ in played]
    return Truth(
        packets=AudioPackets(
            sample=np.array(position, np.int64),
            offset=_offsets(path, played),
            size=np.array([len(data) for data in payload], np.int64),
        ),
        facts=AudioFacts(stream_index=index, first_sample=first, end_sample=end, **known),
        samples=samples,
        mask=mask,
        payload=payload,
    )


def _positions(sizes: list[int], played: list[tuple[av.Packet, list[av.AudioFrame]]], rate: int) -> list[int]:
    """Return each packet's first sample: from the timestamp if it jumps, otherwise where the previous packet ended.

    A jump that the next timestamp reverts is ignored: libavformat states such times for Vorbis in Ogg, and a player,
    which plays the decoder's output, is not affected by it.
    """
    anchor = next(number for number, (_, frames) in enumerate(played) if frames)
    frames = played[anchor][1]
    assert frames[0].pts is not None
    assert frames[0].time_base is not None
    position = [0] * len(sizes)
    position[anchor] = round(frames[0].pts * frames[0].time_base * rate) - (
        sizes[anchor] - sum(f.samples for f in frames)
    )
    for number in reversed(range(anchor)):
        position[number] = position[number + 1] - sizes[number]
    for number in range(anchor + 1, len(sizes)):
        position[number] = position[number - 1] + sizes[number - 1]
        frames = played[number][1]
        if frames and frames[0].pts is not None and frames[0].time_base is not None:
            stated = round(frames[0].pts * frames[0].time_base * rate)
            jump = stated - position[number]
            following = played[number + 1][1] if number + 1 < len(played) else []
            if abs(jump) > rate // 200 and following and following[0].pts is not None:
                then = round(following[0].pts * frames[0].time_base * rate) - position[number] - sizes[number]
                jump = 0 if abs(then) <= rate // 200 else jump
            if abs(jump) > rate // 200:
                position[number] = stated
    return position


def _offsets(path: Path, played: list[tuple[av.Packet, list[av.AudioFrame]]]) -> NDArray[np.int64] | None:
    """Return where packets lie unchanged in the file, in file order; None if one of them does not."""
    data, offsets, after = path.read_bytes(), [], 0
    for packet, _ in played:
        after = data.find(bytes(packet), after)
        if after < 0:
            return None
        offsets.append(after)
        after += packet.size
    return np.array(offsets, np.int64)
