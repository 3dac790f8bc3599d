"""Reads sources that are files of this machine. Each is opened once, kept open, and checked to be the recorded one."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.files.fingerprint import open_same_file
from framedex.sharder.clips.byte_source import ByteSource, stale

OPEN_FILES = 64


class RecordedFiles:
    """Open files; the least recently used is closed first. Threads may share it and then read one after the other."""

    def __init__(self) -> None:
        self._open: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # kept: at exit, modules may be gone
        for descriptor in self._open.values():
            close(descriptor)

    def fill(self, source: ByteSource, offset: NDArray[np.int64], pieces: list[NDArray[np.uint8]]) -> None:
        """Read ranges of a file into given arrays. Raises StaleError for a file that is missing or changed."""
        with self.opened(source) as descriptor:
            for begin, piece in zip(offset.tolist(), pieces, strict=True):
                _fill(source.path, descriptor, piece, begin)

    def fill_whole(self, folder: str, names: Sequence[str], pieces: list[NDArray[np.uint8]]) -> None:
        """Read whole files of a folder, each as long as its array. Raises StaleError."""
        for name, piece in zip(names, pieces, strict=True):
            _read_file(os.path.join(folder, name), piece)

    @contextlib.contextmanager
    def opened(self, source: ByteSource) -> Iterator[int]:
        """Provide the descriptor of a file.

        If the caller raises StaleError, the file is closed, so that the next read finds it after it was restored.

        Raises:
            StaleError: The file is missing or changed.
        """
        with self._lock:
            try:
                yield self._opened(source)
            except StaleError:
                descriptor = self._open.pop(source.path, None)
                if descriptor is not None:
                    os.close(descriptor)
                raise

    def _opened(self, source: ByteSource) -> int:
        if source.path in self._open:
            self._open.move_to_end(source.path)
            return self._open[source.path]
        descriptor = open_recorded(source)
        self._open[source.path] = descriptor
        if len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


class RecordedFile:
    """Reads one recorded file, as a function (offset, length) → bytes. Raises StaleError for another file."""

    def __init__(self, source: ByteSource) -> None:
        self._descriptor = open_recorded(source)

    def __call__(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # kept: at exit, modules may be gone
        if hasattr(self, "_descriptor"):
            close(self._descriptor)


def open_recorded(source: ByteSource) -> int:
    """Open a file and return its descriptor. Raises StaleError unless it is the file that was recorded."""
    recorded = f"{source.size_bytes} bytes, fingerprint {source.fingerprint}"
    try:
        descriptor = open_same_file(
            source.path, size_bytes=source.size_bytes, mtime_ns=source.mtime_ns, expected=source.fingerprint
        )
        if descriptor is None:
            raise stale(source.path, f"{os.stat(source.path).st_size} bytes of other content", recorded)
    except OSError as error:
        raise stale(source.path, error.strerror or str(error), recorded) from error
    return descriptor


def _fill(path: str, descriptor: int, piece: NDArray[np.uint8], offset: int) -> None:
    """Read a range of a file completely; one call reads 2 GiB at most."""
    at = 0
    while at < len(piece):
        at += read_some(path, descriptor, piece.data[at:], offset + at)


def read_some(path: str, descriptor: int, room: memoryview, offset: int) -> int:
    """Read bytes of a file into a buffer, and return how many were read. Raises StaleError if there are none."""
    try:
        got = os.preadv(descriptor, [room], offset)
    except OSError as error:
        raise stale(path, error.strerror or str(error)) from error
    if not got:
        raise stale(path, f"no bytes at {offset}")
    return got


def _read_file(path: str, piece: NDArray[np.uint8]) -> None:
    """Read a whole file, which must be as long as the array."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise stale(path, error.strerror or str(error)) from error
    try:
        size = os.fstat(descriptor).st_size
        if size != len(piece):
            raise stale(path, f"{size} bytes", f"{len(piece)} bytes")
        _fill(path, descriptor, piece, 0)
    finally:
        os.close(descriptor)
