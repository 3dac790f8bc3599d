"""Reading a clip's byte ranges from files and objects, each checked to be the one indexed."""

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

from framedex.core.memory import check_room
from framedex.errors import StaleError
from framedex.files.fingerprint import open_same_file
from framedex.sharder.clips.byte_source import ByteSource, stale
from framedex.sharder.clips.recipe import Recipe
from framedex.sharder.reading.object_sources import Objects
from framedex.storage.cache import DiskCache
from framedex.storage.uris import is_remote, joined

OPEN_FILES = 64
NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClip:
    """A clip's packets in memory. payload: uint8 [bytes], packets in decode order. packet_first: int64 [packets + 1],
    where each begins. A state that a decoder must be given first is part of the packet that it precedes.
    """

    payload: NDArray[np.uint8]
    packet_first: NDArray[np.int64]


class SourceFiles:
    """The sources that this process reads: open files, the least recently used closed first, and objects. Picklable; open
    files stay behind. cache: for ranges of objects.

    Threads may share it: of files they read one after the other, of objects all at once.
    """

    def __init__(self, cache: DiskCache | None = None) -> None:
        self._cache = cache
        self._open: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._objects = Objects(cache)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SourceFiles], tuple[DiskCache | None]]:
        return SourceFiles, (self._cache,)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # kept: at exit, modules may be gone
        for descriptor in self._open.values():
            close(descriptor)

    def read(self, source: ByteSource, recipe: Recipe, states: Sequence[bytes]) -> EncodedClip:
        """Return the packets of a clip. states: of its medium. Raises StaleError for a source that is gone or changed."""
        clip, pieces = _laid_out(recipe, states)
        if recipe.range_path is not None:
            self._read_files(source, recipe.range_path, pieces)
        else:
            self._fill(source, recipe.range_offset, pieces)
        for number, piece in enumerate(pieces):
            if recipe.range_crc32 is not None and zlib.crc32(piece.data) != recipe.range_crc32[number]:
                where = source.path if recipe.range_path is None else joined(source.path, recipe.range_path[number])
                raise stale(where, "other content")
        return clip

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return uint8 [bytes]: some ranges of a source, joined. Raises StaleError for one that is gone or changed."""
        payload = np.empty(int(length.sum()), np.uint8)
        ends = np.cumsum(length)
        places = zip((ends - length).tolist(), ends.tolist(), strict=True)
        self._fill(source, offset, [payload[begin:end] for begin, end in places])
        return payload

    def _fill(self, source: ByteSource, offset: NDArray[np.int64], pieces: list[NDArray[np.uint8]]) -> None:
        """Read ranges of a source into some room each."""
        if is_remote(source.path):
            self._objects.fill(source, offset, pieces)
            return
        with self._lock, self._forgetting(source):
            for begin, piece in zip(offset.tolist(), pieces, strict=True):
                _fill(source.path, self._opened(source), piece, begin)

    def _read_files(self, source: ByteSource, names: Sequence[str], pieces: list[NDArray[np.uint8]]) -> None:
        """Read whole files of a folder, each into its room."""
        for name in names:
            if not name or os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
                raise stale(f"{source.path}/{name}", "no name of a file in the medium's folder")
        if is_remote(source.path):
            self._objects.fill_whole([joined(source.path, name) for name in names], pieces)
            return
        for name, piece in zip(names, pieces, strict=True):
            _read_file(os.path.join(source.path, name), piece)

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

    @contextlib.contextmanager
    def opened(self, source: ByteSource) -> Iterator[int]:
        """Give the descriptor of a file. Raises StaleError, and closes the file where its user raises one."""
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


def _laid_out(recipe: Recipe, states: Sequence[bytes]) -> tuple[EncodedClip, list[NDArray[np.uint8]]]:
    """Return a clip with the states that runs begin with, and room in its payload for each range."""
    given = [np.frombuffer(states[number], np.uint8) for number in recipe.run_state.tolist()]
    extra = np.zeros(len(recipe.packet_size), np.int64)
    extra[recipe.run_first] = [len(state) for state in given]
    packet_first = np.concatenate([[0], np.cumsum(recipe.packet_size + extra)])
    check_room(int(packet_first[-1]), "the packets of a clip", where="recipes")
    payload = np.empty(int(packet_first[-1]), np.uint8)
    starts = dict(zip(packet_first[recipe.run_first].tolist(), given, strict=True))
    at, pieces = 0, []
    for length in recipe.range_length.tolist():
        state = starts.pop(at, NOTHING)
        payload[at : at + len(state)] = state
        at += len(state)
        pieces.append(payload[at : at + length])
        at += length
    return EncodedClip(payload=payload, packet_first=packet_first), pieces


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


def _read_file(path: str, piece: NDArray[np.uint8]) -> None:
    """Read a whole file, which must be as long as the piece."""
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
