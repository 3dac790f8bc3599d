"""The execution engine that runs calls as tasks of a Ray cluster. A lost task costs only the item that caused it.

Within a task, each call runs in a separate process beside Ray's worker, as on one machine. So a crash, a hang or too
much memory is reported for the item that caused it, with the same messages. Only Ray's own losses remain, such as a
worker killed from outside or a lost node. A lost task is retried once, then halved until the item that kills it is
alone.
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

CONNECT_SECONDS = 10.0  # Ray itself would retry for minutes, which a mistyped address should not cost
TASKS_IN_FLIGHT = 2  # per parallel task, so that a worker finds its next task when it finishes one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task(Generic[Item]):
    """The items of one Ray task, or items that pass without a call.

    Attributes:
        items: The items.
        reference: Ray's reference to the results. None if the items pass without a call.
        tries: How often the task may be retried if it is lost.
    """

    items: list[Item]
    reference: Any = None
    tries: int = 1


class RayEngine:
    """Runs functions as tasks of a Ray cluster: at `address`, at RAY_ADDRESS, or a new cluster on this machine.

    Implements `engine.Engine`. framedex must be installed where tasks run, and the same files must be visible there.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def _connect(self) -> None:
        """Connect to the cluster, or start one. Raises EngineError if there is no cluster at the address."""
        if ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS")
        match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or "")
        try:
            if match is not None:
                socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=CONNECT_SECONDS).close()
            ray.init(address=address, include_dashboard=None if address else False, log_to_driver=False)
        except (OSError, OverflowError) as error:  # Ray's ConnectionError is an OSError, too
            raise EngineError(
                "the Ray cluster cannot be reached",
                where=address,
                found=_first_line(error),
                remedy="start one (ray start --head), or correct --ray-address or RAY_ADDRESS",
            ) from error

    def __call__(
        self, calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
    ) -> Iterator[Outcome[Item, Result]]:
        """Yield the outcome of every call, in the order of items, as `run_local` does.

        `workers` is the number of parallel tasks, if the cluster has that many processors.
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
                        message = f"its Ray task was lost: {_first_line(error)}"
                        yield Outcome(item=task.items[0], kind="crash", message=message)
                else:
                    for item, outcome in zip(task.items, results, strict=True):
                        yield replace(outcome, item=item)
        finally:
            for task in waiting:
                if task.reference is not None:
                    ray.cancel(task.reference, force=True)


def _attempt(calls: Calls[Any, Result], memory_bytes: int | None) -> list[Outcome[Any, Result]]:
    """Return the outcomes of the calls of one task, without their items. Runs in a Ray worker."""
    pool = _pool(memory_bytes)
    try:
        outcomes = list(pool.run(calls))
        if any(outcome.kind == BROKEN for outcome in outcomes):
            raise RuntimeError("the process beside Ray's worker died between two calls")
    except RuntimeError:  # pebble raises it for a broken pool: the task is lost and is retried with another pool
        _pool.cache_clear()
        raise
    return [replace(outcome, item=None) for outcome in outcomes]  # the caller has the items, which may be large


@functools.lru_cache(1)
def _pool(memory_bytes: int | None) -> LocalPool:
    """Return this worker's pool of one separate process. It is kept for later tasks."""
    return LocalPool(workers=1, memory_bytes=memory_bytes)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
