"""Probes videos that are values of a compressed column of a Parquet file, from temporary copies.

Their packets are no byte ranges of the file, so clips of them have to be copied into the dataset.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from framedex.errors import MediaError, StorageError
from framedex.files.parquet_cells import read_cell
from framedex.indexer.containers.opened_file import opened_file
from framedex.indexer.facts import MediumFacts, problem_of
from framedex.indexer.probing.members import in_cell
from framedex.indexer.probing.probe import ProbeTask, check_member, medium_of, probe_medium
from framedex.storage.places import Place


def is_cell(task: ProbeTask) -> bool:
    """Return whether a medium is a value of a compressed column."""
    return task.member is not None and task.member.part is None


def probe_file_cell(task: ProbeTask) -> list[MediumFacts]:
    """Return the facts of a value of a compressed column of a file of this machine. Bad files raise nothing."""
    medium = medium_of(task)
    try:
        with opened_file(task.path) as file:
            medium = replace(medium, identity=file.identity)
            check_member(task, file.identity)
            return probe_cell(task, Path(task.path), medium)
    except MediaError as error:
        return [replace(medium, problem=problem_of(error))]


def probe_cell(task: ProbeTask, where: Place, medium: MediumFacts, *, tag: str | None = None) -> list[MediumFacts]:
    """Return the facts of a value of a compressed column.

    Args:
        task: how to probe it.
        where: the Parquet file.
        medium: what is known of it so far.
        tag: of an object, the tag that it must have.

    Raises:
        MediaError: the value cannot be read.
        StorageError: the store does not deliver the object.
    """
    member = task.member
    assert member is not None  # the caller checked this
    try:
        content = read_cell(where, member.name, tag=tag)
    except StorageError:
        raise
    except (ValueError, OSError) as error:
        raise MediaError("unreadable", f"the value cannot be read: {error}") from error
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / "medium"
        path.write_bytes(content)
        found = probe_medium(replace(task, path=str(path), member=None, depth="packets"))
    return [in_cell(replace(one, identity=medium.identity), member, len(content)) for one in found]
