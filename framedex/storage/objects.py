"""Objects of a store: what they are, their bytes, and writing them where nothing else has been written.

The transport is obstore's. Each function names objects by uri, repeats what may be repeated, and raises StorageError, in
which no secret stands.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from framedex.errors import FramedexError, StorageError
from framedex.storage.errors import as_storage_error, is_past_the_end, may_be_tried_again
from framedex.storage.stores import NO_LISTING, open_store
from framedex.storage.uris import split, uri_of

Got = TypeVar("Got")

AT_ONCE, THREAD_NAME = 32, "framedex-storage"  # requests of one process
PIECE_BYTES = 16 << 20  # of an object that is fetched whole, or written in parts
TRIES = 4  # of what obstore does not repeat by itself: an answer that breaks off or is too short
FIRST_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """An object as it was seen. tag: what tells it from every other content: its ETag, or the time where a store has none.

    size_bytes, mtime_ns: of the whole object.
    """

    size_bytes: int
    mtime_ns: int
    tag: str

    @property
    def etag(self) -> str | None:
        """What If-Match takes."""
        return self.tag.removeprefix("etag ") if self.tag.startswith("etag ") else None


def facts_of(meta: Any) -> Facts:
    """Return the facts in an answer's metadata."""
    modified: datetime = meta["last_modified"]
    mtime_ns = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
    etag = meta["e_tag"]
    if etag and not etag.endswith('"'):  # as Azure's listings have it
        etag = f'"{etag}"'
    # A weak tag (RFC 9110 8.8.1) does not promise the same bytes, and If-Match never takes one.
    strong = bool(etag) and not etag.startswith("W/")
    if not strong and mtime_ns <= 0:
        raise StorageError(
            "the server says neither an ETag nor a time, so an object cannot be told from another one",
            kind="unpinned",
            where=meta.get("path"),
            remedy="copy the object to a store that does, or to a disk",
        )
    return Facts(size_bytes=meta["size"], mtime_ns=mtime_ns, tag=f"etag {etag}" if strong else f"modified {mtime_ns}")


def head(uri: str) -> Facts:
    """Return what an object is. Raises StorageError."""
    store, key = _open(uri)
    return facts_of(_tried(uri, lambda: store.head(key)))


def fetch(uri: str, begin: int, end: int, facts: Facts | None = None) -> tuple[memoryview, Facts]:
    """Return some bytes of an object, fewer where it ends before, and what the object is.

    facts: what it must still be. Raises StorageError, also for another object.
    """
    if begin >= end:
        return memoryview(b""), facts or head(uri)
    store, key = _open(uri)
    options: dict[str, Any] = {"range": (begin, end)}
    if facts is not None and facts.etag is not None:
        options["if_match"] = facts.etag

    def once() -> tuple[memoryview, Facts]:
        try:
            answer = store.get(key, options=options)
        except Exception as error:  # obstore's own class for it is no part of its interface
            if not is_past_the_end(error):
                raise
            seen = head(uri)
            if facts is not None and (seen.size_bytes, seen.tag) != (facts.size_bytes, facts.tag):
                raise changed(uri, facts, seen) from error
            return memoryview(b""), seen
        seen = facts_of(answer.meta)
        if facts is not None and (seen.size_bytes, seen.tag) != (facts.size_bytes, facts.tag):
            raise changed(uri, facts, seen)
        data = memoryview(answer.bytes())
        expected = min(end, seen.size_bytes) - begin
        if len(data) != expected:
            raise ConnectionError(f"{len(data)} of {expected} bytes came")
        return data, seen

    return _tried(uri, once)


def fetch_end(uri: str, length: int) -> tuple[memoryview, Facts]:
    """Return the last bytes of an object, all where it has no more, and what it is. Raises StorageError.

    Of kind `unsupported` where a store has no such request (Azure).
    """
    store, key = _open(uri)

    def once() -> tuple[memoryview, Facts]:
        answer = store.get(key, options={"range": {"suffix": length}})
        facts = facts_of(answer.meta)
        data = memoryview(answer.bytes())
        if len(data) != min(length, facts.size_bytes):
            raise ConnectionError(f"{len(data)} of {min(length, facts.size_bytes)} bytes came")
        return data, facts

    return _tried(uri, once)


def changed(uri: str, recorded: Facts, seen: Facts | None) -> StorageError:
    """Return the error for an object that was replaced."""
    return StorageError(
        "the object is another one than before",
        kind="changed",
        where=uri,
        found=None if seen is None else f"{seen.size_bytes} bytes, {seen.tag}",
        allowed=f"{recorded.size_bytes} bytes, {recorded.tag}",
    )


def fetch_many(uri: str, ranges: Sequence[tuple[int, int]], facts: Facts) -> list[memoryview]:
    """Return the bytes of some ranges (begin, end) of an object, fetched at the same time. Raises StorageError."""
    return at_once(lambda piece: fetch(uri, piece[0], piece[1], facts)[0], ranges)


