"""Objects of stores: their facts, their bytes, and writes that do not replace the objects of other runs.

obstore is the transport for buckets. There is one store per bucket and process, with addresses and credentials from the
environment. Each function names objects by uri, repeats requests where that is safe, and raises StorageError, which
does not contain secrets.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError, MissingExtraError, StorageError
from framedex.storage.hub import SCHEME, HubStore
from framedex.storage.uris import split, uri_of
from framedex.storage.web import WebStore, as_storage_error, is_past_the_end, may_be_tried_again

NO_LISTING = frozenset({"http", "https"})
TIMEOUT, RETRIES = "FRAMEDEX_STORAGE_TIMEOUT", "FRAMEDEX_STORAGE_RETRIES"
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_ENDPOINT")
_OPENED_BY: list[int] = []  # the process that first used stores; a process forked from it lacks their threads


USUAL_SECONDS, USUAL_RETRIES = 30.0, 8  # the time limit of one request, and how often a failed request is repeated
TRYING_SECONDS = 180.0  # a store that fails for minutes will not recover soon


def limits() -> tuple[float, int]:
    """Return the time limit of a request, and how often a failed request is repeated. The environment may set them.

    The wait between two tries doubles from 0.1 s to 15 s. Nothing is repeated after `TRYING_SECONDS`. Raises
    FramedexError for a value that is not a number.
    """
    try:
        return float(os.environ.get(TIMEOUT, USUAL_SECONDS)), int(os.environ.get(RETRIES, USUAL_RETRIES))
    except ValueError as error:
        raise FramedexError(f"{TIMEOUT} and {RETRIES} are numbers", found=error) from None


@functools.lru_cache(maxsize=64)
def _store(name: str, seconds: float, retries: int) -> Any:
    scheme, _, bucket = name.partition("://")
    if scheme in NO_LISTING | {SCHEME}:
        made = HubStore if scheme == SCHEME else WebStore
        return made(name, seconds=seconds, retries=retries, trying_seconds=TRYING_SECONDS)
    if scheme not in ("s3", "gs", "az"):
        raise StorageError("the scheme is unknown", where=name, allowed="s3, gs, az")
    try:
        from obstore import store as stores
    except ImportError as error:
        raise MissingExtraError("obstore", "s3", "object storage") from error
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(5.0, seconds)),
            "allow_http": any(os.environ.get(key, "").startswith("http://") for key in ENDPOINTS),
        },
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=TRYING_SECONDS)},
    }
    kinds: dict[str, Any] = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
    try:
        return kinds[scheme](bucket, **options)
    except Exception as error:
        raise as_storage_error(name, error) from None


GAP_BYTES = 256 << 10  # reading a gap of this size takes about as long as the latency of another request
WASTE = 0.5  # the maximum of unwanted bytes, as a share of the wanted ones
MAX_BYTES = 8 << 20  # larger requests are split, since several connections are faster than one


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A range of a file or an object: `size_bytes` bytes from byte `offset` on."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequests:
    """The requests that fetch some ranges.

    Attributes:
        begin, end: int64 [requests], half-open, ascending.
        request: int64 [ranges], the first request that contains bytes of each range.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    request: NDArray[np.int64]


