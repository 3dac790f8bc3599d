"""Read the byte ranges of clips from local files, from object storage, or from bytes in memory.

Reading raises StaleError if a source is not the file that was recorded in an index or dataset. Files are opened once
and kept open. Ranges of objects are requested concurrently. `local_copy` and `openable` provide whole media, for code
that decodes or demuxes them from the beginning.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import check_room
from framedex.errors import StaleError, StorageError
from framedex.files.outputs import content_fingerprint, is_object_tag, open_same_file, sampled
from framedex.files.parquet_cells import read_cell
from framedex.records.clip import Recipe
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import ByteSource, Clip, Medium, stale
from framedex.storage.objects import Facts, at_once, children, coalesce, download, fetch_many, head, whole
from framedex.storage.places import Stored
from framedex.storage.reader import ASIDE, DiskCache, ObjectFile, ObjectReader, RangedFile
from framedex.storage.uris import is_remote, joined, leads_out

OPEN_FILES = 64  # maximum number of files that a cache keeps open; the usual limit of a process is 1,024 open files


class RecordedFiles:
    """A cache of open files. Threads may share the cache. A lock allows only one thread to read at a time."""

    def __init__(self) -> None:
        self._open: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may no longer exist at exit
        for descriptor in self._open.values():
            close(descriptor)

    def fill(self, source: ByteSource, offset: NDArray[np.int64], pieces: list[NDArray[np.uint8]]) -> None:
        """Read byte ranges of a file into arrays.

        Args:
            source: The file.
            offset: int64 [ranges], the first byte of each range.
            pieces: The array for each range. Its length is the length of the range.

        Raises:
            StaleError: The file is missing or changed.
        """
        with self.opened(source) as descriptor:
            for begin, piece in zip(offset.tolist(), pieces, strict=True):
                _fill(source.path, descriptor, piece, begin)

    def fill_whole(self, folder: str, names: Sequence[str], pieces: list[NDArray[np.uint8]]) -> None:
        """Read whole files of a folder into arrays. Raises StaleError if a file is missing or has another length."""
        for name, piece in zip(names, pieces, strict=True):
            _read_file(os.path.join(folder, name), piece)

    @contextlib.contextmanager
    def opened(self, source: ByteSource) -> Iterator[int]:
        """Provide the file descriptor of a source within a `with` block.

        If the block raises StaleError, the file is closed, so that the next read opens the file again. By then, the
        user may have restored the file.

        Raises:
            StaleError: The file is missing or changed.
        """
        with self._lock:
            try:
                if source.path in self._open and _is_deleted(source.path, self._open[source.path]):
                    os.close(self._open.pop(source.path))
                if source.path not in self._open:
                    self._open[source.path] = open_recorded(source)
                self._open.move_to_end(source.path)
                if len(self._open) > OPEN_FILES:  # close the least recently used file
                    os.close(self._open.popitem(last=False)[1])
                yield self._open[source.path]
            except StaleError:
                if source.path in self._open:
                    os.close(self._open.pop(source.path))
                raise


def _is_deleted(path: str, descriptor: int) -> bool:
    """Return whether an open file was deleted, so that no clip of it may be delivered any more.

    Unfinished files of this run (spools) are deleted while they are read.
    """
    return not os.fstat(descriptor).st_nlink and not os.path.basename(path).startswith(ASIDE)


class RecordedFile:
    """A callable (offset, length) → bytes that reads one recorded file.

    Raises:
        StaleError: The file is missing or differs from the recorded file.
    """

    def __init__(self, source: ByteSource) -> None:
        self._descriptor = open_recorded(source)

    def __call__(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may no longer exist at exit
        if hasattr(self, "_descriptor"):
            close(self._descriptor)


def open_recorded(source: ByteSource) -> int:
    """Open a file and return its descriptor. Raises StaleError if the file is missing or not the recorded file."""
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
    """Fill an array from a file. Several reads may be necessary, because one read returns at most 2 GiB."""
    at = 0
    while at < len(piece):
        at += read_some(path, descriptor, piece.data[at:], offset + at)


def read_some(path: str, descriptor: int, room: memoryview, offset: int) -> int:
    """Read bytes of a file into a buffer. Return the number of bytes. Raises StaleError if reading gives no bytes."""
    try:
        got = os.preadv(descriptor, [room], offset)
    except OSError as error:
        raise stale(path, error.strerror or str(error)) from error
    if not got:
        raise stale(path, f"no bytes at {offset}")
    return got


def _read_file(path: str, piece: NDArray[np.uint8]) -> None:
    """Read a whole file into an array. Raises StaleError if it is missing or has another size."""
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
    """A reader of objects in object storage. Threads may share a reader.

    Args:
        cache: A disk cache for ranges of objects. If None, ranges are not cached.
    """

    def __init__(self, cache: DiskCache | None) -> None:
        self._fetch = fetch_many if cache is None else cache.fetch_many
        self._known: dict[ByteSource, Facts] = {}

    def fill(self, source: ByteSource, offset: NDArray[np.int64], pieces: list[NDArray[np.uint8]]) -> None:
        """Read byte ranges of an object into arrays.

        Args:
            source: The object.
            offset: int64 [ranges], the first byte of each range.
            pieces: The array for each range. Its length is the length of the range.

        Raises:
            StaleError: The object is missing or changed.
            StorageError: A request fails.
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
        """Read whole objects of a folder into arrays.

        Raises:
            StaleError: An object is missing or has another length than its array.
            StorageError: A request fails.
        """

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
        """Return the metadata that an object must have for its ranges to be valid.

        If the index or dataset recorded an object, the result is the recorded metadata. If it recorded a local file,
        the object is a copy of this file. In this case, the object's content is compared with the fingerprint of the
        file, and the result is the present metadata of the object.
        """
        if is_object_tag(source.fingerprint):
            return Facts(size_bytes=source.size_bytes, mtime_ns=source.mtime_ns, tag=source.fingerprint)
        if source not in self._known:  # without a lock: two threads that check the same object get the same result
            facts = head(source.path)
            recorded = f"{source.size_bytes} bytes, fingerprint {source.fingerprint}"
            if facts.size_bytes != source.size_bytes:
                raise stale(source.path, f"{facts.size_bytes} bytes", recorded)
            content = self._fetch(source.path, sampled(source.size_bytes), facts)
            if content_fingerprint(source.size_bytes, content) != source.fingerprint:
                raise stale(source.path, f"{facts.size_bytes} bytes of other content", recorded)
            self._known[source] = facts
        return self._known[source]

    def reader(self, source: ByteSource) -> ObjectReader:
        """Return a callable (offset, length) → bytes that reads an object.

        The callable raises StaleError if the object is missing or changed, and StorageError if a request fails.
        """

        def fetch(uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
            with stale_as(source):
                return self._fetch(uri, ranges, facts)

        with stale_as(source):
            return ObjectReader(source.path, self.facts(source), fetch_ranges=fetch)


@contextlib.contextmanager
def stale_as(source: ByteSource) -> Iterator[None]:
    """Convert a StorageError within a `with` block to StaleError if the object is missing or was replaced."""
    try:
        yield
    except StorageError as error:
        if error.kind not in ("missing", "changed"):
            raise
        recorded = f"{source.size_bytes} bytes, {source.fingerprint}"
        raise stale(source.path, str(error.found or error.what), recorded) from error


NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClip:
    """The packets of a clip in memory.

    Attributes:
        payload: uint8 [bytes], the packets in decode order, joined. If a run has a state, the run's first packet begins
            with the bytes of the state.
        packet_first: int64 [packets + 1], the offset of each packet in `payload`, and the length of `payload`.
    """

    payload: NDArray[np.uint8]
    packet_first: NDArray[np.int64]


class SourceFiles:
    """A reader of the byte ranges of clips in local files and in object storage.

    Threads may share a reader. Only one thread at a time reads a file, but several threads read objects concurrently. A
    reader can be pickled, but its open files are not pickled.

    Args:
        cache: A disk cache for ranges of objects. If None, ranges are not cached.

    Attributes:
        cache: The disk cache for ranges of objects, or None.
    """

    def __init__(self, cache: DiskCache | None = None) -> None:
        self.cache = cache
        self._files, self._objects = RecordedFiles(), Objects(cache)

    def __reduce__(self) -> tuple[type[SourceFiles], tuple[DiskCache | None]]:
        return SourceFiles, (self.cache,)

    def _of(self, source: ByteSource) -> RecordedFiles | Objects:
        """Return the reader for a source, which is a local file or an object."""
        return self._objects if is_remote(source.path) else self._files

    def read(self, clip: Clip) -> EncodedClip:
        """Read the packets of a clip. Raises StaleError if the source is missing or changed."""
        source, recipe = clip.source, clip.recipe
        encoded, pieces = payload_of(clip)
        if recipe.range_path is not None:
            for name in recipe.range_path:  # manifests are not trusted, so refuse names outside the medium's folder
                if not name or leads_out(name) or "\0" in name:
                    raise stale(f"{source.path}/{name}", "not the name of a file in the medium's folder")
            self._of(source).fill_whole(source.path, recipe.range_path, pieces)
        else:
            self._of(source).fill(source, recipe.range_offset, pieces)
        check_content(source, recipe, pieces)
        return encoded

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Read byte ranges of a source. Return them joined, as uint8 [bytes].

        Args:
            source: The source.
            offset: int64 [ranges], the first byte of each range.
            length: int64 [ranges], the number of bytes of each range.

        Raises:
            StaleError: The source is missing or changed.
        """
        payload = np.empty(int(length.sum()), np.uint8)
        ends = np.cumsum(length)
        places = zip((ends - length).tolist(), ends.tolist(), strict=True)
        self._of(source).fill(source, offset, [payload[begin:end] for begin, end in places])
        return payload

    @contextlib.contextmanager
    def opened(self, source: ByteSource) -> Iterator[int | None]:
        """Provide the file descriptor of a source within a `with` block. For an object, provide None.

        If the block raises StaleError, the file is closed.

        Raises:
            StaleError: The file is missing or changed.
        """
        if is_remote(source.path):
            yield None
            return
        with self._files.opened(source) as descriptor:
            yield descriptor


def range_reader(source: ByteSource) -> RecordedFile | ObjectReader:
    """Return a callable (offset, length) → bytes that reads a source.

    Raises:
        StaleError: The source is missing or changed.
        StorageError: A request to the object storage fails.
    """
    return Objects(None).reader(source) if is_remote(source.path) else RecordedFile(source)


def openable(medium: Medium) -> str | RangedFile:
    """Return a medium as a path or a file object that libavformat can open.

    Raises:
        StaleError: The source is missing or changed.
        StorageError: A request to the object storage fails.
    """
    source, inside = medium.source, opened_part(medium)
    if inside is not None:
        return inside
    if is_remote(source.path):
        return ObjectFile(Objects(None).reader(source))
    os.close(open_recorded(source))
    return source.path


def opened_part(medium: Medium) -> RangedFile | None:
    """Open a video that is a member of a tar, or a cell of a Parquet file. Return None for any other medium.

    Raises:
        StaleError: The source is missing or changed.
        StorageError: A request to the object storage fails.
    """
    part, cell = medium.part, medium.cell
    if cell is not None:
        content = _cell_content(medium.source, cell)
        return RangedFile(lambda offset, length: bytes(content[offset : offset + length]), len(content), "cell")
    if part is None:
        return None
    read = range_reader(medium.source)

    def read_part(offset: int, length: int) -> bytes:
        return read(part.offset + offset, max(0, min(length, part.size_bytes - offset)))

    return RangedFile(read_part, part.size_bytes, medium.member or "")


def _cell_content(source: ByteSource, cell: str) -> memoryview:
    """Return the bytes of a cell of a compressed Parquet column.

    Raises:
        StaleError: The source is missing or changed.
        StorageError: A request to the object storage fails.
    """
    try:
        if is_remote(source.path):
            with stale_as(source):
                return read_cell(Stored(uri=source.path), cell, tag=Objects(None).facts(source).tag)
        os.close(open_recorded(source))
        return read_cell(Path(source.path), cell)
    except (OSError, ValueError) as error:
        raise stale(source.path, f"{cell}: {error}") from error


def check_content(source: ByteSource, recipe: Recipe, pieces: Sequence[NDArray[np.uint8]]) -> None:
    """Raise StaleError if the bytes of a range do not match the recorded checksum. Only images have checksums.

    Args:
        source: The source, for errors.
        recipe: The recipe with the checksums.
        pieces: The bytes of each range.
    """
    for number, piece in enumerate(pieces):
        if recipe.range_crc32 is not None and zlib.crc32(piece.data) != recipe.range_crc32[number]:
            where = source.path if recipe.range_path is None else joined(source.path, recipe.range_path[number])
            raise stale(where, "other content")


def payload_of(clip: Clip) -> tuple[EncodedClip, list[NDArray[np.uint8]]]:
    """Allocate the payload of a clip.

    Returns:
        The clip, whose payload contains the states of the runs and space for the packets. Then a list with, for each
            byte range of the recipe, the view of the payload into which the range must be read.
    """
    recipe, states = clip.recipe, clip.medium.states
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """A reader like `SourceFiles`, for a part of a source whose bytes are already in memory.

    Attributes:
        first_byte: The offset of the part in the source.
        content: uint8 [bytes], the bytes of the part.
    """

    first_byte: int
    content: NDArray[np.uint8]

    def read(self, clip: Clip) -> EncodedClip:
        """Read the packets of a clip. Raises StaleError if packets are not in memory or a checksum does not match."""
        encoded, pieces = payload_of(clip)
        for offset, piece in zip(clip.recipe.range_offset.tolist(), pieces, strict=True):
            piece[...] = self._bytes(clip.source, offset, len(piece))
        check_content(clip.source, clip.recipe, pieces)
        return encoded

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Read byte ranges, and return them joined, as uint8 [bytes]. Raises StaleError if a range is not in memory."""
        pairs = zip(offset.tolist(), length.tolist(), strict=True)
        return np.concatenate([np.zeros(0, np.uint8), *(self._bytes(source, *pair) for pair in pairs)])

    def _bytes(self, source: ByteSource, offset: int, length: int) -> NDArray[np.uint8]:
        begin = offset - self.first_byte
        if begin < 0 or begin + length > len(self.content):
            raise stale(source.path, f"no bytes at {offset}")
        return self.content[begin : begin + length]


PIECE_BYTES = 16 << 20  # number of bytes that are copied at a time, large enough for the throughput of disks
LOOSE = "files"  # value of `container` for an image sequence whose images are files in a folder


@contextlib.contextmanager
def local_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium with a local path within a `with` block: the medium itself, or a temporary copy.

    Media in object storage and videos that are a part of a file are copied.

    Raises:
        StaleError: The source is missing or differs from the recorded file.
        StorageError: A request to the object storage fails.
        OSError: The source cannot be opened, or the copy cannot be written.
    """
    loose, part = medium.kind == IMAGES and medium.container == LOOSE, medium.part
    name = f"medium{Path(medium.path if part is None else medium.member or '').suffix}"
    inside = None if part is not None and is_remote(medium.path) else opened_part(medium)
    if inside is not None:
        with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
            path = Path(folder) / name
            with open(path, "wb") as file:
                shutil.copyfileobj(inside, file, PIECE_BYTES)
                if file.tell() != medium.member_bytes:
                    raise stale(medium.path, f"{file.tell()} of {medium.member_bytes} bytes of {medium.member}")
            yield replace(medium, path=str(path), member_offset=None, member_bytes=None)
        return
    if not is_remote(medium.path):
        if not loose:
            os.close(open_recorded(medium.source))
        yield medium
        return
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder, stale_as(medium.source):
        copy_to = Path(folder)
        if loose:
            found = children(medium.path)
            at_once(lambda name: download(f"{medium.path}/{name}", found[name], copy_to / name), list(found))
            yield replace(medium, path=folder)
            return
        path = copy_to / name
        download(medium.path, Objects(None).facts(medium.source), path, part)
        yield replace(medium, path=str(path), member_offset=None, member_bytes=None)
