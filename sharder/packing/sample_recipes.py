"""What a sample of a tar says about the decoding of its files, so that it can be decoded without the manifest.

It is one text in the sample's JSON, which is JSON itself: the recipe of the clip within its files, and what a decoder
is told of the medium. As a text, it has the same type in every sample, which readers of tables rely on.

The audio of packed clips: one FLAC or WAV file per sample, beside its frames.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt, check_row
from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DecodeError, FormatError, StaleError
from framedex.files.headers import is_since
from framedex.indexer.parts.packets import check_video
from framedex.indexer.schema import SCANNED
from framedex.records.clip import AUDIO, SAMPLE, AudioFile, ClipAudioPlan, ClipRecord, Failure, Recipe
from framedex.records.columns import columns_of, json_of, values_of_json
from framedex.records.medium import VIDEO, MediumRecord
from framedex.sharder import schema
from framedex.sharder.clips.clip import CONTENT_ALONE, ByteSource, Clip, Medium, internal_failure, tell_unproven
from framedex.sharder.clips.rows import check_audio_file, check_recipe, check_wanted
from framedex.sharder.clips.samples import Member, Step
from framedex.sharder.decoding.audio import ClipAudio, encode_flac, encode_wav, flac_bits, read_audio, stretches
from framedex.sharder.reading import SourceFiles

Row = dict[str, Any]

KEY = "framedex"  # of the text in a sample's JSON
VERSION = 1  # of the text; readers accept this one
# Columns of the medium that a decoder and an item need.
STORED_COLUMNS = {name: one for name, one in columns_of(MediumRecord).items() if SAMPLE in one.also_in}
MISSING_DEFAULTS: Row = dict.fromkeys(schema.MEDIA.names) | {"states": [b""]}
REMEDY = "fetch the tar again from where it came, or pack the clips again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClip:
    """A clip of a sample.

    Attributes:
        clip: the clip; its ranges are those of its files, joined.
        files: the names of these files without `KEY.`.
    """

    clip: Clip
    files: list[str]


def recipe_text(clip: Clip, files: Sequence[str]) -> str:
    """Return the text about a packed clip. `files`: its files without `KEY.`; joined, they hold its ranges."""
    medium = clip.medium
    return as_text(
        {
            "version": VERSION,
            "schema": schema.SCHEMA_VERSION,
            "files": list(files),
            "columns": list(clip.columns),
            "medium": {name: getattr(medium, name) for name in STORED_COLUMNS}
            | {"extradata": None if medium.extradata is None else base64.b64encode(medium.extradata).decode()},
            "recipe": {"range_crc32": None} | json_of(clip.recipe, SAMPLE),
        }
    )


def with_audio_text(text: str, plan: ClipAudioPlan, present: NDArray[np.int64], suffix: str) -> str:
    """Return the text with the clip's audio file, which lies behind the other files.

    Args:
        text: the text without it.
        plan: the clip's audio.
        present: int64 [2 × stretches], as in `AudioFile`.
        suffix: the file's name without `KEY.`.
    """
    audio = {AUDIO + name: value for name, value in json_of(plan, SAMPLE).items()} | {"audio_present": present}
    told = orjson.loads(text)
    return as_text(told | {"files": [*told["files"], suffix], "audio": audio})


def as_text(told: Row) -> str:
    """Return values as one line of JSON."""
    return orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY, default=_listed).decode()


def _listed(value: object) -> object:
    if isinstance(value, np.ndarray):  # an array that is not contiguous
        return value.tolist()
    raise TypeError(type(value).__name__)


def sample_clip(content: Mapping[str, Any], sizes: Mapping[str, int], where: str) -> SampleClip:
    """Return the clip of a sample.

    Args:
        content: the sample's JSON.
        sizes: the size of each file in bytes, by its name without `KEY.`.
        where: the sample, for messages.

    Raises:
        FormatError: the JSON lacks what is needed, is of another version, or does not fit the files.
    """
    told = _told(content, where)
    try:
        return _clip(content, told, sizes, where)
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=repr(error)[:80], remedy=REMEDY) from error


def _told(content: Mapping[str, Any], where: str) -> Row:
    """Return the text about a clip, parsed."""
    text = content.get(KEY)
    if text is None:
        raise FormatError(
            f"the sample's JSON does not say how its files are decoded (key {KEY!r})",
            where=where,
            found=f"keys {', '.join(list(content)[:5])} …" if content else "no keys",
            allowed="samples of framedex shard --pack, from dataset schema 3.4 on",
            remedy="pack the clips again, or load the dataset with ClipStream or ClipDataset",
        )
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=error, remedy=REMEDY) from error
    version = told.get("version") if isinstance(told, dict) else None
    if version != VERSION:
        raise FormatError(
            "the sample is of another version",
            where=where,
            found=f"version {version!r}",
            allowed=VERSION,
            remedy="pack the clips again with this framedex, or install the framedex that packed them",
        )
    return dict(told)


def _clip(content: Mapping[str, Any], told: Row, sizes: Mapping[str, int], where: str) -> SampleClip:
    at = RowAt(file=where, row=0, remedy=REMEDY)
    files = [str(name) for name in told["files"]]
    _check_files(files, sizes, where)
    size = sum(sizes[name] for name in files)
    source = ByteSource(path=where, size_bytes=size, mtime_ns=CONTENT_ALONE, fingerprint="")
    medium = _medium(told["medium"], str(content["uri"]), source, at)
    if medium.kind == VIDEO and medium.codec not in SCANNED and not is_since(str(told.get("schema")), schema.PROVES):
        tell_unproven("tars", (medium.codec,))
    wanted = values_of_json(ClipRecord, content, SAMPLE, at)
    check_wanted(wanted, medium, at)
    clip = Clip(
        **wanted,
        medium=medium,
        columns={name: content[name] for name in told["columns"]},
        recipe=_recipe(told["recipe"], wanted["frames"], medium, source, at),
        source=source,
        audio=_audio(told.get("audio"), files, sizes, source, at),
    )
    return SampleClip(clip=clip, files=files)


def _check_files(files: Sequence[str], sizes: Mapping[str, int], where: str) -> None:
    if len(set(files)) < len(files):
        raise FormatError("the sample names a file twice", where=where, found=", ".join(files)[:80], remedy=REMEDY)
    missing = [name for name in files if name not in sizes]
    if missing or not files:
        raise FormatError(
            "the sample lacks a file",
            where=where,
            found=f"no {', '.join(missing)} among {', '.join(sizes) or 'no files'}",
            allowed=", ".join(files),
            remedy=REMEDY,
        )


def _medium(told: Row, uri: str, source: ByteSource, at: RowAt) -> Medium:
    # A tar of an earlier version may lack a later column.
    facts = MISSING_DEFAULTS | {
        name: told[name] if one.is_needed else told.get(name) for name, one in STORED_COLUMNS.items()
    }
    facts["extradata"] = None if told["extradata"] is None else base64.b64decode(told["extradata"], validate=True)
    for name in STORED_COLUMNS:
        _check_type(name, facts[name], at)
    check_row(facts, {name: rule for name, rule in schema.MEDIA_RULES.items() if name in STORED_COLUMNS}, at)
    check_video(facts, at)
    own = {"uri": uri, "size_bytes": source.size_bytes, "mtime_ns": source.mtime_ns, "fingerprint": source.fingerprint}
    return Medium(path=source.path, **facts | own)


def _check_type(name: str, value: object, at: RowAt) -> None:
    """Raise FormatError for a value that column `name` of the media never has."""
    kind = schema.MEDIA.field(name).type
    types = {pa.bool_(): bool, pa.float64(): float, pa.int32(): int, pa.int64(): int}
    expected = types.get(kind, str)
    if type(value) is not expected and not (value is None and schema.MEDIA.field(name).nullable):
        raise at.wrong(name, repr(value), f"a value of type {expected.__name__}")


def _recipe(told: Row, frames: NDArray[np.int64], medium: Medium, source: ByteSource, at: RowAt) -> Recipe:
    columns = values_of_json(Recipe, told, SAMPLE, at)
    columns["run_state"] = np.zeros(len(columns["run_first"]), np.int32)
    check_recipe(columns, frames, medium, source, at)
    return Recipe(**columns)


def _audio(
    told: Row | None, files: Sequence[str], sizes: Mapping[str, int], source: ByteSource, at: RowAt
) -> ClipAudioPlan | None:
    if told is None:
        return None
    plan, length = values_of_json(ClipAudioPlan, told, SAMPLE, at, prefix=AUDIO), sizes[files[-1]]
    file = values_of_json(AudioFile, told, SAMPLE, at, prefix=AUDIO) | {
        "range_offset": np.array([source.size_bytes - length], np.int64),
        "range_length": np.array([length], np.int64),
    }
    check_audio_file({AUDIO + name: value for name, value in (plan | file).items()}, source, at)
    return ClipAudioPlan(**plan, recipe=AudioFile(**file))


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
