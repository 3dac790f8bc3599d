"""Output folders that one run writes at a time. Local folders use a lock, object stores use conditional writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from framedex.errors import OutputError
from framedex.files.locks import LOCK_NAME, held
from framedex.storage.outputs import Output, stored_output
from framedex.storage.places import Place, Stored


@contextlib.contextmanager
def opened_output(
    out: Place, *names: str, lock: str = LOCK_NAME, shared: bool = False, wait: bool = False
) -> Iterator[Output]:
    """Open a folder for writing, and create it if it is missing. Raises OutputError if another run is writing to it.

    Args:
        out: The folder.
        names: Names of files directly in it that may be replaced, if it is in object storage.
        lock: The name of the lock of a local folder. A store has no locks, but no run replaces what another one wrote.
        shared: Whether other runs may hold the lock at the same time, if they share it too.
        wait: Whether to wait until other runs release the lock.
    """
    if isinstance(out, Stored):
        with stored_output(out, *names) as output:
            yield output
        return
    out.mkdir(parents=True, exist_ok=True)
    with os.scandir(out) as entries:
        linked = [entry.name for entry in entries if entry.is_symlink() and entry.is_dir()]
    if linked:  # new files would lie elsewhere, and unfinished files there would be removed
        raise OutputError(
            "a folder of the output is a link to another folder",
            where=str(out / min(linked)),
            found=os.path.realpath(out / min(linked)),
            remedy="replace the link by the folder, or link the output as a whole",
        )
    with held(out, lock, shared=shared, wait=wait):
        yield Output(out)


def check_unfinished(folder: Path) -> None:
    """Raise OutputError if an unfinished output, or a file or folder in it, is a link. A run goes on writing there."""
    found = [folder, *folder.iterdir()] if folder.is_dir() else [folder]
    linked = next((path for path in found if path.is_symlink()), None)
    if linked is not None:
        raise OutputError(
            "a part of an unfinished output is a link",
            where=str(linked),
            found=os.path.realpath(linked),
            remedy="delete the unfinished output, if it is not yours",
        )


def has_locks(out: Place) -> bool:
    """Return whether runs that write to a folder can lock each other out."""
    return not isinstance(out, Stored)
