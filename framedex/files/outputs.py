"""Output folders that one run writes at a time, and fingerprints that detect whether a file has changed.

A run holds the lock of a local folder while it writes. Small files are written under another name and then renamed, so
that readers see them complete or not at all. Files for an object store are written into a local folder first. The store
then accepts them by conditional writes.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import OutputError, StorageError
from framedex.storage.objects import Facts, delete, exists, fetch, put, upload
from framedex.storage.places import Place, Stored, small_text

ASIDE = ".writing-"  # the prefix of unfinished files, which readers ignore


def check_free(path: Path | None, overwrite: bool) -> None:
    """Raise OutputError if a file exists and must not be replaced."""
    if path is not None and path.exists():
        if not overwrite:
            raise OutputError(
                "the output file is there already", where=str(path), remedy="pass --overwrite, or choose another name"
            )
        if not path.is_file():
            raise OutputError("the output is not a regular file", where=str(path), remedy="choose another name")


def write_aside(path: Path, content: bytes) -> None:
    """Write a small file, completely or not at all."""
    aside = path.with_name(ASIDE + path.name)
    aside.unlink(missing_ok=True)
    with open(aside, "xb") as file:  # "x" does not follow a link that somebody put there
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_json_aside(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file, completely or not at all."""
    write_aside(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def remove_unfinished(folder: Path) -> None:
    """Delete the unfinished files that a killed run left in a folder."""
    if folder.is_dir():
        for path in folder.glob(f"{ASIDE}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


SINGLE_BYTES = 64 << 20  # the size up to which a file is written with one request, which a store can refuse


class Output:
    """A folder of this machine. Files are written below `local`, and `publish` makes them visible to readers."""

    def __init__(self, local: Path) -> None:
        self.local = local
        self.where: Place = local  # the place that readers open

    def publish(self, path: Path) -> None:
        """Make a file below `local` visible to readers. Raises OutputError, StorageError."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.local / name).unlink(missing_ok=True)


class StoredOutput(Output):
    """A folder of object storage, in which this run does not replace the objects of other runs.

    Each object must be new, or replace the exact object that was taken.
    """

    def __init__(self, stored: Stored, local: Path) -> None:
        super().__init__(local)
        self.where = self._stored = stored
        self._taken: dict[str, Facts] = {}

    def take(self, name: str) -> None:
        """Copy an object that this run may replace into the local folder, if the object exists."""
        uri = f"{self._stored.uri}/{name}"
        facts = exists(uri)
        if facts is None:
            return
        data, facts = fetch(uri, 0, facts.size_bytes, facts)
        (self.local / name).write_bytes(data)
        self._taken[name] = facts

    def publish(self, path: Path) -> None:
        name = path.relative_to(self.local).as_posix()
        try:
            if name in self._taken:
                self._taken[name] = put(f"{self._stored.uri}/{name}", path.read_bytes(), replaces=self._taken[name])
                return
            facts = write_new(path, f"{self._stored.uri}/{name}")
        except StorageError as error:
            if error.kind not in ("exists", "changed"):
                raise
            raise OutputError(
                "another run is writing here",
                where=self._stored.uri,
                found=f"{error.where}: {error.what}",
                remedy="wait for it and run again, or choose another place; what was written stays",
            ) from error
        if path.parent == self.local:
            self._taken[name] = facts  # a file directly in the folder may be written again
        else:
            path.unlink()

    def remove(self, name: str) -> None:
        delete([f"{self._stored.uri}/{name}"])


def write_new(path: Path, uri: str) -> Facts:
    """Write a file as a new object. Raises StorageError of kind `exists` if the object exists already.

    Stores check this condition only for objects that are written with one request. Before writing a file in parts, this
    function checks it with a request of its own.
    """
    if path.stat().st_size <= SINGLE_BYTES:
        return put(uri, path.read_bytes())
    if exists(uri) is not None:
        raise StorageError("something has been written there already", kind="exists", where=uri)
    return upload(path, uri)


def check_writable(where: Place) -> None:
    """Raise OutputError if a place is read-only: a web server or the Hub."""
    if isinstance(where, Stored) and not where.uri.startswith(("s3://", "gs://", "az://")):
        raise OutputError(
            "cannot write to a web server or the Hub", where=where.uri, allowed="s3://, gs://, az:// or a folder"
        )


@contextlib.contextmanager
def stored_output(stored: Stored, *names: str) -> Iterator[StoredOutput]:
    """Provide a folder of object storage for writing. `names` are the files directly in it that may be replaced."""
    check_writable(stored)
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        output = StoredOutput(stored, Path(folder))
        for name in names:
            output.take(name)
        yield output


Row = dict[str, Any]


def agreed_plan(output: Output, name: str, plan: Row) -> Row:
    """Write the plan of a run in slices, unless another slice was faster. Return the plan that is in the folder.

    Args:
        output: The folder.
        name: The name of the plan's file.
        plan: The plan of this slice.

    Raises:
        OutputError: The folder cannot be written, and does not have a plan.
    """
    write_json_aside(output.local / name, plan)
    try:
        output.publish(output.local / name)
    except OutputError:
        stored = written_plan(output.where, name)
        if stored is None:
            raise
        return stored
    return plan


def written_plan(place: Place, name: str) -> Row | None:
    """Return the plan of a run in slices, or None if it does not exist."""
    path = place / name
    if not path.exists():
        return None
    plan: Row = json.loads(small_text(path))
    return plan


def check_all_there(place: Place, count: int, what: str, missing: Iterable[int], *, slices: int) -> None:
    """Raise OutputError if results of slices are missing. The error names the slices to run again.

    Args:
        place: The folder.
        count: The number of results of all slices.
        what: The name of the results, in the plural.
        missing: The numbers of the missing results. Slice n modulo `slices` makes result n.
        slices: The number of slices.
    """
    numbers = sorted(missing)
    if numbers:
        again = sorted({number % slices for number in numbers})
        raise OutputError(
            f"{len(numbers)} of {count} {what} are missing",
            where=str(place),
            found=f"nothing from {', '.join(f'--task {number}/{slices}' for number in again)}",
            remedy="run these slices again",
        )


@contextlib.contextmanager
def full_disk_says(what: str, folder: Path, kept: Callable[[], str]) -> Iterator[None]:
    """Raise OutputError if the disk becomes full inside.

    Args:
        what: The name of the output, for the message.
        folder: The output folder.
        kept: Returns which results are kept, for the message. It is called after the block has ended.
    """
    try:
        yield
    except OSError as error:
        if (full := full_disk(error, what, folder, kept)) is None:
            raise
        raise full from error


def full_disk(error: object, what: str, folder: Path, kept: Callable[[], str]) -> OutputError | None:
    """Return the error for a full disk, or None if `error` has another cause. For arguments, see `full_disk_says`."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    return OutputError(
        f"{what} cannot be written to the end",
        where=str(folder),
        found=error.strerror,
        remedy=f"make room and run the same command again: {kept()}",
    )


LOCK_NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK_NAME, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold the lock of this name in a folder. Raises OutputError if another run holds it.

    Args:
        folder: The folder.
        name: The name of the lock.
        shared: Whether other runs may hold the lock at the same time, if they share it too.
        wait: Whether to wait until other runs release the lock.
    """
    try:
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OutputError("the lock is a link", where=str(folder / name), remedy="delete it") from error
    with open(lock, "r+") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise OutputError(
                "another run is writing here", where=str(folder), remedy="wait for it, or choose another folder"
            ) from error
        yield


@contextlib.contextmanager
def opened_output(
    out: Place, *names: str, lock: str = LOCK_NAME, shared: bool = False, wait: bool = False
) -> Iterator[Output]:
    """Open a folder for writing, and create it if it is missing. Raises OutputError if another run is writing to it.

    Args:
        out: The folder.
        names: Names of files directly in it that may be replaced, if it is in object storage.
        lock: The name of the lock of a local folder. A store has no locks, but no run replaces what another one wrote.
        shared: Whether other runs may hold the lock at the same time, if they share it too.
        wait: Whether to wait until other runs release the lock.
    """
    if isinstance(out, Stored):
        with stored_output(out, *names) as output:
            yield output
        return
    out.mkdir(parents=True, exist_ok=True)
    with os.scandir(out) as entries:
        linked = [entry.name for entry in entries if entry.is_symlink() and entry.is_dir()]
    if linked:  # new files would be written elsewhere, and unfinished files removed there
        raise OutputError(
            "a folder of the output is a link to another folder",
            where=str(out / min(linked)),
            found=os.path.realpath(out / min(linked)),
            remedy="replace the link by the folder, or link the output as a whole",
        )
    with held(out, lock, shared=shared, wait=wait):
        yield Output(out)


def check_unfinished(folder: Path) -> None:
    """Raise OutputError if an unfinished output, or a file or folder in it, is a link, which a run would follow."""
    found = [folder, *folder.iterdir()] if folder.is_dir() else [folder]
    linked = next((path for path in found if path.is_symlink()), None)
    if linked is not None:
        raise OutputError(
            "a part of an unfinished output is a link",
            where=str(linked),
            found=os.path.realpath(linked),
            remedy="delete the unfinished output, if it is not yours",
        )


def has_locks(out: Place) -> bool:
    """Return whether runs that write to a folder can lock each other out."""
    return not isinstance(out, Stored)


SAMPLES, SAMPLE_BYTES = 16, 16 * 1024  # 256 KiB are read in a few milliseconds, and suffice to detect a changed file
FIRST_PACKETS = 256  # some seconds of video; streams whose packet sizes agree that far are the same
MIN_SIZES = 8  # packets of still pictures have fewer different sizes, so equal sizes do not prove equal content


def is_object_tag(recorded: str) -> bool:
    """Return whether a recorded text is a store's tag of an object, and not a fingerprint of a file's content."""
    return recorded.startswith(("etag ", "modified "))  # as `storage.objects.Facts.tag`


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the ranges that a fingerprint covers. They include the first and last bytes.

    A file of up to 256 KiB is covered completely. The cost for larger files does not depend on their size.
    """
    if size_bytes <= SAMPLES * SAMPLE_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - SAMPLE_BYTES
    begins = [last * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [(begin, begin + SAMPLE_BYTES) for begin in begins]


def content_fingerprint(size_bytes: int, samples: Iterable[bytes | memoryview]) -> str:
    """Return 32 hex digits, a hash of the size and the ranges of `sampled`."""
    digest = hashlib.blake2b(size_bytes.to_bytes(8, "little"), digest_size=16)
    for sample in samples:
        digest.update(sample)
    return digest.hexdigest()


def fingerprint(descriptor: int, size_bytes: int) -> str:
    """Return the fingerprint of an open file."""
    samples = (os.pread(descriptor, end - begin, begin) for begin, end in sampled(size_bytes))
    return content_fingerprint(size_bytes, samples)


def is_same_file(descriptor: int, *, size_bytes: int, mtime_ns: int, expected: str) -> bool:
    """Return whether an open file is the recorded one: the same size, and the same mtime or fingerprint."""
    status = os.fstat(descriptor)
    if status.st_size != size_bytes:
        return False
    return status.st_mtime_ns == mtime_ns or fingerprint(descriptor, size_bytes) == expected


def open_same_file(path: str, *, size_bytes: int, mtime_ns: int, expected: str) -> int | None:
    """Open a file and return its descriptor, or None if it is not the recorded file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if is_same_file(descriptor, size_bytes=size_bytes, mtime_ns=mtime_ns, expected=expected):
        return descriptor
    os.close(descriptor)
    return None


def first_packets(size: NDArray[np.int64], crc32: NDArray[np.int64] | None = None) -> str | None:
    """Return a hash of the first packets' sizes, or of images' checksums, for the column `videos.first_packets`.

    Args:
        size: int64 [packets], the sizes of the packets in bytes.
        crc32: int64 [packets], the checksums of images, or None for other media.

    Returns:
        16 hex digits, or None if the sizes do not identify the medium.
    """
    if crc32 is None and len(np.unique(size[:FIRST_PACKETS])) < MIN_SIZES:
        return None
    values = size if crc32 is None else crc32
    return hashlib.blake2b(values[:FIRST_PACKETS].astype("<i8").tobytes(), digest_size=8).hexdigest()
