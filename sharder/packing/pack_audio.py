"""The audio of packed clips: one FLAC or WAV file per sample, beside its frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DecodeError, StaleError
from framedex.records.dataset import Failure
from framedex.records.recipe import AudioFile, ClipAudioPlan
from framedex.sharder.clips.clip import Clip, internal_failure
from framedex.sharder.clips.samples import Member, Step
from framedex.sharder.decoding.audio_files import encode_flac, encode_wav, flac_bits
from framedex.sharder.decoding.clip_audio import ClipAudio, read_audio, stretches
from framedex.sharder.packing.sample_recipes import KEY, with_audio_text
from framedex.sharder.reading.sources import SourceFiles

AudioFormat = Literal["flac", "wav"]
AUDIO_FORMATS: tuple[AudioFormat, ...] = ("flac", "wav")


def with_audio(steps: Iterable[Step], form: AudioFormat) -> Iterator[Step]:
    """Yield every step; packed clips that carry audio get an audio file, or become failures if it does not decode."""
    sources = SourceFiles()
    for step in steps:
        clip = step.outcome
        if isinstance(clip, Failure) or clip.audio is None or not step.members:
            yield step
            continue
        try:
            yield _with_file(step, clip, sources, form)
        except (StaleError, DecodeError) as error:
            kind = "stale" if isinstance(error, StaleError) else "undecodable"
            failure = Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind=kind, message=error.text())
            yield Step(outcome=failure, done=step.done)
        except MEDIUM_ERRORS:
            raise
        except Exception as error:  # a bug at one clip must not end the run for the others
            yield Step(outcome=internal_failure(clip.clip_id, clip.medium.name, error), done=step.done)


def _with_file(step: Step, clip: Clip, sources: SourceFiles, form: AudioFormat) -> Step:
    audio = read_audio(clip, sources)
    assert audio is not None  # checked by the caller
    assert clip.audio is not None
    content = (
        encode_wav(audio.samples, audio.rate)
        if form == "wav"
        else encode_flac(audio.samples, audio.rate, _bits(clip, audio))
    )
    present = stretches(audio.mask)
    members = [_described(member, clip.audio, present, form) for member in step.members]
    offset, length = np.array([sum(map(len, members))], np.int64), np.array([len(content)], np.int64)
    file = AudioFile(range_offset=offset, range_length=length, present=present)
    packed = replace(clip, audio=replace(clip.audio, recipe=file), audio_source=None)
    return replace(step, outcome=packed, members=(*members, Member(suffix=form, pieces=[content])))


def _described(member: Member, plan: ClipAudioPlan, present: NDArray[np.int64], form: AudioFormat) -> Member:
    """Return a member of a sample; its JSON with a description of the audio file."""
    if member.suffix != "json":
        return member
    content = orjson.loads(b"".join(piece for piece in member.pieces if isinstance(piece, bytes)))
    text = with_audio_text(content[KEY], plan, present, form)
    return replace(member, pieces=[orjson.dumps(content | {KEY: text})])


def _bits(clip: Clip, audio: ClipAudio) -> int:
    """Return the bits per sample that keep a medium's own samples; 24 for mixed or resampled samples."""
    facts = clip.medium.audio
    if facts is None:
        return 16  # silence
    return flac_bits(facts) if (audio.rate, len(audio.samples)) == (facts.rate, facts.channels) else 24
