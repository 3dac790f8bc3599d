"""Write and read the recipe in the JSON of each tar sample, so that the sample can be decoded without the manifest.

The recipe has the clip's byte ranges within the sample's files, and the properties of the medium that a decoder needs.
The whole recipe is stored as one string of JSON, because readers that turn samples into table rows need a value that
has the same type in every sample.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt, check_row
from framedex.errors import FormatError
from framedex.files.headers import is_since
from framedex.indexer.parts.packets import check_video
from framedex.indexer.schema import SCANNED
from framedex.records.clip import AUDIO, SAMPLE, AudioFile, ClipAudioPlan, ClipRecord, Recipe
from framedex.records.columns import columns_of, json_of, values_of_json
from framedex.records.medium import VIDEO, MediumRecord
from framedex.sharder import schema
from framedex.sharder.clips.clip import CONTENT_ALONE, ByteSource, Clip, Medium, tell_unproven
from framedex.sharder.clips.rows import check_audio_file, check_recipe, check_wanted

Row = dict[str, Any]

KEY = "framedex"  # the key of the recipe in a sample's JSON
VERSION = 1  # the version of the recipe's layout; readers reject any other version
# The columns of the medium that decoders and the items of a loader need.
STORED_COLUMNS = {name: one for name, one in columns_of(MediumRecord).items() if SAMPLE in one.also_in}
MISSING_DEFAULTS: Row = dict.fromkeys(schema.MEDIA.names) | {"states": [b""]}
REMEDY = "copy the tar again from its origin, or pack the clips again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClip:
    """A clip that was read from a sample of a tar.

    Attributes:
        clip: The clip. Its ranges are offsets into the concatenated contents of `files`.
        files: The names of the sample's files that hold the clip, without the sample's key and the dot after it.
    """

    clip: Clip
    files: list[str]


def recipe_text(clip: Clip, files: Sequence[str]) -> str:
    """Return the recipe of a packed clip as a string of JSON.

    Args:
        clip: The clip. Its ranges are offsets into the concatenated contents of `files`.
        files: The names of the sample's files that hold the clip, without the sample's key and the dot after it.
    """
    medium = clip.medium
    return _as_text(
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
    """Add the clip's audio file to a recipe. Its byte range begins after the contents of the other files.

    Args:
        text: The recipe without the audio file.
        plan: The plan of the clip's audio.
        present: int64 [2 × stretches], the begin and the end (exclusive) of each stretch of samples with audio.
        suffix: The name of the audio file, without the sample's key and the dot after it.
    """
    audio = {AUDIO + name: value for name, value in json_of(plan, SAMPLE).items()} | {"audio_present": present}
    stored = orjson.loads(text)
    return _as_text(stored | {"files": [*stored["files"], suffix], "audio": audio})


def _as_text(stored: Row) -> str:
    # orjson serializes contiguous arrays and passes all others to `tolist`. For values that are not arrays, `tolist`
    # raises TypeError.
    return orjson.dumps(stored, option=orjson.OPT_SERIALIZE_NUMPY, default=np.ndarray.tolist).decode()


def sample_clip(content: Mapping[str, Any], sizes: Mapping[str, int], where: str) -> SampleClip:
    """Return the clip of a sample.

    Args:
        content: The parsed JSON of the sample.
        sizes: The size of each file in bytes. Keys are the files' names without the sample's key and the dot after it.
        where: The name of the sample in error messages.

    Raises:
        FormatError: The JSON is damaged, its recipe is missing or has an unsupported version, or the files do not match
            the recipe.
    """
    stored = _stored_recipe(content, where)
    try:
        return _clip(content, stored, sizes, where)
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=repr(error)[:80], remedy=REMEDY) from error


def _stored_recipe(content: Mapping[str, Any], where: str) -> Row:
    """Return the parsed recipe that a sample's JSON contains."""
    if (text := content.get(KEY)) is None:
        raise FormatError(
            f"the sample's JSON has no recipe for decoding its files (key {KEY!r})",
            where=where,
            found=f"keys {', '.join(list(content)[:5])} …" if content else "no keys",
            allowed="samples of framedex shard --pack, from dataset schema 3.4 on",
            remedy="pack the clips again, or load the dataset with ClipStream or ClipDataset",
        )
    try:
        stored = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=error, remedy=REMEDY) from error
    version = stored.get("version") if isinstance(stored, dict) else None
    if version != VERSION:
        raise FormatError(
            "the recipe in the sample's JSON has an unsupported version",
            where=where,
            found=f"version {version!r}",
            allowed=VERSION,
            remedy="pack the clips again with this version of framedex, or install the version that packed them",
        )
    return dict(stored)


