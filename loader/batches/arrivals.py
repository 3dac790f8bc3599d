"""The clips of a batch in the order in which workers have fetched them."""

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
    """

    def __init__(self, fetched: Sequence[Future[Any]]) -> None:
        self._places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place, future in enumerate(fetched):
            future.add_done_callback(functools.partial(self._arrive, place))

    def _arrive(self, place: int, future: Future[Any]) -> None:
        self._places.put(place)

    def next(self) -> int:
        """Wait for a clip and return its place."""
        return self._places.get()
