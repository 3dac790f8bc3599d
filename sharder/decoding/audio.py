"""Decoding of a stretch of audio with PyAV. The samples equal those that a full decode presents there."""

from __future__ import annotations

from fractions import Fraction

import av.error
import av.logging
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from framedex.core.pyav import audio_plane
from framedex.errors import DecodeError
from framedex.indexer.audio.audio_decoding import make_decoder
from framedex.indexer.containers.opening import decode_packet, packet_with
from framedex.records.recipe import AudioRecipe
from framedex.sharder.clips.audio import AudioFacts

# Dither for coefficients of no bits is drawn from each packet's own data, not from a generator that has run since the
# beginning; `ffmpeg -cons_noisegen 1` does the same. (Encoders and decoders share no generator: ATSC A/52 7.3.4.)
OPTIONS = {"ac3": {"cons_noisegen": "1"}, "eac3": {"cons_noisegen": "1"}}
# Integer samples are scaled by 2^-(bits - 1): packed type → (its zero, its scale). Samples with fewer bits than their
# type (24 of 32) are stored shifted up, so the scale of the type applies to them too.
INTEGERS = {"u8": (128, 2.0**-7), "s16": (0, 2.0**-15), "s32": (0, 2.0**-31), "s64": (0, 2.0**-63)}


SAMPLE_TYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}


def decode_audio(
    facts: AudioFacts, recipe: AudioRecipe, payload: bytes | memoryview
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the samples of exactly the recipe's interval, at the medium's rate.

    Args:
        payload: The recipe's packets, joined.

    Returns:
        Samples, float32 [channels, samples], and mask, bool [samples]. Where the medium presents nothing (before a late
            track, after an early end, in gaps) samples are zero and the mask is False. 32-bit integers are rounded to
            float32; all others are exact.

    Raises:
        DecodeError: The audio does not decode.
    """
    count = recipe.end_sample - recipe.begin_sample
    samples, mask = np.zeros((facts.channels, count), np.float32), np.zeros(count, np.bool_)
    low, high = max(recipe.begin_sample, facts.first_sample), min(recipe.end_sample, facts.end_sample)
    data, edges = memoryview(payload), np.append(0, np.cumsum(recipe.packet_size, dtype=np.int64)).tolist()
    if edges[-1] != len(data):
        raise _undecodable(f"{len(data)} bytes for packets of {edges[-1]}")
    context = _open_decoder(facts)
    starts = recipe.packet_sample.tolist()
    for number, start in enumerate(starts):
        # Packets before the wanted samples may fail to decode: they refer back to data that was not read.
        discarded = number + 1 < len(starts) and starts[number + 1] <= low
        position = start
        for frame in _decode(context, data[edges[number] : edges[number + 1]], start, facts, discarded):
            position = position if frame.pts is None else frame.pts
            first, stop = max(position, low), min(position + frame.samples, high)
            if first < stop:
                _check(frame, facts)
                place = slice(first - recipe.begin_sample, stop - recipe.begin_sample)
                samples[:, place] = as_float(frame)[:, first - position : stop - position]
                mask[place] = True
            position += frame.samples
    return samples, mask


def _open_decoder(facts: AudioFacts) -> AudioCodecContext:
    av.logging.set_level(None)
    try:
        context = make_decoder(facts.coding)
    except (av.error.FFmpegError, ValueError, TypeError, OverflowError) as error:
        raise _undecodable(f"the decoder does not take what is recorded of the medium: {error}") from error
    context.options = dict(OPTIONS.get(facts.codec, {}))
    if facts.bits_per_coded_sample:
        context.options |= {"bits_per_coded_sample": str(facts.bits_per_coded_sample)}
    return context


def _decode(
    context: AudioCodecContext, data: memoryview, start: int, facts: AudioFacts, discarded: bool
) -> list[AudioFrame]:
    """Return the frames of one packet, whose first sample is `start`.

    Raises:
        DecodeError: The packet does not decode, and its frames are not to be discarded.
    """
    packet = packet_with(data)
    packet.pts, packet.time_base = start, Fraction(1, facts.rate)
    try:
        return decode_packet(context, packet)
    except av.error.FFmpegError as error:
        if discarded:
            return []
        raise _undecodable(f"the decoder stops at sample {start}: {error.strerror}") from error


def _check(frame: AudioFrame, facts: AudioFacts) -> None:
    found = len(frame.layout.channels), frame.sample_rate
    if found != (facts.channels, facts.rate):
        raise _undecodable(
            f"{found[0]} channels at {found[1]} Hz at sample {frame.pts}, not {facts.channels} at {facts.rate}"
        )


def as_float(frame: AudioFrame) -> NDArray[np.float32]:
    """Return a frame as float32 [channels, samples] of full scale 1.

    Planes are taken by the number of channels (see `audio_plane`).
    """
    kind, channels = frame.format.packed.name, len(frame.layout.channels)
    planes = [
        np.frombuffer(audio_plane(frame, number), SAMPLE_TYPES[kind])  # type: ignore[call-overload, unused-ignore]  # of some numpy versions
        for number in range(channels if frame.format.is_planar else 1)
    ]
    if frame.format.is_planar:
        values = np.stack([plane[: frame.samples] for plane in planes])
    else:
        values = planes[0][: frame.samples * channels].reshape(-1, channels).T
    if kind in INTEGERS:
        zero, scale = INTEGERS[kind]
        return ((values.astype(np.float64) - zero) * scale).astype(np.float32)
    return values.astype(np.float32)


def _undecodable(what: str) -> DecodeError:
    return DecodeError(f"audio: {what}", remedy="index the medium again")
