"""From where the next iteration of a stream begins, in all of its processes: the epoch, and a state that was loaded."""

from __future__ import annotations

import secrets

from framedex.errors import FramedexError
from framedex.execution.shared_number import SharedNumber
from framedex.loader.streams.history import History
from framedex.loader.streams.progress import Progress

MOST_VERSION = 1 << 62


class Resumption:
    """The epoch, and the state from which its next iteration begins. Copies in other processes share the epoch.

    Workers get a copy of the loaded state when they start. A later state cannot reach them, so states have versions,
    and all processes see the last one.

    Args:
        history: what all processes of the stream see.
    """

    def __init__(self, history: History) -> None:
        self._epoch, self._history = SharedNumber(), history
        self._loaded: Progress | None = None
        self._version = 0  # of the state, when this copy was made
        self._local: int | None = None  # of a state that this worker alone was given

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch.get()

    @property
    def version(self) -> int:
        """The version of the state of this copy."""
        return self._version if self._local is None else self._local

    @property
    def running(self) -> int:
        """The version of the state from which an iteration that begins now is counted, in workers of before, too."""
        return self._history.restarted()[0] if self._local is None else self._local

    def set_epoch(self, epoch: int) -> bool:
        """Choose the epoch. Return whether its next iteration begins at its beginning."""
        self._epoch.set(epoch)
        goes_on = self._loaded is not None and self._loaded.epoch == epoch
        if not goes_on:
            self._restart(None)
        return not goes_on

    def load(self, progress: Progress) -> None:
        """Let the next iteration begin from a state, in this process and in workers that start later."""
        self._epoch.set(progress.epoch)
        self._restart(progress)

    def load_here(self, progress: Progress) -> None:
        """Let the next iteration in this worker begin from a state of its own."""
        self._epoch.set(progress.epoch)
        self._loaded, self._local = progress, secrets.randbelow(MOST_VERSION)

    def _restart(self, loaded: Progress | None) -> None:
        self._loaded, self._local = loaded, None
        self._version = self._history.restarted()[0] + 1
        self._history.restart(self._version, resumed=loaded is not None)

    def start(self, workers: int, *, iterating: bool) -> Progress:
        """Return the progress from which the next iteration begins, or the one that runs.

        A state is used once: after its iteration has ended, the next one is a whole epoch.

        Args:
            workers: how many workers the rank has.
            iterating: whether a worker begins to iterate. Otherwise, the iteration may run in workers.

        Raises:
            FramedexError: a state was loaded after this worker had begun.
        """
        whole = Progress(epoch=self.epoch)
        version, resumed = self._history.restarted()
        if version != self._version:
            if resumed:
                raise FramedexError(
                    "a state was loaded after the workers had begun, which cannot see it",
                    remedy="load the state before the first iteration, or make a new DataLoader",
                )
            return whole
        if self._loaded is None or self._loaded.epoch != whole.epoch:
            return whole
        count = workers if self._local is None else 1
        used = self._history.has_ended if iterating else self._history.is_consumed
        return whole if used(self.version, count) else self._loaded
