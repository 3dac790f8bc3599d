"""Fetches clips from workers; retries, replaces, skips or raises a clip that is not available, as the user says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from framedex.errors import DecodeError
from framedex.loader.batches.faults import TRIES, Fault, LoaderReport, OnError, replacements
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.batches.fetched import ClipRequest, Fetched
from framedex.loader.batches.items import ReadableClips
from framedex.loader.batches.pool import WorkerDiedError, WorkerPool
from framedex.loader.batches.views import DrawsItems
from framedex.loader.routing.balance import Balance

Others = Callable[[int, int], list[int]]
("Returns clips that may replace a clip: takes its number, and how many are wanted.")
TASK_SECONDS = 600.0  # a clip may take in a worker
LOG = logging.getLogger("framedex.loader")


class ClipSupply:
    """Fetches clips in worker processes, and decides what replaces a clip that is not available.

    Args:
        dataset: the clips.
        options: how each is read and decoded.
        workers: processes; 0 fetches in this one.
        on_error: what to do with a clip that is not available: raise, skip, or replace.
        report: counts and keeps what went wrong.
        others: names the clips that may replace a clip. None: any clip may.
    """

    def __init__(
        self,
        dataset: ReadableClips,
        options: FetchOptions,
        *,
        workers: int,
        on_error: OnError,
        report: LoaderReport,
        others: Others | None = None,
    ) -> None:
        self.dataset = dataset
        fetcher = Fetcher(dataset, options)
        self.pool: WorkerPool[ClipRequest, Fetched | Fault] = WorkerPool(
            fetcher, workers=workers, timeout_seconds=TASK_SECONDS, own_code=fetcher.runs_own_code
        )
        self._on_error, self._report, self._others = on_error, report, others

    def submit(self, number: int, *, on_gpu: bool) -> Future[Fetched | Fault]:
        """Have a worker fetch a clip. on_gpu: prepare it for a GPU, if that may decode it."""
        return self.pool.submit(ClipRequest(number=number, on_gpu=on_gpu))

    def submit_balanced(self, number: int, balance: Balance, batch: int) -> Future[Fetched | Fault]:
        """Have a worker fetch a clip of a batch, and decode it unless the GPU would be done with it earlier."""

        def learn(future: Future[Fetched | Fault]) -> None:
            fetched = None if future.cancelled() or future.exception() is not None else future.result()
            if isinstance(fetched, Fetched) and fetched.frames is not None:
                balance.decoded_by_cpu(fetched.cost, fetched.decode_seconds)

        future = self.pool.submit(ClipRequest(number=number, on_gpu=True), partial(balance.gives_to_gpu, batch))
        future.add_done_callback(learn)
        return future

    def take(self, number: int, future: Future[Fetched | Fault], *, replaceable: bool = True) -> Fetched | None:
        """Return the submitted clip or its replacement, or None if it is skipped.

        Raises the clip's error where `on_error` says so, or where no other clip would be available either.

        Args:
            replaceable: whether another clip may take its place; if not, None is returned in place of a replacement.
        """
        fetched = self._result(number, future)
        if isinstance(fetched, Fetched):
            return fetched
        self._report.note(fetched)
        if self._on_error == "raise" or fetched.ends_the_run:
            raise fetched.error()
        if self._on_error == "skip":
            self._report.add(skipped=1)
            return None
        return self.another(fetched.number) if replaceable else None

    def decoded_by_cpu(self, number: int, *, replaceable: bool = True) -> Fetched | None:
        """Fetch a clip again, decoded by a worker. Return and raise as `take`."""
        return self.take(number, self.submit(number, on_gpu=False), replaceable=replaceable)

    def another(self, number: int) -> Fetched:
        """Return a replacement for an unavailable clip: the first available one of a few, drawn by the clip's number.

        Raises DecodeError where none of them is available.
        """
        for draw in self._drawn(number):
            result = self._result(draw, self.submit(draw, on_gpu=False))
            if isinstance(result, Fetched):
                self._report.add(replaced=1)
                return result
            self._report.note(result)
        raise DecodeError(
            f"neither clip {number} nor any of {TRIES} drawn in its place can be loaded",
            remedy="look at framedex verify, and at report.faults",
        )

    def _drawn(self, number: int) -> list[int]:
        """Return the clips that are tried in place of a clip."""
        if self._others is not None:
            return self._others(number, TRIES)
        return replacements(number, len(self.dataset))

    def another_item(self, number: int, views: DrawsItems) -> dict[str, Fetched]:
        """Return the views of another item in place of one that is not available, drawn by its number.

        Raises DecodeError where none of a few is available.
        """
        draws = replacements(number, views.count) if self._others is None else self._others(number, TRIES)
        for draw in draws:
            found: dict[str, Fetched] = {}
            wanted = views.numbers(draw)
            for view, clip in wanted.items():
                result = self._result(clip, self.submit(clip, on_gpu=False))
                if not isinstance(result, Fetched):
                    self._report.note(result)
                    break
                found[view] = result
            if len(found) == len(wanted):
                self._report.add(replaced=1)
                return found
        raise DecodeError(
            f"neither a clip of several views nor any of {TRIES} drawn in its place can be loaded",
            remedy="framedex verify and report.faults say why",
        )

    def _result(self, number: int, future: Future[Fetched | Fault]) -> Fetched | Fault:
        """Return a worker's result; if the worker died, fetch the clip again with another worker."""
        try:
            return future.result()
        except WorkerDiedError as error:
            LOG.warning("%s while it was at clip %d, which is fetched again", error, number)
            self._report.add(retried="crash")
        try:
            return self.submit(number, on_gpu=False).result()
        except WorkerDiedError as error:
            return Fault(number=number, kind="crash", message=str(error))

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()
