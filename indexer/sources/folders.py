"""Search folders and expand globs, on this machine and in stores of objects.

Find out whether something exists at a path or a uri, and whether links lead out of a folder.
"""

import glob
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from framedex.errors import SourceError, StorageError
from framedex.storage.objects import Facts, children, exists, listing
from framedex.storage.uris import is_remote


def is_glob(source: str) -> bool:
    """Return whether a source is a pattern and not the name of an existing file or folder."""
    return glob.has_magic(source) and not os.path.lexists(source)


def fixed_prefix(source: str) -> str:
    """Return the part of a glob before the first folder name with wildcards. Return other sources unchanged."""
    if not is_glob(source):
        return source
    return os.path.join("", *itertools.takewhile(lambda part: not glob.has_magic(part), Path(source).parts)) or "."


def folders_below(top: str, *, follow_symlinks: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, names of its files) for a folder and all folders below it.

    Links to folders are skipped. With `follow_symlinks`, they are searched after all real folders. Each real folder is
    searched once, by the first path that reaches it. So circular links end.

    Raises:
        SourceError: A folder cannot be read.
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
    """Return the paths that a glob matches, sorted. `**` stands for any number of folders (`folders_below`)."""
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
    """Return whether an absolute path is below an absolute folder, by their names alone."""
    return path.startswith(folder.rstrip("/") + "/")


def way_out(path: str, folder: str, real_folder: Callable[[str], str]) -> str | None:
    """Return the real path of a file if links lead out of its folder, else None.

    Args:
        path: The absolute path of the file.
        folder: The folder.
        real_folder: `os.path.realpath`, or a cache of it that is as old as the search.
    """
    if not is_below(path, os.path.abspath(folder)):
        return None  # the path was named by itself, so no link in the folder leads there
    if os.path.islink(path):
        real = os.path.realpath(path)
    else:
        real = os.path.join(real_folder(os.path.dirname(path)), os.path.basename(path))
    return None if is_below(real, real_folder(folder)) else real


def object_folders(uri: str) -> dict[str, dict[str, Facts]]:
    """Return the facts of objects at and below a uri by folder, sorted, and by their names in it.

    Raises:
        SourceError: The store cannot list them.
    """
    folders: dict[str, dict[str, Facts]] = {}
    for name, facts in listed_objects(uri):
        folder, _, base = name.rpartition("/")
        folders.setdefault(folder, {})[base] = facts
    return {folder: folders[folder] for folder in sorted(folders)}


def listed_objects(uri: str) -> Iterator[tuple[str, Facts]]:
    """Yield (uri, facts) of every object below a folder. Raises SourceError if the store cannot list them."""
    try:
        yield from listing(uri)
    except StorageError as error:
        raise SourceError(
            f"a folder cannot be searched: {error.what}", where=uri, found=error.found, remedy=error.remedy
        ) from error


def is_pattern(uri: str) -> bool:
    """Return whether a uri has wildcards, as `glob` understands them."""
    return glob.has_magic(uri.split("://", 1)[1])


def pattern_folder(uri: str) -> str:
    """Return the part of a pattern before its first path component with wildcards."""
    scheme, rest = uri.split("://", 1)
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), rest.split("/"))
    return f"{scheme}://{'/'.join(fixed)}"


def expand_pattern(uri: str) -> list[tuple[str, Facts]]:
    """Return the objects that a pattern matches, sorted. `**` stands for any number of folders. Raises SourceError."""
    folder = pattern_folder(uri)
    pattern = _compiled(uri[len(folder) + 1 :])
    return [(name, facts) for name, facts in listed_objects(folder) if pattern.fullmatch(name[len(folder) + 1 :])]


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = ["(?:[^./][^/]*/)*" if part == "**" else f"{_part(part)}/" for part in PurePosixPath(pattern).parts]
    text = "".join(parts).removesuffix("/")
    return re.compile(f"{text}[^./][^/]*" if pattern.endswith("**") else text)


def _part(part: str) -> str:
    """Return a regular expression for the name of one folder or object.

    Wildcards do not match a dot at the beginning of a name.
    """
    made = "(?!\\.)" if part[:1] in "*?[" else ""
    for piece in re.split(r"(\*|\?|\[[^]]+\])", part):
        if piece == "*":
            made += "[^/]*"
        elif piece == "?":
            made += "[^/]"
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
    """Return whether an entry of a list names a folder. In a store, that is a name with a final slash or no ending."""
    if is_remote(path):
        return spelled.endswith("/") or not os.path.splitext(path)[1]
    return os.path.isdir(path)


def files_in(folder: str) -> list[str]:
    """Return the names of the files directly in a folder. Raises OSError, StorageError."""
    if is_remote(folder):
        return list(children(folder))
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir()]
