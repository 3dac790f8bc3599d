"""The error of a disk that is full."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from framedex.errors import OutputError

DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def full_disk_says(what: str, folder: Path, kept: Callable[[], str]) -> Iterator[None]:
    """Raise OutputError if the disk is full while something is written.

    Args:
        what: Name of the output, for the message.
        folder: Where it is written.
        kept: Returns what is kept, called after everything inside has ended.
    """
    try:
        yield
    except OSError as error:
        if (full := full_disk(error, what, folder, kept)) is None:
            raise
        raise full from error


def full_disk(error: object, what: str, folder: Path, kept: Callable[[], str]) -> OutputError | None:
    """Return the error for a full disk; None if `error` is another one. Arguments as for `full_disk_says`."""
    if not isinstance(error, OSError) or error.errno not in DISK_IS_FULL:
        return None
    return OutputError(
        f"{what} cannot be written to the end",
        where=str(folder),
        found=error.strerror,
        remedy=f"make room and run the same command again: {kept()}",
    )
