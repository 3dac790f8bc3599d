"""Execution engines run a function over many items, so that a crash or a hang costs one item alone.

The engine of one machine is a pool of processes with limits on time and memory.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pebble import ProcessExpired, ProcessPool

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import INTERNAL_ERROR, InternalError, internal_error
from framedex.execution.spawning import end_with_parent, leave_out_pandas, spawning

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


LOOK_SECONDS = 1.0  # the time between two checks for stopped workers, which read a file per worker
STOPPED_SECONDS = 600.0  # a debugger or a suspended job may stop a worker; after ten minutes, nobody will resume it
GIBIBYTE = 1 << 30

# Items in order, each with the call that a process makes for it, if any.
_Waiting = collections.deque[tuple[Item, concurrent.futures.Future[Result] | None]]


def run_local(
    calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
) -> Iterator[Outcome[Item, Result]]:
    """Yield the outcome of every call, in the order of items.

    Args:
        calls: The function and its items. No process starts before the first item that needs a call.
        workers: The number of processes. With 0, this process makes the calls, one after another. Their time and memory
            are not limited then, and a crash of a decoder ends this process.
        memory_bytes: The address space of each process (RLIMIT_AS), including its libraries, which take about 0.5 GiB.
            An allocation beyond it fails within its call. If None, memory is not limited.
    """
    if workers == 0:
        for item in calls.items:
            call = None if calls.passes(item) else functools.partial(_call, calls.function, item)
            yield _outcome(item, call, None, None)
        return
    with LocalPool(workers=workers, memory_bytes=memory_bytes, function=calls.function) as pool:
        yield from pool.run(calls)


class LocalPool:
    """A pool of processes on this machine that serves one run after another. A context manager.

    The processes are spawned, not forked: decoder libraries have threads, and a forked copy of a locked lock hangs.
    They end when this process ends, however it ends.

    Args:
        workers: The number of processes.
        memory_bytes: As for `run_local`.
        function: The function that the processes will call. It decides whether they import the caller's script
            (`spawning`).
    """

    def __init__(
        self, *, workers: int, memory_bytes: int | None, function: Callable[..., object] | None = None
    ) -> None:
        self._workers, self._memory_bytes = workers, memory_bytes
        self._pool = ProcessPool(
            max_workers=workers, context=spawning(function), initializer=_enter_worker, initargs=[memory_bytes]
        )

    def _end_stopped(self, stopped: dict[int, float], seconds: float) -> None:
        """Kill workers that have been stopped (SIGSTOP) for too long. A time limit applies only during a call.

        Args:
            stopped: The time at which each process was first seen stopped. The caller keeps it between calls.
            seconds: How long a worker may stay stopped.
        """
        now, manager = time.monotonic(), self._pool._pool_manager.worker_manager
        for process in list(manager.workers):
            if not _is_stopped(process):
                stopped.pop(process, None)
            elif now - stopped.setdefault(process, now) > seconds:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def __enter__(self) -> LocalPool:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)  # type: ignore[no-untyped-call]

    def _next_outcome(self, waiting: _Waiting[Item, Result], seconds: float | None) -> Outcome[Item, Result]:
        """Wait for the first call and return its outcome. Meanwhile, kill workers that stay stopped for too long."""
        stopped: dict[int, float] = {}
        future = waiting[0][1]
        while future is not None and not concurrent.futures.wait([future], LOOK_SECONDS).done:
            self._end_stopped(stopped, STOPPED_SECONDS if seconds is None else seconds)
        item, _ = waiting.popleft()
        return _outcome(item, None if future is None else future.result, seconds, self._memory_bytes)

    def run(self, calls: Calls[Item, Result]) -> Iterator[Outcome[Item, Result]]:
        """Yield the outcome of every call, in the order of items. If the caller stops early, the pool ends."""
        waiting: _Waiting[Item, Result] = collections.deque()
        seconds = calls.timeout_seconds
        try:
            for item in calls.items:
                begun = (
                    None if calls.passes(item) else self._pool.schedule(_call, [calls.function, item], timeout=seconds)
                )
                waiting.append((item, begun))
                if len(waiting) >= self._workers * calls.in_flight:
                    yield self._next_outcome(waiting, seconds)
            while waiting:
                yield self._next_outcome(waiting, seconds)
        finally:
            if waiting:
                self._pool.stop()  # type: ignore[no-untyped-call]
                self._pool.join()
                for _, future in waiting:
                    _release_frames(future)


def _release_frames(future: concurrent.futures.Future[Result] | None) -> None:
    """Drop the traceback of a failed call, with the objects in its frames.

    If the pool ends while a call is being sent, the traceback refers to the sent bytes in a cycle, and Python 3.13
    complains on stderr when it collects them.
    """
    error = None if future is None or future.cancelled() or not future.done() else future.exception()
    while error is not None:
        error.__traceback__, error = None, error.__cause__


def _is_stopped(process: int) -> bool:
    """Return whether a signal has stopped a process (proc(5): the state follows the name in parentheses)."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[:1] == ["T"]
    except OSError:
        return False


def _enter_worker(memory_bytes: int | None) -> None:
    """Prepare a worker process: end it when its parent ends, and limit its memory."""
    end_with_parent()
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # This makes the first Arrow array. Under the limit, Arrow's allocator does not reserve a GiB of addresses for it.
    leave_out_pandas()


def _call(function: Callable[[Item], Result], item: Item) -> Result:
    """Call a function in a worker. A bug comes back as an InternalError, since not every exception can be pickled."""
    try:
        return function(item)
    except MEDIUM_ERRORS:
        raise
    except Exception as error:
        raise internal_error(error) from None


def _outcome(
    item: Item,
    answer: Callable[[], Result] | None,
    timeout_seconds: float | None,
    memory_bytes: int | None,
) -> Outcome[Item, Result]:
    """Return the outcome of an item. If it has a call, `answer` returns the result of the call, or raises."""
    if answer is None:
        return Outcome(item=item)
    try:
        return Outcome(item=item, result=answer())
    except concurrent.futures.TimeoutError:
        return Outcome(item=item, kind="timeout", message=f"took longer than {timeout_seconds:g} s")
    except ProcessExpired as error:
        return Outcome(item=item, kind="crash", message=f"its process died (exit code {error.exitcode})")
    except BrokenProcessPool as error:
        return Outcome(item=item, kind=BROKEN, message=f"a process died between two calls: {error}")
    except MemoryError:
        allowed = "there is" if memory_bytes is None else f"the {memory_bytes / GIBIBYTE:g} GiB it may have"
        return Outcome(item=item, kind="memory", message=f"needs more memory than {allowed}")
    except Exception as error:
        if isinstance(error, MEDIUM_ERRORS) and not isinstance(error, InternalError):
            return Outcome(item=item, kind="error", message=f"{type(error).__name__}: {error}")
        found = internal_error(error)  # a bug, or an item or result that cannot be pickled
        return Outcome(item=item, kind=INTERNAL_ERROR, message=found.what, traceback=found.traceback)
