"""Writing of tars that webdataset can read, each with an index file for DALI. Equal samples give byte-identical tars.

A tar is written under a temporary name, and renamed once it is complete and on disk.
"""

import collections
import errno
import os
import tarfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from framedex.core.limits import groups_within
from framedex.files.outputs import fingerprint, write_aside
from framedex.sharder.clips.samples import FileRanges, Member
from framedex.sharder.reading import SourceFiles, read_some
from framedex.storage.reader import ASIDE

BLOCK = 512  # bytes per block of a tar (POSIX.1-2017, pax, "ustar Interchange Format")
TAR_END = bytes(2 * BLOCK)
# Version of DALI's index format. An index has one line per sample, with (extension, offset, size, name) of each file.
INDEX_VERSION = "v1.2"
BUFFER_BYTES = 256 << 10  # size of the write buffer; a larger one would not fit into the processor's cache
LARGE_BYTES = 32 << 10  # ranges of at least this many bytes are copied by the kernel (copy_file_range)
KERNEL_BYTES = 8 << 20  # maximum number of bytes per call of copy_file_range
MAX_FETCHED = 64 << 20  # maximum number of bytes that are fetched from an object at once
MODE = 0o644
# Errors of copy_file_range(2) after which the range is copied by read and write instead. Some mean that the kernel
# cannot copy between these two files (different file systems on old kernels, special files). The others mean that one
# of the files has an I/O error: then the error of read or write shows which file.
NOT_IN_KERNEL = frozenset(
    [
        errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY, errno.EIO, errno.ESTALE,
    ]
)  # fmt: skip


def sample_bytes(members: Sequence[Member]) -> int:
    """Return the number of bytes that a sample occupies in a tar."""
    return sum(BLOCK + _padded(len(member)) for member in members)


def index_path(tar: Path) -> Path:
    """Return the path of the index file of a tar."""
    return tar.with_suffix(".idx")


class Tar:
    """A tar that is being written to `path`. A background thread copies the samples in order. Raises OSError."""

    def __init__(self, path: Path, sources: SourceFiles) -> None:
        self.path, self._sources = path, sources
        self.size = 0  # number of bytes of the added samples, without the end marker of the tar
        self._aside = path.with_name(ASIDE + path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        # `_filled`: number of bytes in the buffer. `_written`: number of bytes that are already in the file.
        self._filled = self._written = 0
        self._lines: list[str] = []
        self._copier = ThreadPoolExecutor(1)
        self._copying: collections.deque[Future[None]] = collections.deque()
        self._stopped = False  # whether no more samples are written, because one failed or the tar was abandoned

    @property
    def samples(self) -> int:
        """The number of samples that were added."""
        return len(self._lines)

    def add(self, key: str, members: Sequence[Member]) -> list[int]:
        """Start to append a sample, and return the offset of each member's content.

        The sample is written in the background. `settle` waits for that, and raises an error if writing failed.
        """
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
        """Wait until the earliest sample that is still being copied is written.

        Raises:
            StaleError: A source of the sample is missing or changed. The tar then contains neither this sample nor any
                sample that was added later.
        """
        error = self._copying[0].exception()  # Ctrl-C during this wait leaves the state unchanged
        if error is None:
            self._copying.popleft()
            return
        for copying in self._copying:  # `_write` returns at once for the samples after the failed one
            copying.exception()
        del self._lines[-len(self._copying) :]
        self._copying.clear()
        self._stopped = False
        self.size = self._written + self._filled
        raise error

    def _write(self, key: str, members: Sequence[Member]) -> None:
        """Write a sample completely or not at all. After a failed sample, later samples are not written."""
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
        """Copy byte ranges of a source into the tar."""
        with self._sources.opened(piece.source) as descriptor:
            if descriptor is not None:
                self._copy_file(piece, descriptor)
                return
        for part in groups_within(piece.ranges, MAX_FETCHED, lambda offset_length: offset_length[1]):
            offset, length = np.array(part, np.int64).T
            self._put(self._sources.read_ranges(piece.source, offset, length).data)

    def _copy_file(self, piece: FileRanges, descriptor: int) -> None:
        """Copy byte ranges of a local file into the tar. The kernel copies large ranges."""
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
        """Let the kernel copy a range of a file.

        Returns:
            The number of copied bytes. It is less than `length`, possibly 0, if the kernel cannot copy the rest.
        """
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
        """Complete the tar, rename it to its final name, write its index, and return the tar's fingerprint.

        All samples must have been settled before.
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
        """Delete the unfinished tar. Samples that are not written yet are dropped."""
        self._stopped = True
        self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        self._copier.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _header(name: str, size: int) -> bytes:
    """Return the tar header of a member, without values that depend on the machine or the time (owner, mtime)."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime, info.uid, info.gid, info.uname, info.gname = size, MODE, 0, 0, 0, "", ""
    return info.tobuf(tarfile.USTAR_FORMAT)
