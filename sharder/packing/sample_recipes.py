"""The recipe in the JSON of each sample of a tar, with which the sample decodes without the manifest.

It has the clip's recipe within the sample's files, and the properties of the medium that a decoder needs. The recipe is
JSON in one text value, because a text has the same type in every sample, on which readers of tables rely.
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
VERSION = 1  # the version of the recipe's layout; readers refuse others
# The columns of the medium that decoders and items need.
STORED_COLUMNS = {name: one for name, one in columns_of(MediumRecord).items() if SAMPLE in one.also_in}
MISSING_DEFAULTS: Row = dict.fromkeys(schema.MEDIA.names) | {"states": [b""]}
REMEDY = "fetch the tar again from where it came, or pack the clips again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClip:
    """A clip of a sample.

    Attributes:
        clip: The clip. Its ranges lie in the joined content of its files.
        files: The names of these files after the sample's key and a dot.
    """

    clip: Clip
    files: list[str]


def recipe_text(clip: Clip, files: Sequence[str]) -> str:
    """Return the recipe of a packed clip as text.

    Args:
        clip: The clip. Its ranges lie in the joined content of its files.
        files: The names of these files after the sample's key and a dot.
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
    """Return a recipe with the clip's audio file, whose content follows the other files.

    Args:
        text: The recipe without the audio file.
        plan: The clip's audio.
        present: int64 [2 × stretches], as in `AudioFile`.
        suffix: The audio file's name after the sample's key and a dot.
    """
    audio = {AUDIO + name: value for name, value in json_of(plan, SAMPLE).items()} | {"audio_present": present}
    stored = orjson.loads(text)
    return _as_text(stored | {"files": [*stored["files"], suffix], "audio": audio})


def _as_text(stored: Row) -> str:
    # orjson itself takes only contiguous arrays; `tolist` raises TypeError for anything but an array.
    return orjson.dumps(stored, option=orjson.OPT_SERIALIZE_NUMPY, default=np.ndarray.tolist).decode()


def sample_clip(content: Mapping[str, Any], sizes: Mapping[str, int], where: str) -> SampleClip:
    """Return the clip of a sample.

    Args:
        content: The sample's JSON.
        sizes: The size of each file in bytes, by its name after the sample's key and a dot.
        where: The sample's name for errors.

    Raises:
        FormatError: The JSON has no recipe, is damaged, is of another version, or does not fit the files.
    """
    stored = _stored_recipe(content, where)
    try:
        return _clip(content, stored, sizes, where)
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=repr(error)[:80], remedy=REMEDY) from error


def _stored_recipe(content: Mapping[str, Any], where: str) -> Row:
    """Return the parsed recipe of a sample's JSON."""
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
        stored = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=error, remedy=REMEDY) from error
    version = stored.get("version") if isinstance(stored, dict) else None
    if version != VERSION:
        raise FormatError(
            "the sample is of another version",
            where=where,
            found=f"version {version!r}",
            allowed=VERSION,
            remedy="pack the clips again with this framedex, or install the framedex that packed them",
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
    recipe["run_state"] = np.zeros(len(recipe["run_first"]), np.int32)  # the packets of files include all states
    check_recipe(recipe, wanted["frames"], medium, source, at)
    audio = None if stored.get("audio") is None else _audio(stored["audio"], sizes[files[-1]], source, at)
    columns = {name: content[name] for name in stored["columns"]}
    clip = Clip(**wanted, medium=medium, columns=columns, recipe=Recipe(**recipe), source=source, audio=audio)
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


def _medium(stored: Row, uri: str, source: ByteSource, at: RowAt) -> Medium:
    # A tar of an earlier version may lack a later column.
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
    """Return a clip's audio, whose file has `length` bytes and is the last one of the sample."""
    plan = values_of_json(ClipAudioPlan, stored, SAMPLE, at, prefix=AUDIO)
    file = values_of_json(AudioFile, stored, SAMPLE, at, prefix=AUDIO) | {
        "range_offset": np.array([source.size_bytes - length], np.int64),
        "range_length": np.array([length], np.int64),
    }
    check_audio_file({AUDIO + name: value for name, value in (plan | file).items()}, source, at)
    return ClipAudioPlan(**plan, recipe=AudioFile(**file))
