"""Tars of samples as webdataset reads them, each with an index for DALI. The same samples give the same bytes.

A tar is written under a temporary name, and gets its name once it is complete and on disk.
"""

import collections
import errno
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from framedex.files.outputs import ASIDE, fingerprint, write_aside
from framedex.sharder.clips.samples import FileRanges, Member
from framedex.sharder.reading import SourceFiles, read_some

BLOCK = 512  # tar's unit (POSIX.1-2017, pax, "ustar Interchange Format")
TAR_END = bytes(2 * BLOCK)
INDEX_VERSION = "v1.2"  # of DALI's index: one line per sample, with (extension, offset, size, name) of each file
BUFFER_BYTES = 256 << 10  # larger buffers do not fit into the processor's cache
LARGE_BYTES = 32 << 10  # the kernel copies ranges of at least this size
KERNEL_BYTES = 8 << 20  # per call
MAX_FETCHED = 64 << 20  # of an object at a time
MODE = 0o644
# Errors of copy_file_range(2) if it cannot copy between two files (other file systems on old kernels, special files),
# or if one of the files has a fault. Reading and writing then show which file it is.
NOT_IN_KERNEL = frozenset(
    [
        errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY, errno.EIO, errno.ESTALE,
    ]
)  # fmt: skip


def sample_bytes(members: Sequence[Member]) -> int:
    """Return how many bytes a sample takes in a tar."""
    return sum(BLOCK + _padded(len(member)) for member in members)


def index_path(tar: Path) -> Path:
    """Return the path of a tar's index."""
    return tar.with_suffix(".idx")


class Tar:
    """A tar that is being written to `path`. A thread of its own copies the samples, in order. Raises OSError."""

    def __init__(self, path: Path, sources: SourceFiles) -> None:
        self.path, self._sources = path, sources
        self.size = 0  # bytes of the added samples, without the end of the tar
        self._aside = path.with_name(ASIDE + path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = self._written = 0  # bytes in the buffer, and bytes in the file before them
        self._lines: list[str] = []
        self._copier = ThreadPoolExecutor(1)
        self._copying: collections.deque[Future[None]] = collections.deque()
        self._stopped = False  # by a sample that could not be written

    @property
    def samples(self) -> int:
        """Number of samples that were added."""
        return len(self._lines)

    def add(self, key: str, members: Sequence[Member]) -> list[int]:
        """Append a sample, and return the offset of each member's content. `settle` tells whether it was written."""
        offsets, line, at = [], [], self.size
        for member in members:
            length, at = len(member), at + BLOCK
            offsets.append(at)
            line.append(f"{member.suffix} {at} {length} {key}.{member.suffix}")
            at += _padded(length)
        self.size = at
        self._lines.append(" ".join(line))
        self._copying.append(self._copier.submit(self._write, key, members))
        return offsets

    def settle(self) -> None:
        """Wait until the first sample that is being copied is written.

        Raises:
            StaleError: One of the sample's files is missing or changed. Then neither this sample nor any that was added
                after it is part of the tar.
        """
        error = self._copying[0].exception()  # interrupting the wait changes nothing
        if error is None:
            self._copying.popleft()
            return
        for copying in self._copying:  # the samples after it do nothing
            copying.exception()
        del self._lines[-len(self._copying) :]
        self._copying.clear()
        self._stopped = False
        self.size = self._written + self._filled
        raise error

    def _write(self, key: str, members: Sequence[Member]) -> None:
        """Write a sample completely or not at all. After a sample that could not be written, nothing is written."""
        if self._stopped:
            return
        written, filled = self._written, self._filled
        try:
            for member in members:
                self._put(_header(f"{key}.{member.suffix}", len(member)))
                for piece in member.pieces:
                    self._put(piece) if isinstance(piece, bytes) else self._copy(piece)
                self._put(bytes(-len(member) % BLOCK))
        except BaseException:
            self._stopped = True
            if self._written == written:
                self._filled = filled
            else:
                self._written, self._filled = written + filled, 0
                os.ftruncate(self._descriptor, self._written)
                os.lseek(self._descriptor, self._written, os.SEEK_SET)
            raise

    def _put(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            room = min(len(view), BUFFER_BYTES - self._filled)
            self._buffer[self._filled : self._filled + room] = view[:room]
            self._filled += room
            view = view[room:]
            if self._filled == BUFFER_BYTES:
                self._flush()

    def _copy(self, piece: FileRanges) -> None:
        """Copy a source's bytes into the tar."""
        with self._sources.opened(piece.source) as descriptor:
            if descriptor is None:
                self._fetch(piece)
            else:
                self._copy_file(piece, descriptor)

    def _fetch(self, piece: FileRanges) -> None:
        """Copy ranges of an object."""
        for part in _parted(piece.ranges):
            offset, length = np.array(part, np.int64).T
            self._put(self._sources.read_ranges(piece.source, offset, length).data)

    def _copy_file(self, piece: FileRanges, descriptor: int) -> None:
        """Copy ranges of a file; the kernel copies large ones."""
        for at, left in piece.ranges:
            if left >= LARGE_BYTES:
                copied = self._copy_in_kernel(descriptor, at, left)
                at, left = at + copied, left - copied
            while left:
                got = read_some(piece.source.path, descriptor, self._buffer[self._filled : self._filled + left], at)
                at, left, self._filled = at + got, left - got, self._filled + got
                if self._filled == BUFFER_BYTES:
                    self._flush()

    def _copy_in_kernel(self, descriptor: int, offset: int, length: int) -> int:
        """Let the kernel copy a range of a file, and return how many bytes were copied; 0 if the kernel cannot."""
        self._flush()
        left = length
        while left:
            try:
                got = os.copy_file_range(descriptor, self._descriptor, min(left, KERNEL_BYTES), offset)
            except OSError as error:
                if error.errno not in NOT_IN_KERNEL:
                    raise
                break
            if not got:
                break
            left, offset, self._written = left - got, offset + got, self._written + got
        return length - left

    def _flush(self) -> None:
        view = self._buffer[: self._filled]
        while view:
            count = os.write(self._descriptor, view)
            view = view[count:]
        self._written, self._filled = self._written + self._filled, 0

    def close(self) -> str:
        """Finish the tar and its index, give them their names, and return the tar's fingerprint.

        All samples must be settled.
        """
        self._put(TAR_END)
        self._flush()
        self.size = self._written
        os.fsync(self._descriptor)
        mark = fingerprint(self._descriptor, self.size)
        self._close()
        os.replace(self._aside, self.path)
        write_aside(index_path(self.path), "\n".join([f"{INDEX_VERSION} {self.samples}", *self._lines, ""]).encode())
        return mark

    def abandon(self) -> None:
        """Remove the unfinished tar. Samples that still wait to be written are dropped."""
        self._stopped = True
        self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        self._copier.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _parted(ranges: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield ranges in groups that are fetched together, in order.

    A group has at most MAX_FETCHED bytes, unless it consists of a single longer range.
    """
    part: list[tuple[int, int]] = []
    for offset, length in ranges:
        if part and sum(size for _, size in part) + length > MAX_FETCHED:
            yield part
            part = []
        part.append((offset, length))
    if part:
        yield part


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _header(name: str, size: int) -> bytes:
    """Return a member's header, without anything that differs between machines or over time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime, info.uid, info.gid, info.uname, info.gname = size, MODE, 0, 0, 0, "", ""
    return info.tobuf(tarfile.USTAR_FORMAT)
