"""Read explicit clips (listed by the user, not selected by a policy) from a file, and determine their frames.

Each row of the file is a clip: `{"uri": …, "frames": [0, 7, 3, 3]}` or `{"uri": …, "seconds": [0.5, 1.0]}`. The file is
JSON Lines, or JSON, CSV or Parquet in the form that `framedex audit` writes.
"""

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.limits import check_depth, json_depth, type_depth
from framedex.errors import PolicyError
from framedex.files.csv_tables import read_csv
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.parts.index import Index
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.records.clip import PAD
from framedex.sharder.policies.sampling import Choose, Timeline, frames_at, over_common_denominator
from framedex.storage.uris import medium_name, relative

PARQUET_ROWS_AT_ONCE = 1024  # number of rows that are converted to Python objects at a time
BYTES_AT_ONCE = 1 << 20  # number of bytes per read when the first character that is not white space is searched for
LISTS = ("frames", "seconds")  # keys whose values are lists; in CSV, the lists are written as JSON
NAMES = ("uri", "clip_id", "outside")  # keys whose values are texts, even if all values consist of digits


ClipRow = tuple[int, str, Any]  # number of the row from 1, location for errors, content (a mapping if the row is valid)


def clip_rows(path: Path, own: frozenset[str]) -> Iterator[ClipRow]:
    """Yield the rows of a file of clips.

    The suffix of the file determines its format: `.csv`, `.parquet` or `.json` (a list of objects, or one object per
    line). A file with any other suffix must have one JSON object per line. In CSV and Parquet, an empty cell in a
    column of `own` means that the key is absent.

    Args:
        path: The file.
        own: The keys that framedex defines. All other keys are the user's columns.

    Raises:
        PolicyError: The file or a row cannot be read.
    """
    try:
        ending = path.suffix.lower()
        if ending in (".csv", ".parquet"):
            for number, row in enumerate(_csv_rows(path) if ending == ".csv" else _parquet_rows(path), 1):
                yield number, f"{path}, row {number}", _of_table(row, own)
        elif ending == ".json" and _begins_with_bracket(path):
            for number, row in enumerate(_parsed(path.read_text(encoding="utf-8-sig"), str(path), levels=2), 1):
                yield number, f"{path}, row {number}", row
        else:
            with open(path, "rb") as file:  # binary, so that only \n ends a line; JSON strings may contain U+2028
                for number, line in enumerate(file, 1):
                    text, where = line.decode("utf-8-sig" if number == 1 else "utf-8"), f"{path}:{number}"
                    if text.strip():
                        yield number, where, _parsed(text, where, levels=1)
    except (OSError, UnicodeDecodeError, pa.ArrowException, OverflowError, csv.Error) as error:
        raise PolicyError("the clips file cannot be read", where=str(path), found=error) from error


