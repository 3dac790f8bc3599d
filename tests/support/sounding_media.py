"""Recipes of videos with audio, in every codec and container for which an index of audio exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

SECONDS = 1.6


@dataclass(frozen=True, kw_only=True)
class VideoWithAudio:
    """A video with audio.

    Attributes:
        start: the time at which the audio starts, in seconds.
        video_start: the time at which the video starts, in seconds.
        gap: (at sample, samples left out).
    """

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


UNOFFICIAL = {"strict": "-2"}
MEDIA = {
    medium.name: medium
    for medium in (
        VideoWithAudio(name="aac.mp4", codec="aac"),
        VideoWithAudio(name="aac.mkv", codec="aac"),
        VideoWithAudio(name="aac.ts", codec="aac"),
        VideoWithAudio(name="aac.flv", codec="aac"),
        VideoWithAudio(name="aac_surround.mov", codec="aac", rate=48_000, layout="5.1"),
        VideoWithAudio(name="aac_fragmented.mp4", codec="aac", muxer={"movflags": "frag_keyframe+empty_moov"}),
        VideoWithAudio(name="aac_no_edit_list.mp4", codec="aac", muxer={"use_editlist": "0"}),
        VideoWithAudio(name="mp3.mp4", codec="libmp3lame"),
        VideoWithAudio(name="mp3.avi", codec="libmp3lame"),
        VideoWithAudio(name="mp3.mkv", codec="libmp3lame"),
        VideoWithAudio(name="opus.webm", codec="libopus", rate=48_000),
        VideoWithAudio(name="opus.mp4", codec="libopus", rate=48_000),
        VideoWithAudio(name="opus.ogg", codec="libopus", rate=48_000),
        VideoWithAudio(name="opus_60ms.mkv", codec="libopus", rate=48_000, layout="mono",
                       options={"frame_duration": "60"}),
        VideoWithAudio(name="vorbis.webm", codec="vorbis"),
        VideoWithAudio(name="vorbis.ogg", codec="vorbis"),
        VideoWithAudio(name="flac.mkv", codec="flac"),
        VideoWithAudio(name="flac.ogg", codec="flac"),
        VideoWithAudio(name="flac.mp4", codec="flac", muxer=UNOFFICIAL),
        VideoWithAudio(name="alac.mp4", codec="alac"),
        VideoWithAudio(name="alac.mkv", codec="alac"),
        VideoWithAudio(name="ac3.mkv", codec="ac3", rate=48_000),
        VideoWithAudio(name="ac3.ts", codec="ac3", rate=48_000),
        VideoWithAudio(name="eac3.mp4", codec="eac3", rate=48_000),
        VideoWithAudio(name="mp2.ts", codec="mp2", rate=48_000),
        VideoWithAudio(name="pcm_s16.mov", codec="pcm_s16le"),
        VideoWithAudio(name="pcm_s16_mono.avi", codec="pcm_s16le", layout="mono"),
        VideoWithAudio(name="pcm_s16.mkv", codec="pcm_s16le"),
        VideoWithAudio(name="pcm_s24.mov", codec="pcm_s24le"),
        VideoWithAudio(name="pcm_s24.mkv", codec="pcm_s24le"),
        VideoWithAudio(name="pcm_f32.mov", codec="pcm_f32le"),
        VideoWithAudio(name="pcm_f32.avi", codec="pcm_f32le", layout="mono"),
        VideoWithAudio(name="pcm_u8.avi", codec="pcm_u8", layout="mono"),
        VideoWithAudio(name="pcm_u8.mov", codec="pcm_u8"),
        VideoWithAudio(name="pcm_surround.mov", codec="pcm_s16be", rate=48_000, layout="5.1"),
        VideoWithAudio(name="pcm_surround.mkv", codec="pcm_s16le", rate=48_000, layout="5.1"),
        VideoWithAudio(name="adpcm.avi", codec="adpcm_ms"),
        VideoWithAudio(name="late.mp4", codec="aac", start=0.5),
        VideoWithAudio(name="late.mkv", codec="aac", start=0.5),
        VideoWithAudio(name="a_little_late.mp4", codec="aac", start=0.03),
        VideoWithAudio(name="a_little_late_mp3.mp4", codec="libmp3lame", start=0.03),
        VideoWithAudio(name="a_little_late_ac3.mp4", codec="ac3", rate=48_000, seconds=0.99, start=0.02),
        VideoWithAudio(name="a_little_late_alac.mp4", codec="alac", start=0.03),
        VideoWithAudio(name="a_little_late_flac.mp4", codec="flac", start=0.03, muxer=UNOFFICIAL),
        VideoWithAudio(name="a_little_late_opus.mp4", codec="libopus", rate=48_000, seconds=0.993, start=0.01),
        VideoWithAudio(name="whole_packets.mp4", codec="aac", rate=48_000, seconds=1.024),
        VideoWithAudio(name="late_pcm.mov", codec="pcm_s16le", start=0.5),
        VideoWithAudio(name="early_end.mp4", codec="aac", seconds=0.7),
        VideoWithAudio(name="early_end.mkv", codec="libopus", rate=48_000, seconds=0.7),
        VideoWithAudio(name="gap.mp4", codec="aac", gap=(0.6, 0.4)),
        VideoWithAudio(name="gap.mkv", codec="aac", gap=(0.6, 0.4)),
        VideoWithAudio(name="gap.ts", codec="aac", gap=(0.6, 0.4)),
        VideoWithAudio(name="gap_flac.mp4", codec="flac", gap=(0.6, 0.4), muxer=UNOFFICIAL),
        VideoWithAudio(name="video_at_10s.mkv", codec="aac", start=10.0, video_start=10.0),
        VideoWithAudio(name="video_at_10s.ts", codec="aac", start=10.0, video_start=10.0),
        VideoWithAudio(name="negative.mkv", codec="pcm_s16le", start=-0.25, muxer={"avoid_negative_ts": "disabled"}),
        VideoWithAudio(name="negative.mp4", codec="aac", start=-0.25),
    )
}  # fmt: skip

# Media whose packets are not byte ranges of the file.
SCATTERED = (".ts", ".ogg")
VIDEO_CODECS = {".webm": "libvpx", ".ogg": "libvpx", ".flv": "flv"}


def make(medium: VideoWithAudio, path: Path) -> Path:
    """Encode a medium: 2 s of video, with noise in which all samples are distinguishable."""
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


def _encode(medium: VideoWithAudio, sound: Any, formats: list[str]) -> list[av.Packet[Any]]:
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
