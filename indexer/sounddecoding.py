"""Decoding audio at index time, with a decoder made from nothing but what the index records of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import av
import av.error
from av.audio.codeccontext import AudioCodecContext
from av.codec.context import Flags2

from framedex.indexer.opening import memory_errors
from framedex.indexer.soundtimes import AudioProblem

DECODERS = {
    "mp3": "mp3float",
    "mp3adu": "mp3adufloat",
}  # what libavformat's streams get; the plain names are fixed-point


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """What a decoder of a stream must be given, and what it gives: codec by FFmpeg's canonical name, Hz, layout, format."""

    codec: str
    codec_tag: str | None
    extradata: bytes | None
    rate: int
    layout: str
    sample_format: str | None


def make_decoder(sound: Sound) -> AudioCodecContext:
    """Return a fresh decoder that trims no samples by itself (Opus' pre-skip). Raises AudioProblem without one."""
    try:
        context = av.CodecContext.create(DECODERS.get(sound.codec, sound.codec), "r")
        assert isinstance(context, AudioCodecContext)  # the codec is an audio stream's
        context.extradata = sound.extradata
        context.sample_rate = sound.rate
        context.layout = sound.layout
        context.flags2 |= Flags2.skip_manual.value
        context.thread_count = 1
        return context
    except (av.error.FFmpegError, ValueError) as error:
        raise AudioProblem(f"no decoder for {sound.codec}: {error}") from error


def count_samples(sound: Sound, packets: Iterable[bytes]) -> list[int]:
    """Return how many samples each packet decodes to, with a fresh decoder.

    Raises AudioProblem for packets that do not decode, of which samples come late, or that change the configuration.
    """
    context = make_decoder(sound)
    counts: list[int] = []
    try:
        for data in packets:
            packet: av.Packet[Any] = av.Packet(len(data))
            packet.update(data)
            counts.append(_samples(sound, len(counts), _decode(context, packet)))
        late = _samples(sound, len(counts), _decode(context, None))
    except av.error.FFmpegError as error:
        raise AudioProblem(f"audio packet {len(counts)} does not decode: {error.strerror}") from error
    if late:
        raise AudioProblem(f"the decoder of {sound.codec} holds {late} samples back")
    return counts


def _decode(context: AudioCodecContext, packet: av.Packet[Any] | None) -> Sequence[av.AudioFrame]:
    with memory_errors():
        return context.decode(packet)


def _samples(sound: Sound, number: int, frames: Sequence[av.AudioFrame]) -> int:
    for frame in frames:
        found = (frame.sample_rate, frame.layout.nb_channels)
        if found != (sound.rate, av.AudioLayout(sound.layout).nb_channels):
            raise AudioProblem(f"audio packet {number} has {found[1]} channels at {found[0]} Hz, unlike the first")
    return sum(frame.samples for frame in frames)
