"""Files and folders to read, on this machine or in object storage, and the locations of sources.

Anybody may have written an index or a dataset. Its uris must not make this machine send requests to servers that the
user did not choose, or read files of this machine for a dataset that came from elsewhere.
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

MAX_BYTES = 1 << 28  # files that are read at once are headers and listings; larger ones would fill the memory
END_BYTES = 8  # the last bytes of a Parquet file: the size of its metadata, and PAR1
MAX_FOOTER_BYTES = 1 << 29  # pyarrow reads metadata of any size that a file states
FOOTER_BYTES = 64 << 10  # the size of the first request for a Parquet file, which fits most metadata
KEPT_BYTES = 1 << 20  # the memory per open file: its last row groups
COPIED_BYTES = 8 << 20  # as the largest request (`objects.MAX_BYTES`)

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file or folder in object storage, with the methods of pathlib.Path that reading an index or a dataset needs.

    A missing object raises FileNotFoundError. All other errors are StorageError.

    Attributes:
        uri: The uri.
        cache: A cache for ranges of Parquet files. If None, they are not cached.
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
        """Return the facts of the object. Raises FileNotFoundError."""
        with _as_of_files(self.uri):
            return head(self.uri)

    def exists(self) -> bool:
        return exists(self.uri) is not None

    def is_dir(self) -> bool:
        return False  # stores have only objects

    def names(self) -> list[str]:
        """Return the sorted names of all objects below this place, relative to it."""
        return [uri[len(self.uri) + 1 :] for uri, _ in listing(self.uri)]

    def read_bytes(self) -> bytes:
        with _as_of_files(self.uri):
            return whole(self.uri, most=MAX_BYTES)[0]

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self) -> ObjectFile:
        """Open the object for reads of ranges. Raises FileNotFoundError."""
        with _as_of_files(self.uri):
            if self.cache is None:
                return ObjectFile(ObjectReader.from_end(self.uri, FOOTER_BYTES, kept_bytes=KEPT_BYTES))
            fetch = self.cache.fetch_many
            return ObjectFile(ObjectReader(self.uri, head(self.uri), fetch_ranges=fetch, kept_bytes=KEPT_BYTES))


Place = Path | Stored


def place(name: str | os.PathLike[str] | Stored, cache: DiskCache | None = None) -> Place:
    """Return the folder or file with this path or uri. The revision in a uri of the Hub becomes its current commit.

    Raises:
        SourceError: The uri has a secret or is malformed.
    """
    if isinstance(name, Stored):
        return name
    text = os.fspath(name)
    return Stored(uri=checked(pinned(text)), cache=cache) if is_remote(text) else Path(local_path(text))


def local_of(where: Place) -> Path | None:
    """Return the path of a place on this machine, or None if it is in object storage."""
    return None if isinstance(where, Stored) else where


def names_in(where: Place) -> list[str]:
    """Return the sorted names in a folder. For a store, these are all objects below. The folder may be missing."""
    if isinstance(where, Stored):
        return where.names()
    return sorted(path.name for path in where.iterdir()) if where.is_dir() else []


def state_of(where: Place) -> str:
    """Return a text that changes when a file is replaced. Raises FileNotFoundError, StorageError."""
    if isinstance(where, Stored):
        return where.facts().tag
    status = where.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def size_of(where: Place) -> int:
    """Return the size of a file in bytes. Raises FileNotFoundError and other file errors, StorageError."""
    return where.facts().size_bytes if isinstance(where, Stored) else where.stat().st_size


def opened(where: Place) -> BinaryIO:
    """Open a file to read it from beginning to end. Raises FileNotFoundError, OSError, StorageError."""
    return io.BytesIO(where.read_bytes()) if isinstance(where, Stored) else open_regular(where)


def open_regular(path: Path) -> BinaryIO:
    """Open a file of this machine. Raises OSError for a pipe or a device, at which a read may never end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def small_text(where: Place) -> str:
    """Return the text of a small file. Raises as `small_bytes` does, and ValueError if it is not UTF-8."""
    return small_bytes(where).decode()


def small_bytes(where: Place) -> bytes:
    """Return the content of a file of up to MAX_BYTES. Raises OSError, StorageError."""
    if isinstance(where, Stored):
        return where.read_bytes()
    with open_regular(where) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"{where} has more than {MAX_BYTES} bytes")
    return content


def read_each(where: Place, read: Callable[[Item], Read], items: Sequence[Item]) -> list[Read]:
    """Return the result of `read` for each item, in order. Reads of object storage run in parallel."""
    return list(at_once(read, items)) if isinstance(where, Stored) else list(map(read, items))


