"""The results of probing as rows of an index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from framedex.indexer.facts import rows_of
from framedex.indexer.probing.probe import ProbeTask, probe_medium
from framedex.indexer.runs.existence import probe_media

Row = dict[str, Any]


def rows_found(found: Iterable[Any]) -> list[tuple[Row, Row]]:
    """Return the columns of `videos` and `frames` for each medium."""
    return [rows_of(medium) for medium in found]


def facts_of(path: Path, **how: Any) -> list[Any]:
    """Probe a file in this process, where a debugger sees it; return the facts of each medium.

    Args:
        path: the file.
        how: further fields of a `ProbeTask`.
    """
    return probe_medium(ProbeTask(path=str(path), **how))


def probed(path: Path, **how: Any) -> tuple[Row, Row]:
    """Return the columns of `videos` and `frames` for the only medium of a file, which is probed as by `facts_of`."""
    ((video, frames),) = rows_found(facts_of(path, **how))
    return video, frames


def probed_object(uri: str, **how: Any) -> tuple[Row, Row]:
    """Return the columns of `videos` and `frames` for the only medium of an object, which is probed where it lies."""
    ((video, frames),) = rows_found(probe_media(ProbeTask(path=uri, **how)))
    return video, frames
