"""CONTRACT: the audio of a clip, from its frames to its samples: one call plans, one decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.index import AudioPackets
from framedex.indexer.timeline import NO_PTS
from framedex.sharder.audio import AudioFacts, AudioRecipe, plan_audio
from framedex.sharder.audio_decoder import decode_audio
from framedex.sharder.audio_mix import margin, mix_matrix, remix, resample


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioOptions:
    """How a dataset's audio is asked for. rate, channels: None for the medium's own. seconds: None for the clip's length."""

    rate: int | None = None
    channels: int | None = None
    seconds: Fraction | None = None

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("channels", self.channels), ("seconds", self.seconds)):
            if value is not None and value <= 0:
                raise PolicyError(f"audio {name} that is not above 0", found=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudioPlan:
    """What a clip's audio is and how to get it. rate, channels: of the output. first, count: its samples on k / rate."""

    recipe: AudioRecipe
    rate: int
    channels: int
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudio:
    """A clip's sound. samples: float32 [channels, samples], zero where the medium presents nothing. mask: bool [samples],
    False there. first: the first sample's place on the grid k / rate of the medium's clock."""

    samples: NDArray[np.float32]
    mask: NDArray[np.bool_]
    rate: int
    first: int


def clip_interval(
    pts: NDArray[np.int64], end_pts: int, frames: NDArray[np.int64], time_base: Fraction
) -> tuple[Fraction, Fraction]:
    """Return seconds: when the first of the wanted frames is shown, and when the last one ends.

    pts: int64 [presented], the video's frames in presentation order. end_pts: when the last of them ends. frames: int64
    [wanted], negative where padded, in any order. A frame ends when the next one begins. Raises PolicyError where a time
    is not known, and for padding alone.
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
    """Plan the audio of an interval of the medium's clock, or of `options.seconds` from its begin. Raises PolicyError.

    The first sample is the first of the output's grid k / rate that is not before the begin; there are as many as the grid
    has before the end, or round(seconds × rate), so that clips of one length can be stacked.
    """
    rate, channels = options.rate or facts.rate, options.channels or facts.channels
    mix_matrix(facts.layout, facts.channels, channels)  # refuses now what could not be mixed later
    first = math.ceil(begin_seconds * rate)
    count = math.ceil(end_seconds * rate) - first if options.seconds is None else round(options.seconds * rate)
    recipe = plan_audio(packets, facts, Fraction(first, rate), Fraction(first + count, rate), margin(facts.rate, rate))
    return ClipAudioPlan(recipe=recipe, rate=rate, channels=channels, first=first, count=count)


def decode_clip_audio(facts: AudioFacts, plan: ClipAudioPlan, payload: bytes | memoryview) -> ClipAudio:
    """Return the planned audio. payload: the recipe's packets, joined. Raises DecodeError."""
    samples, mask = decode_audio(facts, plan.recipe, payload)
    mixed = remix(samples, facts.layout, plan.channels)
    resampled, presented = resample(
        mixed, mask, plan.recipe.begin_sample, facts.rate, plan.rate, plan.first, plan.count
    )
    return ClipAudio(samples=resampled, mask=presented, rate=plan.rate, first=plan.first)
