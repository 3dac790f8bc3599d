"""A bounded cache of byte ranges on a local disk. All processes of a machine that name the same folder share it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from framedex.errors import OutputError
from framedex.storage.objects import Facts, fetch_many

TOTAL_NAME = "total"  # the file with the cache's size in bytes; its lock is the cache's lock
ASIDE = ".writing-"
SUFFIX = ".range"
KEPT_SHARE = 0.9  # of `most_bytes` after the oldest ranges were removed
ABANDONED_SECONDS = 3600.0  # after this time, an unfinished file is removed
PAUSE_SECONDS = 60.0  # without writes after the disk refused one
CHECK_BYTES = 4
LOG = logging.getLogger("framedex.storage")


class DiskCache:
    """A cache of object ranges in files of a folder. The least recently used ranges are removed first. Picklable.

    A cached range is used only for the exact object that it was read from, never for a replacement. If nothing can be
    written, reading continues without the cache.

    Args:
        folder: The folder. It is created if it is missing.
        most_bytes: The maximum size of all ranges together.

    Raises:
        OutputError: The folder cannot be created.
    """

    def __init__(self, folder: str | Path, *, most_bytes: int = 64 << 30) -> None:
        self.folder, self.most_bytes = Path(folder).absolute(), most_bytes
        self._not_before = 0.0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError("the cache's folder cannot be made", where=str(folder), found=error.strerror) from error

    def fetch_many(self, uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
        """Return the bytes of ranges (begin, end) of an object. Ranges that are not cached are read from the store."""
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
            return None  # damaged on the disk: treated as missing
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
            LOG.warning(
                "the cache in %s takes no more (%s); going on without it for %g s",
                self.folder,
                error.strerror,
                PAUSE_SECONDS,
            )
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Count this many bytes as used. If that exceeds the limit, remove the least recently used ranges first."""
        with self._total() as file:
            text = os.pread(file, 64, 0)
            total = int(text) if text.strip().isdigit() else self._remove_oldest(self.most_bytes)
            if total + size > self.most_bytes:
                total = self._remove_oldest(min(int(self.most_bytes * KEPT_SHARE), self.most_bytes - size))
            os.pwrite(file, f"{total + size:<40}".encode(), 0)

    @contextlib.contextmanager
    def _total(self) -> Iterator[int]:
        file = os.open(self.folder / TOTAL_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _remove_oldest(self, most: int) -> int:
        """Remove the least recently used ranges until at most this many bytes are left. Return how many are left."""
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
