"""One mention of a medium, and the forms of media by the names of their files.

Sidecars are the files beside a video in a webdataset sample. They become columns of the user. The files of a sample
share a key: their path up to the first dot of the file's name. `a/b.left.mp4` has the key `a/b`.
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
# Compressed tars count as tars. Reading them raises an error with the command that decompresses them.
TAR_ENDINGS = (TAR_SUFFIX, ".tgz", *(f".tar.{kind}" for kind in ("bz2", "gz", "lz4", "xz", "zst")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """Rows of a Parquet file about the frames of a stretch of a medium, one for each frame.

    Attributes:
        path: The absolute path, or the uri of an object.
        row: The number of the row about the first frame.
    """

    path: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedium:
    """One mention of a medium: its absolute path, its uri as spelled, and the user's columns.

    Attributes:
        path: The absolute path, or the uri of an object.
        spelled: The uri as the user spells it.
        columns: The user's columns, by name.
        row: The number of the row in the listing, from 0. None if the mention is not from a listing.
        folder: The folder that it was found through. Links must not lead out of it. None if the user named the medium.
        error: The reason why the medium must not be opened, or None. If a name is not valid UTF-8, it cannot be written
            into an index: such a medium has an error, and `path` and `spelled` show invalid bytes as `\\xNN`.
        member: The name of one of several sequences of a folder, from the column `sequence` of a listing.
        images: The names of a sequence's loose images in the folder `path`, in order. None for other media.
        fps: The rate of the images in the listing, or None.
        seconds: The time of each image in the listing, None for a missing one. None if the listing has no times.
        facts: The facts of an object whose folder was listed, or None.
        frame_table: The rows about the frames of the stretch that the mention is about, or None.
        named: How the medium was named: as a `source`, in a `list` or listing, or only by the `search` of a folder or
            pattern.
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
    """Return the form of a file by its name. A file that is not an image, a tar or a Parquet file may be a video."""
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
COLUMNS = "columns"  # the key of the other columns of a Parquet file with videos
# The columns by which a row of a listing selects a stretch. Keys of sidecars do not become columns of these names or of
# SAMPLE_KEYS, because their authors did not mean framedex's columns.
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
    """Return (key, ending in lower case) of a file of a sample, or None if its name has another form."""
    match = SAMPLE_FILE.fullmatch(name)
    return None if match is None else (match["key"], match["ending"].lower())


def sidecar_text(
    wanted: Sequence[Sidecar], key: str | None, contents: Mapping[str, bytes], problems: Iterable[str] = ()
) -> tuple[str, str | None]:
    """Return (the values of a sample's sidecars as JSON, their problems or None).

    Args:
        wanted: The kinds of sidecars. The result has a value for each, or null if the sample lacks it.
        key: The key of the sample, or None.
        contents: The bytes of the sidecars, by kind.
        problems: Problems that were found before.
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
    """Return the value of a sidecar. Raises ValueError, whose message is the rest of a sentence about the sidecar."""
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
            raise ValueError(f"is not a whole number: {text[:40]!r}") from None
    if json_depth(text) > MAX_NESTED:
        raise ValueError(f"is nested more than {MAX_NESTED} levels deep")
    try:
        value = json.loads(text, parse_constant=lambda name: None, parse_float=_finite)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("has half of a surrogate pair, which is not valid Unicode") from None
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def sidecar_columns(text: str, wanted: Sequence[str], taken: Iterable[str], *, flat: bool = True) -> dict[str, Any]:
    """Return user columns with the values of a video's sidecars.

    An object in a `json` sidecar becomes a column for each of its keys. Values that are objects or lists stay JSON
    texts. A key that is already the name of another column, or one of `SAMPLE_KEYS`, gets the prefix `json.`. The
    columns of a Parquet file are treated likewise, with the prefix `columns.`.

    Args:
        text: The result of `sidecar_text`, or the columns of a row as JSON.
        wanted: The kinds that become columns.
        taken: The names of other columns.
        flat: Whether each key of an object becomes a column. If not, the object stays a JSON text.
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
