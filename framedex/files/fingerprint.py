"""Telling whether a file is still the one that was indexed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

SAMPLES, SAMPLE_BYTES = 16, 16 * 1024
OBJECT_TAGS = ("etag ", "modified ")  # how what is recorded of an object begins, which its store told
FIRST_PACKETS = 256  # a decoder's pictures of some seconds; two streams whose sizes agree that far are one and the same
LEAST_SIZES = 8  # different ones among them; still pictures are coded in packets of few sizes, whatever they show


def is_object_tag(recorded: str) -> bool:
    """Return whether what was recorded is what a store says of an object, and no fingerprint of a file's content."""
    return recorded.startswith(OBJECT_TAGS)


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the ranges that a fingerprint is made of, first and last bytes among them.

    A file of up to 256 KiB is read whole; of a larger one the cost stays the same however long it is.
    """
    if size_bytes <= SAMPLES * SAMPLE_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - SAMPLE_BYTES
    begins = [last * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [(begin, begin + SAMPLE_BYTES) for begin in begins]


def content_fingerprint(size_bytes: int, samples: Iterable[bytes | memoryview]) -> str:
    """Return 32 hex digits over the size and the ranges of `sampled`."""
    digest = hashlib.blake2b(size_bytes.to_bytes(8, "little"), digest_size=16)
    for sample in samples:
        digest.update(sample)
    return digest.hexdigest()


def fingerprint(descriptor: int, size_bytes: int) -> str:
    """Return the fingerprint of an open file."""
    samples = (os.pread(descriptor, end - begin, begin) for begin, end in sampled(size_bytes))
    return content_fingerprint(size_bytes, samples)


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


def first_packets(size: NDArray[np.int64], crc32: NDArray[np.int64] | None = None) -> str | None:
    """Return the `videos.first_packets` column. size: int64 [packets]; crc32: of images, int64 [packets]."""
    said = size if crc32 is None else crc32
    if crc32 is None and len(np.unique(size[:FIRST_PACKETS])) < LEAST_SIZES:
        return None
    return hashlib.blake2b(said[:FIRST_PACKETS].astype("<i8").tobytes(), digest_size=8).hexdigest()