def _clip(content: Mapping[str, Any], stored: Row, sizes: Mapping[str, int], where: str) -> SampleClip:
    at = RowAt(file=where, row=0, remedy=REMEDY)
    files = [str(name) for name in stored["files"]]
    _check_files(files, sizes, where)
    size = sum(sizes[name] for name in files)
    source = ByteSource(path=where, size_bytes=size, mtime_ns=CONTENT_ALONE, fingerprint="")
    medium = _medium(stored["medium"], str(content["uri"]), source, at)
    if medium.kind == VIDEO and medium.codec not in SCANNED and not is_since(str(stored.get("schema")), schema.PROVES):
        tell_unproven("tars", (medium.codec,))
    wanted = values_of_json(ClipRecord, content, SAMPLE, at)
    check_wanted(wanted, medium, at)
    recipe = values_of_json(Recipe, stored["recipe"], SAMPLE, at)
    recipe["run_state"] = np.zeros(len(recipe["run_first"]), np.int32)  # packets in files already include the states
    check_recipe(recipe, wanted["frames"], medium, source, at)
    audio = None if stored.get("audio") is None else _audio(stored["audio"], sizes[files[-1]], source, at)
    columns = {name: content[name] for name in stored["columns"]}
    clip = Clip(**wanted, medium=medium, columns=columns, recipe=Recipe(**recipe), source=source, audio=audio)
    return SampleClip(clip=clip, files=files)


def _check_files(files: Sequence[str], sizes: Mapping[str, int], where: str) -> None:
    if len(set(files)) < len(files):
        raise FormatError(
            "the sample's recipe lists a file twice", where=where, found=", ".join(files)[:80], remedy=REMEDY
        )
    missing = [name for name in files if name not in sizes]
    if missing or not files:
        raise FormatError(
            "a file of the sample is missing",
            where=where,
            found=f"no {', '.join(missing)} among {', '.join(sizes) or 'no files'}",
            allowed=", ".join(files),
            remedy=REMEDY,
        )


def _medium(stored: Row, uri: str, source: ByteSource, at: RowAt) -> Medium:
    # If an earlier version of framedex wrote the tar, columns that were added later are missing.
    facts = MISSING_DEFAULTS | {
        name: stored[name] if one.is_needed else stored.get(name) for name, one in STORED_COLUMNS.items()
    }
    facts["extradata"] = None if stored["extradata"] is None else base64.b64decode(stored["extradata"], validate=True)
    types = {pa.bool_(): bool, pa.float64(): float, pa.int32(): int, pa.int64(): int}
    for name in STORED_COLUMNS:
        column = schema.MEDIA.field(name)
        expected = types.get(column.type, str)
        if type(facts[name]) is not expected and not (facts[name] is None and column.nullable):
            raise at.wrong(name, repr(facts[name]), f"a value of type {expected.__name__}")
    check_row(facts, {name: rule for name, rule in schema.MEDIA_RULES.items() if name in STORED_COLUMNS}, at)
    check_video(facts, at)
    own = {"uri": uri, "size_bytes": source.size_bytes, "mtime_ns": source.mtime_ns, "fingerprint": source.fingerprint}
    return Medium(path=source.path, **facts | own)


def _audio(stored: Row, length: int, source: ByteSource, at: RowAt) -> ClipAudioPlan:
    """Return the plan of a clip's audio. The audio file is the last file of the sample and has `length` bytes."""
    plan = values_of_json(ClipAudioPlan, stored, SAMPLE, at, prefix=AUDIO)
    file = values_of_json(AudioFile, stored, SAMPLE, at, prefix=AUDIO) | {
        "range_offset": np.array([source.size_bytes - length], np.int64),
        "range_length": np.array([length], np.int64),
    }
    check_audio_file({AUDIO + name: value for name, value in (plan | file).items()}, source, at)
    return ClipAudioPlan(**plan, recipe=AudioFile(**file))
