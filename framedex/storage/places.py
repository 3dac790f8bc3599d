"""A folder that is read: of this machine, or of object storage. What stands in it, by names relative to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from framedex.errors import StorageError
from framedex.storage.cache import DiskCache
from framedex.storage.objects import Facts, exists, head, listing, whole
from framedex.storage.reader import ObjectFile, ObjectReader
from framedex.storage.uris import checked, is_remote, local_path

MOST_BYTES = 1 << 28  # of what is read at once
FOOTER_BYTES = 64 << 10  # of the end of a Parquet file, which pyarrow reads first
KEPT_BYTES = 1 << 20  # of each open file: its last row groups


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