def _parsed(text: str, where: str, *, levels: int) -> Any:
    """Parse a JSON text.

    Args:
        text: The text.
        where: The location of the text, for errors.
        levels: The number of levels of nesting that the format itself needs. The user's values may be nested as deeply
            as allowed in addition.

    Raises:
        PolicyError: The text is not valid JSON, contains a lone surrogate, or is nested too deeply.
    """
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PolicyError("the JSON contains a lone surrogate", where=where, found=error) from error
    except (ValueError, RecursionError) as error:
        raise PolicyError("the text is not valid JSON", where=where, found=error) from error
    check_depth(json_depth(text) - levels, where, PolicyError)
    return content


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:  # read all rows at once, because the types of columns depend on all rows
        found = read_csv(file, (*LISTS, *NAMES))
    _check_names(found.table.schema, path)
    if found.wrong:
        number, what = min(found.wrong.items())
        raise PolicyError(
            "a row must have a cell for each column, and columns of numbers must contain only numbers",
            where=f"{path}, row {number + 1}",
            found=what,
        )
    for number, row in enumerate(found.table.to_pylist(), 1):
        for name in LISTS:
            if row.get(name):
                try:
                    row[name] = json.loads(row[name])
                except ValueError as error:
                    where, found = f"{path}, row {number}", row[name][:80]
                    allowed = 'a JSON list in the cell: "[0, 7, 3]"'
                    raise PolicyError(f"{name} must be a list", where=where, found=found, allowed=allowed) from error
        yield row


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    _check_names(file.schema_arrow, path)
    for batch in file.iter_batches(PARQUET_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _check_names(schema: pa.Schema, path: Path) -> None:
    """Raise PolicyError if two columns have the same name, or if the type of a column is nested too deeply."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        if schema.names.count(name) > 1:
            raise PolicyError("the file has two columns with the same name", where=str(path), found=name)
        check_depth(type_depth(kind), f"{path}, column {name}", PolicyError)


def _of_table(row: dict[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """Convert a row of a CSV or Parquet table to the equivalent JSON object."""
    return {
        name: [_number(element) for element in value] if name in LISTS and isinstance(value, list) else _number(value)
        for name, value in row.items()
        if name not in own or value not in (None, "")
    }


def _number(value: Any) -> Any:
    """Convert a Decimal, which SQL queries may return, to an int or float. Return other values unchanged."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def _begins_with_bracket(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(BYTES_AT_ONCE).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


ROWS_AT_ONCE = 10_000  # number of rows from which the types of columns are determined at a time
OWN_KEYS = frozenset({"uri", "frames", "seconds", "clip_id", "stream", "outside"})
Outside = Literal["error", "pad", "edge", "drop"]
OUTSIDE: tuple[Outside, ...] = get_args(Outside)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitClip:
    """An explicit clip: one row of the file.

    Attributes:
        line: The number of the row, from 1.
        clip_id: The name of the clip.
        uri: The uri of the medium.
        stream: The index of the video stream in its container. If None, the best video stream is taken.
        frames: The presentation numbers of the frames, with None for padding. If None, the clip has `seconds`.
        seconds: The times of the frames, with None for padding. If None, the clip has `frames`.
        outside: The treatment of frames or times outside of the video. If None, the treatment for all clips applies.
        columns: The user's columns of the clip.
    """

    line: int
    clip_id: str
    uri: str
    stream: int | None = None
    frames: list[int | None] | None = None
    seconds: list[Fraction | None] | None = None
    outside: Outside | None = None
    columns: dict[str, Any] = field(default_factory=dict)


class ExplicitClips:
    """An iterable over the explicit clips of a file, in the order of the file.

    Each iteration reads the file again, so that memory does not grow with the size of the file.

    Attributes:
        path: The file.
        user_schema: The names and types of the user's columns. The type of a column fits all its values in the file.
        digest: A digest of the file's content.

    Raises:
        PolicyError: A clip is malformed, two clips have the same clip_id (the error states the line of the first
            repetition), or a column has values of mixed types.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._count = 0
        self.user_schema = pa.schema([])
        first_lines: dict[bytes, int] = {}
        requests = iter(self)
        while some := list(itertools.islice(requests, ROWS_AT_ONCE)):
            for request in some:
                short = hashlib.blake2b(request.clip_id.encode(), digest_size=12).digest()
                if (first := first_lines.setdefault(short, request.line)) != request.line:
                    raise PolicyError(
                        "two clips have the same clip_id",
                        where=f"{path}:{request.line}",
                        found=f"{request.clip_id!r}, also in line {first}",
                    )
            self._count += len(some)
            for name in dict.fromkeys(name for request in some for name in request.columns):
                try:
                    here = pa.schema([(name, pa.array([request.columns.get(name) for request in some]).type)])
                    self.user_schema = pa.unify_schemas([self.user_schema, here], promote_options="permissive")
                except UNSTORABLE as error:
                    where = str(path)
                    raise PolicyError(f"user column {name!r} cannot be stored", where=where, found=error) from error
        with open(path, "rb") as file:
            self.digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return the values of one of the user's columns, for all clips. This reads the file again."""
        values = [request.columns.get(name) for request in self]
        return pa.chunked_array([pa.array(values, self.user_schema.field(name).type)])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ExplicitClip]:
        for number, where, content in clip_rows(self.path, OWN_KEYS):
            yield _parse_clip(content, number, where)


