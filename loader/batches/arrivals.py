"""The clips of a batch as workers have fetched them."""

from __future__ import annotations

import functools
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


class Arrivals:
    """Gives the places of a batch's clips as they arrive, each once. Cancelled clips arrive too.

    Args:
        fetched: the future result of each clip.
        as_requested: give places in ascending order, without waiting for clips.
    """

    def __init__(self, fetched: Sequence[Future[Any]], *, as_requested: bool) -> None:
        self._places: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.outstanding = len(fetched)
        for place, future in enumerate(fetched):
            if as_requested:
                self._places.put(place)
            else:
                future.add_done_callback(functools.partial(self._arrive, place))

    def _arrive(self, place: int, future: Future[Any]) -> None:
        self._places.put(place)

    def next(self) -> int:
        """Wait for a clip and return its place."""
        place = self._places.get()
        self.outstanding -= 1
        return place

    def is_waiting(self) -> bool:
        """Return whether a clip is there already."""
        return not self._places.empty()