def coalesce(
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    *,
    gap: int = GAP_BYTES,
    waste: float = WASTE,
    most: int = MAX_BYTES,
) -> RangeRequests:
    """Join byte ranges of an object into few requests with few unwanted bytes.

    The ranges may be in any order and may overlap.

    Args:
        offset, length: int64 [ranges], in bytes.
        gap: The largest gap in bytes over which two ranges are joined. The smallest gaps are joined first.
        waste: The maximum of unwanted bytes, as a share of the wanted ones.
        most: The maximum size of a request in bytes. A larger request is cut, so that its pieces run in parallel.
    """
    if not len(offset):
        nothing = np.zeros(0, np.int64)
        return RangeRequests(begin=nothing, end=nothing, request=nothing)
    order = np.argsort(offset, kind="stable")
    begin, end = offset[order], np.maximum.accumulate((offset + length)[order])
    between = np.maximum(begin[1:] - end[:-1], 0)
    covered = int(end[-1] - begin[0] - between.sum())
    by_size = np.argsort(between, kind="stable")
    affordable = (between[by_size] <= gap) & (np.cumsum(between[by_size]) <= waste * covered)
    together = np.zeros(len(between), np.bool_)
    together[by_size[affordable]] = True
    first = np.flatnonzero(np.append(True, ~together))
    last = np.append(first[1:], len(begin)) - 1
    run_begin, run_end = begin[first], end[last]
    pieces = np.maximum(-(-(run_end - run_begin) // most), 1)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut_begin = np.repeat(run_begin, pieces) + number * most
    cut_end = np.minimum(cut_begin + most, np.repeat(run_end, pieces))
    return RangeRequests(begin=cut_begin, end=cut_end, request=np.searchsorted(cut_begin, offset, side="right") - 1)


Got = TypeVar("Got")

AT_ONCE, THREAD_NAME = 32, "framedex-storage"  # parallel requests of one process
PIECE_BYTES = 16 << 20  # the size of a part when a whole object is fetched, or written in parts
TRIES = 4  # attempts per request; obstore does not repeat a request whose answer breaks off
FIRST_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of an object when it was last requested.

    Attributes:
        size_bytes: The size of the whole object.
        mtime_ns: The modification time of the whole object.
        tag: Identifies the content: the ETag, or the modification time if the store has no ETag.
    """

    size_bytes: int
    mtime_ns: int
    tag: str

    @property
    def etag(self) -> str | None:
        """The ETag for If-Match, or None if the object does not have one."""
        return self.tag.removeprefix("etag ") if self.tag.startswith("etag ") else None


def facts_of(meta: Any) -> Facts:
    """Return the facts in the metadata of an answer."""
    modified: datetime = meta["last_modified"]
    mtime_ns = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
    etag = meta["e_tag"]
    if etag and not etag.endswith('"'):  # Azure's listings omit the quotes
        etag = f'"{etag}"'
    # A weak tag (RFC 9110 8.8.1) does not promise the same bytes, and If-Match never accepts one.
    strong = bool(etag) and not etag.startswith("W/")
    if not strong and mtime_ns <= 0:
        raise StorageError(
            "the server sends neither an ETag nor a time, so a replaced object would not be detected",
            kind="unpinned",
            where=meta.get("path"),
            remedy="copy the object to another store, or to a disk",
        )
    return Facts(size_bytes=meta["size"], mtime_ns=mtime_ns, tag=f"etag {etag}" if strong else f"modified {mtime_ns}")


def head(uri: str) -> Facts:
    """Return the facts of an object. Raises StorageError."""
    store, key = _open(uri)
    return facts_of(_tried(uri, lambda: store.head(key)))


def fetch(uri: str, begin: int, end: int, facts: Facts | None = None) -> tuple[memoryview, Facts]:
    """Return bytes of an object, and its facts. There are fewer bytes if the object ends before `end`.

    Args:
        uri: The object.
        begin, end: The range in bytes, half-open.
        facts: The facts that the object must still have. If None, any object is accepted.

    Raises:
        StorageError: The request failed, or the object has changed.
    """
    if begin >= end:
        return memoryview(b""), facts or head(uri)
    return _fetch(uri, (begin, end), lambda size: max(0, min(end, size) - begin), facts)


def fetch_end(uri: str, length: int) -> tuple[memoryview, Facts]:
    """Return the last bytes of an object, at most `length`, and its facts. Raises StorageError.

    The error has kind `unsupported` if the store does not support such requests (Azure).
    """
    return _fetch(uri, {"suffix": length}, lambda size: min(length, size))


def _fetch(
    uri: str, wanted: object, expected: Callable[[int], int], facts: Facts | None = None
) -> tuple[memoryview, Facts]:
    """Return a range of an object, and its facts. Raises StorageError.

    Args:
        uri: The object.
        wanted: The range, as obstore's option `range`.
        expected: Returns the length of the range in an object of a given size.
        facts: The facts that the object must still have, or None.
    """
    store, key = _open(uri)
    options: dict[str, Any] = {"range": wanted}
    if facts is not None and facts.etag is not None:
        options["if_match"] = facts.etag

    def once() -> tuple[memoryview, Facts]:
        answer = None
        try:
            answer = store.get(key, options=options)
        except Exception as error:  # obstore's class for this error is not public
            if not is_past_the_end(error):
                raise
        # A store that refuses a range sends no facts. If the range is in the object, it has grown meanwhile: try again.
        seen = head(uri) if answer is None else facts_of(answer.meta)
        if facts is not None and (seen.size_bytes, seen.tag) != (facts.size_bytes, facts.tag):
            raise changed(uri, facts, seen)
        data = memoryview(b"" if answer is None else answer.bytes())
        if len(data) != expected(seen.size_bytes):
            raise ConnectionError(f"{len(data)} of {expected(seen.size_bytes)} bytes came")
        return data, seen

    return _tried(uri, once)


def changed(uri: str, recorded: Facts, seen: Facts | None) -> StorageError:
    """Return the error for an object that was replaced."""
    return StorageError(
        "the object is not the same as before",
        kind="changed",
        where=uri,
        found=None if seen is None else f"{seen.size_bytes} bytes, {seen.tag}",
        allowed=f"{recorded.size_bytes} bytes, {recorded.tag}",
    )


def fetch_many(uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
    """Return the bytes of ranges (begin, end) of an object, fetched in parallel. Raises StorageError."""
    return at_once(lambda piece: fetch(uri, piece[0], piece[1], facts)[0], ranges)


def at_once(function: Callable[[Any], Got], values: Sequence[Any]) -> list[Got]:
    """Call a function for each value, in the threads that wait for stores.

    Such a thread makes its own calls itself: waiting for other threads of the same pool could last forever.
    """
    if len(values) == 1 or threading.current_thread().name.startswith(THREAD_NAME):
        return [function(value) for value in values]
    return list(_threads().map(function, values))


def whole(uri: str, *, most: int) -> tuple[bytes, Facts]:
    """Return a small object and its facts. Raises StorageError, also if it has more than `most` bytes."""
    data, facts = fetch(uri, 0, most + 1)
    if facts.size_bytes > most:
        raise StorageError(
            "the object is too large to read at once", kind="size", where=uri, found=facts.size_bytes, allowed=most
        )
    return bytes(data), facts


def download(uri: str, facts: Facts, path: Path, part: ByteRange | None = None) -> None:
    """Write an object, or a part of it, into a file. Raises StorageError, OSError."""
    first_byte, size = (0, facts.size_bytes) if part is None else (part.offset, part.size_bytes)
    pieces = [
        (first_byte + begin, first_byte + min(begin + PIECE_BYTES, size)) for begin in range(0, size, PIECE_BYTES)
    ]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for first in range(0, len(pieces), 4):
            some = pieces[first : first + 4]
            for (begin, _), data in zip(some, fetch_many(uri, some, facts), strict=True):
                while data:
                    count = os.pwrite(descriptor, data, begin - first_byte)
                    data, begin = data[count:], begin + count
    finally:
        os.close(descriptor)


def listing(uri: str) -> Iterator[tuple[str, Facts]]:
    """Yield (uri, facts) of every object below a folder, sorted. Raises StorageError."""
    name, key = split(uri)
    store, _ = _open(uri)
    if name.partition(":")[0] in NO_LISTING:
        raise StorageError(
            "a web server does not list its files",
            kind="listing",
            where=uri,
            remedy="name the files, or a list of them",
        )
    prefix = f"{key.rstrip('/')}/" if key else ""
    found = _tried(uri, lambda: [meta for chunk in store.list(prefix or None) for meta in chunk])
    for meta in sorted(found, key=lambda meta: meta["path"]):
        if meta["path"].startswith(prefix) and not meta["path"].endswith("/"):
            yield uri_of(name, meta["path"]), facts_of(meta)


def children(uri: str) -> dict[str, Facts]:
    """Return the facts of the objects directly in a folder, by name. Raises StorageError."""
    below = ((name[len(uri) + 1 :], facts) for name, facts in listing(uri))
    return {name: facts for name, facts in below if "/" not in name}


def put(uri: str, data: bytes, *, replaces: Facts | None = None) -> Facts:
    """Write an object and return its facts. Raises StorageError of kind `exists` or `changed` if the condition fails.

    Args:
        uri: The object.
        data: Its content.
        replaces: The facts of the object to replace, if it has not changed. If None, no object may exist there.
    """
    store, key = _open(uri)
    etag = None if replaces is None else replaces.etag

    def once(mode: Any) -> Facts:
        store.put(key, data, mode=mode, use_multipart=False)
        return facts_of(store.head(key))

    try:
        if replaces is None or etag is None:
            return _tried(uri, lambda: once("create" if replaces is None else "overwrite"))
        try:
            return _tried(uri, lambda: once({"e_tag": etag}))
        except StorageError as error:
            if error.kind != "changed" or exists(uri) != replaces:
                raise
            # When Ceph's gateway writes, it compares an ETag without the quotes that belong to it (RFC 9110 8.8.3).
            return _tried(uri, lambda: once({"e_tag": etag.strip('"')}))
    except StorageError as error:
        # If an answer was lost, the write may have succeeded: the object then has the content that was written.
        if error.kind in ("exists", "changed"):
            with contextlib.suppress(StorageError):
                found, facts = fetch(uri, 0, len(data) + 1)
                if found == data:
                    return facts
        raise


def upload(path: Path, uri: str) -> Facts:
    """Write a file as an object, in parallel parts, and return its facts. An existing object is replaced."""
    store, key = _open(uri)

    def once() -> Facts:
        with open(path, "rb") as file:
            store.put(key, file, chunk_size=PIECE_BYTES, max_concurrency=4)
        return facts_of(store.head(key))

    facts = _tried(uri, once)
    if facts.size_bytes != path.stat().st_size:
        raise StorageError(
            "the object has another size than the file that was written into it",
            kind="size",
            where=uri,
            found=facts.size_bytes,
            allowed=path.stat().st_size,
        )
    return facts


def delete(uris: Sequence[str]) -> None:
    """Remove objects. Objects that do not exist are ignored."""
    for uri in uris:
        store, key = _open(uri)
        try:
            _tried(uri, functools.partial(store.delete, key))
        except StorageError as error:
            if error.kind != "missing":
                raise


def exists(uri: str) -> Facts | None:
    """Return the facts of an object, or None if it does not exist."""
    try:
        return head(uri)
    except StorageError as error:
        if error.kind != "missing":
            raise
        return None


def _open(uri: str) -> tuple[Any, str]:
    """Return the store of a uri and the key in it. Raises StorageError in a forked process, and MissingExtraError."""
    name, key = split(uri)
    if _OPENED_BY and _OPENED_BY[0] != os.getpid():
        raise StorageError(
            "object storage cannot be used in a process that was forked from one that used it",
            kind="forked",
            where=name,
            remedy='start processes anew: DataLoader(…, multiprocessing_context="spawn")',
        )
    _OPENED_BY[:] = [os.getpid()]
    return _store(name, *limits()), key


def _tried(uri: str, call: Callable[[], Got]) -> Got:
    """Return the result of a call. Repeat it if its answer broke off, which obstore does not."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except FramedexError:
            raise
        except Exception as error:  # errors of obstore, which have several bases, and of incomplete answers
            if attempt == TRIES or not may_be_tried_again(error):
                raise as_storage_error(uri, error) from None  # its text may contain secrets
            time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
    raise AssertionError("the last try returns or raises")


_POOL: dict[int, ThreadPoolExecutor] = {}


def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process that wait for stores."""
    pool = _POOL.get(os.getpid())
    if pool is None:
        pool = _POOL.setdefault(os.getpid(), ThreadPoolExecutor(AT_ONCE, thread_name_prefix=THREAD_NAME))
    return pool
