"""Search folders, expand globs, and find out whether a path leaves its folder through a symbolic link."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from framedex.errors import SourceError


def is_glob(source: str) -> bool:
    """Return whether a source is a pattern and not the name of an existing file or folder."""
    return glob.has_magic(source) and not os.path.lexists(source)


def fixed_prefix(source: str) -> str:
    """Return the part of a glob before its first wildcard folder. Return other sources unchanged."""
    if not is_glob(source):
        return source
    parts = Path(source).parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return os.path.join(*parts[:fixed]) if fixed else "."


def folders_below(top: str, *, follow_symlinks: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, names of its files) for a folder and all folders below it.

    Links to folders are skipped, or with `follow_symlinks` searched after all true folders. Each true folder is
    searched once, through the path that reaches it first, so circular links end.

    Raises:
        SourceError: a folder cannot be read.
    """
    visited: set[str] = set()
    waiting = [top]
    for start in waiting:  # grows during the loop
        for base, names, files in os.walk(start, onerror=_unreadable):
            real = os.path.realpath(base)
            if real in visited:
                names.clear()
                continue
            visited.add(real)
            links = [name for name in names if os.path.islink(os.path.join(base, name))]
            if follow_symlinks:
                waiting.extend(os.path.join(base, name) for name in sorted(links))
            names[:] = sorted(set(names).difference(links))
            yield base, files


def _unreadable(error: OSError) -> None:
    raise SourceError("a folder cannot be searched", where=str(error.filename), found=error.strerror) from error


def expand_glob(pattern: str, *, follow_symlinks: bool) -> list[str]:
    """Return what a glob names, sorted. `**` stands for any number of folders, searched as by `folders_below`."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return sorted(glob.glob(pattern))
    at = parts.index("**")
    head, tail = os.path.join("", *parts[:at]), parts[at + 1 :] or ("*",)
    found: set[str] = set()
    for top in sorted(glob.glob(head)) if head else ["."]:
        for folder, _ in folders_below(top, follow_symlinks=follow_symlinks):
            if any(part.startswith(".") for part in Path(os.path.relpath(folder, top)).parts):
                continue  # like the shell's, wildcards do not match hidden folders
            place = folder if head else os.path.relpath(folder).removeprefix(".")
            found.update(expand_glob(os.path.join(glob.escape(place), *tail), follow_symlinks=follow_symlinks))
    return sorted(found)


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path lies under an absolute folder, by their names alone."""
    return path.startswith(folder.rstrip("/") + "/")


def way_out(path: str, folder: str, real_folder: Callable[[str], str]) -> str | None:
    """Return where an absolute path really leads if links take it out of its folder; else None.

    Args:
        path: an absolute path.
        folder: the folder.
        real_folder: `os.path.realpath`, or a cache of it that is as old as the search.
    """
    if not is_below(path, os.path.abspath(folder)):
        return None  # the path was named elsewhere: no link of this folder leads there
    if os.path.islink(path):
        real = os.path.realpath(path)
    else:
        real = os.path.join(real_folder(os.path.dirname(path)), os.path.basename(path))
    return None if is_below(real, real_folder(folder)) else real
