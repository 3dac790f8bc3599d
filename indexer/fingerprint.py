"""CONTRACT: telling whether a file is still the one that was indexed."""

from __future__ import annotations

import hashlib
import os

SAMPLES, SAMPLE_BYTES = 16, 16 * 1024


def fingerprint(descriptor: int, size_bytes: int) -> str:
    """Return 32 hex digits over the size and 16 samples of 16 KiB, first and last bytes among them.

    A file of up to 256 KiB is read whole; of a larger one the cost stays the same however long it is.
    """
    digest = hashlib.blake2b(size_bytes.to_bytes(8, "little"), digest_size=16)
    if size_bytes <= SAMPLES * SAMPLE_BYTES:
        offsets, length = [0], size_bytes
    else:
        last = size_bytes - SAMPLE_BYTES
        offsets, length = [last * number // (SAMPLES - 1) for number in range(SAMPLES)], SAMPLE_BYTES
    for offset in offsets:
        digest.update(os.pread(descriptor, length, offset))
    return digest.hexdigest()


def is_same_file(descriptor: int, *, size_bytes: int, mtime_ns: int, expected: str) -> bool:
    """Return whether an open file is the one recorded: same size, and same mtime or same fingerprint."""
    status = os.fstat(descriptor)
    if status.st_size != size_bytes:
        return False
    return status.st_mtime_ns == mtime_ns or fingerprint(descriptor, size_bytes) == expected


def open_same_file(path: str, *, size_bytes: int, mtime_ns: int, expected: str) -> int | None:
    """Open a file and return its descriptor, or None where it is not the one recorded. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if is_same_file(descriptor, size_bytes=size_bytes, mtime_ns=mtime_ns, expected=expected):
        return descriptor
    os.close(descriptor)
    return None