def _parse_clip(content: Any, number: int, where: str) -> ExplicitClip:
    """Convert the content of a row to a clip.

    Args:
        content: The parsed content.
        number: The number of the row, from 1.
        where: The location of the row, for errors.

    Raises:
        PolicyError: The content is not a valid clip.
    """
    if not isinstance(content, dict) or not isinstance(content.get("uri"), str):
        raise PolicyError("a clip must be an object with a uri", where=where, found=str(content)[:80])
    if ("frames" in content) == ("seconds" in content):
        raise PolicyError("a clip needs either frames or seconds", where=where, found=", ".join(content))
    columns = {key: value for key, value in content.items() if key not in OWN_KEYS}
    if clash := RESERVED_COLUMNS & columns.keys():
        raise PolicyError("a user column has a reserved name", where=where, found=", ".join(sorted(clash)))
    clip_id = content.get("clip_id", f"line-{number:08d}")
    if not isinstance(clip_id, str) or not clip_id:
        raise PolicyError("clip_id must be a non-empty string", where=where, found=repr(clip_id))
    stream = content.get("stream")
    if stream is not None and (type(stream) is not int or stream < 0):
        raise PolicyError("stream must be the index of a stream in its container", where=where, found=repr(stream))
    outside = content.get("outside")
    if outside is not None and outside not in OUTSIDE:
        raise PolicyError("unknown value of outside", where=where, found=str(outside)[:80], allowed=", ".join(OUTSIDE))
    return ExplicitClip(
        stream=stream,
        outside=outside,
        line=number,
        clip_id=clip_id,
        uri=content["uri"],
        frames=_frame_numbers(content["frames"], where) if "frames" in content else None,
        seconds=_times(content["seconds"], where) if "seconds" in content else None,
        columns=columns,
    )


def _frame_numbers(values: object, where: str) -> list[int | None]:
    """Check the frame numbers of a clip. Return them with None for padding, which is null or -1 in the file."""
    if not isinstance(values, list) or not values or any(type(value) not in (int, NoneType) for value in values):
        raise PolicyError("frames must be a non-empty list of whole numbers", where=where, found=str(values)[:80])
    numbers = [value for value in values if value is not None]
    if any(value >= 1 << 31 for value in numbers):
        raise PolicyError("a frame number is too large", where=where, found=max(numbers))
    if any(value < -1 for value in numbers):
        raise PolicyError("frame numbers start at 0 (-1 and null mean padding)", where=where, found=min(numbers))
    return [None if value == PAD else value for value in values]


def _times(values: object, where: str) -> list[Fraction | None]:
    """Check the times of a clip. Return them with None for padding, which is null in the file."""
    if not isinstance(values, list) or not values or any(type(value) not in (int, float, NoneType) for value in values):
        raise PolicyError("seconds must be a non-empty list of numbers", where=where, found=str(values)[:80])
    try:
        if any(value is not None and abs(value) > 1e9 for value in values):
            raise PolicyError("a time is too large", where=where, found=str(values)[:80])
        return [None if value is None else Fraction(str(value)) for value in values]
    except ValueError:
        raise PolicyError("seconds must be finite", where=where, found=str(values)[:80]) from None


