"""The sound of packed clips: one FLAC or WAV file a sample, beside its frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from framedex.errors import DecodeError, StaleError
from framedex.sharder.audio import SoundFile, audio_facts
from framedex.sharder.audio_files import encode_flac, encode_wav, flac_bits
from framedex.sharder.clip import Clip
from framedex.sharder.clip_audio import ClipAudio, read_audio, stretches
from framedex.sharder.pack import Step
from framedex.sharder.schema import AUDIO_COLUMNS
from framedex.sharder.sources import SourceFiles
from framedex.sharder.tars import Member
from framedex.sharder.writer import Failure

SoundFormat = Literal["flac", "wav"]
SOUND_FORMATS: tuple[SoundFormat, ...] = ("flac", "wav")


def with_sound(steps: Iterable[Step], form: SoundFormat) -> Iterator[Step]:
    """Yield every step, packed clips that carry audio with a sound file, or failures where it does not decode."""
    sources = SourceFiles()
    for step in steps:
        clip = step.outcome
        if isinstance(clip, Failure) or clip.audio is None or not step.members:
            yield step
            continue
        try:
            yield _sounding(step, clip, sources, form)
        except (StaleError, DecodeError) as error:
            kind = "stale" if isinstance(error, StaleError) else "undecodable"
            failure = Failure(clip_id=clip.clip_id, uri=clip.medium.uri, kind=kind, message=error.text())
            yield Step(outcome=failure, done=step.done)


def _sounding(step: Step, clip: Clip, sources: SourceFiles, form: SoundFormat) -> Step:
    audio = read_audio(clip, sources)
    assert audio is not None  # asked by the caller
    assert clip.audio is not None
    content = (
        encode_wav(audio.samples, audio.rate)
        if form == "wav"
        else encode_flac(audio.samples, audio.rate, _bits(clip, audio))
    )
    before = sum(len(member) for member in step.members)
    file = SoundFile(offset=before, length=len(content), present=stretches(audio.mask))
    packed = replace(clip, audio=replace(clip.audio, recipe=file), audio_source=None)
    return replace(step, outcome=packed, members=(*step.members, Member(suffix=form, pieces=[content])))


def _bits(clip: Clip, audio: ClipAudio) -> int:
    """Return the bits that keep a medium's own samples; of what was mixed or resampled, 24."""
    facts = audio_facts({name: getattr(clip.medium, name) for name in AUDIO_COLUMNS})
    if facts is None:
        return 16  # silence
    return flac_bits(facts) if (audio.rate, len(audio.samples)) == (facts.rate, facts.channels) else 24
