"""Objects in object storage: read their metadata and bytes, and write without replacing the objects of other runs.

The library obstore sends the requests to buckets. Each process has one store object per bucket. Addresses and
credentials come from the environment. The functions take the uri of an object, and repeat a failed request where that
is safe. They raise StorageError, whose message does not contain secrets.
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
from framedex.storage.web import WebStore, as_storage_error, may_be_tried_again

NO_LISTING = frozenset({"http", "https"})
TIMEOUT, RETRIES = "FRAMEDEX_STORAGE_TIMEOUT", "FRAMEDEX_STORAGE_RETRIES"
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_ENDPOINT")
# The id of the process that first used a store. A process that is forked later inherits the store, but not the threads
# that the store needs.
_OPENED_BY: list[int] = []


USUAL_SECONDS, USUAL_RETRIES = 30.0, 8  # defaults: time limit of a request, and number of repeats of a failed request
TRYING_SECONDS = 180.0  # time after which a failed request is not repeated any more


def limits() -> tuple[float, int]:
    """Return (time limit of a request in seconds, maximum number of repeats of a failed request).

    The environment variables in TIMEOUT and RETRIES override the defaults. The wait before a repeat doubles from 0.1 s
    to 15 s. After `TRYING_SECONDS`, a request is not repeated.

    Raises:
        FramedexError: The value of a variable is not a number.
    """
    try:
        return float(os.environ.get(TIMEOUT, USUAL_SECONDS)), int(os.environ.get(RETRIES, USUAL_RETRIES))
    except ValueError as error:
        raise FramedexError(f"{TIMEOUT} and {RETRIES} must be numbers", found=error) from None


@functools.lru_cache(maxsize=64)
def _store(name: str, seconds: float, retries: int) -> Any:
    scheme, _, bucket = name.partition("://")
    if scheme in NO_LISTING | {SCHEME}:
        made = HubStore if scheme == SCHEME else WebStore
        return made(name, seconds=seconds, retries=retries, trying_seconds=TRYING_SECONDS)
    if scheme not in ("s3", "gs", "az"):
        raise StorageError("unknown scheme of a uri", where=name, allowed="s3, gs, az")
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


# Two ranges with a gap of up to this size are fetched by one request. Transferring the gap takes about as long as the
# latency of a second request.
GAP_BYTES = 256 << 10
WASTE = 0.5  # the maximum ratio of unwanted bytes to wanted bytes
MAX_BYTES = 8 << 20  # maximum size of a request; larger ones are split, since several connections are faster than one


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A byte range of a file or an object: `size_bytes` bytes, beginning at byte `offset`."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequests:
    """The requests that together fetch some byte ranges.

    Attributes:
        begin: int64 [requests]. The first byte of each request, ascending.
        end: int64 [requests]. The byte after the last one of each request.
        request: int64 [ranges]. For each range, the index of the request with its first byte.
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
        offset: int64 [ranges]. The first byte of each range.
        length: int64 [ranges]. The length of each range in bytes.
        gap: The largest gap in bytes over which two ranges are joined. Ranges with small gaps are joined first.
        waste: The maximum ratio of unwanted bytes to wanted bytes.
        most: The maximum size of a request in bytes. A larger request is split into requests that can run in parallel.
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

