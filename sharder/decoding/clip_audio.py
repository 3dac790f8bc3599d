"""The audio of a clip, from its frames to its samples: one call plans, one decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from framedex.core.memory import check_room
from framedex.errors import DecodeError, PolicyError
from framedex.records.clip import NO_PTS
from framedex.records.packets import AudioPackets
from framedex.records.recipe import AudioFile, AudioRecipe, ClipAudioPlan
from framedex.sharder.clips.audio import AudioFacts, AudioOptions, plan_audio
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.clips.clip import Clip
from framedex.sharder.decoding.audio import decode_audio
from framedex.sharder.decoding.audio_files import decode_file
from framedex.sharder.decoding.resampling import filter_bytes, margin, mix_matrix, remix, resample

SAMPLE_BYTES = 4  # of float32
RATE_OF_SILENCE = 48_000  # if neither the dataset nor the medium states a rate


class ReadsRanges(Protocol):
    """What byte ranges are read from: `SourceFiles`, or `HeldBytes`."""

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return uint8 [bytes]: some ranges of a source, joined."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudio:
    """A clip's audio.

    Attributes:
        samples: float32 [channels, samples], zero where the medium presents nothing.
        mask: bool [samples], False where the medium presents nothing.
        rate: Samples per second.
        first: Number of the first sample on the grid k / rate of the medium's clock.
    """

    samples: NDArray[np.float32]
    mask: NDArray[np.bool_]
    rate: int
    first: int


def clip_interval(
    pts: NDArray[np.int64], end_pts: int, frames: NDArray[np.int64], time_base: Fraction
) -> tuple[Fraction, Fraction]:
    """Return when the first of the wanted frames is shown and when the last one ends, in seconds.

    A frame ends when the next one begins.

    Args:
        pts: int64 [presented], the video's frames in presentation order.
        end_pts: When the last of these frames ends.
        frames: int64 [wanted], in any order, negative where padded.

    Raises:
        PolicyError: A time is not known, or all frames are padding.
    """
    real = frames[frames >= 0]
    if not len(real):
        raise PolicyError("the audio of padding alone", found=f"{len(frames)} padded frames")
    first, last = int(real.min()), int(real.max())
    begin, end = int(pts[first]), int(pts[last + 1]) if last + 1 < len(pts) else end_pts
    if NO_PTS in (begin, end):
        raise PolicyError("audio in step needs timestamps", found=f"frames {first} to {last} without them")
    return begin * time_base, max(begin, end) * time_base


def plan_clip_audio(
    facts: AudioFacts, packets: AudioPackets, begin_seconds: Fraction, end_seconds: Fraction, options: AudioOptions
) -> ClipAudioPlan:
    """Plan the audio of an interval of the medium's clock, or of `options.seconds` from its beginning.

    The first sample is the first one on the output's grid k / rate that is not before the begin. The number of samples
    is that of the grid before the end, or round(seconds × rate), so that clips of equal length can be stacked.

    Raises:
        PolicyError: The audio cannot be planned.
    """
    rate, channels = options.rate or facts.rate, options.channels or facts.channels
    mix_matrix(facts.layout, facts.channels, channels)  # raises early if the channels cannot be mixed
    first, count = _on_grid(begin_seconds, end_seconds, rate, options)
    recipe = plan_audio(packets, facts, Fraction(first, rate), Fraction(first + count, rate), margin(facts.rate, rate))
    return ClipAudioPlan(recipe=recipe, rate=rate, channels=channels, first=first, count=count)


def plan_silence(begin_seconds: Fraction, end_seconds: Fraction, options: AudioOptions) -> ClipAudioPlan:
    """Plan the audio of a clip whose medium has none: silence of the same length that its audio would have."""
    rate = options.rate or RATE_OF_SILENCE
    first, count = _on_grid(begin_seconds, end_seconds, rate, options)
    nothing = np.zeros(0, np.int64)
    recipe = AudioRecipe(
        range_offset=nothing,
        range_length=nothing,
        packet_size=nothing.astype(np.int32),
        packet_sample=nothing,
        begin_sample=0,
        end_sample=0,
    )
    return ClipAudioPlan(recipe=recipe, rate=rate, channels=options.channels or 1, first=first, count=count)


def _on_grid(begin_seconds: Fraction, end_seconds: Fraction, rate: int, options: AudioOptions) -> tuple[int, int]:
    """Return a clip's first sample on the grid k / rate, and its number of samples."""
    first = math.ceil(begin_seconds * rate)
    return first, math.ceil(end_seconds * rate) - first if options.seconds is None else round(options.seconds * rate)


