"""Search folders and expand globs, on this machine and in object storage.

Also check whether a path or uri exists, and whether symbolic links lead out of a folder.
"""

import glob
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from framedex.errors import SourceError, StorageError
from framedex.storage.objects import Facts, children, exists, listing
from framedex.storage.uris import is_inside, is_remote


def is_glob(source: str) -> bool:
    """Return whether a source has wildcards and is not the path of an existing file or folder."""
    return glob.has_magic(source) and not os.path.lexists(source)


def fixed_prefix(source: str) -> str:
    """Return the part of a glob before the first path component with wildcards. Return other sources unchanged."""
    if not is_glob(source):
        return source
    return os.path.join("", *itertools.takewhile(lambda part: not glob.has_magic(part), Path(source).parts)) or "."


def folders_below(top: str, *, follow_symlinks: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield (path, names of the files) of a folder and of all its subfolders.

    Symbolic links to folders are skipped. With `follow_symlinks`, they are searched after all real folders. Each real
    folder is searched only once, through the first path that leads to it, so that circular links do not cause an
    endless search.

    Raises:
        SourceError: A folder cannot be read.
    """
    visited: set[str] = set()
    waiting = [top]
    for start in waiting:  # the loop appends to the list
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
    """Return the paths that match a glob, sorted. `**` stands for any number of folders (`folders_below`)."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return sorted(glob.glob(pattern))
    at = parts.index("**")
    head, tail = os.path.join("", *parts[:at]), parts[at + 1 :] or ("*",)
    found: set[str] = set()
    for top in sorted(glob.glob(head)) if head else ["."]:
        for folder, _ in folders_below(top, follow_symlinks=follow_symlinks):
            if any(part.startswith(".") for part in Path(os.path.relpath(folder, top)).parts):
                continue  # as in a shell, wildcards do not match hidden folders
            place = folder if head else os.path.relpath(folder).removeprefix(".")
            found.update(expand_glob(os.path.join(glob.escape(place), *tail), follow_symlinks=follow_symlinks))
    return sorted(found)


def way_out(path: str, folder: str, real_folder: Callable[[str], str]) -> str | None:
    """Return the real path of a file if symbolic links lead out of a folder. Return None otherwise.

    Args:
        path: The absolute path of the file.
        folder: The folder that the real path should be in.
        real_folder: The function `os.path.realpath`, or a version of it that caches results during one search.
    """
    if not is_inside(path, os.path.abspath(folder)):
        return None  # the path itself is outside of the folder, so it was not reached by a link in the folder
    if os.path.islink(path):
        real = os.path.realpath(path)
    else:
        real = os.path.join(real_folder(os.path.dirname(path)), os.path.basename(path))
    return None if is_inside(real, real_folder(folder)) else real


def object_folders(uri: str) -> dict[str, dict[str, Facts]]:
    """Return the metadata of all objects at and below a uri, by the folder of the object, then by its name.

    The folders are sorted.

    Raises:
        SourceError: The store cannot list the objects.
    """
    folders: dict[str, dict[str, Facts]] = {}
    for name, facts in listed_objects(uri):
        folder, _, base = name.rpartition("/")
        folders.setdefault(folder, {})[base] = facts
    return {folder: folders[folder] for folder in sorted(folders)}


def listed_objects(uri: str) -> Iterator[tuple[str, Facts]]:
    """Yield (uri, metadata) of every object below a folder. Raises SourceError if the store cannot list the folder."""
    try:
        yield from listing(uri)
    except StorageError as error:
        raise SourceError(
            f"a folder cannot be searched: {error.what}", where=uri, found=error.found, remedy=error.remedy
        ) from error


def is_pattern(uri: str) -> bool:
    """Return whether a uri contains wildcards of `glob`."""
    return glob.has_magic(uri.split("://", 1)[1])


def pattern_folder(uri: str) -> str:
    """Return the part of a uri before its first path component that contains wildcards."""
    scheme, rest = uri.split("://", 1)
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), rest.split("/"))
    return f"{scheme}://{'/'.join(fixed)}"


def expand_pattern(uri: str) -> list[tuple[str, Facts]]:
    """Return (uri, metadata) of the objects that match a uri with wildcards, sorted. Raises SourceError.

    `**` stands for any number of folders.
    """
    folder = pattern_folder(uri)
    pattern = _compiled(uri[len(folder) + 1 :])
    return [(name, facts) for name, facts in listed_objects(folder) if pattern.fullmatch(name[len(folder) + 1 :])]


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = ["(?:[^./][^/]*/)*" if part == "**" else f"{_part(part)}/" for part in PurePosixPath(pattern).parts]
    text = "".join(parts).removesuffix("/")
    return re.compile(f"{text}[^./][^/]*" if pattern.endswith("**") else text)


WILDCARDS = {"*": "[^/]*", "?": "[^/]"}  # wildcard of a shell → regular expression


def _part(part: str) -> str:
    """Return a regular expression for one path component of a pattern.

    As in a shell, wildcards do not match a dot at the beginning of a name.
    """
    made = "(?!\\.)" if part[:1] in "*?[" else ""
    for piece in re.split(r"(\*|\?|\[[^]]+\])", part):
        if piece in WILDCARDS:
            made += WILDCARDS[piece]
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > len("[]"):
            inside = piece[1:-1].replace("\\", "\\\\")
            made += f"[^{inside[1:]}]" if inside[0] == "!" else f"[{inside}]"
        else:
            made += re.escape(piece)
    return made


def is_there(path: str) -> bool:
    """Return whether a file, link, object or folder exists at an absolute path or uri. Raises StorageError."""
    if not is_remote(path):
        return os.path.lexists(path)
    return exists(path) is not None or any(True for _ in listed_objects(path))


def names_folder(path: str, spelled: str) -> bool:
    """Return whether an entry of a list names a folder.

    In object storage, a name without a filename extension, or with a slash at the end, is taken for a folder.
    """
    if is_remote(path):
        return spelled.endswith("/") or not os.path.splitext(path)[1]
    return os.path.isdir(path)


def files_in(folder: str) -> list[str]:
    """Return the names of the files directly in a folder. Raises OSError, StorageError."""
    if is_remote(folder):
        return list(children(folder))
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir()]