AT_ONCE, THREAD_NAME = 32, "framedex-storage"  # the number and the name of the threads that send requests
PIECE_BYTES = 16 << 20  # size of the pieces in which a whole object is fetched or written
_POOL: dict[int, ThreadPoolExecutor] = {}  # id of a process → its threads that send requests
TRIES = 4  # attempts per request; obstore does not repeat a request if the connection breaks during the answer
FIRST_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The metadata of an object at the time of a request.

    Attributes:
        size_bytes: The size of the whole object.
        mtime_ns: The modification time of the object, in nanoseconds since 1970.
        tag: A text that identifies the content: `etag` and the ETag, or `modified` and the modification time if the
            store sends no strong ETag.
    """

    size_bytes: int
    mtime_ns: int
    tag: str

    @property
    def etag(self) -> str | None:
        """The ETag for the header If-Match. None if the object has no strong ETag."""
        return self.tag.removeprefix("etag ") if self.tag.startswith("etag ") else None


def facts_of(meta: Any) -> Facts:
    """Convert the metadata of an answer, as obstore represents it, into `Facts`.

    Raises:
        StorageError: The metadata has neither a strong ETag nor a modification time.
    """
    modified: datetime = meta["last_modified"]
    mtime_ns = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
    etag = meta["e_tag"]
    if etag and not etag.endswith('"'):  # Azure's listings omit the quotes
        etag = f'"{etag}"'
    # Objects with equal weak ETags may differ in their bytes (RFC 9110 8.8.1), and If-Match never accepts a weak ETag.
    strong = bool(etag) and not etag.startswith("W/")
    if not strong and mtime_ns <= 0:
        raise StorageError(
            "the server sends neither an ETag nor a modification time, so a replaced object would not be detected",
            kind="unpinned",
            where=meta.get("path"),
            remedy="copy the object to another store or to a local disk",
        )
    return Facts(size_bytes=meta["size"], mtime_ns=mtime_ns, tag=f"etag {etag}" if strong else f"modified {mtime_ns}")


def head(uri: str) -> Facts:
    """Return the metadata of an object. Raises StorageError."""
    store, key = _open(uri)
    return facts_of(_tried(uri, lambda: store.head(key)))


def fetch(uri: str, begin: int, end: int, facts: Facts | None = None) -> tuple[memoryview, Facts]:
    """Return a byte range of an object, and the object's metadata. The range is cut at the end of the object.

    Args:
        uri: The object.
        begin: The first byte of the range.
        end: The byte after the last one of the range.
        facts: The metadata that the object must still have. If None, any metadata is accepted.

    Raises:
        StorageError: The request failed, or the object has changed.
    """
    if begin >= end:
        return memoryview(b""), facts or head(uri)
    return _fetch(uri, (begin, end), lambda size: max(0, min(end, size) - begin), facts)


def fetch_end(uri: str, length: int) -> tuple[memoryview, Facts]:
    """Return the last `length` bytes of an object (all bytes if it has fewer), and the object's metadata.

    Raises:
        StorageError: The request failed. The kind is `unsupported` if the store does not support requests for the end
            of an object (Azure).
    """
    return _fetch(uri, {"suffix": length}, lambda size: min(length, size))


def _fetch(
    uri: str, wanted: object, expected: Callable[[int], int], facts: Facts | None = None
) -> tuple[memoryview, Facts]:
    """Return a byte range of an object, and the object's metadata. Raises StorageError.

    Args:
        uri: The object.
        wanted: The range, in the form of obstore's option `range`.
        expected: A function that returns the length of the range, given the size of the object.
        facts: The metadata that the object must still have. If None, any metadata is accepted.
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
            if "status code: 416" not in str(error):  # the range does not begin after the end of the object
                raise
        # If the range begins after the end of the object, the store sends no metadata, so request it separately. If the
        # object has grown in between and now has bytes in the range, the comparison below leads to another try.
        seen = head(uri) if answer is None else facts_of(answer.meta)
        if facts is not None and (seen.size_bytes, seen.tag) != (facts.size_bytes, facts.tag):
            raise changed(uri, facts, seen)
        data = memoryview(b"" if answer is None else answer.bytes())
        if len(data) != expected(seen.size_bytes):
            raise ConnectionError(f"received {len(data)} of {expected(seen.size_bytes)} bytes")
        return data, seen

    return _tried(uri, once)


def changed(uri: str, recorded: Facts, seen: Facts | None) -> StorageError:
    """Return the error for an object that was replaced.

    Args:
        uri: The object.
        recorded: The expected metadata.
        seen: The current metadata, or None if unknown.
    """
    return StorageError(
        "the object is not the same as before",
        kind="changed",
        where=uri,
        found=None if seen is None else f"{seen.size_bytes} bytes, {seen.tag}",
        allowed=f"{recorded.size_bytes} bytes, {recorded.tag}",
    )


