"""Detects whether a file is still the one that was indexed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

SAMPLES, SAMPLE_BYTES = 16, 16 * 1024
OBJECT_TAGS = (
    "etag ",
    "modified ",
)  # the beginnings of the tags that are recorded of objects, which their store supplies
FIRST_PACKETS = 256  # some seconds of video; two streams whose packet sizes agree that far are the same
LEAST_SIZES = 8  # of different values; still pictures have packets of few sizes, whatever they show


def is_object_tag(recorded: str) -> bool:
    """Return whether a recorded text is a store's tag of an object, and not a fingerprint of a file's content."""
    return recorded.startswith(OBJECT_TAGS)


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the ranges that a fingerprint covers. They include the first and last bytes.

    A file of up to 256 KiB is read completely. For a larger one, the cost does not depend on its size.
    """
    if size_bytes <= SAMPLES * SAMPLE_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - SAMPLE_BYTES
    begins = [last * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [(begin, begin + SAMPLE_BYTES) for begin in begins]


def content_fingerprint(size_bytes: int, samples: Iterable[bytes | memoryview]) -> str:
    """Return 32 hex digits, a hash of the size and the ranges of `sampled`."""
    digest = hashlib.blake2b(size_bytes.to_bytes(8, "little"), digest_size=16)
    for sample in samples:
        digest.update(sample)
    return digest.hexdigest()


def fingerprint(descriptor: int, size_bytes: int) -> str:
    """Return the fingerprint of an open file."""
    samples = (os.pread(descriptor, end - begin, begin) for begin, end in sampled(size_bytes))
    return content_fingerprint(size_bytes, samples)


def is_same_file(descriptor: int, *, size_bytes: int, mtime_ns: int, expected: str) -> bool:
    """Return whether an open file is the recorded one: the same size, and the same mtime or fingerprint."""
    status = os.fstat(descriptor)
    if status.st_size != size_bytes:
        return False
    return status.st_mtime_ns == mtime_ns or fingerprint(descriptor, size_bytes) == expected


def open_same_file(path: str, *, size_bytes: int, mtime_ns: int, expected: str) -> int | None:
    """Open a file and return its descriptor, or None if it is not the recorded file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if is_same_file(descriptor, size_bytes=size_bytes, mtime_ns=mtime_ns, expected=expected):
        return descriptor
    os.close(descriptor)
    return None


def first_packets(size: NDArray[np.int64], crc32: NDArray[np.int64] | None = None) -> str | None:
    """Return a hash of the first packets' sizes, or of images' checksums, for the column `videos.first_packets`.

    Args:
        size: int64 [packets], the sizes of the packets in bytes.
        crc32: int64 [packets], the checksums of images. None: the medium is not images.
    """
    said = size if crc32 is None else crc32
    if crc32 is None and len(np.unique(size[:FIRST_PACKETS])) < LEAST_SIZES:
        return None
    return hashlib.blake2b(said[:FIRST_PACKETS].astype("<i8").tobytes(), digest_size=8).hexdigest()
