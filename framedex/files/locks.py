"""Locks on folders. A run holds them while it writes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from framedex.errors import OutputError

LOCK_NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK_NAME, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold the lock of this name in a folder. Raises OutputError if another run holds it.

    Args:
        folder: The folder.
        name: The name of the lock.
        shared: Whether other runs may hold the lock at the same time, if they share it too.
        wait: Whether to wait until other runs release the lock.
    """
    try:
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OutputError("the lock is a link", where=str(folder / name), remedy="delete it") from error
    with open(lock, "r+") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise OutputError(
                "another run is writing here", where=str(folder), remedy="wait for it, or choose another folder"
            ) from error
        yield
