"""Search folders of a store, and expand patterns over the names of its objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from framedex.errors import SourceError, StorageError
from framedex.storage.objects import Facts, listing

MAGIC = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFolder:
    """A folder that holds objects.

    Attributes:
        uri: of the folder.
        files: the facts of its objects, by name.
    """

    uri: str
    files: dict[str, Facts]


def object_folders(uri: str) -> list[ObjectFolder]:
    """Return the folders at and below a uri that hold objects, sorted.

    Raises:
        SourceError: the store cannot list them.
    """
    folders: dict[str, dict[str, Facts]] = {}
    for name, facts in listed_objects(uri):
        folder, _, base = name.rpartition("/")
        folders.setdefault(folder, {})[base] = facts
    return [ObjectFolder(uri=folder, files=folders[folder]) for folder in sorted(folders)]


def listed_objects(uri: str) -> Iterator[tuple[str, Facts]]:
    """Yield (uri, facts) of every object below a folder. Raises SourceError if the store cannot list them."""
    try:
        yield from listing(uri)
    except StorageError as error:
        raise SourceError(
            f"a folder cannot be searched: {error.what}", where=uri, found=error.found, remedy=error.remedy
        ) from error


def is_folder(uri: str) -> bool:
    """Return whether there are objects below a uri. Only called if the name does not look like an object's."""
    return any(True for _ in listed_objects(uri))


def is_pattern(uri: str) -> bool:
    """Return whether a uri has wildcards, as `glob` understands them."""
    return MAGIC.search(uri.split("://", 1)[1]) is not None


def pattern_folder(uri: str) -> str:
    """Return the part of a pattern before its first path component with wildcards."""
    scheme, rest = uri.split("://", 1)
    fixed: list[str] = []
    for part in rest.split("/"):
        if MAGIC.search(part):
            break
        fixed.append(part)
    return f"{scheme}://{'/'.join(fixed)}"


def expand_pattern(uri: str) -> list[tuple[str, Facts]]:
    """Return the objects that a pattern names, sorted. `**` stands for any number of folders. Raises SourceError."""
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
