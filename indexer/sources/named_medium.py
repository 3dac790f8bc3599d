"""Mentions of media, the form of a file by its name, and sidecars.

Sidecars are the files of a webdataset sample beside its video. They become columns of the user. The files of a sample
share a key, which is their path up to the first dot of the name. `a/b.left.mp4` has the key `a/b`.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from framedex.core.limits import MAX_NESTED, json_depth
from framedex.errors import MediaError
from framedex.files.parquet_parts import UNSTORABLE
from framedex.records.medium import SAMPLE_KEYS
from framedex.storage.objects import Facts

Form = Literal["video", "image", "folder", "tar", "parquet"]
Holder = Literal["tar", "parquet"]  # forms of files with several media
Images = Literal["sequences", "single", "ignore"]
Named = Literal["source", "list", "search"]

VIDEO_SUFFIXES = frozenset(
    [
        ".264",
        ".265",
        ".3g2",
        ".3gp",
        ".apng",
        ".asf",
        ".avi",
        ".divx",
        ".dv",
        ".f4v",
        ".flv",
        ".gif",
        ".h264",
        ".h265",
        ".hevc",
        ".ivf",
        ".m1v",
        ".m2t",
        ".m2ts",
        ".m2v",
        ".m4v",
        ".mjpeg",
        ".mjpg",
        ".mk3d",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mpv",
        ".mts",
        ".mxf",
        ".nut",
        ".obu",
        ".ogm",
        ".ogv",
        ".ogx",
        ".qt",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
        ".y4m",
    ]
)
IMAGE_SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})
TAR_SUFFIX = ".tar"
PARQUET_SUFFIX = ".parquet"
# Compressed tars count as tars. Reading one raises an error that explains how to decompress it.
TAR_ENDINGS = (TAR_SUFFIX, ".tgz", *(f".tar.{kind}" for kind in ("bz2", "gz", "lz4", "xz", "zst")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """Rows of a Parquet file, one for each frame of a stretch of a medium.

    Attributes:
        path: the absolute path, or the uri of an object.
        row: number of the row of the stretch's first frame.
    """

    path: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedium:
    """One mention of a medium in a source, a list or a listing.

    Attributes:
        path: the absolute path, or the uri of an object.
        spelled: the uri as the user spells it.
        columns: the user's columns, by name.
        row: the number of the row in the listing, from 0, or None if the mention is not from a listing.
        folder: the folder in which the medium was found, from which no link may lead out. None if the medium was named
            itself.
        error: the reason why the medium must not be opened, or None. A name that is not valid UTF-8 cannot be written
            into an index. Such a medium has an error, and `path` and `spelled` show its stray bytes as `\\xNN`.
        member: the name of one of several sequences of a folder, from a listing's column `sequence`.
        images: the names of a sequence's loose images in the folder `path`, in order. None for other media.
        fps: the rate of the images in a listing. None if it is not stated.
        seconds: a time for each image in a listing, or None for an image without a time. None if no times are stated.
        facts: the facts of an object, if its folder was listed.
        frame_table: the table with a row for each frame of the stretch that the mention is about.
        named: how the medium was named: `source` if it was named itself, `list` if a list or listing names it, and
            `search` if it was found in a folder or by a pattern.
    """

    path: str
    spelled: str
    columns: dict[str, Any] = field(default_factory=dict)
    row: int | None = None
    folder: str | None = None
    error: MediaError | None = None
    member: str | None = None
    images: tuple[str, ...] | None = None
    fps: Fraction | None = None
    seconds: tuple[float | None, ...] | None = None
    facts: Facts | None = None
    frame_table: FrameTable | None = None
    named: Named = "list"

    @property
    def form(self) -> Form:
        """How the medium is stored: a folder of images, one image, a tar, a Parquet file, or a video."""
        if self.images is not None:
            return "folder"
        return form_of(self.path)


def form_of(name: str) -> Form:
    """Return the form of a file by its name. A file that is not an image, tar or Parquet file may be a video."""
    if is_image_name(name):
        return "image"
    if is_tar_name(name):
        return "tar"
    return "parquet" if Path(name).suffix.lower() == PARQUET_SUFFIX else "video"


def is_image_name(name: str) -> bool:
    """Return whether a file name has the ending of an image, in upper or lower case."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def is_video_name(name: str) -> bool:
    """Return whether a file name has the ending of a video, in upper or lower case."""
    return Path(name).suffix.lower() in VIDEO_SUFFIXES


def is_tar_name(name: str) -> bool:
    """Return whether a file name has the ending of a tar, in upper or lower case."""
    return name.lower().endswith(TAR_ENDINGS)


