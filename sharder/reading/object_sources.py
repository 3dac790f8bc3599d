"""Reads sources that are objects. Their ranges are requested concurrently, and only of the object that was recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StorageError
from framedex.files.fingerprint import content_fingerprint, is_object_tag, sampled
from framedex.sharder.clips.byte_source import ByteSource, stale
from framedex.storage.cache import DiskCache
from framedex.storage.objects import Facts, at_once, fetch_many, head, whole
from framedex.storage.ranges import coalesce
from framedex.storage.reader import ObjectReader
from framedex.storage.uris import joined


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
