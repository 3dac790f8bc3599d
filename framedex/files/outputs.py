"""Output folders that only one run can write at a time, and fingerprints that detect whether a file has changed.

A run locks a local output folder while it writes. A small file is written under another name and then renamed, so that
readers never see an incomplete file. Files for object storage are written into a local folder first, and then copied by
conditional requests that do not replace the objects of other runs.
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
from framedex.records.columns import Row
from framedex.storage.objects import Facts, delete, exists, fetch, put, upload
from framedex.storage.places import Place, Stored, small_text
from framedex.storage.reader import ASIDE


def check_free(path: Path | None, overwrite: bool) -> None:
    """Raise OutputError if an output file exists, unless it is a regular file and `overwrite` is True."""
    if path is not None and path.exists():
        if not overwrite:
            raise OutputError(
                "the output file exists already", where=str(path), remedy="pass --overwrite, or choose another name"
            )
        if not path.is_file():
            raise OutputError("the output is not a regular file", where=str(path), remedy="choose another name")


def write_aside(path: Path, content: bytes) -> None:
    """Write a small file so that readers see the complete file or no file."""
    aside = path.with_name(ASIDE + path.name)
    aside.unlink(missing_ok=True)
    with open(aside, "xb") as file:  # mode "x" does not follow a symbolic link with the name of the new file
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_json_aside(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file so that readers see the complete file or no file."""
    write_aside(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def remove_unfinished(folder: Path) -> None:
    """Delete the unfinished files that a killed run left in a folder."""
    if folder.is_dir():
        for path in folder.glob(f"{ASIDE}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# Maximum size of a file that is written with one request. Only then can the request have a condition, such as that the
# object does not exist.
SINGLE_BYTES = 64 << 20


class Output:
    """A local output folder. Files are written into the folder `local`, and `publish` makes them visible to readers."""

    def __init__(self, local: Path) -> None:
        self.local = local
        self.where: Place = local  # the folder that readers open

    def publish(self, path: Path) -> None:
        """Make a file in the folder `local` visible to readers. Raises OutputError, StorageError.

        In a local output folder, readers already see the file, so this method does nothing.
        """

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        (self.local / name).unlink(missing_ok=True)


class StoredOutput(Output):
    """An output folder in object storage. Writing never replaces the objects of other runs.

    An object is written only if no object of this name exists, or if `take` copied the existing object, or if this run
    wrote it.
    """

    def __init__(self, stored: Stored, local: Path) -> None:
        super().__init__(local)
        self.where = self._stored = stored
        self._taken: dict[str, Facts] = {}

    def take(self, name: str) -> None:
        """Copy an object into the local folder if the object exists, and allow this run to replace it."""
        uri = f"{self._stored.uri}/{name}"
        if (seen := exists(uri)) is not None:
            data, facts = fetch(uri, 0, seen.size_bytes, seen)
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
                "another run is writing to this folder",
                where=self._stored.uri,
                found=f"{error.where}: {error.what}",
                remedy="wait for that run and run again, or choose another folder; objects that were written are kept",
            ) from error
        if path.parent == self.local:
            self._taken[name] = facts  # this run may write a file directly in the folder again
        else:
            path.unlink()

    def remove(self, name: str) -> None:
        delete([f"{self._stored.uri}/{name}"])


def write_new(path: Path, uri: str) -> Facts:
    """Copy a local file to a new object. Raises StorageError, of kind `exists` if the object exists already.

    Stores can check whether an object exists only if the object is written with one request. For a file that is written
    in parts, this function first sends a separate request that checks whether the object exists.
    """
    if path.stat().st_size <= SINGLE_BYTES:
        return put(uri, path.read_bytes())
    if exists(uri) is not None:
        raise StorageError("the object exists already", kind="exists", where=uri)
    return upload(path, uri)


def check_writable(where: Place) -> None:
    """Raise OutputError for a folder on a web server or the Hub, which framedex can only read."""
    if isinstance(where, Stored) and not where.uri.startswith(("s3://", "gs://", "az://")):
        raise OutputError(
            "cannot write to a web server or the Hub", where=where.uri, allowed="s3://, gs://, az:// or a local folder"
        )


def agreed_plan(output: Output, name: str, plan: Row) -> Row:
    """Write the plan of a run that is divided into slices. If another slice has written a plan, return that plan.

    Args:
        output: The output folder.
        name: The name of the file with the plan.
        plan: The plan that this slice made. It is returned if no other slice has written a plan.

    Raises:
        OutputError: The folder cannot be written, and does not have a plan of another slice.
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
    """Read the plan of a run that is divided into slices. Return None if the folder has no plan."""
    path = place / name
    return json.loads(small_text(path)) if path.exists() else None


def check_all_there(place: Place, count: int, what: str, missing: Iterable[int], *, slices: int) -> None:
    """Raise OutputError if results of slices are missing. The message says which slices to run again.

    Args:
        place: The output folder.
        count: The total number of results of all slices.
        what: The word for the results in the message, in the plural.
        missing: The numbers of the missing results, from 0. Result n is made by slice n modulo `slices`.
        slices: The number of slices.
    """
    numbers = sorted(missing)
    if numbers:
        again = sorted({number % slices for number in numbers})
        raise OutputError(
            f"{len(numbers)} of {count} {what} are missing",
            where=str(place),
            found=f"missing results of {', '.join(f'--task {number}/{slices}' for number in again)}",
            remedy="run these slices again",
        )


def full_disk(error: object, what: str, folder: Path, kept: Callable[[], str]) -> OutputError | None:
    """Return the error to raise if `error` is about a full disk, else None.

    Args:
        error: The error of a write.
        what: The name of the output, for the message.
        folder: The output folder, for the message.
        kept: A function that returns which results are kept, for the message. It is called only for a full disk.
    """
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    return OutputError(
        f"{what} cannot be written completely",
        where=str(folder),
        found=error.strerror,
        remedy=f"free disk space and run the same command again: {kept()}",
    )


LOCK_NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK_NAME, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock in a folder. Raises OutputError if another run holds the lock.

    Args:
        folder: The folder.
        name: The name of the lock file.
        shared: Whether to hold a shared lock. Several runs can hold a shared lock at the same time.
        wait: Whether to wait until other runs release the lock, instead of raising an error.
    """
    try:
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OutputError(
            "the lock file is a symbolic link", where=str(folder / name), remedy="delete the link"
        ) from error
    with open(lock, "r+") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise OutputError(
                "another run is writing to this folder",
                where=str(folder),
                remedy="wait for that run, or choose another folder",
            ) from error
        yield


@contextlib.contextmanager
def opened_output(
    out: Place, *names: str, lock: str = LOCK_NAME, shared: bool = False, wait: bool = False
) -> Iterator[Output]:
    """Open an output folder for writing. A local folder is created if it does not exist.

    Args:
        out: The folder.
        names: For object storage, the names of files directly in the folder that this run may replace. Local files may
            always be replaced.
        lock: The name of the lock file of a local folder. In object storage, there are no locks. Instead, a run does
            not replace objects of other runs.
        shared: Whether to hold a shared lock. Several runs can hold a shared lock at the same time.
        wait: Whether to wait until other runs release the lock, instead of raising an error.

    Raises:
        OutputError: Another run is writing to the folder, the folder cannot be written, or a subfolder is a symbolic
            link.
    """
    if isinstance(out, Stored):
        check_writable(out)
        with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
            output = StoredOutput(out, Path(folder))
            for name in names:
                output.take(name)
            yield output
        return
    out.mkdir(parents=True, exist_ok=True)
    with os.scandir(out) as entries:
        linked = [entry.name for entry in entries if entry.is_symlink() and entry.is_dir()]
    if linked:  # the run would write and delete files in the target of the link
        raise OutputError(
            "a subfolder of the output is a symbolic link to another folder",
            where=str(out / min(linked)),
            found=os.path.realpath(out / min(linked)),
            remedy="replace the link by the folder, or make the output folder itself a link",
        )
    with held(out, lock, shared=shared, wait=wait):
        yield Output(out)


def check_unfinished(folder: Path) -> None:
    """Raise OutputError if an unfinished output, or a file or folder in it, is a symbolic link.

    A run would otherwise follow the link and write outside of the output folder.
    """
    found = [folder, *folder.iterdir()] if folder.is_dir() else [folder]
    linked = next((path for path in found if path.is_symlink()), None)
    if linked is not None:
        raise OutputError(
            "a part of an unfinished output is a symbolic link",
            where=str(linked),
            found=os.path.realpath(linked),
            remedy="if you did not create this link, delete the unfinished output",
        )


def has_locks(out: Place) -> bool:
    """Return whether a folder can be locked, so that only one run writes to it. Only local folders can."""
    return not isinstance(out, Stored)


# Number and size of the samples in a fingerprint. 256 KiB take a few milliseconds and suffice to detect a changed file.
SAMPLES, SAMPLE_BYTES = 16, 16 * 1024
# Two streams count as the same if the sizes of their first packets are equal. This is the number of compared packets,
# some seconds of video.
FIRST_PACKETS = 256
# Least number of different sizes among the compared packets. Videos of still pictures have fewer different sizes, so
# two such videos may have equal sizes by chance.
MIN_SIZES = 8


def is_object_tag(recorded: str) -> bool:
    """Return whether a recorded text is the tag of an object in object storage, not the fingerprint of a local file."""
    return recorded.startswith(("etag ", "modified "))  # the prefixes of `storage.objects.Facts.tag`


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Return the byte ranges (begin, end) of a file that a fingerprint covers. The first and last bytes are included.

    A file of up to 256 KiB is covered completely. In a larger file, the ranges have 256 KiB in total.
    """
    if size_bytes <= SAMPLES * SAMPLE_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - SAMPLE_BYTES
    begins = [last * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [(begin, begin + SAMPLE_BYTES) for begin in begins]


def content_fingerprint(size_bytes: int, samples: Iterable[bytes | memoryview]) -> str:
    """Return a fingerprint as 32 hex digits: a hash of a file's size and of the bytes in the ranges of `sampled`."""
    digest = hashlib.blake2b(size_bytes.to_bytes(8, "little"), digest_size=16)
    for sample in samples:
        digest.update(sample)
    return digest.hexdigest()


def fingerprint(descriptor: int, size_bytes: int) -> str:
    """Return the fingerprint of an open file."""
    samples = (os.pread(descriptor, end - begin, begin) for begin, end in sampled(size_bytes))
    return content_fingerprint(size_bytes, samples)


def is_same_file(descriptor: int, *, size_bytes: int, mtime_ns: int, expected: str) -> bool:
    """Return whether an open file has the recorded size, and also the recorded modification time or fingerprint."""
    status = os.fstat(descriptor)
    if status.st_size != size_bytes:
        return False
    return status.st_mtime_ns == mtime_ns or fingerprint(descriptor, size_bytes) == expected


def open_same_file(path: str, *, size_bytes: int, mtime_ns: int, expected: str) -> int | None:
    """Open a file and return the file descriptor. Return None if `is_same_file` is False. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if is_same_file(descriptor, size_bytes=size_bytes, mtime_ns=mtime_ns, expected=expected):
        return descriptor
    os.close(descriptor)
    return None


def first_packets(size: NDArray[np.int64], crc32: NDArray[np.int64] | None = None) -> str | None:
    """Return the value of the column `videos.first_packets`, a hash of the sizes of packets or of checksums of images.

    Args:
        size: int64 [packets]. The size of each packet in bytes.
        crc32: int64 [packets]. The CRC-32 of each image. None for videos.

    Returns:
        16 hex digits, or None if the packets of a video have too few different sizes to identify the video.
    """
    if crc32 is None and len(np.unique(size[:FIRST_PACKETS])) < MIN_SIZES:
        return None
    values = size if crc32 is None else crc32
    return hashlib.blake2b(values[:FIRST_PACKETS].astype("<i8").tobytes(), digest_size=8).hexdigest()
