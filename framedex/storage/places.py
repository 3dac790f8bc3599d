"""Files and folders that are local or in object storage, and the locations of sources.

An index or a dataset may come from an untrusted source. The uris in it must not make this machine send requests to
servers that the user did not choose. The uris in a dataset from another store must not refer to local files.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framedex.core.words import counted, named
from framedex.errors import FramedexError, StorageError
from framedex.storage.hub import pinned
from framedex.storage.objects import Facts, at_once, exists, head, listing, whole
from framedex.storage.reader import DiskCache, ObjectFile, ObjectReader
from framedex.storage.uris import absolute, checked, goes_up, is_inside, is_remote, joined, local_path, split

MAX_BYTES = 1 << 28  # maximum size of a header or listing that is read as a whole
END_BYTES = 8  # number of bytes at the end of a Parquet file: four with the size of the metadata, and PAR1
MAX_FOOTER_BYTES = 1 << 29  # maximum size of a Parquet file's metadata; pyarrow has no limit
FOOTER_BYTES = 64 << 10  # size of the first request for a Parquet file in object storage; enough for most metadata
KEPT_BYTES = 1 << 20  # number of bytes that are kept in memory per open Parquet file in object storage
COPIED_BYTES = 8 << 20  # number of bytes per read while a file is copied, as in the largest request

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file or folder in object storage. It has the methods of pathlib.Path that reading an index or dataset needs.

    The methods raise FileNotFoundError if the object does not exist, and StorageError if a request fails.

    Attributes:
        uri: The uri of the file or folder.
        cache: The cache for byte ranges of Parquet files. If None, the ranges are not cached.
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
        """Return the metadata of the object. Raises FileNotFoundError, StorageError."""
        with _as_of_files(self.uri):
            return head(self.uri)

    def exists(self) -> bool:
        return exists(self.uri) is not None

    def is_dir(self) -> bool:
        return False  # object storage has objects, but no folders

    def names(self) -> list[str]:
        """Return the names of all objects below this folder, relative to the folder, sorted."""
        return [uri[len(self.uri) + 1 :] for uri, _ in listing(self.uri)]

    def read_bytes(self) -> bytes:
        with _as_of_files(self.uri):
            return whole(self.uri, most=MAX_BYTES)[0]

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self) -> ObjectFile:
        """Open the object as a file that reads byte ranges. Raises FileNotFoundError, StorageError."""
        with _as_of_files(self.uri):
            if self.cache is None:
                return ObjectFile(ObjectReader.from_end(self.uri, FOOTER_BYTES, kept_bytes=KEPT_BYTES))
            fetch = self.cache.fetch_many
            return ObjectFile(ObjectReader(self.uri, head(self.uri), fetch_ranges=fetch, kept_bytes=KEPT_BYTES))


Place = Path | Stored


def place(name: str | os.PathLike[str] | Stored, cache: DiskCache | None = None) -> Place:
    """Return a local path or a `Stored` for a path or uri. A uri of the Hub is pinned to the revision's current commit.

    Args:
        name: The path or uri. A `Stored` is returned unchanged.
        cache: The cache of the `Stored`.

    Raises:
        SourceError: The uri is malformed, or contains a secret.
    """
    if isinstance(name, Stored):
        return name
    text = os.fspath(name)
    return Stored(uri=checked(pinned(text)), cache=cache) if is_remote(text) else Path(local_path(text))


def local_of(where: Place) -> Path | None:
    """Return the path of a local file or folder. Return None for a file or folder in object storage."""
    return None if isinstance(where, Stored) else where


def names_in(where: Place) -> list[str]:
    """Return the sorted names of the files in a folder. The list is empty if the folder does not exist.

    For a local folder, these are the entries of the folder. For object storage, these are all objects below the folder.
    """
    if isinstance(where, Stored):
        return where.names()
    return sorted(path.name for path in where.iterdir()) if where.is_dir() else []


def state_of(where: Place) -> str:
    """Return a text that is different after the file is replaced. Raises FileNotFoundError, StorageError."""
    if isinstance(where, Stored):
        return where.facts().tag
    status = where.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def size_of(where: Place) -> int:
    """Return the size of a file in bytes. Raises OSError, StorageError."""
    return where.facts().size_bytes if isinstance(where, Stored) else where.stat().st_size


def opened(where: Place) -> BinaryIO:
    """Open a file for reading it from the beginning to the end. Raises OSError, StorageError."""
    return io.BytesIO(where.read_bytes()) if isinstance(where, Stored) else open_regular(where)


def open_regular(path: Path) -> BinaryIO:
    """Open a local file. Raises OSError, also for a pipe or a device, since reading these may block forever."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def small_text(where: Place) -> str:
    """Return the text of a file of up to MAX_BYTES. Raises OSError, StorageError, and ValueError if it is not UTF-8."""
    return small_bytes(where).decode()