@contextlib.contextmanager
def local_folder(where: Place, names: Sequence[str]) -> Iterator[Path]:
    """Provide a local folder with some files of another folder: the folder itself, or temporary copies."""
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
        read_dictionary: Columns of texts that stay dictionary-encoded, with each text once.

    Raises:
        FileNotFoundError: And other file errors, StorageError, pa.ArrowException.
    """
    encoded = list(read_dictionary) or None
    if isinstance(where, Stored):  # `pre_buffer` requests the columns of a row group together
        return pq.ParquetFile(where.open(), pre_buffer=True, read_dictionary=encoded)
    with open_regular(where) as file:  # the size of the metadata is before the last four bytes
        if file.seek(0, os.SEEK_END) >= END_BYTES:
            file.seek(-END_BYTES, os.SEEK_END)
            end = file.read(END_BYTES)
            size_bytes = int.from_bytes(end[:4], "little")
            if end[4:] == b"PAR1" and size_bytes > MAX_FOOTER_BYTES:
                raise OSError(f"{where} has {size_bytes:,} bytes of metadata; {MAX_FOOTER_BYTES:,} are allowed")
    return pq.ParquetFile(where, read_dictionary=encoded)


@contextlib.contextmanager
def _as_of_files(uri: str) -> Iterator[None]:
    """Raise FileNotFoundError if the store reports a missing object."""
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
    """The sources that may be read.

    Attributes:
        root: The new location of the sources, if they moved: a folder that replaces the recorded root, or a mapping
            {old prefix: new prefix} of absolute paths. Any of these may be in object storage.
        allow_remote: Whether sources may be in other stores than the index or dataset.
    """

    root: Root | None = None
    allow_remote: bool = False


OWN_STORE = Access()


class Locations:
    """The locations of the sources of an index or a dataset.

    Sources must be in the same store: the same bucket, web server or repository of the Hub, or this machine. They may
    also be in the locations of `access.root`.

    Args:
        place: The path or uri of the index or dataset.
        recorded: The root that was indexed.
        access: The sources that may be read.

    Raises:
        FramedexError: The environment variable FRAMEDEX_ALLOW_REMOTE has another value than 0 or 1.
    """

    def __init__(self, place: str, recorded: str, access: Access) -> None:
        moved, folder = (access.root, None) if isinstance(access.root, Mapping) else ({}, access.root)
        self._place, self._own_store = place, store_of(place)
        self._moved = {absolute(os.fspath(old)): absolute(os.fspath(new)) for old, new in moved.items()}
        self._folder = None if folder is None else absolute(os.fspath(folder))
        self._root = recorded if self._folder is None else self._folder
        self._anywhere = access.allow_remote or allowed_by_environment()

    def path(self, uri: str) -> str:
        """Return the location of a source, even if it must not be read."""
        path = joined(self._root, uri)
        for old, new in self._moved.items():
            if path == old or path.startswith(old.rstrip("/") + "/"):
                moved = new.rstrip("/") + path[len(old.rstrip("/")) :]
                return moved if is_remote(moved) else os.path.normpath(moved)
        return path

    def locate(self, uri: str, uris: Callable[[], pa.ChunkedArray]) -> str:
        """Return the location of a source.

        Args:
            uri: The source.
            uris: Returns the uris of all sources, for the error.

        Raises:
            StorageError: The source must not be read. The kind is `foreign`.
        """
        if not self.allows(uri):
            self.check(uris())  # the error counts all foreign sources
            raise self._refusal({store_of(self.path(uri)): 1})  # the file is not one of the sources
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
        """Whether sources below the root may be read."""
        return self.allows("source")

    def check(self, uris: pa.ChunkedArray) -> None:
        """Check that sources may be read.

        Args:
            uris: The uris of the sources, an Arrow column of strings.

        Raises:
            StorageError: A source must not be read. The message has the stores of such sources. The kind is `foreign`.
        """
        if self._anywhere:
            return
        if self.allows_root:  # only absolute names and names with ".." can leave the root, so only they are checked
            uris = uris.filter(pc.match_substring_regex(uris, r"^/|://|%|(^|/)\.\.(/|$)"))
        found = Counter(store_of(self.path(uri)) for uri in uris.to_pylist() if not self.allows(uri))
        if found:
            raise self._refusal(found)

    def _refusal(self, stores: Mapping[str, int]) -> StorageError:
        """Return the error for sources that must not be read. `stores` has the number of them by store."""
        ordered = sorted(stores.items(), key=lambda item: (-item[1], item[0]))
        return StorageError(
            "sources lie in another store, and a stranger may have written their uris",
            kind="foreign",
            where=self._place,
            found=named((f"{store} ({counted(count, 'source')})" for store, count in ordered), len(ordered)),
            allowed=self._own_store,
            remedy=f"if you trust these stores: --allow-remote, allow_remote=True or {ALLOW_REMOTE}=1; "
            "if the sources have moved: --root or root=",
        )


def store_of(place: str) -> str:
    """Return the store of a path or uri: scheme://bucket or scheme://host, or "this machine"."""
    if not is_remote(place):
        return THIS_MACHINE
    scheme, rest = place.split("://", 1)
    store = split(f"{scheme.lower()}://{rest}")[0]
    if scheme.lower() == "hf":
        return store.partition("@")[0]  # all commits of a repository are one store
    return store.lower() if scheme.lower() in ("http", "https") else store


def allowed_by_environment() -> bool:
    """Return whether FRAMEDEX_ALLOW_REMOTE allows sources in all stores. Raises FramedexError for an unknown value."""
    value = os.environ.get(ALLOW_REMOTE, "")
    if value not in ("", "0", "1"):
        raise FramedexError("the environment variable is wrong", where=ALLOW_REMOTE, found=value, allowed="0 or 1")
    return value == "1"