def fetch_many(uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
    """Fetch byte ranges (begin, end) of an object in parallel, and return their bytes. Raises StorageError."""
    return at_once(lambda piece: fetch(uri, piece[0], piece[1], facts)[0], ranges)


def at_once(function: Callable[[Any], Got], values: Sequence[Any]) -> list[Got]:
    """Call a function for each value in parallel, and return the results in order.

    The calls run in the thread pool for requests. If the caller already runs in a thread of this pool, it makes the
    calls itself, one by one, since waiting for other threads of the same pool could cause a deadlock.
    """
    if len(values) == 1 or threading.current_thread().name.startswith(THREAD_NAME):
        return [function(value) for value in values]
    pool = _POOL.get(os.getpid())
    if pool is None:
        pool = _POOL.setdefault(os.getpid(), ThreadPoolExecutor(AT_ONCE, thread_name_prefix=THREAD_NAME))
    return list(pool.map(function, values))


def whole(uri: str, *, most: int) -> tuple[bytes, Facts]:
    """Return the content of a small object, and the object's metadata.

    Raises:
        StorageError: The request failed, or the object has more than `most` bytes.
    """
    data, facts = fetch(uri, 0, most + 1)
    if facts.size_bytes > most:
        raise StorageError(
            "the object is too large to read at once", kind="size", where=uri, found=facts.size_bytes, allowed=most
        )
    return bytes(data), facts


def download(
    uri: str, facts: Facts, path: Path, part: ByteRange | None = None, *, known: bytes | memoryview = b""
) -> None:
    """Copy an object, or a byte range of an object, into a local file.

    Args:
        uri: The object.
        facts: The metadata that the object must have.
        path: The path of the file.
        part: The byte range. If None, the whole object is copied.
        known: The first bytes of the object or range, if they were read already. They are not requested again.

    Raises:
        StorageError: A request fails, or the object has other metadata.
        OSError: The file cannot be written.
    """
    first_byte, size = (0, facts.size_bytes) if part is None else (part.offset, part.size_bytes)
    known = memoryview(known)[:size]
    pieces = [(at, min(at + PIECE_BYTES, size)) for at in range(len(known), size, PIECE_BYTES)]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(data: memoryview, at: int) -> None:
        while data:
            count = os.pwrite(descriptor, data, at)
            data, at = data[count:], at + count

    try:
        write(known, 0)
        for first in range(0, len(pieces), 4):
            some = pieces[first : first + 4]
            in_object = [(first_byte + begin, first_byte + end) for begin, end in some]
            for (begin, _), data in zip(some, fetch_many(uri, in_object, facts), strict=True):
                write(data, begin)
    finally:
        os.close(descriptor)


def listing(uri: str) -> Iterator[tuple[str, Facts]]:
    """Yield (uri, metadata) of every object below a folder, sorted by uri. Raises StorageError."""
    name, key = split(uri)
    store, _ = _open(uri)
    if name.partition(":")[0] in NO_LISTING:
        raise StorageError(
            "a web server cannot list the files of a folder",
            kind="listing",
            where=uri,
            remedy="pass the uris of the files, or a listing with these uris",
        )
    prefix = f"{key.rstrip('/')}/" if key else ""
    found = _tried(uri, lambda: [meta for chunk in store.list(prefix or None) for meta in chunk])
    for meta in sorted(found, key=lambda meta: meta["path"]):
        if meta["path"].startswith(prefix) and not meta["path"].endswith("/"):
            yield uri_of(name, meta["path"]), facts_of(meta)


def children(uri: str) -> dict[str, Facts]:
    """Return name → metadata of the objects directly in a folder. Raises StorageError."""
    below = ((name[len(uri) + 1 :], facts) for name, facts in listing(uri))
    return {name: facts for name, facts in below if "/" not in name}


def put(uri: str, data: bytes, *, replaces: Facts | None = None) -> Facts:
    """Write an object by a conditional request, and return the metadata of the object.

    Args:
        uri: The object.
        data: The content of the object.
        replaces: The metadata of the existing object to replace. If None, no object may exist at the uri.

    Raises:
        StorageError: The request failed. The kind is `exists` if an object exists and `replaces` is None. The kind is
            `changed` if the metadata of the existing object differs from `replaces`.
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
            # Ceph's gateway compares the ETag in a write request to an ETag without quotes, although the quotes are a
            # part of an ETag (RFC 9110 8.8.3).
            return _tried(uri, lambda: once({"e_tag": etag.strip('"')}))
    except StorageError as error:
        # If the answer to an earlier try was lost, that try may have succeeded. The object then has this content.
        if error.kind in ("exists", "changed"):
            with contextlib.suppress(StorageError):
                found, facts = fetch(uri, 0, len(data) + 1)
                if found == data:
                    return facts
        raise


def upload(path: Path, uri: str) -> Facts:
    """Copy a local file to an object, in parallel parts, and return the object's metadata.

    An existing object is replaced.
    """
    store, key = _open(uri)

    def once() -> Facts:
        with open(path, "rb") as file:
            store.put(key, file, chunk_size=PIECE_BYTES, max_concurrency=4)
        return facts_of(store.head(key))

    facts = _tried(uri, once)
    if facts.size_bytes != path.stat().st_size:
        raise StorageError(
            "the object has another size than the file that was copied to it",
            kind="size",
            where=uri,
            found=facts.size_bytes,
            allowed=path.stat().st_size,
        )
    return facts


def delete(uris: Sequence[str]) -> None:
    """Delete objects. Objects that do not exist are ignored."""
    for uri in uris:
        store, key = _open(uri)
        try:
            _tried(uri, functools.partial(store.delete, key))
        except StorageError as error:
            if error.kind != "missing":
                raise


def exists(uri: str) -> Facts | None:
    """Return the metadata of an object, or None if the object does not exist."""
    try:
        return head(uri)
    except StorageError as error:
        if error.kind != "missing":
            raise
        return None


def _open(uri: str) -> tuple[Any, str]:
    """Return (store, key) for a uri.

    Raises:
        StorageError: This process was forked from a process that used a store, or the store cannot be opened.
        MissingExtraError: obstore or huggingface_hub is not installed.
    """
    name, key = split(uri)
    if _OPENED_BY and _OPENED_BY[0] != os.getpid():
        raise StorageError(
            "object storage cannot be used in a process that was forked from a process that used object storage",
            kind="forked",
            where=name,
            remedy='spawn processes instead: DataLoader(…, multiprocessing_context="spawn")',
        )
    _OPENED_BY[:] = [os.getpid()]
    return _store(name, *limits()), key


def _tried(uri: str, call: Callable[[], Got]) -> Got:
    """Return the result of a call. Repeat the call if the connection broke during the answer, since obstore does not.

    Raises:
        StorageError: The last try failed, or repeating the call would not help.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except FramedexError:
            raise
        except Exception as error:  # obstore's errors have no common base class; incomplete answers are ConnectionError
            if attempt == TRIES or not may_be_tried_again(error):
                raise as_storage_error(uri, error) from None  # the text of `error` may contain secrets
            time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
    raise AssertionError("the last try returns or raises")
