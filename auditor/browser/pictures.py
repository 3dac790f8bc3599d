"""Decoded clips, kept in memory within a limit, and their pictures as files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from framedex.auditor.browser.shown import MOST_CLIP_BYTES, Shown
from framedex.errors import FramedexError
from framedex.loader.contact_sheets.thumbnails import jpeg, png, reduced

MOST_BYTES = MOST_CLIP_BYTES + (256 << 20)  # of all clips that are kept
POSTER_SIDE = 320
POSTER_QUALITY = 82

Key = tuple[str, int | None]  # of a clip or medium, and the first frame of the part that is shown


class Items(Protocol):
    """What a browser shows: clips of a dataset, or media of an index."""

    spans: bool

    def first_column(self) -> str:
        """Return the column that a filter begins with."""
        ...

    def card(self, key: Any) -> dict[str, Any]:
        """Return what the list says about one of them."""
        ...

    def describe(self, key: Any) -> dict[str, Any]:
        """Return everything about one of them but its pictures."""
        ...

    def show(self, key: Any, first: int | None) -> Shown:
        """Return one of them with its pictures."""
        ...


class Pictures:
    """The pictures of clips. Each clip is decoded once, as long as it is kept. Threads share it.

    Args:
        items: What is decoded.
    """

    def __init__(self, items: Items) -> None:
        self._items = items
        self._kept: OrderedDict[Key, Shown] = OrderedDict()
        self._lock = threading.Lock()
        self._being_decoded: dict[Key, threading.Lock] = {}
        self._decoders = threading.BoundedSemaphore(os.cpu_count() or 1)

    def shown(self, key: str, first: int | None, wanted: Callable[[], bool]) -> Shown:
        """Return a clip with its pictures.

        Args:
            key: The clip or medium.
            first: The first frame of the part of a medium.
            wanted: Returns whether somebody still waits for it; called before it is decoded.

        Raises:
            FramedexError: it does not decode, or nobody waits for it.
        """
        name = (key, first)
        with self._lock:
            own = self._being_decoded.setdefault(name, threading.Lock())
        with own:
            found = self._find(name)
            if found is None:
                try:
                    with self._decoders:
                        if not wanted():
                            raise FramedexError("the page no longer waits for this clip")
                        found = self._items.show(key, first)
                    self._keep(name, found)
                finally:
                    with self._lock:
                        self._being_decoded.pop(name, None)
            return found

    def _find(self, name: Key) -> Shown | None:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def _keep(self, name: Key, found: Shown) -> None:
        with self._lock:
            self._kept[name] = found
            while len(self._kept) > 1 and sum(one.size_bytes for one in self._kept.values()) > MOST_BYTES:
                self._kept.popitem(last=False)


def picture_file(shown: Shown, place: int) -> bytes:
    """Return the picture at a place of a clip as a PNG file, which holds each pixel as it is.

    Raises FramedexError if there is no such place.
    """
    if not 0 <= place < len(shown.frames):
        raise FramedexError("the clip has no such place", found=place, allowed=f"0 to {len(shown.frames) - 1}")
    return png(shown.pictures[place])


def poster_file(shown: Shown) -> bytes | None:
    """Return a small JPEG file of the first frame of a clip. None: every place is padding."""
    picture = shown.poster()
    return None if picture is None else jpeg(reduced(picture, POSTER_SIDE), POSTER_QUALITY)
