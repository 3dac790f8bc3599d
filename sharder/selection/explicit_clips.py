"""Explicit clips, one row each: `{"uri": …, "frames": [0, 7, 3, 3]}` or `{"uri": …, "seconds": [0.5, 1.0]}`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

import pyarrow as pa

from framedex.errors import PolicyError
from framedex.files.parquet_parts import UNSTORABLE
from framedex.indexer.parts.index import Index
from framedex.indexer.sources.discover import RESERVED_COLUMNS, media_id
from framedex.records.clip import PAD
from framedex.sharder.selection.clip_files import clip_rows
from framedex.storage.uris import medium_name, relative

ROWS_AT_ONCE = 10_000
OWN_KEYS = frozenset({"uri", "frames", "seconds", "clip_id", "stream", "outside"})
Outside = Literal["error", "pad", "edge", "drop"]
OUTSIDE: tuple[Outside, ...] = get_args(Outside)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitClip:
    """One line: the medium, the frames or times, the clip's name, and the user's columns.

    Attributes:
        stream: Number of a video stream in its container; None for the best one.
        frames: Presentation numbers, None where padded; None as a whole if the clip has `seconds`.
        seconds: Times, None where padded; None as a whole if the clip has `frames`.
        outside: What happens to places outside of the video; None if the line does not say so.
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
    """The clips of a file (`clip_files`), in its order.

    Each iteration reads the file again, so that memory does not grow with it.

    Attributes:
        path: The file.
        user_schema: The user's columns, typed by all their values.
        digest: Digest of the file's content.

    Raises:
        PolicyError: A clip is malformed, a clip_id is used twice (the error names the first such line), or a column has
            mixed types.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        digest = hashlib.blake2b(digest_size=16)
        self._count = 0
        types = _ColumnTypes(str(path))
        first_lines: dict[bytes, int] = {}
        for request in self._read(digest.update):
            self._count += 1
            types.add(request)
            name = hashlib.blake2b(request.clip_id.encode(), digest_size=12).digest()
            if (first := first_lines.setdefault(name, request.line)) != request.line:
                raise PolicyError(
                    "clip_id is used twice",
                    where=f"{path}:{request.line}",
                    found=f"{request.clip_id!r}, also in line {first}",
                )
        self.user_schema = types.schema()
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ExplicitClip]:
        return self._read(lambda line: None)

    def _read(self, note: Callable[[bytes], None]) -> Iterator[ExplicitClip]:
        for row in clip_rows(self.path, OWN_KEYS, note):
            yield _clip_of(row.content, row.number, row.where)


class _ColumnTypes:
    """Determines the types of user columns from many rows, some at a time."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._found = pa.schema([])
        self._rows: list[dict[str, Any]] = []

    def add(self, request: ExplicitClip) -> None:
        self._rows.append(request.columns)
        if len(self._rows) == ROWS_AT_ONCE:
            self._unify()

    def schema(self) -> pa.Schema:
        """Return the types of all columns, in order of appearance. Raises PolicyError for mixed types."""
        self._unify()
        return self._found

    def _unify(self) -> None:
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        for name in names:
            try:
                here = pa.schema([(name, pa.array([row.get(name) for row in self._rows]).type)])
                self._found = pa.unify_schemas([self._found, here], promote_options="permissive")
            except UNSTORABLE as error:
                raise PolicyError(f"user column {name!r} cannot be stored", where=self._where, found=error) from error
        self._rows = []


