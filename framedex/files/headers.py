"""Reads the JSON header of an index or a dataset, and refuses other formats and versions."""

from __future__ import annotations

import json
from typing import Any

from framedex.errors import FormatError
from framedex.files.folder_kinds import remedy_for
from framedex.storage.places import Place, small_text


def check_format(path: Place, *, file_name: str, expected: str, version: str, what: str) -> dict[str, Any]:
    """Return the JSON header of an index or a dataset. Raises FormatError for another format or major version.

    Args:
        path: The folder of the index or dataset.
        file_name: The name of the header in it.
        expected: The value of `format`.
        version: The schema version that this framedex reads. Only its major number is compared.
        what: What the folder should be, for messages, such as "a framedex dataset".
    """
    header = path / file_name
    try:
        content = json.loads(small_text(header))
        found = content.get("format"), str(content.get("schema_version"))
    except FileNotFoundError:
        raise FormatError(f"is not {what}", where=str(path), found=f"no {file_name}", remedy=remedy_for(path)) from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"is not {what}: {file_name} cannot be read", where=str(path), found=error) from error
    if found[0] != expected:
        raise FormatError(f"is not {what}", where=str(path), found=f"format {found[0]!r}", allowed=repr(expected))
    if found[1].split(".")[0] != version.split(".")[0]:
        raise FormatError(
            f"{what} of another major version",
            where=str(path),
            found=f"schema version {found[1]}",
            allowed=f"{version.split('.')[0]}.x",
            remedy="make it anew with this framedex, or install the framedex that wrote it",
        )
    return dict(content)


def is_since(version: str, least: tuple[int, int]) -> bool:
    """Return whether a schema version, such as "3.6", is this one or a later one; False for a text without numbers."""
    major, _, minor = version.partition(".")
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= least
