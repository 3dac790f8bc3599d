"""Reads sources that are files of this machine. Each is opened once, kept open, and checked to be the recorded one.

Reads sources that are objects. Their ranges are requested concurrently, and only of the object that was recorded.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError, StorageError
from framedex.files.fingerprint import content_fingerprint, is_object_tag, open_same_file, sampled
from framedex.sharder.clips.clip import ByteSource, stale
from framedex.storage.cache import DiskCache
from framedex.storage.objects import Facts, at_once, coalesce, fetch_many, head, whole
from framedex.storage.reader import ObjectReader
from framedex.storage.uris import joined

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


class Objects:
    """Reads objects for clips; threads may share it. `cache`: holds ranges of objects."""

    def __init__(self, cache: DiskCache | None) -> None:
        self._fetch = fetch_many if cache is None else cache.fetch_many
        self._known: dict[ByteSource, Facts] = {}
        self._lock = threading.Lock()

    def fill(self, source: ByteSource, offset: NDArray[np.int64], pieces: list[NDArray[np.uint8]]) -> None:
        """Read ranges of an object into given arrays.

        Raises:
            StaleError: The object is missing or changed.
            StorageError: The store does not deliver the ranges.
        """
        asked = coalesce(offset, np.array([len(piece) for piece in pieces], np.int64))
        begins, ends = asked.begin.tolist(), asked.end.tolist()
        with stale_as(source):
            content = self._fetch(source.path, list(zip(begins, ends, strict=True)), self.facts(source))
        for begin, piece, request in zip(offset.tolist(), pieces, asked.request.tolist(), strict=True):
            at = 0
            while at < len(piece):
                skipped = begin + at - begins[request]
                data = np.frombuffer(content[request], np.uint8)[skipped : skipped + len(piece) - at]
                if not len(data):
                    raise stale(source.path, f"no bytes at {begin + at}")
                piece[at : at + len(data)] = data
                at, request = at + len(data), request + 1

    def fill_whole(self, folder: str, names: Sequence[str], pieces: list[NDArray[np.uint8]]) -> None:
        """Read whole objects of a folder, each as long as its array. Raises StaleError, StorageError."""

        def read(number: int) -> None:
            uri, piece = joined(folder, names[number]), pieces[number]
            try:
                data, facts = whole(uri, most=len(piece))
            except StorageError as error:
                if error.kind in ("missing", "size"):
                    raise stale(uri, error.what, f"{len(piece)} bytes") from error
                raise
            if facts.size_bytes != len(piece):
                raise stale(uri, f"{facts.size_bytes} bytes", f"{len(piece)} bytes")
            piece[:] = np.frombuffer(data, np.uint8)

        at_once(read, range(len(names)))

    def facts(self, source: ByteSource) -> Facts:
        """Return the facts that an object must have.

        These are the recorded facts, or, if a file was recorded, those of the object that has its content now.
        """
        if is_object_tag(source.fingerprint):
            return Facts(size_bytes=source.size_bytes, mtime_ns=source.mtime_ns, tag=source.fingerprint)
        with self._lock:
            known = self._known.get(source)
        if known is None:
            known = self._found(source)
            with self._lock:
                self._known[source] = known
        return known

    def _found(self, source: ByteSource) -> Facts:
        """Check that an object has the recorded content, and return the facts that it must keep from now on."""
        facts = head(source.path)
        recorded = f"{source.size_bytes} bytes, fingerprint {source.fingerprint}"
        if facts.size_bytes != source.size_bytes:
            raise stale(source.path, f"{facts.size_bytes} bytes", recorded)
        ranges = sampled(source.size_bytes)
        if content_fingerprint(source.size_bytes, self._fetch(source.path, ranges, facts)) != source.fingerprint:
            raise stale(source.path, f"{facts.size_bytes} bytes of other content", recorded)
        return facts

    def reader(self, source: ByteSource) -> ObjectReader:
        """Return a function that reads an object.

        The function raises StaleError for an object that is missing or changed, and StorageError.
        """

        def fetch(uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
            with stale_as(source):
                return self._fetch(uri, ranges, facts)

        with stale_as(source):
            return ObjectReader(source.path, self.facts(source), fetch_ranges=fetch)


@contextlib.contextmanager
def stale_as(source: ByteSource) -> Iterator[None]:
    """Raise StaleError if an object is missing or was replaced."""
    try:
        yield
    except StorageError as error:
        if error.kind not in ("missing", "changed"):
            raise
        recorded = f"{source.size_bytes} bytes, {source.fingerprint}"
        raise stale(source.path, str(error.found or error.what), recorded) from error
