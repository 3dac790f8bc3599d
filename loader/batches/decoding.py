"""Decodes clips of several batches together on a GPU, in threads: a decoder takes what has arrived when it is free."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from framedex.errors import printable
from framedex.loader.batches.faults import LoaderReport
from framedex.loader.batches.fetched import Fetched
from framedex.loader.batches.frames import Decode, Frames
from framedex.loader.routing.balance import Balance

LOG = logging.getLogger("framedex.loader")
PATIENCE = 0.02  # seconds that a decoder waits for enough clips to be worth a run

Decoded = tuple[Fetched, Any]
("A clip, or its replacement, with its frames on the device.")


@dataclass(order=True, slots=True)
class _Waiting:
    batch: int
    clip: Fetched = field(compare=False)
    done: Future[Decoded | None] = field(compare=False)


class DecodingThreads:
    """Threads that decode clips, one for each of `frames.decoders`. The clips of earlier batches come first.

    Args:
        frames: what decodes.
        by_cpu: decodes a clip on which the GPU failed, by its number. None: it is left out.
        balance: is told what the GPU decoded. None: it has no influence.
        report: counts seconds and failures.
    """

    def __init__(
        self,
        frames: Frames,
        by_cpu: Callable[[int], Fetched | None],
        *,
        balance: Balance | None,
        report: LoaderReport,
    ) -> None:
        self._frames, self._by_cpu, self._balance, self._report = frames, by_cpu, balance, report
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(decode,), name="framedex-gpu", daemon=True)
            for decode in frames.decoders
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: int, clip: Fetched) -> Future[Decoded | None]:
        """Return the future of a clip with its frames, or of None if neither GPU nor CPU can decode it.

        The future raises RuntimeError if the GPU's memory is full, and what `by_cpu` raises.
        """
        waiting = _Waiting(batch, clip, Future())
        with self._changed:
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.done

    def close(self) -> None:
        """End the threads, after what they are decoding. What waits is cancelled."""
        with self._changed:
            self._closed = True
            for waiting in self._waiting:
                waiting.done.cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, decode: Decode) -> None:
        with self._frames.working():
            while part := self._next_part():
                self._decode(part, decode)

    def _next_part(self) -> list[_Waiting]:
        """Wait for clips, and take some of the earliest batches. An empty list: the threads shall end."""
        fewest, most = self._frames.at_once
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: len(self._waiting) >= fewest or self._closed, PATIENCE)
                if self._closed:
                    return []
                self._waiting.sort()
                taken, self._waiting = self._waiting[:most], self._waiting[most:]
                part = [waiting for waiting in taken if waiting.done.set_running_or_notify_cancel()]
                if part:
                    return part

    def _decode(self, part: list[_Waiting], decode: Decode) -> None:
        seconds: Counter[int] = Counter()
        for waiting in part:
            seconds[waiting.batch] += waiting.clip.cost.gpu  # type: ignore[assignment]
        measured = contextlib.nullcontext() if self._balance is None else self._balance.decoding(seconds)
        try:
            with measured:
                found = self._together([waiting.clip for waiting in part], decode)
        except BaseException as error:
            for waiting in part:
                waiting.done.set_exception(error)
            return
        for waiting, decoded in zip(part, found, strict=True):
            waiting.done.set_result(decoded)

    def _together(self, clips: list[Fetched], decode: Decode) -> list[Decoded | None]:
        """Return each clip with its frames; None where neither GPU nor CPU can decode it."""
        try:
            return list(zip(clips, decode(clips, self._report), strict=True))
        except RuntimeError as error:
            if self._frames.memory_left(error) is not None:
                raise
            LOG.warning("a decoder on the GPU failed on several clips, which are decoded one by one: %s", error)
            self._report.add(retried="batch")
            return [self._alone(clip, decode) for clip in clips]

    def _alone(self, clip: Fetched, decode: Decode) -> Decoded | None:
        """Decode one clip by itself. If the GPU fails on it, a worker decodes it."""
        try:
            return clip, decode([clip], self._report)[0]
        except RuntimeError as error:
            if self._frames.memory_left(error) is not None:
                raise
            LOG.warning(
                "a decoder on the GPU failed on clip %s, which the CPU gets: %s", printable(clip.item["clip_id"]), error
            )
            self._report.add(retried="clip")
        other = self._by_cpu(clip.number)
        return None if other is None else (other, self._frames.given(other))
