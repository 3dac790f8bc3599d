"""Locks on folders, held by a run while it writes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from framedex.errors import OutputError

LOCK_NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK_NAME, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a folder, or what a lock's name stands for in it, for this run alone, or for all that share it.

    wait: until others let go of it. Raises OutputError where another run has it.
    """
    with open(folder / name, "w") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise OutputError(
                "another run is writing here", where=str(folder), remedy="wait for it, or choose another folder"
            ) from error
        yield
