"""Mentions of media, recognition of file types by file names, and sidecar files.

A mention is one place where the input names a medium: a file that is a source, a line of a list, a row of a listing, or
a medium that a search found.

A sidecar is a file that belongs to the same webdataset sample as a video. Its content becomes a user column. All files
of a sample share a key, which is the path of the file up to the first dot in the file name. For instance,
`a/b.left.mp4` has the key `a/b`.
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
Holder = Literal["tar", "parquet"]  # the forms of files that contain several media
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
# Compressed tars count as tars, so that reading them raises an error that names the command for decompression.
TAR_ENDINGS = (TAR_SUFFIX, ".tgz", *(f".tar.{kind}" for kind in ("bz2", "gz", "lz4", "xz", "zst")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """Rows of a Parquet file that describe the frames of a part of a medium, one row for each frame.

    Attributes:
        path: The absolute path of the Parquet file, or its uri in object storage.
        row: The number of the row that describes the first frame.
    """

    path: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedium:
    """A mention of a medium: its absolute path, its uri as the user spells it, and the user's columns.

    Attributes:
        path: The absolute path of the medium, or its uri in object storage.
        spelled: The uri of the medium as the user spells it.
        columns: The values of the user's columns, by name.
        row: The number of the row in the listing, from 0. None if the mention is not from a listing.
        folder: The folder through which the medium was found. Links must not lead out of this folder. None if links may
            lead anywhere.
        error: The reason why the medium must not be opened. None if the medium may be opened. A medium whose file name
            is not valid UTF-8 has an error, because the name cannot be written into an index. In this case, `path` and
            `spelled` show invalid bytes as `\\xNN`.
        member: The name of the image sequence, from the column `sequence` of a listing. None for other media.
        images: The file names of the images of a sequence in the folder `path`, in order. None for other media.
        fps: The rate of the images, in images per second, from the listing. None if the listing does not state a rate.
        seconds: The time of each image from the listing, in seconds. An element is None if the time is missing.
            `seconds` is None if the listing does not state times.
        facts: The metadata of an object in object storage if its folder was listed. None otherwise.
        frame_table: The rows that describe the frames of the part of the medium to which the mention applies. None if
            there are no such rows.
        named: How the medium was found: as a `source`, in a `list` or listing, or only by the `search` of a folder or
            pattern.
        sources: The names of the sources that have this mention (`discover.source_name`).
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
    sources: tuple[str, ...] = ()

    @property
    def form(self) -> Form:
        """The form in which the medium is stored: a folder of images, one image, a tar, a Parquet file, or a video."""
        return form_of(self.path) if self.images is None else "folder"


def form_of(name: str) -> Form:
    """Return the form of a file, judged by its name.

    A file is assumed to be a video if its filename extension is not that of an image, a tar or a Parquet file.
    """
    if is_image_name(name):
        return "image"
    if is_tar_name(name):
        return "tar"
    return "parquet" if Path(name).suffix.lower() == PARQUET_SUFFIX else "video"


def is_image_name(name: str) -> bool:
    """Return whether a file name has the extension of an image, in upper or lower case."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def is_tar_name(name: str) -> bool:
    """Return whether a file name has the extension of a tar or a compressed tar, in upper or lower case."""
    return name.lower().endswith(TAR_ENDINGS)


def readable_name(name: str) -> str:
    """Replace the bytes of a file name that are not valid UTF-8 by `\\xNN`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


Sidecar = Literal["json", "txt", "cls", "__key__"]
SIDECARS: tuple[Sidecar, ...] = get_args(Sidecar)
KEY: Sidecar = "__key__"
COLUMNS = "columns"  # JSON key for the values of a Parquet file's columns without videos
# The columns by which a row of a listing selects a part of a medium. If a JSON sidecar has a key with such a name or
# with a name in SAMPLE_KEYS, its column gets another name, because the key does not have the meaning of framedex's
# column.
OF_STRETCHES = frozenset({"start", "end"})
MAX_SIDECAR_BYTES = 1 << 20
SAMPLE_FILE = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<ending>[^/]*)", re.DOTALL)


def sidecars_of(kinds: Iterable[str]) -> tuple[Sidecar, ...]:
    """Return the sidecar kinds for a list of kind names, each kind once. Raises ValueError if a name is unknown."""
    names = list(kinds)
    wrong = [name for name in names if name not in SIDECARS]
    if wrong:
        raise ValueError(f"unknown kinds of sidecars: {', '.join(map(repr, wrong))}; allowed are {', '.join(SIDECARS)}")
    return tuple(kind for kind in SIDECARS if kind in names)


def sample_parts(name: str) -> tuple[str, str] | None:
    """Split a file name into (key of its webdataset sample, the rest after the first dot in lower case).

    Return None if the name is not the name of a file of a sample.
    """
    match = SAMPLE_FILE.fullmatch(name)
    return None if match is None else (match["key"], match["ending"].lower())


def sidecar_text(
    wanted: Sequence[Sidecar], key: str | None, contents: Mapping[str, bytes], problems: Iterable[str] = ()
) -> tuple[str, str | None]:
    """Parse the sidecars of a sample.

    Args:
        wanted: The kinds of sidecars. The result has a value for each kind. The value is null if the sample lacks a
            sidecar of the kind.
        key: The key of the sample. None if the video does not have a key.
        contents: The content of each sidecar, by kind.
        problems: The problems of sidecars that were found before parsing.

    Returns:
        (the values of the sidecars by kind, as JSON; a description of all problems, None if there are none).
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
    """Return the value of a sidecar.

    Raises:
        ValueError: The content is not valid. The message is a phrase that continues "the sidecar", such as "is not
            JSON".
    """
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
        raise ValueError("has an unpaired surrogate, which is not valid Unicode") from None
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def sidecar_columns(text: str, wanted: Sequence[str], taken: Iterable[str], *, flat: bool = True) -> dict[str, Any]:
    """Convert the sidecars of a video into user columns. Return the values of the columns, by name.

    If a `json` sidecar is an object, each of its keys becomes a column. Values that are objects or lists remain JSON
    texts. If a key is the name of another column or is in `SAMPLE_KEYS`, the name of its column has the prefix `json.`.
    The columns of a Parquet file with videos are converted in the same way, with the prefix `columns.`.

    Args:
        text: The sidecars as JSON, by kind, from `sidecar_text`; or the columns of a row of a Parquet file as JSON.
        wanted: The kinds of sidecars that become columns.
        taken: The names of other columns.
        flat: Whether each key of an object becomes a column. If False, the object becomes one column with a JSON text.
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
    """Return the values of a column of sidecars as an Arrow array. Values without a common type are stored as texts."""
    try:
        return pa.array(values)
    except UNSTORABLE:
        return pa.array([as_text(value) for value in values], pa.string())


def as_text(value: Any) -> str | None:
    """Return a value as text. None and texts are returned unchanged, and other values as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
