"""The log of an index or a dataset: the file `log.jsonl`, which has one line of JSON for each change.

Dates are only in the log, and no hash or fingerprint covers it. So two runs that do the same write the same bytes into
all other files. The log does not name media, since media may be removed later.

A run that may be killed writes its line before the change, and completes it afterwards. If a run with the same options
continues the change, it writes the same generation, and replaces the line.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from framedex.core.column_rules import Key, check_header
from framedex.core.version import __version__
from framedex.errors import FormatError, SourceError
from framedex.files.outputs import Output, write_aside
from framedex.storage.places import Place, place, small_text

LOG_NAME = "log.jsonl"
KEYS = {
    "generation": Key(kind=int),
    "date": Key(kind=str),
    "command": Key(kind=str),
    "options": Key(kind=dict),
    "version": Key(kind=str),
    "counts": Key(kind=dict, needed=False),
}
REMEDY = "restore the log, or delete it if the dates of earlier changes are not needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A line of the log.

    Attributes:
        generation: The generation of the index or dataset after the change.
        date: When the change was completed, or begun if it is not complete. UTC, such as 2026-11-29T08:30:00Z.
        command: The subcommand of `framedex`.
        options: The options that differ from their defaults. For operands that name sources or media, their number.
        version: The version of framedex.
        counts: What was changed: numbers by their names. None if the change was begun, but not completed.
    """

    generation: int
    date: str
    command: str
    options: dict[str, Any]
    version: str
    counts: dict[str, int] | None = None


def read_changes(where: Place) -> list[Change]:
    """Return the changes of an index or a dataset, in order. Return an empty list if there is no log.

    Raises:
        FormatError: The log is damaged.
        StorageError: The log cannot be read.
    """
    path = where / LOG_NAME
    try:
        lines = small_text(path).splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise FormatError("the log cannot be read", where=str(path), found=error, remedy=REMEDY) from error
    return [_change_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _change_of(line: str, where: str) -> Change:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError("the log is damaged", where=where, found=error, remedy=REMEDY) from error
    if not isinstance(values, dict):
        raise FormatError("the log is damaged", where=where, found=repr(values)[:80], remedy=REMEDY)
    check_header(values, KEYS, where, REMEDY)
    found: dict[str, Any] = {name: values.get(name) for name in KEYS}
    return Change(**found)


def listed_names(names: Iterable[str]) -> list[str]:
    """Return names, each once. "@LIST" stands for the lines of a text file. Raises SourceError."""
    found: dict[str, None] = {}
    for name in names:
        lines = [name]
        if name.startswith("@"):
            try:
                lines = small_text(place(name[1:])).splitlines()
            except (OSError, ValueError) as error:
                raise SourceError("the list cannot be read", where=name[1:], found=error) from error
        found |= dict.fromkeys(line.strip() for line in lines if line.strip())
    return list(found)


def next_generation(where: Place, current: int, command: str, options: Mapping[str, Any]) -> int:
    """Return the generation that a change writes. If it continues an incomplete change, this is the same generation.

    Args:
        where: The index or dataset.
        current: The generation in its header. 0 if there is no header yet.
        command: The subcommand.
        options: The options, as in `Change`.
    """
    begun = begun_generation(where, command, options)
    return max([current, *(change.generation for change in read_changes(where))]) + 1 if begun is None else begun


def begun_generation(where: Place, command: str, options: Mapping[str, Any]) -> int | None:
    """Return the generation of the last change, if a run with the same options has begun, but not completed it."""
    last = next(reversed(read_changes(where)), None)
    is_same = last is not None and last.counts is None and (last.command, last.options) == (command, dict(options))
    return last.generation if last is not None and is_same else None


def log_change(
    output: Output, generation: int, command: str, options: Mapping[str, Any], counts: Mapping[str, int] | None = None
) -> None:
    """Add a line to the log. It replaces lines of this generation, and of later ones, which were never completed.

    Args:
        output: The index or dataset. If it is in object storage, LOG_NAME must be among the files that it may replace.
        generation: The generation after the change.
        command: The subcommand.
        options: The options, as in `Change`.
        counts: What was changed. None before the change.
    """
    made = Change(
        generation=generation,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=command,
        options=dict(options),
        version=__version__,
        counts=None if counts is None else dict(counts),
    )
    earlier = [change for change in read_changes(output.local) if change.generation < generation]
    text = "".join(json.dumps(asdict(change), ensure_ascii=False) + "\n" for change in [*earlier, made])
    write_aside(output.local / LOG_NAME, text.encode())
    output.publish(output.local / LOG_NAME)
