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


class Engine(Protocol):
    """Runs a function over items elsewhere, and yields the outcomes in the order of items: `run_local`, or a cluster.

    together: how many items one task of a cluster takes; the processes of one machine take one at a time.
    """

    def __call__(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        workers: int,
        timeout_seconds: float | None,
        memory_bytes: int | None = None,
        in_flight: int = IN_FLIGHT_PER_WORKER,
        passes: Callable[[Item], bool] = lambda item: False,
        together: int = 1,
    ) -> Iterator[Outcome[Item, Result]]: ...
