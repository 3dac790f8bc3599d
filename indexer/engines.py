"""Running a function over many items in other processes, so that a crash or a hang costs one item and not the run."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pebble import ProcessExpired, ProcessPool

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT_PER_WORKER = 16  # bounds what waits for a slow item ahead of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """What became of one item: a result, or why there is none (`crash`, `timeout` or `error`, and a message)."""

    item: Item
    result: Result | None = None
    kind: str | None = None
    message: str | None = None


def run_local(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, timeout_seconds: float | None
) -> Iterator[Outcome[Item, Result]]:
    """Yield the outcome of function(item) for every item, in the order of items.

    Each call has `timeout_seconds` from its own start. Processes are spawned, not forked: decoder libraries have
    threads, and a forked copy of a locked lock hangs.
    """
    context = multiprocessing.get_context("spawn")
    waiting: collections.deque[tuple[Item, concurrent.futures.Future[Result]]] = collections.deque()
    with ProcessPool(max_workers=workers, context=context) as pool:
        try:
            for item in items:
                waiting.append((item, pool.schedule(function, args=[item], timeout=timeout_seconds)))
                if len(waiting) >= workers * IN_FLIGHT_PER_WORKER:
                    yield _outcome(*waiting.popleft(), timeout_seconds)
            while waiting:
                yield _outcome(*waiting.popleft(), timeout_seconds)
        finally:
            if waiting:
                pool.stop()  # type: ignore[no-untyped-call]


def _outcome(
    item: Item, future: concurrent.futures.Future[Result], timeout_seconds: float | None
) -> Outcome[Item, Result]:
    try:
        return Outcome(item=item, result=future.result())
    except concurrent.futures.TimeoutError:
        return Outcome(item=item, kind="timeout", message=f"took longer than {timeout_seconds:g} s")
    except ProcessExpired as error:
        return Outcome(item=item, kind="crash", message=f"its process died (exit code {error.exitcode})")
    except Exception as error:  # a defect met by one item must not take the others down
        return Outcome(item=item, kind="error", message=f"{type(error).__name__}: {error}")
