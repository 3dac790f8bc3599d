"""Where the sources of an index or a dataset lie now, and in which stores they may lie.

Anybody may have written an index or a dataset. The uris in it must not make this machine send requests to servers that
its user did not choose, or read files of this machine for a dataset that came from elsewhere.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from framedex.errors import FramedexError, StorageError
from framedex.storage.uris import absolute, goes_up, is_inside, is_remote, joined, split

Root = str | os.PathLike[str] | Mapping[str, str]

ALLOW_REMOTE = "FRAMEDEX_ALLOW_REMOTE"
THIS_MACHINE = "this machine"
MOST_SHOWN = 5  # stores in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which sources may be read.

    Attributes:
        root: Where the sources lie now, if they moved: a folder that replaces the recorded root, or a mapping {old
            prefix: new prefix} that applies to absolute paths. Any of these may be in object storage.
        allow_remote: Whether sources may lie outside of the store of the index or dataset.
    """

    root: Root | None = None
    allow_remote: bool = False


OWN_STORE = Access()


class Locations:
    """Where the sources of an index or a dataset lie.

    Sources may lie in the same store: the same bucket, web server or repository of the Hub; for an index or a dataset
    on a disk, this machine. They may also lie where `access.root` leads.

    Args:
        place: The index or dataset, a path or uri.
        recorded: The root that was indexed.
        access: Which sources may be read.

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
        """Return where a source lies, even if it must not be read."""
        path = joined(self._root, uri)
        for old, new in self._moved.items():
            if path == old or path.startswith(old.rstrip("/") + "/"):
                moved = new.rstrip("/") + path[len(old.rstrip("/")) :]
                return moved if is_remote(moved) else os.path.normpath(moved)
        return path

    def locate(self, uri: str, uris: Callable[[], pa.ChunkedArray]) -> str:
        """Return where a source lies.

        Args:
            uri: The source.
            uris: Returns the uris of all sources, for the error.

        Raises:
            StorageError: It must not be read. The kind is `foreign`.
        """
        if not self.allows(uri):
            self.check(uris())
            raise self._refusal({store_of(self.path(uri)): 1})  # a file beside the media
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
        """Check that all of some sources may be read.

        Args:
            uris: string, their uris.

        Raises:
            StorageError: One must not be read. The message has the stores that the sources lie in; the kind is
                `foreign`.
        """
        if self._anywhere:
            return
        if self.allows_root:  # then only absolute names can be foreign, and those that lead out of the root
            uris = uris.filter(pc.match_substring_regex(uris, r"^/|://|%|(^|/)\.\.(/|$)"))
        found = Counter(store_of(self.path(uri)) for uri in uris.to_pylist() if not self.allows(uri))
        if found:
            raise self._refusal(found)

    def _refusal(self, stores: Mapping[str, int]) -> StorageError:
        """Return the error for sources that must not be read. `stores`: how many of them each store has."""
        ordered = sorted(stores.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{store} ({count:,} source{'s' * (count != 1)})" for store, count in ordered[:MOST_SHOWN]]
        more = len(ordered) - len(shown)
        return StorageError(
            "sources lie in another store, and a stranger may have written their uris",
            kind="foreign",
            where=self._place,
            found=", ".join(shown) + (f" and {more} more" if more else ""),
            allowed=self._own_store,
            remedy=f"if you trust these stores: --allow-remote, allow_remote=True or {ALLOW_REMOTE}=1; "
            "if the sources lie elsewhere now: --root or root=",
        )


def store_of(place: str) -> str:
    """Return the store of a path or uri: scheme://bucket or scheme://host, or "this machine"."""
    if not is_remote(place):
        return THIS_MACHINE
    scheme, rest = place.split("://", 1)
    store = split(f"{scheme.lower()}://{rest}")[0]
    if scheme.lower() == "hf":
        return store.partition("@")[0]  # every commit of the repository
    return store.lower() if scheme.lower() in ("http", "https") else store


def allowed_by_environment() -> bool:
    """Return whether FRAMEDEX_ALLOW_REMOTE allows sources in all stores. Raises FramedexError for an unknown value."""
    value = os.environ.get(ALLOW_REMOTE, "")
    if value not in ("", "0", "1"):
        raise FramedexError("the environment variable is wrong", where=ALLOW_REMOTE, found=value, allowed="0 or 1")
    return value == "1"