def readable_name(name: str) -> str:
    """Return a file name with the bytes that are not valid UTF-8 shown as `\\xNN`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


Sidecar = Literal["json", "txt", "cls", "__key__"]
SIDECARS: tuple[Sidecar, ...] = get_args(Sidecar)
KEY: Sidecar = "__key__"
COLUMNS = "columns"  # the kind of sidecar that has the other columns of a Parquet file
# Columns of a listing that policies read. A key of a sidecar with one of these names, or of SAMPLE_KEYS, gets a prefix,
# since the writer of the sidecar did not mean it for framedex.
OF_STRETCHES = frozenset({"start", "end"})
MAX_SIDECAR_BYTES = 1 << 20
SAMPLE_FILE = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<ending>[^/]*)", re.DOTALL)


def sidecars_of(kinds: Iterable[str]) -> tuple[Sidecar, ...]:
    """Return kinds of sidecars by their names. Raises ValueError for other names."""
    names = list(kinds)
    wrong = [name for name in names if name not in SIDECARS]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: allowed are {', '.join(SIDECARS)}")
    return tuple(kind for kind in SIDECARS if kind in names)


def sample_parts(name: str) -> tuple[str, str] | None:
    """Return (key, ending in lower case) of a file of a sample, or None if its name does not have these parts."""
    match = SAMPLE_FILE.fullmatch(name)
    return None if match is None else (match["key"], match["ending"].lower())


def sidecar_text(
    wanted: Sequence[Sidecar], key: str | None, contents: Mapping[str, bytes], problems: Iterable[str] = ()
) -> tuple[str, str | None]:
    """Return (the values of a sample's sidecars as JSON, their problems or None).

    Args:
        wanted: the kinds that are read. Each has a value in the result, null if the sample has none.
        key: the key of the sample, or None if the name of the video has no key.
        contents: the bytes of the sidecars, by kind.
        problems: earlier problems, which come first in the result.
    """
    values: dict[str, Any] = {}
    said = list(problems)
    for kind in wanted:
        if kind == KEY:
            values[kind] = key
            continue
        values[kind] = None
        if kind in contents:
            try:
                values[kind] = _parsed(kind, contents[kind])
            except (ValueError, RecursionError) as error:
                said.append(f"{key}.{kind} {error}")
    return json.dumps(values), "; ".join(said) or None


def _parsed(kind: str, content: bytes) -> Any:
    """Return the value of a sidecar. Raises ValueError with the rest of a sentence about it."""
    try:
        text = content.decode("utf-8-sig" if kind == "json" else "utf-8")
    except UnicodeDecodeError:
        raise ValueError("is not valid UTF-8") from None
    if kind == "txt":
        return text
    if kind == "cls":
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"holds no whole number, but {text[:40]!r}") from None
    if json_depth(text) > MAX_NESTED:
        raise ValueError(f"is nested more than {MAX_NESTED} levels deep")
    try:
        value = json.loads(text, parse_constant=lambda name: None, parse_float=_finite)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no text") from None
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def sidecar_columns(text: str, wanted: Sequence[str], taken: Iterable[str], *, flat: bool = True) -> dict[str, Any]:
    """Return the user's columns that the sidecars of a video become.

    An object in a `json` sidecar becomes a column for each of its keys. Values that are objects or lists stay JSON
    texts. A key that is already the name of another column, or one of `SAMPLE_KEYS`, gets the prefix `json.`. The
    columns of a Parquet file are treated likewise, with the prefix `columns.`.

    Args:
        text: what `sidecar_text` returned, or the columns of a row as JSON.
        wanted: the kinds that become columns.
        taken: names of other columns.
        flat: make a column for each key of an object. If not, the object stays a JSON text.
    """
    kinds = {*wanted, COLUMNS}
    values = {kind: value for kind, value in json.loads(text).items() if kind in kinds and value is not None}
    columns: dict[str, Any] = {}
    for kind, value in values.items():
        others = {*taken, *SAMPLE_KEYS, *(() if kind == COLUMNS else (*SIDECARS, *OF_STRETCHES))}
        if flat and kind in ("json", COLUMNS) and isinstance(value, dict):
            columns |= {f"{kind}.{name}" if name in others else name: one for name, one in value.items()}
        else:
            columns[kind] = value
    return {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in columns.items()}


def sidecar_column(values: Sequence[Any]) -> pa.Array:
    """Return the values of a column of sidecars. If they have no common type, they become texts."""
    try:
        return pa.array(values)
    except UNSTORABLE:
        return pa.array([as_text(value) for value in values], pa.string())


def as_text(value: Any) -> str | None:
    """Return a value as a text: a text itself, others as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
