"""A reader that reads an object in pieces with few requests, and a cache of byte ranges on a local disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import OutputError, StorageError
from framedex.storage.objects import ByteRange, Facts, coalesce, fetch, fetch_end, fetch_many, head

Fetch = Callable[[str, Sequence[tuple[int, int]], Facts], list[memoryview]]
Read = Callable[[int, int], bytes]  # (offset, length) → bytes; fewer than `length` bytes at the end of the file

FIRST_BYTES = 256 << 10  # size of the first request, which contains the headers of most containers
BLOCK_BYTES = 128 << 10  # least size of a later request; transferring less would not be faster, due to the latency
# Sizes of the requests of a sequential read. NEXT_BYTES is the size of the first request that continues an earlier one.
# Each further request is larger by a quarter than the one before, up to MAX_NEXT_BYTES.
NEXT_BYTES, MAX_NEXT_BYTES = 256 << 10, 1 << 20
# If a read begins at most this many bytes before the end of an object, one request reads all bytes up to the end. More
# of these bytes are often needed later.
TAIL_BYTES = 512 << 10
KEPT_BYTES = 64 << 20  # number of bytes per object that are kept in memory


class ObjectReader:
    """A callable (offset, length) → bytes that reads an object. Bytes that were read are kept in memory.

    At the end of the object, a call returns fewer bytes.

    Args:
        uri: The object.
        facts: The metadata that the object must have. If None, the reader requests the object's current metadata, and
            the object must not change later.
        part: The byte range of the object to read as if the range were the whole object. If given, `facts` must also be
            given. If None, the whole object is read.
        fetch_ranges: The function that fetches byte ranges of the object.
        kept_bytes: The maximum number of bytes that are kept in memory.
        most_requests: The maximum number of requests. A further request raises StorageError of kind `requests`. If
            None, the number is not limited.

    Raises:
        StorageError: A request failed. The kind is `changed` if the object was replaced.
    """

    def __init__(
        self,
        uri: str,
        facts: Facts | None = None,
        *,
        part: ByteRange | None = None,
        fetch_ranges: Fetch = fetch_many,
        kept_bytes: int = KEPT_BYTES,
        most_requests: int | None = None,
    ) -> None:
        self.uri, self._fetch, self._most_kept = uri, fetch_ranges, kept_bytes
        self.requests, self._most_requests = 0, most_requests
        self._next = NEXT_BYTES
        # The last error that this reader raised. A library that calls this reader may raise another error instead, so
        # callers of the library find the cause here.
        self.failure: StorageError | None = None
        self._kept: list[tuple[int, memoryview]] = []
        self._kept_bytes = 0
        if facts is None:
            data, facts = fetch(uri, 0, FIRST_BYTES)
            self.requests = 1
            self._keep(0, data)
        self.facts = facts
        self._begin = 0 if part is None else part.offset
        self.size_bytes = facts.size_bytes if part is None else part.size_bytes

    @classmethod
    def from_end(cls, uri: str, length: int, *, kept_bytes: int = KEPT_BYTES) -> ObjectReader:
        """Return a reader whose first request is for the end of the object, where Parquet files have their metadata.

        Args:
            uri: The object.
            length: The size of the first request in bytes.
            kept_bytes: The maximum number of bytes that are kept in memory.
        """
        try:
            data, facts = fetch_end(uri, length)
        except StorageError as error:
            if error.kind != "unsupported":
                raise
            return cls(uri, head(uri), kept_bytes=kept_bytes)
        reader = cls(uri, facts, kept_bytes=kept_bytes)
        reader._keep(facts.size_bytes - len(data), data)
        return reader

    def __call__(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on, or fewer bytes at the end of the object. Raises StorageError."""
        size = self.size_bytes
        end = min(offset + length, size)
        if offset >= end:
            return b""
        found = self._find(offset, end)
        if found is None:
            # Kept bytes should not be requested again. If a kept piece contains the offset or ends at it, and is small
            # enough to be extended, then request the bytes after that piece.
            pieces = ((at, at + len(data)) for at, data in self._kept if len(data) <= self._most_kept // 2)
            begin = max((stop for at, stop in pieces if at <= offset <= stop), default=None)
            if begin is None:
                begin, block, self._next = offset, BLOCK_BYTES, NEXT_BYTES
            else:
                block, self._next = self._next, min(self._next * 5 // 4, MAX_NEXT_BYTES)
            if size - begin <= TAIL_BYTES:  # read the rest of the object, and up to one block before `begin`
                before = max((at + len(data) for at, data in self._kept if at + len(data) <= begin), default=0)
                self._get([(max(begin - BLOCK_BYTES, before), size)])
            else:
                self._get([(begin, min(max(end, begin + block), size))])
            found = self._find(offset, end)
            assert found is not None  # the range was just fetched
        return bytes(found)

    def prepare(self, offset: NDArray[np.int64], length: NDArray[np.int64]) -> None:
        """Fetch byte ranges in parallel and keep them, so that later calls for these ranges need no requests.

        Args:
            offset: int64 [ranges]. The first byte of each range.
            length: int64 [ranges]. The length of each range in bytes.
        """
        wanted = [(at, at + size) for at, size in zip(offset.tolist(), length.tolist(), strict=True)]
        missing = [place for place, (begin, end) in enumerate(wanted) if end > begin and self._find(begin, end) is None]
        if missing:
            joined = coalesce(offset[missing], length[missing], gap=BLOCK_BYTES, waste=np.inf)
            self._get(list(zip(joined.begin.tolist(), joined.end.tolist(), strict=True)))

    @property
    def first_bytes(self) -> memoryview:
        """The first bytes of the object, or of its part, that are kept in memory."""
        return max((data for at, data in self._kept if not at), key=len, default=memoryview(b""))

    def forget(self) -> None:
        """Free the memory of all kept bytes."""
        self._kept, self._kept_bytes = [], 0

    def _get(self, ranges: list[tuple[int, int]]) -> None:
        self.requests += len(ranges)
        if self._most_requests is not None and self.requests > self._most_requests:
            self.failure = StorageError("reading the object takes too many requests", kind="requests", where=self.uri)
            raise self.failure
        try:
            in_object = [(self._begin + begin, self._begin + end) for begin, end in ranges]
            found = self._fetch(self.uri, in_object, self.facts)
        except StorageError as error:
            self.failure = error
            raise
        for (begin, _), data in zip(ranges, found, strict=True):
            self._keep(begin, data)

    def _find(self, begin: int, end: int) -> memoryview | None:
        for at, data in reversed(self._kept):
            if at <= begin and end <= at + len(data):
                return data[begin - at : end - at]
        return None

    def _keep(self, begin: int, data: memoryview) -> None:
        """Keep a piece of the object in memory. If the piece follows a kept piece, the two are joined."""
        ending = [
            place
            for place, (at, before) in enumerate(self._kept)
            if at + len(before) == begin and len(before) <= self._most_kept // 2
        ]
        if ending:  # if several kept pieces end at `begin`, extend the longest
            at, before = self._kept.pop(min(ending, key=lambda place: self._kept[place][0]))
            self._kept_bytes -= len(before)
            begin, data = at, memoryview(bytes(before) + bytes(data))
        self._kept.append((begin, data))
        self._kept_bytes += len(data)
        while self._kept_bytes > self._most_kept and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.pop(0)[1])


class RangedFile(io.RawIOBase):
    """A readable file that calls a function for each read, for libraries that need a file.

    Args:
        read: The function that reads a byte range.
        size_bytes: The size of the file.
        name: The name of the file. Its extension helps libavformat to detect the format.
    """

    def __init__(self, read: Read, size_bytes: int, name: str) -> None:
        self._read, self._size_bytes, self._at = read, size_bytes, 0
        self.name = name.rpartition("/")[2]  # without a protocol such as s3://, with which libavformat would read more

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def size(self) -> int:
        """Return the size of the file in bytes. pyarrow calls this method."""
        return self._size_bytes

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size_bytes - self._at)
        data = self._read(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class ObjectFile(RangedFile):
    """A readable file over an object in object storage."""

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__(reader, reader.size_bytes, reader.uri)


TOTAL_NAME = "total"  # name of the file with the cache's size in bytes; a lock on it protects the whole cache
ASIDE = ".writing-"  # prefix of the names of unfinished files, which readers ignore
SUFFIX = ".range"
KEPT_SHARE = 0.9  # ranges are removed down to this share of the limit, so that not every write has to remove some
ABANDONED_SECONDS = 3600.0  # age from which on an unfinished file is deleted, since its process must have been killed
PAUSE_SECONDS = 60.0  # time without writes after a failed write; otherwise, a full disk would slow down every read
CHECK_BYTES = 4  # size of the CRC-32 at the end of each cached file
LOG = logging.getLogger("framedex.storage")


class DiskCache:
    """A cache of byte ranges of objects, as files in a local folder.

    If the cache is full, the least recently used ranges are removed. All processes of a machine that use the same
    folder share the cache. If an object is replaced, the cached ranges of the old object are not used any more. If the
    cache cannot be written, reading continues without it. A `DiskCache` can be pickled.

    Args:
        folder: The folder. It is created if it does not exist.
        most_bytes: The maximum total size of all cached ranges.

    Raises:
        OutputError: The folder cannot be created.
    """

    def __init__(self, folder: str | Path, *, most_bytes: int = 64 << 30) -> None:
        self.folder, self.most_bytes = Path(folder).absolute(), most_bytes
        self._not_before = 0.0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError("cannot create the cache's folder", where=str(folder), found=error.strerror) from error

    def fetch_many(self, uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
        """Return the bytes of ranges (begin, end) of an object. Ranges that are not cached are fetched and cached."""
        found = {piece: self._read(self._path(uri, piece, facts)) for piece in ranges}
        missing = [piece for piece, data in found.items() if data is None]
        if missing:
            for piece, data in zip(missing, fetch_many(uri, missing, facts), strict=True):
                found[piece] = data
                self._write(self._path(uri, piece, facts), data)
        return [data for data in (found[piece] for piece in ranges) if data is not None]

    def _path(self, uri: str, piece: tuple[int, int], facts: Facts) -> Path:
        name = f"{uri}\0{facts.tag}\0{facts.size_bytes}\0{piece[0]}\0{piece[1]}"
        digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
        return self.folder / digest[:2] / f"{digest[2:]}{SUFFIX}"

    def _read(self, path: Path) -> memoryview | None:
        try:
            data = memoryview(path.read_bytes())
        except OSError:
            return None
        content, check = data[:-CHECK_BYTES], data[-CHECK_BYTES:]
        if len(data) < CHECK_BYTES or zlib.crc32(content).to_bytes(CHECK_BYTES, "little") != check:
            return None  # a damaged file is treated as missing
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def _write(self, path: Path, data: memoryview) -> None:
        size = len(data) + CHECK_BYTES
        if time.monotonic() < self._not_before or size > self.most_bytes:
            return
        aside = path.with_name(f"{ASIDE}{os.getpid()}-{time.monotonic_ns()}")
        try:
            path.parent.mkdir(exist_ok=True)
            self._make_room(size)
            with open(aside, "wb") as file:
                file.write(data)
                file.write(zlib.crc32(data).to_bytes(CHECK_BYTES, "little"))
            aside.rename(path)
        except OSError as error:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            text = "the cache in %s cannot be written (%s); new ranges are not cached for %g s"
            LOG.warning(text, self.folder, error.strerror, PAUSE_SECONDS)
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Add `size` to the recorded size of the cache. First remove old ranges if the limit would be exceeded."""
        file = os.open(self.folder / TOTAL_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = os.pread(file, 64, 0)
            total = int(text) if text.strip().isdigit() else self._remove_oldest(self.most_bytes)
            if total + size > self.most_bytes:
                total = self._remove_oldest(min(int(self.most_bytes * KEPT_SHARE), self.most_bytes - size))
            os.pwrite(file, f"{total + size:<40}".encode(), 0)
        finally:
            os.close(file)

    def _remove_oldest(self, most: int) -> int:
        """Remove the least recently used ranges until at most `most` bytes remain. Return the number of bytes then."""
        entries: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == SUFFIX:
                    entries.append((status.st_mtime, status.st_size, path))
                elif path.name.startswith(ASIDE) and status.st_mtime < time.time() - ABANDONED_SECONDS:
                    path.unlink()
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries, key=lambda entry: entry[0]):
            if total <= most:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
        return total
