"""Opens the file that is probed, and records its identity."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from framedex.errors import MediaError
from framedex.files.fingerprint import fingerprint
from framedex.indexer.containers.medium_file import ProbedFile
from framedex.indexer.facts import Identity
from framedex.indexer.sources.file_member import FileMember


@contextmanager
def opened_file(path: str, member: FileMember | None = None) -> Iterator[ProbedFile]:
    """Open the file and record its identity. Raises MediaError if the file is missing, unreadable or empty.

    Args:
        path: of the file.
        member: which part of the file is opened. None: the whole file.
    """
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
        mark = fingerprint(descriptor, status.st_size)
        identity = Identity(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, fingerprint=mark)
        yield ProbedFile(path=path, descriptor=descriptor, identity=identity, member=member)
    finally:
        os.close(descriptor)


def check_unchanged(file: ProbedFile) -> None:
    """Raise MediaError if the file has changed since it was opened."""
    try:
        after = os.stat(file.path)
        is_same = (after.st_size, after.st_mtime_ns) == (file.identity.size_bytes, file.identity.mtime_ns)
    except OSError:
        is_same = False
    if not is_same:
        raise MediaError("changing", "the file changed while it was probed")