class UriResolver:
    """Finds the medium to which the uri of an explicit clip refers.

    The uri may be the medium's uri in the index, its uri in the listing, or an absolute path. If a tar, a Parquet file
    or a folder contains several media, each of them has the uri `uri/member`.
    """

    def __init__(self, index: Index) -> None:
        self._root = index.root
        spelled: dict[str, str | None] = {}
        listed = (index.listing[name].to_pylist() for name in ("media_id", "listed_uri"))
        for identity, uri in zip(*listed, strict=True):
            spelled[uri] = identity if spelled.get(uri, identity) == identity else None  # None if the uri is ambiguous
        found = index.columns(["uri", "member", "stream_index", "media_id"])
        rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        of_file: dict[str, list[str]] = {}
        for uri, _, _, identity in rows:
            of_file.setdefault(uri, []).append(identity)
        # The uri of a file with several video streams means the best of these streams. The uri of a tar with several
        # image sequences is ambiguous, so it means no medium.
        main = {media_id(uri): of_file[uri][0] for uri in of_file if len(of_file[uri]) == 1}
        main |= {identity: identity for _, _, _, identity in rows}
        members = {medium_name(uri, member): media_id(uri, member=member) for uri, member, _, _ in rows if member}
        named = {uri: main[identity] for uri, identity in spelled.items() if identity in main}
        indexed = {uri: main[media_id(uri)] for uri in of_file if media_id(uri) in main}
        self._media: dict[str, str] = members | named | indexed
        self._streams = {(media_id(uri, member=member), stream): identity for uri, member, stream, identity in rows}

    def media_id(self, uri: str, stream: int | None = None) -> str | None:
        """Return the id of the medium, or None if the index does not contain the uri or the stream."""
        if uri not in self._media:
            absolute = os.path.join(self._root, uri.removeprefix("file://"))  # an absolute path replaces the root
            uri = relative(os.path.normpath(absolute), self._root)
        best = self._media.get(uri)
        return best if best is None or stream is None else self._streams.get((best, stream))


Bools = NDArray[np.bool_]


def frames_of(
    clip: ExplicitClip, timeline: Timeline, choose: Choose, outside: Outside
) -> tuple[NDArray[np.int64], Bools]:
    """Return the frame numbers of an explicit clip, given the times of the video.

    Times are on the clock of the container, as in `seconds` of a loaded clip. If a video starts later than 0 on this
    clock, times from 0 to the first frame count as inside of the video, and the first frame is taken for them.

    Args:
        clip: The clip.
        timeline: The times of the video.
        choose: The rule that chooses a frame for a time.
        outside: The treatment of frames or times outside of the video. `clip.outside` takes precedence.

    Returns:
        Two arrays. int64 [F]: the presentation numbers of the frames, -1 for padding by a constant. bool [F]: False for
            padding.

    Raises:
        PolicyError: A frame or time is outside of the video and `outside` is "error", no frame of the clip is in the
            video, or the clip consists only of padding.
    """
    places: Sequence[int | Fraction | None] = clip.frames or clip.seconds or ()
    if clip.seconds is None:
        numbers = np.array([PAD if place is None else int(place) for place in places], np.int64)
        last = len(timeline.pts) - 1
        frames, inside = np.minimum(numbers, last), (numbers != PAD) & (numbers <= last)
        allowed = f"0 to {last}"
    else:
        # The interval of the times in the video, in seconds. It begins at 0 if the first frame is later.
        start = int(timeline.pts[0]) * timeline.time_base
        first, end = min(start, Fraction(0)), start + timeline.duration_pts * timeline.time_base
        inside = np.array([place is not None and first <= place < end for place in clip.seconds], np.bool_)
        wanted = [(place or 0) / timeline.time_base for place in clip.seconds]
        found_frames = frames_at(timeline.pts, *over_common_denominator(wanted), choose)
        frames = np.where([place is None for place in clip.seconds], PAD, found_frames)
        allowed = f"{float(first):g} to below {float(end):g} s"
    what = clip.outside or outside
    beyond = (frames != PAD) & ~inside
    if what == "error" and beyond.any():
        place = places[int(np.argmax(beyond))]
        error, found = "a frame number is outside of the video", str(place)
        if isinstance(place, Fraction):
            error, found = "a time is outside of the video", f"{float(place):g} s"
        remedy = "set `outside` to pad, edge or drop to allow such frames or times"
        raise PolicyError(error, found=found, allowed=allowed, remedy=remedy)
    if all(place is None for place in places):
        raise PolicyError("a clip consists only of padding", found=f"{len(places)} padded frames")
    if not inside.any():
        found = ", ".join("null" if place is None else f"{float(place):g}" for place in places[:5])
        raise PolicyError("no frame of the clip is in the video", found=found, allowed=allowed)
    if what == "drop":
        return frames[~beyond], inside[~beyond]
    return (frames if what == "edge" else np.where(inside, frames, PAD)), inside