def read_audio(clip: Clip, sources: ReadsRanges) -> ClipAudio | None:
    """Return a clip's audio, or None if the dataset has no audio. Raises StaleError, DecodeError."""
    plan = clip.audio
    if plan is None:
        return None
    check_room(audio_bytes(clip), audio_text(plan), where=f"clip {clip.clip_id}")
    source = clip.source if clip.audio_source is None else clip.audio_source
    if isinstance(plan.recipe, AudioFile):
        file = sources.read_ranges(source, plan.recipe.range_offset, plan.recipe.range_length)
        return _from_file(plan, plan.recipe.present, file.tobytes())
    facts = clip.medium.audio
    if facts is None or not len(plan.recipe.packet_size):
        silence = np.zeros((plan.channels, plan.count), np.float32)
        return ClipAudio(samples=silence, mask=np.zeros(plan.count, np.bool_), rate=plan.rate, first=plan.first)
    payload = sources.read_ranges(source, plan.recipe.range_offset, plan.recipe.range_length)
    return decode_clip_audio(facts, plan, plan.recipe, payload.data)


def audio_bytes(clip: Clip) -> int:
    """Return the memory that reading and decoding the audio of a clip takes, in bytes."""
    plan, facts = clip.audio, clip.medium.audio
    if plan is None:
        return 0
    delivered = plan.count * (plan.channels * SAMPLE_BYTES + 1)  # with the mask
    if isinstance(plan.recipe, AudioFile):
        return delivered + int(plan.recipe.range_length.sum())
    if facts is None or not len(plan.recipe.packet_size):
        return delivered
    decoded = (plan.recipe.end_sample - plan.recipe.begin_sample) * (
        (facts.channels + plan.channels) * SAMPLE_BYTES + 1
    )
    packets = int(plan.recipe.packet_size.sum(dtype=np.int64))
    return delivered + decoded + packets + filter_bytes(facts.rate, plan.rate)


def audio_text(plan: ClipAudioPlan) -> str:
    """Return a description of a clip's audio, for messages about its memory."""
    return f"{plan.count:,} samples of {plan.channels} channels at {plan.rate} Hz"


def _from_file(plan: ClipAudioPlan, present: NDArray[np.int64], data: bytes) -> ClipAudio:
    samples = decode_file(data, channels=plan.channels, count=plan.count, rate=plan.rate)
    mask = np.zeros(plan.count, np.bool_)
    for begin, end in present.reshape(-1, 2).tolist():
        mask[begin:end] = True
    return ClipAudio(samples=samples, mask=mask, rate=plan.rate, first=plan.first)


def stretches(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64 [2 × stretches]: begin and end of each stretch of True."""
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))).astype(np.int64)


def decode_clip_audio(
    facts: AudioFacts, plan: ClipAudioPlan, recipe: AudioRecipe, payload: bytes | memoryview
) -> ClipAudio:
    """Return the planned audio.

    Args:
        payload: The recipe's packets, joined.

    Raises:
        DecodeError: The audio does not decode, or has other samples than the clip's.
    """
    samples, mask = decode_audio(facts, recipe, payload)
    mixed = remix(samples, facts.layout, plan.channels)
    try:
        resampled, presented = resample(mixed, mask, recipe.begin_sample, facts.rate, plan.rate, plan.first, plan.count)
    except ValueError as error:  # fewer samples were read than are wanted
        raise DecodeError("audio of other samples than the clip's", found=error) from error
    return ClipAudio(samples=resampled, mask=presented, rate=plan.rate, first=plan.first)