def _clip_of(content: Any, number: int, where: str) -> ExplicitClip:
    """Return the clip that a line or row says. Raises PolicyError."""
    if not isinstance(content, dict) or not isinstance(content.get("uri"), str):
        raise PolicyError("a clip is an object with a uri", where=where, found=str(content)[:80])
    if ("frames" in content) == ("seconds" in content):
        raise PolicyError("a clip has either frames or seconds", where=where, found=", ".join(content))
    columns = {key: value for key, value in content.items() if key not in OWN_KEYS}
    if clash := RESERVED_COLUMNS & columns.keys():
        raise PolicyError("a user column has a reserved name", where=where, found=", ".join(sorted(clash)))
    clip_id = content.get("clip_id", f"line-{number:08d}")
    if not isinstance(clip_id, str) or not clip_id:
        raise PolicyError("clip_id must be a non-empty string", where=where, found=repr(clip_id))
    stream = content.get("stream")
    if stream is not None and (type(stream) is not int or stream < 0):
        raise PolicyError("stream is the number of a stream in its container", where=where, found=repr(stream))
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
    """Return the numbers of a clip; None for padding, which is written null or -1."""
    if not isinstance(values, list) or not values or any(type(value) not in (int, NoneType) for value in values):
        raise PolicyError("frames must be a non-empty list of whole numbers", where=where, found=str(values)[:80])
    numbers = [value for value in values if value is not None]
    if any(value >= 1 << 31 for value in numbers):
        raise PolicyError("a frame number is absurd", where=where, found=max(numbers))
    if any(value < -1 for value in numbers):
        raise PolicyError("frames are numbered from 0; -1 and null are padding", where=where, found=min(numbers))
    return [None if value == PAD else value for value in values]


def _times(values: object, where: str) -> list[Fraction | None]:
    """Return the times of a clip; None for padding, which is written null."""
    if not isinstance(values, list) or not values or any(type(value) not in (int, float, NoneType) for value in values):
        raise PolicyError("seconds must be a non-empty list of numbers", where=where, found=str(values)[:80])
    try:
        if any(value is not None and abs(value) > 1e9 for value in values):
            raise PolicyError("a time is absurd", where=where, found=str(values)[:80])
        return [None if value is None else Fraction(str(value)) for value in values]
    except ValueError:
        raise PolicyError("seconds must be finite", where=where, found=str(values)[:80]) from None


class UriResolver:
    """Finds the medium that a request means: by uri as indexed, by its spelling in the listing, or by absolute path.

    One of several media in a tar, a Parquet file or a folder is `uri/member`.
    """

    def __init__(self, index: Index) -> None:
        self._root = index.root
        spelled: dict[str, str | None] = {}
        for identity, uri in zip(
            index.listing["media_id"].to_pylist(), index.listing["listed_uri"].to_pylist(), strict=True
        ):
            spelled[uri] = identity if spelled.get(uri, identity) == identity else None  # None: ambiguous
        found = index.columns(["uri", "member", "stream_index", "media_id"])
        rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        of_file: dict[str, list[str]] = {}
        for uri, _, _, identity in rows:
            of_file.setdefault(uri, []).append(identity)
        # A file that is several media means its best stream; a tar of several sequences means none of them.
        main = {media_id(uri): of_file[uri][0] for uri in of_file if len(of_file[uri]) == 1}
        main |= {identity: identity for _, _, _, identity in rows}
        members = {medium_name(uri, member): media_id(uri, member=member) for uri, member, _, _ in rows if member}
        named = {uri: main[identity] for uri, identity in spelled.items() if identity in main}
        indexed = {uri: main[media_id(uri)] for uri in of_file if media_id(uri) in main}
        self._media: dict[str, str] = members | named | indexed
        self._streams = {(media_id(uri, member=member), stream): identity for uri, member, stream, identity in rows}

    def media_id(self, uri: str, stream: int | None = None) -> str | None:
        """Return the medium's id, or None for a uri or a stream that the index does not contain."""
        best = self._best(uri)
        return best if best is None or stream is None else self._streams.get((best, stream))

    def _best(self, uri: str) -> str | None:
        if uri in self._media:
            return self._media[uri]
        path = uri.removeprefix("file://")
        absolute = path if os.path.isabs(path) else os.path.join(self._root, path)
        return self._media.get(relative(os.path.normpath(absolute), self._root))
