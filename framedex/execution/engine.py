"""The interface of execution engines, which run a function over many items. A crash or hang costs one item alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT_PER_WORKER = 16  # workers stay busy behind a slow item, and few finished results wait for it in memory
BROKEN = "broken"  # the kind of an outcome if a process died between two calls, which breaks the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """The outcome of one item: a result, or a reason why it is missing.

    Attributes:
        item: The item.
        result: The function's return value.
        kind: The reason for a missing result: `crash`, `timeout`, `memory`, `error` (one of MEDIUM_ERRORS),
            INTERNAL_ERROR or BROKEN.
        message: The reason in words.
        traceback: The traceback of an INTERNAL_ERROR.
    """

    item: Item
    result: Result | None = None
    kind: str | None = None
    message: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(Generic[Item, Result]):
    """A function to call with each of many items, in separate processes.

    Attributes:
        function: The function. It must be importable by its name, since other processes call it.
        items: The items. They are read as far ahead as `in_flight` allows.
        timeout_seconds: The time limit of each call, from its own start. If None, calls are not limited.
        in_flight: Items per worker that are running or waiting. Bounds memory where items or results are large.
        passes: Returns True for an item that is yielded in its place without a call.
        together: Items per task of a cluster. The processes of one machine take one item at a time.
    """

    function: Callable[[Item], Result]
    items: Iterable[Item]
    timeout_seconds: float | None
    in_flight: int = IN_FLIGHT_PER_WORKER
    passes: Callable[[Item], bool] = lambda item: False
    together: int = 1


class Engine(Protocol):
    """Runs calls in other processes and yields their outcomes in the order of items: `run_local`, or a cluster.

    `workers` is the number of parallel calls. `memory_bytes` is the address space that each process may map in all.
    """

    def __call__(
        self, calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
    ) -> Iterator[Outcome[Item, Result]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One of `count` shares of a run, by its number from 0.

    Each share is a command that does not know of the others, such as a task of a Slurm array.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Return the slice that `i/n` names. Raises ValueError."""
        number, _, count = text.partition("/")
        parsed = cls(number=int(number), count=int(count))
        if not 0 <= parsed.number < parsed.count:
            raise ValueError(f"{text}: slices are 0/{parsed.count} to {parsed.count - 1}/{parsed.count}")
        return parsed
