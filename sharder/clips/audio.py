"""Planning of audio: from an interval of time to the audio packets that give it. Pure functions over numpy columns.

An interval gives samples, and samples give packets. The plan also takes earlier packets: as many as the codec must have
decoded for its output to equal that of a decode from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from framedex.errors import PolicyError
from framedex.indexer.audio.audio_decoding import AudioCoding
from framedex.records.packets import AudioPackets
from framedex.records.recipe import AudioRecipe
from framedex.sharder.clips.recipe import coalesce

MOST_CHANNELS = 8  # PyAV gives every plane of up to this many channels


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFacts:
    """A medium's audio stream: the `audio_…` columns of `videos` without that prefix.

    Attributes:
        first_sample: First sample that a full decode presents, on the grid of `rate`.
        end_sample: End (exclusive) of the samples that a full decode presents, on the same grid.
    """

    stream_index: int
    codec: str
    codec_tag: str | None
    rate: int
    channels: int
    layout: str
    sample_format: str | None
    bits_per_coded_sample: int | None
    extradata: bytes | None
    first_sample: int
    end_sample: int

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.channels <= 0 or self.end_sample < self.first_sample:
            raise ValueError(
                f"audio of {self.channels} channels at {self.rate} Hz, samples {self.first_sample} to {self.end_sample}"
            )

    @property
    def coding(self) -> AudioCoding:
        """The parameters that a decoder of the stream must be given."""
        return AudioCoding(
            codec=self.codec,
            codec_tag=self.codec_tag,
            extradata=self.extradata,
            rate=self.rate,
            layout=self.layout,
            sample_format=self.sample_format,
        )


def audio_facts(row: Mapping[str, Any]) -> AudioFacts | None:
    """Return the audio facts of a row of `videos` or `media`, or None if the row has no usable audio."""
    if row["audio_stream_index"] is None or row.get("audio_problem") is not None:
        return None
    return AudioFacts(**{name: row[f"audio_{name}"] for name in AudioFacts.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioOptions:
    """The audio that a dataset's clips get.

    Attributes:
        rate: In Hz; None for the medium's own rate.
        channels: None for the medium's own number of channels.
        seconds: None for the clip's length.
    """

    rate: int | None = None
    channels: int | None = None
    seconds: Fraction | None = None

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("channels", self.channels), ("seconds", self.seconds)):
            if value is not None and value <= 0:
                raise PolicyError(f"audio {name} that is not above 0", found=value)

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values, as dataset.json records them."""
        return {
            "rate": self.rate,
            "channels": self.channels,
            "seconds": None if self.seconds is None else str(self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PreRoll:
    """What a fresh decoder must have decoded before its output is correct.

    Attributes:
        packets: Number of preceding packets. Each must have all its own data available.
        seconds: Minimum duration of the preceding packets.
        reservoir_bytes: Number of preceding data bytes that those packets may point back to.
        overhead_bytes: Bytes of each packet that do not count towards `reservoir_bytes`.
    """

    packets: int = 0
    seconds: Fraction = Fraction(0)
    reservoir_bytes: int = 0
    overhead_bytes: int = 0


# A transform codec's output is the sum of two windows: ISO/IEC 14496-3 4.6.11 (AAC), Vorbis I 1.3.2, ATSC A/52 7.9.4.
# One packet makes AAC-LC, Vorbis, AC-3 and E-AC-3 bit-equal (measured by benchmarks/audio_alignment.py). AAC has two
# more: SBR uses the previous frame (14496-3 4.6.18), and the filters of parametric stereo ring on (8.6.4). E-AC-3 has
# one in reserve.
# MPEG audio: polyphase synthesis remembers 480 samples (ISO/IEC 11172-3 2.4.3.4). Layer 3 overlaps granules, and a
# frame at a low sample rate has one granule. main_data_begin points back up to 511 bytes (2.4.2.7). Headers and side
# information, at most 4 + 2 + 32 bytes, are not main data.
# Opus predicts from its earlier output. RFC 7845 4.6 asks for 80 ms; after that, whole clips were measured at -13 dB.
# One second brings speech to 100 dB and most music to equality.
# TrueHD restarts at major syncs, which are at most 128 access units apart (FFmpeg's decoder; measured).
# DTS and Speex continue from earlier output without a bound. Codecs that are not listed are refused: Microsoft's ADPCM
# and WMA decode to noise if block sizes are unknown, and an index does not record them.
PRE_ROLL: dict[str, PreRoll | None] = {
    "aac": PreRoll(packets=3),
    "ac3": PreRoll(packets=1),
    "alac": PreRoll(),
    "dts": None,
    "eac3": PreRoll(packets=2),
    "flac": PreRoll(),
    "mp2": PreRoll(packets=1),
    "mp3": PreRoll(packets=2, reservoir_bytes=511, overhead_bytes=38),
    "opus": PreRoll(seconds=Fraction(1)),
    "speex": None,
    "truehd": PreRoll(packets=128),
    "tta": PreRoll(),
    "vorbis": PreRoll(packets=1),
    "wavpack": PreRoll(),
}


def pre_roll(codec: str) -> PreRoll | None:
    """Return what must be decoded before a codec's output is correct, or None if it must be decoded from its beginning.

    Every PCM packet is independent.

    Raises:
        PolicyError: The codec was not measured.
    """
    if codec.startswith("pcm_"):
        return PreRoll()
    if codec not in PRE_ROLL:
        raise PolicyError(
            "audio of a codec that was not measured to decode exactly from the middle",
            found=codec,
            allowed=f"pcm_…, {', '.join(PRE_ROLL)}",
        )
    return PRE_ROLL[codec]


def plan_audio(
    packets: AudioPackets, facts: AudioFacts, begin_seconds: Fraction, end_seconds: Fraction, margin_samples: int = 0
) -> AudioRecipe:
    """Return the recipe for the samples of a half-open interval of the medium's clock.

    Args:
        margin_samples: Number of additional samples on each side, at the medium's rate.

    Raises:
        PolicyError: The interval ends before it begins, the codec was not measured, or there are too many channels.
    """
    if facts.channels > MOST_CHANNELS:
        raise PolicyError("audio of too many channels", found=facts.channels, allowed=f"1 to {MOST_CHANNELS}")
    if end_seconds < begin_seconds:
        raise PolicyError("an audio interval that ends before it begins", found=f"{begin_seconds} to {end_seconds} s")
    begin = math.floor(begin_seconds * facts.rate) - margin_samples
    end = math.ceil(end_seconds * facts.rate) + margin_samples
    first, stop = _packets_of(packets, facts, pre_roll(facts.codec), begin, end)
    size = packets.size[first:stop]
    offset, length = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if packets.offset is not None:
        offset, length = coalesce(packets.offset[first:stop], size)
    return AudioRecipe(
        range_offset=offset,
        range_length=length,
        packet_size=size.astype(np.int32),
        packet_sample=packets.sample[first:stop],
        begin_sample=begin,
        end_sample=end,
    )


def _packets_of(
    packets: AudioPackets, facts: AudioFacts, need: PreRoll | None, begin: int, end: int
) -> tuple[int, int]:
    """Return the packets to decode for samples begin to end as (first, end), end exclusive; equal if there are none."""
    begin, end = max(begin, facts.first_sample), min(end, facts.end_sample)
    if begin >= end or not len(packets.sample):
        return 0, 0
    # If several packets claim one position, only the last gives samples; the others are included too.
    stop = int(np.searchsorted(packets.sample, end, side="left"))
    target = max(int(np.searchsorted(packets.sample, begin, side="right")) - 1, 0)
    target = int(np.searchsorted(packets.sample, packets.sample[target], side="left"))
    if target >= stop:
        return 0, 0
    return (0 if need is None else _rolled_back(packets, facts.rate, need, target)), stop


def _rolled_back(packets: AudioPackets, rate: int, need: PreRoll, target: int) -> int:
    """Return the first packet to decode so that the output of packet `target` is correct."""
    first = max(target - need.packets, 0)
    if need.seconds:
        earliest = int(packets.sample[target]) - math.ceil(need.seconds * rate)
        first = min(first, max(int(np.searchsorted(packets.sample, earliest, side="right")) - 1, 0))
    missing = need.reservoir_bytes
    while missing > 0 and first > 0:
        first -= 1
        missing -= max(int(packets.size[first]) - need.overhead_bytes, 0)
    return first
