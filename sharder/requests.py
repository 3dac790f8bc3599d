"""Explicit clips: a JSON line each, `{"uri": …, "frames": [0, 7, 3, 3]}` or `{"uri": …, "seconds": [0.5, 1.0]}`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.discover import RESERVED_COLUMNS, media_id, relative_uri
from framedex.indexer.index import Index
from framedex.sharder.policies import Track
from framedex.sharder.sampling import Choose, frames_at, over_common_denominator

OWN_KEYS = frozenset({"uri", "frames", "seconds", "clip_id", "stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One line: which medium, which frames or times, the clip's name, and the user's columns.

    stream: the number of a video stream in its container; None for its best one.
    """

    line: int
    clip_id: str
    uri: str
    stream: int | None = None
    frames: list[int] | None = None
    seconds: list[Fraction] | None = None
    columns: dict[str, Any] = field(default_factory=dict)


def read_requests(path: Path) -> list[Request]:
    """Return the requests of a JSONL file. Raises PolicyError with the line for the first malformed one."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split(
            "\n"
        )  # splitlines() also splits at U+2028, which JSON allows
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError("the clips file cannot be read", where=str(path), found=error) from error
    requests = [_parse(line, number, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    seen: dict[str, int] = {}
    for request in requests:
        if (first := seen.setdefault(request.clip_id, request.line)) != request.line:
            raise PolicyError(
                "clip_id is used twice",
                where=f"{path}:{request.line}",
                found=f"{request.clip_id!r}, also in line {first}",
            )
    return requests


def _parse(line: str, number: int, where: str) -> Request:
    try:
        content = json.loads(line)
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PolicyError("holds a lone surrogate", where=where, found=error) from error
    except (ValueError, RecursionError) as error:
        raise PolicyError("is not JSON", where=where, found=error) from error
    if not isinstance(content, dict) or not isinstance(content.get("uri"), str):
        raise PolicyError("a clip is an object with a uri", where=where, found=line[:80])
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
    return Request(
        stream=stream,
        line=number,
        clip_id=clip_id,
        uri=content["uri"],
        frames=_frame_numbers(content["frames"], where) if "frames" in content else None,
        seconds=_times(content["seconds"], where) if "seconds" in content else None,
        columns=columns,
    )


def _frame_numbers(values: object, where: str) -> list[int]:
    if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
        raise PolicyError("frames must be a non-empty list of whole numbers", where=where, found=str(values)[:80])
    if any(value >= 1 << 31 for value in values):
        raise PolicyError("a frame number is absurd", where=where, found=max(values))
    if any(value < -1 for value in values):
        raise PolicyError("frames are numbered from 0; -1 is padding", where=where, found=min(values))
    return values


def _times(values: object, where: str) -> list[Fraction]:
    if not isinstance(values, list) or not values or any(type(value) not in (int, float) for value in values):
        raise PolicyError("seconds must be a non-empty list of numbers", where=where, found=str(values)[:80])
    try:
        if any(abs(value) > 1e9 for value in values):
            raise PolicyError("a time is absurd", where=where, found=str(values)[:80])
        return [Fraction(str(value)) for value in values]
    except ValueError:
        raise PolicyError("seconds must be finite", where=where, found=str(values)[:80]) from None


def frames_of(request: Request, track: Track, choose: Choose) -> NDArray[np.int64]:
    """Return int64 [wanted]: the presentation numbers a request asks for.

    Seconds are read on the container's own clock, the one that `seconds` of a loaded clip shows; so 0 may lie before
    the first frame of a video that starts late, and gives that frame. Raises PolicyError for a time past the end.
    """
    if request.frames is not None:
        return np.array(request.frames, np.int64)
    assert request.seconds is not None  # one of the two, as parsed
    first = int(track.pts[0]) * track.time_base
    end = first + track.duration_pts * track.time_base
    for time in request.seconds:
        if not min(first, Fraction(0)) <= time < end:
            raise PolicyError(
                "a time outside the video",
                found=f"{float(time):g} s",
                allowed=f"{float(min(first, Fraction(0))):g} to below {float(end):g} s",
            )
    numerators, denominator = over_common_denominator([time / track.time_base for time in request.seconds])
    return frames_at(track.pts, numerators, denominator, choose)


class UriResolver:
    """Finds the medium that a request means: by uri as indexed, as the listing spells it, or by absolute path."""

    def __init__(self, index: Index) -> None:
        self._root = index.root
        spelled: dict[str, str | None] = {}
        for identity, uri in zip(
            index.listing["media_id"].to_pylist(), index.listing["listed_uri"].to_pylist(), strict=True
        ):
            spelled[uri] = identity if spelled.get(uri, identity) == identity else None  # None: ambiguous
        columns = (index.videos[name].to_pylist() for name in ("uri", "stream_index", "media_id"))
        rows = list(zip(*columns, strict=True))
        indexed = {uri: media_id(uri) for uri, _, _ in rows}
        self._streams = {(media_id(uri), stream): identity for uri, stream, identity in rows}
        self._media: dict[str, str] = {uri: identity for uri, identity in spelled.items() if identity} | indexed

    def media_id(self, uri: str, stream: int | None = None) -> str | None:
        """Return the medium's id, or None for a uri or a stream that the index does not hold."""
        best = self._best(uri)
        return best if best is None or stream is None else self._streams.get((best, stream))

    def _best(self, uri: str) -> str | None:
        if uri in self._media:
            return self._media[uri]
        path = uri.removeprefix("file://")
        absolute = path if os.path.isabs(path) else os.path.join(self._root, path)
        return self._media.get(relative_uri(os.path.normpath(absolute), self._root))
