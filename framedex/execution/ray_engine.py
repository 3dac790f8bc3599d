"""The execution engine that makes calls in tasks of a Ray cluster.

A task makes its calls in a child process of Ray's worker, with the same pool as the engine for one machine. So if a
call crashes, hangs or needs too much memory, the error is reported for its item, with the same message. Ray can still
lose a whole task, for instance if a worker is killed from outside or a node fails. A lost task is retried once. If it
is lost again, it is divided into halves, until the item that makes the task fail is the only one in its task. Then only
the result for this item is missing.
"""

import collections
import functools
import itertools
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic

from framedex.errors import EngineError, MissingExtraError
from framedex.execution.engine import BROKEN, Calls, Item, LocalPool, Outcome, Result

try:
    import ray
    from ray.exceptions import RayError
except ModuleNotFoundError as error:
    raise MissingExtraError("ray", "ray", "--engine ray") from error

CONNECT_SECONDS = 10.0  # time limit of the first connection; for a wrong address, Ray itself would retry for minutes
TASKS_IN_FLIGHT = 2  # submitted tasks per worker, so that a worker can start its next task without waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task(Generic[Item]):
    """A Ray task with some items, or a group of items that need no call.

    Attributes:
        items: The items.
        reference: Ray's reference to the results of the task. None if the items need no call.
        tries: The number of times that the task may still be retried after it is lost.
    """

    items: list[Item]
    reference: Any = None
    tries: int = 1


class RayEngine:
    """An engine (`engine.Engine`) that makes calls in tasks of a Ray cluster.

    framedex must be installed on all nodes of the cluster, and all nodes must be able to access the same files.

    Args:
        address: The address of the cluster. If None, the address is the environment variable RAY_ADDRESS. If this
            variable is not set, a new cluster is started on this machine.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def _connect(self) -> None:
        """Connect to the cluster, or start a cluster. Raises EngineError if the cluster cannot be reached."""
        if ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS")
        match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or "")
        try:
            if match is not None:
                socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=CONNECT_SECONDS).close()
            ray.init(address=address, include_dashboard=None if address else False, log_to_driver=False)
        except (OSError, OverflowError) as error:  # the ConnectionError that Ray raises is also an OSError
            raise EngineError(
                "the Ray cluster cannot be reached",
                where=address,
                found=_first_line(error),
                remedy="start a cluster (ray start --head), or correct --ray-address or RAY_ADDRESS",
            ) from error

    def __call__(
        self, calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
    ) -> Iterator[Outcome[Item, Result]]:
        """Make calls in tasks of the cluster, and yield the outcomes in the order of items, as `run_local` does.

        Args:
            calls: The function and the items.
            workers: The number of parallel tasks. A cluster with fewer processors runs fewer tasks in parallel.
            memory_bytes: The limit on the address space of each process, as for `run_local`.
        """
        self._connect()
        attempt: Any = ray.remote(num_cpus=1, max_retries=0)(_attempt)

        def submit(some: list[Item], tries: int) -> _Task[Item]:
            own = Calls(
                function=calls.function, items=some, timeout_seconds=calls.timeout_seconds, in_flight=len(some) + 1
            )
            return _Task(items=some, reference=attempt.remote(own, memory_bytes), tries=tries)

        def tasks() -> Iterator[_Task[Item]]:
            for passing, run in itertools.groupby(calls.items, calls.passes):
                while some := list(itertools.islice(run, calls.together)):
                    yield _Task(items=some) if passing else submit(some, 1)

        waiting: collections.deque[_Task[Item]] = collections.deque()
        coming = tasks()
        try:
            while True:
                waiting.extend(itertools.islice(coming, max(0, workers * TASKS_IN_FLIGHT - len(waiting))))
                if not waiting:
                    return
                task = waiting.popleft()
                if task.reference is None:
                    yield from (Outcome(item=item) for item in task.items)
                    continue
                try:
                    results = ray.get(task.reference)
                except RayError as error:
                    if task.tries:
                        waiting.appendleft(submit(task.items, task.tries - 1))
                    elif len(task.items) > 1:
                        middle = len(task.items) // 2
                        halves = task.items[:middle], task.items[middle:]
                        waiting.extendleft([submit(half, int(len(half) == 1)) for half in halves][::-1])
                    else:
                        message = f"the Ray task was lost: {_first_line(error)}"
                        yield Outcome(item=task.items[0], kind="crash", message=message)
                else:
                    for item, outcome in zip(task.items, results, strict=True):
                        yield replace(outcome, item=item)
        finally:
            for task in waiting:
                if task.reference is not None:
                    ray.cancel(task.reference, force=True)


def _attempt(calls: Calls[Any, Result], memory_bytes: int | None) -> list[Outcome[Any, Result]]:
    """Make the calls of one task, and return their outcomes without the items. This function runs in a Ray worker."""
    pool = _pool(memory_bytes)
    try:
        outcomes = list(pool.run(calls))
        if any(outcome.kind == BROKEN for outcome in outcomes):
            raise RuntimeError("the child process of Ray's worker died between two calls")
    except RuntimeError:  # also raised by pebble if the pool is broken; the task is then retried with a new pool
        _pool.cache_clear()
        raise
    # The items, which may be large, are not sent back, since the caller has them.
    return [replace(outcome, item=None) for outcome in outcomes]


@functools.lru_cache(1)
def _pool(memory_bytes: int | None) -> LocalPool:
    """Return the pool of this Ray worker, which has one child process. The pool is kept for later tasks."""
    return LocalPool(workers=1, memory_bytes=memory_bytes)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
