"""Staggers concurrent DALI runs so that NVDEC stays busy."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

APART = 1 / 3  # least time between two starts, as a part of the time that a run takes


class Stagger:
    """Spaces out the starts of DALI runs that share a GPU, each in its own thread.

    A run sets up decoders for all its movies before it decodes the first one, one decoder at a time on the whole
    machine. NVDEC is idle meanwhile unless another run decodes. Runs that begin together share NVDEC from the same
    moment on, so they end together, and begin together again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._earliest = 0.0  # when another run may begin beside those
        self._pace = 0.0  # seconds per movie of the run that ended last

    @contextlib.contextmanager
    def run(self, movies: int) -> Iterator[None]:
        """Wait until a run of this many movies may begin. The body of the `with` statement is the run."""
        with self._changed:
            while self._running and (left := self._earliest - time.monotonic()) > 0:
                self._changed.wait(left)
            begun = time.monotonic()
            self._earliest = begun + APART * self._pace * movies
            self._running += 1
        try:
            yield
            self._pace = (time.monotonic() - begun) / movies
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