def small_bytes(where: Place) -> bytes:
    """Return the content of a file of up to MAX_BYTES. Raises OSError (also for larger local files), StorageError."""
    if isinstance(where, Stored):
        return where.read_bytes()
    with open_regular(where) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"{where} has more than {MAX_BYTES} bytes")
    return content


def read_each(where: Place, read: Callable[[Item], Read], items: Sequence[Item]) -> list[Read]:
    """Call `read` for each item, and return the results in order.

    If `where` is in object storage, the calls run in parallel.
    """
    return list(at_once(read, items)) if isinstance(where, Stored) else list(map(read, items))


@contextlib.contextmanager
def local_folder(where: Place, names: Sequence[str]) -> Iterator[Path]:
    """Provide a local folder that contains some files of another folder.

    This is the folder itself if it is local, or else a temporary folder with copies of the files.
    """
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


def parquet_file(where: Place, *, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file.

    Args:
        where: The file.
        read_dictionary: The names of text columns to read as dictionary-encoded arrays.

    Raises:
        OSError: The file cannot be opened, is not a regular file, or has too much metadata.
        StorageError: A request failed.
        pa.ArrowException: The file is not a valid Parquet file.
    """
    encoded = list(read_dictionary) or None
    if isinstance(where, Stored):  # with `pre_buffer`, the columns of a row group are requested together
        return pq.ParquetFile(where.open(), pre_buffer=True, read_dictionary=encoded)
    with open_regular(where) as file:  # the last eight bytes are the size of the metadata (four bytes) and PAR1
        if file.seek(0, os.SEEK_END) >= END_BYTES:
            file.seek(-END_BYTES, os.SEEK_END)
            end = file.read(END_BYTES)
            size_bytes = int.from_bytes(end[:4], "little")
            if end[4:] == b"PAR1" and size_bytes > MAX_FOOTER_BYTES:
                raise OSError(f"{where} has {size_bytes:,} bytes of metadata; {MAX_FOOTER_BYTES:,} are allowed")
    return pq.ParquetFile(where, read_dictionary=encoded)


@contextlib.contextmanager
def _as_of_files(uri: str) -> Iterator[None]:
    """Replace a StorageError about a missing object in the block by FileNotFoundError."""
    try:
        yield
    except StorageError as error:
        if error.kind != "missing":
            raise
        raise FileNotFoundError(uri) from error


Root = str | os.PathLike[str] | Mapping[str, str]

ALLOW_REMOTE = "FRAMEDEX_ALLOW_REMOTE"
THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the sources are, and which sources may be read.

    Attributes:
        root: The new location of the sources, if the sources were moved: a folder that replaces the recorded root, or a
            mapping {old prefix: new prefix} of absolute paths or uris. If None, the sources are at the recorded
            location.
        allow_remote: Whether sources may be read from other stores than the store of the index or dataset.
    """

    root: Root | None = None
    allow_remote: bool = False


OWN_STORE = Access()


class Locations:
    """The locations of the sources of an index or a dataset, with a check whether a source may be read.

    A source may be read if it is in the same store as the index or dataset: the same bucket, web server or repository
    of the Hub, or this machine. A source in a location that the user gave as `access.root` may also be read.

    Args:
        place: The path or uri of the index or dataset.
        recorded: The root that the index or dataset records.
        access: Where the sources are, and which sources may be read.

    Raises:
        FramedexError: The environment variable FRAMEDEX_ALLOW_REMOTE has a value other than 0 and 1.
    """

    def __init__(self, place: str, recorded: str, access: Access) -> None:
        moved, folder = (access.root, None) if isinstance(access.root, Mapping) else ({}, access.root)
        self._place, self._own_store = place, store_of(place)
        self._moved = {absolute(os.fspath(old)): absolute(os.fspath(new)) for old, new in moved.items()}
        self._folder = None if folder is None else absolute(os.fspath(folder))
        self._root = recorded if self._folder is None else self._folder
        self._anywhere = access.allow_remote or allowed_by_environment()

    def path(self, uri: str) -> str:
        """Return the location of a source without checking whether the source may be read."""
        path = joined(self._root, uri)
        for old, new in self._moved.items():
            if path == old or path.startswith(old.rstrip("/") + "/"):
                moved = new.rstrip("/") + path[len(old.rstrip("/")) :]
                return moved if is_remote(moved) else os.path.normpath(moved)
        return path

    def locate(self, uri: str, uris: Callable[[], pa.ChunkedArray]) -> str:
        """Return the location of a source that may be read.

        Args:
            uri: The recorded path or uri of the source.
            uris: A function that returns the paths or uris of all sources, for the error.

        Raises:
            StorageError: The source must not be read. The kind is `foreign`.
        """
        if not self.allows(uri):
            self.check(uris())  # raises an error that counts all sources that must not be read
            raise self._refusal({store_of(self.path(uri)): 1})  # `uri` is not among the sources
        return self.path(uri)

    def allows(self, uri: str) -> bool:
        """Return whether a source may be read."""
        if self._anywhere:
            return True
        path = self.path(uri)
        if is_remote(path) and goes_up(path):
            return False
        given = [*([] if self._folder is None else [self._folder]), *self._moved.values()]
        return store_of(path) == self._own_store or any(path == own or is_inside(path, own) for own in given)

    @property
    def allows_root(self) -> bool:
        """Whether sources in the root folder may be read."""
        return self.allows("source")

    def check(self, uris: pa.ChunkedArray) -> None:
        """Raise an error if some of the sources must not be read.

        Args:
            uris: The recorded paths or uris of the sources, as an Arrow column of strings.

        Raises:
            StorageError: Some sources must not be read. The message lists their stores. The kind is `foreign`.
        """
        if self._anywhere:
            return
        if self.allows_root:  # then only absolute paths, uris and paths with ".." need a check
            uris = uris.filter(pc.match_substring_regex(uris, r"^/|://|%|(^|/)\.\.(/|$)"))
        found = Counter(store_of(self.path(uri)) for uri in uris.to_pylist() if not self.allows(uri))
        if found:
            raise self._refusal(found)

    def _refusal(self, stores: Mapping[str, int]) -> StorageError:
        """Return the error for sources that must not be read. `stores` is store → number of such sources."""
        ordered = sorted(stores.items(), key=lambda item: (-item[1], item[0]))
        return StorageError(
            "sources are in another store than the index or dataset, and the uris may come from an untrusted person",
            kind="foreign",
            where=self._place,
            found=named((f"{store} ({counted(count, 'source')})" for store, count in ordered), len(ordered)),
            allowed=self._own_store,
            remedy=f"if you trust these stores, pass --allow-remote or allow_remote=True, or set {ALLOW_REMOTE}=1; "
            "if the sources were moved, pass --root or root=",
        )


def store_of(place: str) -> str:
    """Return the store of a path or uri, such as scheme://bucket or scheme://host, or "this machine" for a path."""
    if not is_remote(place):
        return THIS_MACHINE
    scheme, rest = place.split("://", 1)
    store = split(f"{scheme.lower()}://{rest}")[0]
    if scheme.lower() == "hf":
        return store.partition("@")[0]  # all commits of a repository count as the same store
    return store.lower() if scheme.lower() in ("http", "https") else store


def allowed_by_environment() -> bool:
    """Return whether the environment variable FRAMEDEX_ALLOW_REMOTE allows sources in all stores.

    Raises:
        FramedexError: The variable has a value other than 0 and 1.
    """
    value = os.environ.get(ALLOW_REMOTE, "")
    if value not in ("", "0", "1"):
        raise FramedexError(
            "the environment variable has a wrong value", where=ALLOW_REMOTE, found=value, allowed="0 or 1"
        )
    return value == "1"
