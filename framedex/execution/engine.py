"""What an execution engine is: it runs a function over many items, and a crash or a hang costs one item, not the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT_PER_WORKER = 16  # bounds what waits for a slow item ahead of it
BROKEN = "broken"  # what an outcome says where a process died between two calls, and with it the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """What became of one item: a result, or why there is none, and a message.

    kind: `crash`, `timeout`, `memory`, `error` (one of MEDIUM_ERRORS), INTERNAL_ERROR or BROKEN. traceback: of an
    INTERNAL_ERROR.
    """

    item: Item
    result: Result | None = None
    kind: str | None = None
    message: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(Generic[Item, Result]):
    """A function to be called with each of many items, in processes of their own.

    Args:
        function: importable by its name, since other processes call it.
        items: read as far ahead as `in_flight` allows.
        timeout_seconds: of each call, from its own start. None: no limit.
        in_flight: items per worker that have begun or wait; bounds memory where items or results are large.
        passes: whether an item is yielded in its place without a call.
        together: items per task of a cluster; the processes of one machine take one at a time.
    """

    function: Callable[[Item], Result]
    items: Iterable[Item]
    timeout_seconds: float | None
    in_flight: int = IN_FLIGHT_PER_WORKER
    passes: Callable[[Item], bool] = lambda item: False
    together: int = 1


class Engine(Protocol):
    """Makes calls in other processes and yields their outcomes in the order of items: `run_local`, or a cluster.

    workers: calls at a time. memory_bytes: that each process may map in all.
    """

    def __call__(
        self, calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
    ) -> Iterator[Outcome[Item, Result]]: ...
