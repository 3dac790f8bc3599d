"""CONTRACT: reading a clip's byte ranges from local files, each file opened once and checked to be the one indexed."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.indexer.fingerprint import open_same_file
from framedex.sharder.recipe import Recipe

OPEN_FILES = 64
NOTHING = np.zeros(0, np.uint8)
CONTENT_ALONE = -1  # no modification time: only its content says whether a file is the one recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSource:
    """A file that byte ranges point into, as it was recorded. mtime_ns may be CONTENT_ALONE."""

    path: str
    size_bytes: int
    mtime_ns: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClip:
    """A clip's packets in memory. payload: uint8 [bytes], packets in decode order. packet_first: int64 [packets + 1],
    where each begins. A state that a decoder must be given first is part of the packet that it precedes.
    """

    payload: NDArray[np.uint8]
    packet_first: NDArray[np.int64]


class SourceFiles:
    """Open files of this process, the least recently used closed first. Picklable; open files stay behind.

    Threads may share it: they read one after the other.
    """

    def __init__(self) -> None:
        self._open: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SourceFiles], tuple[()]]:
        return SourceFiles, ()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # kept: at exit, modules may be gone
        for descriptor in self._open.values():
            close(descriptor)

    def read(self, source: ByteSource, recipe: Recipe, states: Sequence[bytes]) -> EncodedClip:
        """Return the packets of a clip. states: of its medium. Raises StaleError for a file that is gone or changed."""
        with self._lock, self._forgetting(source):
            return self._read(source, recipe, states)

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return uint8 [bytes]: some ranges of a file, joined. Raises StaleError for a file that is gone or changed."""
        payload = np.empty(int(length.sum()), np.uint8)
        at = 0
        with self._lock, self._forgetting(source):
            for begin, size in zip(offset.tolist(), length.tolist(), strict=True):
                _fill(source.path, self._opened(source), payload[at : at + size], begin)
                at += size
        return payload

    @contextlib.contextmanager
    def _forgetting(self, source: ByteSource) -> Iterator[None]:
        """Close a file that proves stale, so that the next read finds it when it has been put back."""
        try:
            yield
        except StaleError:
            descriptor = self._open.pop(source.path, None)
            if descriptor is not None:
                os.close(descriptor)
            raise

    def _read(self, source: ByteSource, recipe: Recipe, states: Sequence[bytes]) -> EncodedClip:
        given = [np.frombuffer(states[number], np.uint8) for number in recipe.run_state.tolist()]
        extra = np.zeros(len(recipe.packet_size), np.int64)
        extra[recipe.run_first] = [len(state) for state in given]
        packet_first = np.concatenate([[0], np.cumsum(recipe.packet_size + extra)])
        payload = np.empty(int(packet_first[-1]), np.uint8)
        starts = dict(zip(packet_first[recipe.run_first].tolist(), given, strict=True))
        at = 0
        for number, (offset, length) in enumerate(
            zip(recipe.range_offset.tolist(), recipe.range_length.tolist(), strict=True)
        ):
            state = starts.pop(at, NOTHING)
            payload[at : at + len(state)] = state
            at += len(state)
            piece = payload[at : at + length]
            if recipe.range_path is None:
                _fill(source.path, self._opened(source), piece, offset)
            else:
                _read_file(source.path, recipe.range_path[number], piece)
            if recipe.range_crc32 is not None and zlib.crc32(piece.data) != recipe.range_crc32[number]:
                where = (
                    source.path if recipe.range_path is None else os.path.join(source.path, recipe.range_path[number])
                )
                raise stale(where, "other content")
            at += length
        return EncodedClip(payload=payload, packet_first=packet_first)

    @contextlib.contextmanager
    def opened(self, source: ByteSource) -> Iterator[int]:
        """Give the descriptor of a source's open file. Raises StaleError, and closes the file where its user raises one."""
        with self._lock, self._forgetting(source):
            yield self._opened(source)

    def _opened(self, source: ByteSource) -> int:
        if source.path in self._open:
            self._open.move_to_end(source.path)
            return self._open[source.path]
        descriptor = open_recorded(source)
        self._open[source.path] = descriptor
        if len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


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
    """Read a range of a file to its end; one call reads 2 GiB at most."""
    at = 0
    while at < len(piece):
        at += read_some(path, descriptor, piece.data[at:], offset + at)


def read_some(path: str, descriptor: int, room: memoryview, offset: int) -> int:
    """Read bytes of a file into some room, and return how many there were. Raises StaleError where there is none."""
    try:
        got = os.preadv(descriptor, [room], offset)
    except OSError as error:
        raise stale(path, error.strerror or str(error)) from error
    if not got:
        raise stale(path, f"no bytes at {offset}")
    return got


def _read_file(folder: str, name: str, piece: NDArray[np.uint8]) -> None:
    """Read a whole file of a folder, which must be as long as the piece."""
    path = os.path.join(folder, name)
    if not name or os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
        raise stale(path, "no name of a file in the medium's folder")
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


def stale(where: str, found: str, allowed: str | None = None) -> StaleError:
    """Return the error for a file that is not the one recorded."""
    return StaleError(
        "the source is not the file that was indexed",
        where=where,
        found=found,
        allowed=allowed,
        remedy="index and shard again, or point root at where the sources moved",
    )
