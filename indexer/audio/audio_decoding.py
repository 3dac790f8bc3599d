"""Decodes audio with a decoder that is made only from what the index records of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import av
import av.error
from av.audio.codeccontext import AudioCodecContext
from av.codec.context import Flags2

from framedex.indexer.audio.audio_times import AudioProblem
from framedex.indexer.containers.opening import decode_packet, packet_with

# Floating-point decoders of codecs whose canonical name is that of a fixed-point decoder. FFmpeg's players use the same
# decoder for MP3. For MP1 and MP2 they use the 16-bit decoder, whose rounding carries over from sample to sample and
# thus depends on where decoding began.
DECODERS = {"mp1": "mp1float", "mp2": "mp2float", "mp3": "mp3float", "mp3adu": "mp3adufloat"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioCoding:
    """The parameters that a decoder of a stream must be given, and its output format.

    Attributes:
        codec: FFmpeg's canonical name.
        rate: in Hz.
        layout: channel layout.
        sample_format: FFmpeg's name.
    """

    codec: str
    codec_tag: str | None
    extradata: bytes | None
    rate: int
    layout: str
    sample_format: str | None


def make_decoder(coding: AudioCoding) -> AudioCodecContext:
    """Return a fresh decoder that trims no samples by itself.

    Raises:
        av.error.FFmpegError, ValueError: if there is no decoder for the codec.
    """
    context = av.CodecContext.create(DECODERS.get(coding.codec, coding.codec), "r")
    if not isinstance(context, AudioCodecContext):
        raise ValueError(f"{coding.codec} is no codec of audio")
    context.extradata = coding.extradata
    context.sample_rate = coding.rate
    context.layout = coding.layout
    if coding.sample_format:
        context.format = coding.sample_format
    if coding.codec_tag:
        context.codec_tag = coding.codec_tag
    # Otherwise a fresh decoder drops what the header says to drop at the beginning of the stream (Opus' pre-skip).
    context.flags2 |= Flags2.skip_manual
    context.thread_count = 1
    return context


def count_samples(coding: AudioCoding, packets: Iterable[bytes]) -> list[int]:
    """Return how many samples each packet decodes to, with a fresh decoder.

    Raises:
        AudioProblem: if there is no decoder, packets do not decode or change the configuration, or samples come late.
    """
    try:
        context = make_decoder(coding)
    except (av.error.FFmpegError, ValueError) as error:
        raise AudioProblem(f"no decoder for {coding.codec}: {error}") from error
    counts: list[int] = []
    try:
        for data in packets:
            counts.append(_samples(coding, len(counts), decode_packet(context, packet_with(data))))
        late = _samples(coding, len(counts), decode_packet(context, None))
    except av.error.FFmpegError as error:
        raise AudioProblem(f"audio packet {len(counts)} does not decode: {error.strerror}") from error
    if late:
        raise AudioProblem(f"the decoder of {coding.codec} holds {late} samples back")
    return counts


def _samples(coding: AudioCoding, number: int, frames: Sequence[av.AudioFrame]) -> int:
    for frame in frames:
        found = (frame.sample_rate, frame.layout.nb_channels)
        if found != (coding.rate, av.AudioLayout(coding.layout).nb_channels):
            raise AudioProblem(f"audio packet {number} has {found[1]} channels at {found[0]} Hz, unlike the first")
    return sum(frame.samples for frame in frames)
