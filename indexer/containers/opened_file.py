"""Opens the file that is probed, and notes its identity."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from framedex.errors import MediaError
from framedex.files.fingerprint import fingerprint
from framedex.indexer.containers.medium_file import ProbedFile
from framedex.indexer.media_rows import Row


@contextmanager
def opened_file(path: str, video: Row) -> Iterator[ProbedFile]:
    """Open the file, note its identity, and check once more at the end that it did not change meanwhile."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        kind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        raise MediaError(kind, f"cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaError("unreadable", "is not a regular file")
        if status.st_size == 0:
            raise MediaError("empty", "the file is empty")
        video |= {
            "size_bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "fingerprint": fingerprint(descriptor, status.st_size),
        }
        yield ProbedFile(path=path, descriptor=descriptor, size_bytes=status.st_size)
        after = os.stat(path)
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise MediaError("changing", "the file changed while it was probed")
    finally:
        os.close(descriptor)
