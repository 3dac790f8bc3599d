"""A folder or file that is read, on this machine or in object storage: the functions here tell the two apart, so that nobody
else has to.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow.parquet as pq

from framedex.errors import StorageError
from framedex.storage.cache import DiskCache
from framedex.storage.objects import Facts, at_once, exists, head, listing, whole
from framedex.storage.reader import ObjectFile, ObjectReader
from framedex.storage.uris import checked, is_remote, local_path

MOST_BYTES = 1 << 28  # of what is read at once
FOOTER_BYTES = 64 << 10  # of the end of a Parquet file, which pyarrow reads first
KEPT_BYTES = 1 << 20  # of each open file: its last row groups
COPIED_BYTES = 8 << 20  # at a time

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Something in object storage, with as much of pathlib.Path as reading an index or a dataset needs.

    cache: for ranges of Parquet files. Errors are those of files: FileNotFoundError, and StorageError for all else.
    """

    uri: str
    cache: DiskCache | None = None

    def __truediv__(self, name: str | os.PathLike[str]) -> Stored:
        return Stored(uri=f"{self.uri}/{name}", cache=self.cache)

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    def absolute(self) -> Stored:
        return self

    def facts(self) -> Facts:
        """Return what the object is. Raises FileNotFoundError."""
        with _as_of_files(self.uri):
            return head(self.uri)

    def exists(self) -> bool:
        return exists(self.uri) is not None

    def is_dir(self) -> bool:
        return False  # a store has objects alone

    def names(self) -> list[str]:
        """Return the names of all objects below, relative to this, sorted."""
        return [uri[len(self.uri) + 1 :] for uri, _ in listing(self.uri)]

    def read_bytes(self) -> bytes:
        with _as_of_files(self.uri):
            return whole(self.uri, most=MOST_BYTES)[0]

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self) -> ObjectFile:
        """Open it to be read in ranges. Raises FileNotFoundError."""
        with _as_of_files(self.uri):
            if self.cache is None:
                return ObjectFile(ObjectReader.from_end(self.uri, FOOTER_BYTES, kept_bytes=KEPT_BYTES))
            fetch = self.cache.fetch_many
            return ObjectFile(ObjectReader(self.uri, head(self.uri), fetch_ranges=fetch, kept_bytes=KEPT_BYTES))


Place = Path | Stored


def place(name: str | os.PathLike[str] | Stored, cache: DiskCache | None = None) -> Place:
    """Return the folder or file that a path or uri names. Raises SourceError for a uri that is not to be recorded."""
    if isinstance(name, Stored):
        return name
    text = os.fspath(name)
    return Stored(uri=checked(text), cache=cache) if is_remote(text) else Path(local_path(text))


def local_of(where: Place) -> Path | None:
    """Return the path of a place of this machine; None of one of object storage."""
    return None if isinstance(where, Stored) else where


def names_in(where: Place) -> list[str]:
    """Return the names of what lies in a folder, sorted; nothing where there is none. Of a store, of all objects below."""
    if isinstance(where, Stored):
        return where.names()
    return sorted(path.name for path in where.iterdir()) if where.is_dir() else []


def state_of(where: Place) -> str:
    """Return what changes when a file is written again. Raises FileNotFoundError, StorageError."""
    if isinstance(where, Stored):
        return where.facts().tag
    status = where.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def size_of(where: Place) -> int:
    """Return the bytes of a file. Raises FileNotFoundError and other errors of files, StorageError."""
    return where.facts().size_bytes if isinstance(where, Stored) else where.stat().st_size


def opened(where: Place) -> BinaryIO:
    """Open a file that is read from its beginning to its end. Raises FileNotFoundError, OSError, StorageError."""
    return io.BytesIO(where.read_bytes()) if isinstance(where, Stored) else open(where, "rb")


def read_each(where: Place, read: Callable[[Item], Read], items: Sequence[Item]) -> list[Read]:
    """Return what some reads in a folder give, in order: at the same time where each costs a request."""
    return list(at_once(read, items)) if isinstance(where, Stored) else list(map(read, items))


@contextlib.contextmanager
def local_folder(where: Place, names: Sequence[str]) -> Iterator[Path]:
    """Give a folder of this machine with some files of another: itself, or copies that go away again."""
    if not isinstance(where, Stored):
        yield where.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        for name in names:
            copy = Path(folder, name)
            copy.parent.mkdir(exist_ok=True)
            with (where / name).open() as source, open(copy, "wb") as file:
                shutil.copyfileobj(source, file, COPIED_BYTES)
        yield Path(folder)


def parquet_file(where: Place) -> pq.ParquetFile:
    """Open a Parquet file. Raises FileNotFoundError and other errors of files, StorageError, pa.ArrowException."""
    if isinstance(where, Stored):
        return pq.ParquetFile(where.open(), pre_buffer=True)  # which asks for the columns of a row group together
    return pq.ParquetFile(where)


@contextlib.contextmanager
def _as_of_files(uri: str) -> Iterator[None]:
    """Raise FileNotFoundError where a store has no such object."""
    try:
        yield
    except StorageError as error:
        if error.kind != "missing":
            raise
        raise FileNotFoundError(uri) from error