def at_once(function: Callable[[Any], Got], values: Sequence[Any]) -> list[Got]:
    """Call a function for several values, in threads that wait for a store; in such a thread one after the other."""
    if len(values) == 1 or threading.current_thread().name.startswith(THREAD_NAME):
        return [function(value) for value in values]
    return list(_threads().map(function, values))


def whole(uri: str, *, most: int) -> tuple[bytes, Facts]:
    """Return a small object. Raises StorageError, also for one of more than `most` bytes."""
    data, facts = fetch(uri, 0, most + 1)
    if facts.size_bytes > most:
        raise StorageError(
            "the object is too large to be read at once", kind="size", where=uri, found=facts.size_bytes, allowed=most
        )
    return bytes(data), facts


def download(uri: str, facts: Facts, path: Path) -> None:
    """Write an object into a file. Raises StorageError, OSError."""
    pieces = [(begin, min(begin + PIECE_BYTES, facts.size_bytes)) for begin in range(0, facts.size_bytes, PIECE_BYTES)]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for first in range(0, len(pieces), 4):
            part = pieces[first : first + 4]
            for (begin, _), data in zip(part, fetch_many(uri, part, facts), strict=True):
                while data:
                    count = os.pwrite(descriptor, data, begin)
                    data, begin = data[count:], begin + count
    finally:
        os.close(descriptor)


def listing(uri: str) -> Iterator[tuple[str, Facts]]:
    """Yield (uri, facts) of every object below a folder, sorted. Raises StorageError."""
    name, key = split(uri)
    store, _ = _open(uri)
    if name.partition(":")[0] in NO_LISTING:
        raise StorageError(
            "a web server does not list what it has",
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
    """Return the objects that lie right in a folder, by their names in it. Raises StorageError."""
    below = ((name[len(uri) + 1 :], facts) for name, facts in listing(uri))
    return {name: facts for name, facts in below if "/" not in name}


def put(uri: str, data: bytes, *, replaces: Facts | None = None) -> Facts:
    """Write an object where none is; or in place of one that is still as it was seen. Return what it is now.

    Raises StorageError of kind `exists` or `changed` where that is not so.
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
            # Ceph's gateway compares an ETag without the quotes that are part of it (RFC 9110 8.8.3) when it writes.
            return _tried(uri, lambda: once({"e_tag": etag.strip('"')}))
    except StorageError as error:
        # An answer that was lost may have been a success: what stands there then is what was written.
        if error.kind in ("exists", "changed") and (mine := _holds(uri, data)) is not None:
            return mine
        raise


def _holds(uri: str, data: bytes) -> Facts | None:
    """Return what an object is, if it has just this content."""
    try:
        found, facts = fetch(uri, 0, len(data) + 1)
    except StorageError:
        return None
    return facts if found == data else None


def upload(path: Path, uri: str) -> Facts:
    """Write a file as an object, in parts that go at the same time; whatever stands there is replaced. Return what it is."""
    store, key = _open(uri)

    def once() -> Facts:
        with open(path, "rb") as file:
            store.put(key, file, chunk_size=PIECE_BYTES, max_concurrency=4)
        return facts_of(store.head(key))

    facts = _tried(uri, once)
    if facts.size_bytes != path.stat().st_size:
        raise StorageError(
            "the object is not as long as the file that was written into it",
            kind="size",
            where=uri,
            found=facts.size_bytes,
            allowed=path.stat().st_size,
        )
    return facts


def delete(uris: Sequence[str]) -> None:
    """Remove objects; one that is not there is no error."""
    for uri in uris:
        store, key = _open(uri)
        try:
            _tried(uri, lambda store=store, key=key: store.delete(key))  # type: ignore[misc]
        except StorageError as error:
            if error.kind != "missing":
                raise


def exists(uri: str) -> Facts | None:
    """Return what an object is, None where there is none."""
    try:
        return head(uri)
    except StorageError as error:
        if error.kind != "missing":
            raise
        return None


def _open(uri: str) -> tuple[Any, str]:
    name, key = split(uri)
    return open_store(name), key


def _tried(uri: str, call: Callable[[], Got]) -> Got:
    """Return what a call returns; obstore repeats requests that fail, this one answers that break off."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except FramedexError:
            raise
        except Exception as error:  # obstore's, which come from several bases, and what an answer lacked
            if attempt == TRIES or not may_be_tried_again(error):
                raise as_storage_error(uri, error) from None  # whose text may hold what is not to be shown
            time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
    raise AssertionError("the last try returns or raises")


_POOL: dict[int, ThreadPoolExecutor] = {}


def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process that wait for stores."""
    pool = _POOL.get(os.getpid())
    if pool is None:
        pool = _POOL.setdefault(os.getpid(), ThreadPoolExecutor(AT_ONCE, thread_name_prefix=THREAD_NAME))
    return pool
