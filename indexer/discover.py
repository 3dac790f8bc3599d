"""From what the user names to media: files, folders, globs, lists, DALI file lists and listings with columns."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from framedex.errors import MediaError, SourceError
from framedex.indexer.folders import expand_glob, fixed_prefix, folders_below, is_below, is_glob, way_out

TABLE_SUFFIXES = frozenset({".csv", ".jsonl", ".ndjson", ".parquet"})
LIST_SUFFIXES = frozenset({".txt", ".list"})
# Names that a clip's own columns have; a user column of that name would hide one of them.
RESERVED_COLUMNS = frozenset(
    [
        "media_id",
        "media_row",
        "listing_row",
        "listed_uri",
        "clip_id",
        "uri",
        "frames",
        "pts",
        "seconds",
        "frame_index",
        "mask",
        "audio",
        "movie",
        "positions",
    ]
)


def media_id(uri: str, stream: int | None = None) -> str:
    """Return the stable name of a medium: 16 hex digits of BLAKE2b over its uri.

    stream: the number of a video stream that is not its file's best one; it goes into the hash.
    """
    name = uri if stream is None else f"{uri}#{stream}"
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def relative_uri(path: str, root: str) -> str:
    """Return a path as recorded: relative to the root with forward slashes, or absolute outside it."""
    relative = os.path.relpath(path, root)
    return path if relative == ".." or relative.startswith("../") else Path(relative).as_posix()


def default_root(sources: Sequence[str]) -> str:
    """Return the deepest folder that holds everything named on the command line."""
    folders = []
    for source in sources:
        path = os.path.abspath(fixed_prefix(source.removeprefix("@")))
        folders.append(path if os.path.isdir(path) else os.path.dirname(path))
    return os.path.commonpath(folders)


def discover(
    sources: Sequence[str], *, root: str | None = None, label_from_parent: bool = False, follow_symlinks: bool = False
) -> list[Listed]:
    """Return every mention of a medium in the order given; folders and globs sorted.

    root: what relative paths inside lists and listings are relative to; by default the list's own folder, then the
    working directory. follow_symlinks: search linked folders too, and let links lead out of the folder that a medium
    was found through (a folder named as source, a glob's part before its wildcards, what a list's paths are relative
    to); otherwise a medium out there has an error. A file named as source may itself be a link. Raises SourceError for
    a list that cannot be read and for a folder or glob that names nothing.
    """
    listed = [_without_stray_bytes(item) for source in sources for item in _expand(source, root, follow_symlinks)]
    if not follow_symlinks:
        listed = _with_ways_out(listed)
    if label_from_parent:
        listed = [_with_parent_label(item) for item in listed]
    for item in listed:
        if clash := RESERVED_COLUMNS & item.columns.keys():
            raise SourceError(
                "a user column has a reserved name",
                where=item.spelled,
                found=", ".join(sorted(clash)),
                remedy="rename the column in the listing",
            )
    return _without_repeats(listed)


def _without_stray_bytes(item: Listed) -> Listed:
    """Give a medium whose name is not valid UTF-8 an error and a name that can be written."""
    if "\0" in item.path:
        return replace(item, error=MediaError("file_name", "no file name holds a zero byte"))
    path, spelled = readable_name(item.path), readable_name(item.spelled)
    if (path, spelled) == (item.path, item.spelled):
        return item
    error = MediaError("file_name", "the file name is not valid UTF-8; rename the file to have it indexed")
    return replace(item, path=path, spelled=spelled, error=error)


def _with_ways_out(listed: list[Listed]) -> list[Listed]:
    """Give media that links lead out of their folder an error, unless they are also named without one."""
    real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)
    ways_out = [_way_out_error(item, real_folder) for item in listed]
    allowed = {item.path for item, error in zip(listed, ways_out, strict=True) if error is None}
    return [
        replace(item, error=error) if error is not None and item.path not in allowed else item
        for item, error in zip(listed, ways_out, strict=True)
    ]


def _way_out_error(item: Listed, real_folder: Callable[[str], str]) -> MediaError | None:
    if item.folder is None or item.error is not None:
        return None
    target = way_out(item.path, item.folder, real_folder)
    if target is None:
        return None
    if not os.path.lexists(target):
        return MediaError("missing", "cannot be opened: the link leads nowhere")
    return MediaError(
        "symlink",
        f"a link leads out of {readable_name(item.folder)}, to {readable_name(target)}; "
        "--follow-symlinks allows such links",
        refused=True,
    )


def _expand(source: str, root: str | None, follow_symlinks: bool) -> Iterator[Listed]:
    path = Path(source)
    if source.startswith("@") and not os.path.lexists(source):
        yield from _read_list(Path(source[1:]), root)
    elif path.is_dir():
        yield from _walk(source, source, follow_symlinks)
    elif is_glob(source):
        yield from _expand_glob(source, follow_symlinks)
    elif path.suffix.lower() in TABLE_SUFFIXES:
        yield from _read_table(path, root)
    elif path.suffix.lower() in LIST_SUFFIXES:
        yield from _read_list(path, root)
    else:
        yield _plain(source, None)


def _expand_glob(source: str, follow_symlinks: bool) -> Iterator[Listed]:
    """Yield the files that a glob names, and the videos in the folders that it names; links to folders as in a search."""
    names = expand_glob(source, follow_symlinks=follow_symlinks)
    if not follow_symlinks:
        names = [name for name in names if not (os.path.isdir(name) and os.path.islink(name.rstrip("/")))]
    if not names:
        raise SourceError("the pattern matches nothing", where=source)
    folder = fixed_prefix(source)
    for name in names:
        yield from _walk(name, folder, follow_symlinks) if os.path.isdir(name) else [_plain(name, folder)]


def _plain(name: str, folder: str | None) -> Listed:
    return Listed(path=os.path.abspath(name), spelled=name, folder=folder)


def _walk(top: str, folder: str, follow_symlinks: bool) -> Iterator[Listed]:
    names = [
        os.path.join(base, name)
        for base, files in folders_below(top, follow_symlinks=follow_symlinks)
        for name in files
        if os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES
    ]
    if not names:
        raise SourceError(
            "the folder holds no video",
            where=top,
            allowed="files ending in " + " ".join(sorted(VIDEO_SUFFIXES)),
            remedy="name the files themselves if they have other endings; --follow-symlinks also searches linked folders",
        )
    yield from (_plain(name, folder) for name in sorted(names))


def _with_parent_label(item: Listed) -> Listed:
    if "label" in item.columns:
        raise SourceError(
            "two labels for one medium: the listing's and its folder's name",
            where=item.spelled,
            remedy="leave out --label-from, or drop the listing's label column",
        )
    label = os.path.basename(os.path.dirname(item.path))
    return replace(item, columns=item.columns | {"label": label})


def _without_repeats(listed: list[Listed]) -> list[Listed]:
    """Drop mentions that say nothing new: the same path with the same columns."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for item in listed:
        key = (item.path, repr(sorted(item.columns.items())))
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept
