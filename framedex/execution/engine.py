"""Execution engines, which call a function with each of many items in other processes.

If a call crashes or hangs, only the result for the item of this call is missing. This module has the engine for one
machine, a pool of processes with limits on time and memory.
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

from framedex.core.limits import GIBIBYTE
from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import INTERNAL_ERROR, InternalError, internal_error
from framedex.execution.spawning import end_with_parent, leave_out_pandas, spawning

Item = TypeVar("Item")
Result = TypeVar("Result")

# Default of `Calls.in_flight`. While an item is slow, the other workers continue with the next items. The results of
# these items stay in memory until the slow item is finished.
IN_FLIGHT_PER_WORKER = 16
BROKEN = "broken"  # the `kind` of an outcome if a process died between two calls, after which the pool is unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """The outcome of one item: a result, or the reason why the result is missing.

    Attributes:
        item: The item.
        result: The return value of the function. None if the call failed, or if the item needed no call.
        kind: The reason for a missing result as a short word: `crash`, `timeout`, `memory`, `error` (an exception among
            MEDIUM_ERRORS), INTERNAL_ERROR or BROKEN. None if the call succeeded, or if the item needed no call.
        message: The reason for a missing result as a sentence, else None.
        traceback: The traceback as text if `kind` is INTERNAL_ERROR, else None.
    """

    item: Item
    result: Result | None = None
    kind: str | None = None
    message: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(Generic[Item, Result]):
    """A function and many items. The function is to be called with each item, in other processes.

    Attributes:
        function: The function. It must be importable by its name, since other processes call it.
        items: The items. The engine reads them a little ahead of the calls (`in_flight`).
        timeout_seconds: The time limit of each call, counted from the start of the call. If None, the time is not
            limited.
        in_flight: The maximum number of items per worker that have been read, but whose outcome has not been yielded. A
            small number saves memory if items or results are large.
        passes: A function that returns True for an item that needs no call. The outcome of such an item is yielded in
            order, and has no result.
        together: The number of items that one task of a cluster (`--engine ray`) processes. The engine of one machine
            calls the function for one item at a time.
    """

    function: Callable[[Item], Result]
    items: Iterable[Item]
    timeout_seconds: float | None
    in_flight: int = IN_FLIGHT_PER_WORKER
    passes: Callable[[Item], bool] = lambda item: False
    together: int = 1


class Engine(Protocol):
    """A function that makes calls in other processes and yields the outcomes in the order of items.

    `run_local` and `RayEngine` are engines. `workers` is the maximum number of parallel calls. `memory_bytes` is the
    limit on the address space of each process. If None, memory is not limited.
    """

    def __call__(
        self, calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
    ) -> Iterator[Outcome[Item, Result]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One of the slices into which a run is divided.

    Each slice is done by a separate command, such as a task of a Slurm array. The commands do not communicate.

    Attributes:
        number: The number of the slice, from 0.
        count: The number of slices.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Return the slice for a text `i/n`, such as `0/8`. Raises ValueError."""
        number, _, count = text.partition("/")
        parsed = cls(number=int(number), count=int(count))
        if not 0 <= parsed.number < parsed.count:
            raise ValueError(f"{text}: slices are 0/{parsed.count} to {parsed.count - 1}/{parsed.count}")
        return parsed


LOOK_SECONDS = 1.0  # time between two checks for stopped workers; a check reads one file per worker
# Time after which a stopped worker is killed, if calls have no time limit. A debugger or a suspended job may stop a
# worker, but is expected to resume it within ten minutes.
STOPPED_SECONDS = 600.0

# A queue of (item, future of the call) in the order of items. The future is None if the item needs no call.
_Waiting = collections.deque[tuple[Item, concurrent.futures.Future[Result] | None]]


def run_local(
    calls: Calls[Item, Result], *, workers: int, memory_bytes: int | None = None
) -> Iterator[Outcome[Item, Result]]:
    """Make calls in processes of this machine, and yield the outcomes in the order of items.

    Args:
        calls: The function and the items. Processes are started when the first item needs a call.
        workers: The number of processes. If 0, the current process makes the calls, one after another. Time and memory
            are then not limited, and a crash of a decoder ends the current process.
        memory_bytes: The limit on the address space of each process (RLIMIT_AS). The libraries of a process take about
            0.5 GiB of it. An allocation that would exceed the limit makes the call fail. If None, memory is not
            limited.
    """
    if workers == 0:
        for item in calls.items:
            call = None if calls.passes(item) else functools.partial(_call, calls.function, item)
            yield _outcome(item, call, None, None)
        return
    with LocalPool(workers=workers, memory_bytes=memory_bytes, function=calls.function) as pool:
        yield from pool.run(calls)


def alone_if_lost(
    outcome: Outcome[Item, Result], calls: Calls[Item, Result], parts: Callable[[Item], list[Item]]
) -> Iterator[Outcome[Item, Result]]:
    """Yield the outcome of an item. If the result is missing, yield the outcomes of the item's parts instead.

    The function is called with one part at a time, in a process of this machine. So if one part is the cause of a
    failure, the other parts still have results. An item that consists of a single part is not tried again.

    Args:
        outcome: The outcome of the item.
        calls: The calls to which the item belongs. Only their function and time limit are used.
        parts: A function that returns the smallest parts of an item, which are items themselves.
    """
    pieces = [] if outcome.result is not None else parts(outcome.item)
    if len(pieces) < 2:
        return iter([outcome])
    return run_local(Calls(function=calls.function, items=pieces, timeout_seconds=calls.timeout_seconds), workers=1)


class LocalPool:
    """A pool of processes on this machine. It is a context manager, and can be used for several runs in turn.

    The processes are spawned, not forked, since decoder libraries have threads. A forked process would hang if one of
    these threads held a lock at the time of the fork. The worker processes end when this process ends, even if it is
    killed.

    Args:
        workers: The number of processes.
        memory_bytes: The limit on the address space of each process, as for `run_local`.
        function: The function that the processes will call. The processes import the caller's script only if this
            function needs the script (`spawning`).
    """

    def __init__(
        self, *, workers: int, memory_bytes: int | None, function: Callable[..., object] | None = None
    ) -> None:
        self._workers, self._memory_bytes = workers, memory_bytes
        self._pool = ProcessPool(
            max_workers=workers, context=spawning(function), initializer=_enter_worker, initargs=[memory_bytes]
        )

    def _end_stopped(self, stopped: dict[int, float], seconds: float) -> None:
        """Kill workers that have been stopped by SIGSTOP for too long.

        This is needed since pebble's time limit does not apply to a worker that is stopped between two calls.

        Args:
            stopped: Process id → time at which the process was first seen stopped. This method updates the dict, which
                the caller passes again.
            seconds: The maximum time for which a worker may be stopped.
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
        """Wait for the first call of the queue and return its outcome. Meanwhile, kill workers that are stopped.

        Args:
            waiting: The queue, from which the first item is removed.
            seconds: The time limit of a call, or None.
        """
        stopped: dict[int, float] = {}
        future = waiting[0][1]
        while future is not None and not concurrent.futures.wait([future], LOOK_SECONDS).done:
            self._end_stopped(stopped, STOPPED_SECONDS if seconds is None else seconds)
        item, _ = waiting.popleft()
        return _outcome(item, None if future is None else future.result, seconds, self._memory_bytes)

    def run(self, calls: Calls[Item, Result]) -> Iterator[Outcome[Item, Result]]:
        """Make calls, and yield the outcomes in the order of items.

        If the caller closes this generator before its end, the processes are stopped and the pool cannot be used again.
        """
        waiting: _Waiting[Item, Result] = collections.deque()
        seconds = calls.timeout_seconds
        try:
            for item in calls.items:
                arguments = [calls.function, item]
                begun = None if calls.passes(item) else self._pool.schedule(_call, arguments, timeout=seconds)
                waiting.append((item, begun))
                if len(waiting) >= self._workers * calls.in_flight:
                    yield self._next_outcome(waiting, seconds)
            while waiting:
                yield self._next_outcome(waiting, seconds)
        finally:
            if waiting:
                self._pool.stop()  # type: ignore[no-untyped-call]
                self._pool.join()
                # Delete the traceback of a failed call, which refers to objects in its frames. If the pool ends while a
                # call is being sent to a process, the traceback and the sent bytes form a reference cycle. Python 3.13
                # would print an error to stderr when it collects this cycle.
                for _, future in waiting:
                    error = None if future is None or future.cancelled() or not future.done() else future.exception()
                    while error is not None:
                        error.__traceback__, error = None, error.__cause__


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped by a signal, according to /proc/PID/stat.

    In this file, the state of the process follows its name, which is in parentheses (proc(5)).
    """
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[:1] == ["T"]
    except OSError:
        return False


def _enter_worker(memory_bytes: int | None) -> None:
    """Prepare a worker process: let it end when its parent process ends, and limit its memory."""
    end_with_parent()
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # This call makes the first Arrow array. It comes after the limit is set, so that Arrow's allocator does not reserve
    # 1 GiB of the address space.
    leave_out_pandas()


def _call(function: Callable[[Item], Result], item: Item) -> Result:
    """Call a function in a worker process.

    An exception other than MEDIUM_ERRORS is replaced by an InternalError, since not every exception can be pickled.
    """
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
    """Return the outcome of an item.

    Args:
        item: The item.
        answer: A function that returns the result of the call or raises the error of the call. None if the item needs
            no call.
        timeout_seconds: The time limit of the call, for the message.
        memory_bytes: The memory limit of the process, for the message. None if memory is not limited.
    """
    if answer is None:
        return Outcome(item=item)
    try:
        return Outcome(item=item, result=answer())
    except concurrent.futures.TimeoutError:
        return Outcome(item=item, kind="timeout", message=f"took longer than {timeout_seconds:g} s")
    except ProcessExpired as error:
        return Outcome(item=item, kind="crash", message=f"the worker process died (exit code {error.exitcode})")
    except BrokenProcessPool as error:
        return Outcome(item=item, kind=BROKEN, message=f"a worker process died between two calls: {error}")
    except MemoryError:
        allowed = "is available" if memory_bytes is None else f"the limit of {memory_bytes / GIBIBYTE:g} GiB"
        return Outcome(item=item, kind="memory", message=f"needs more memory than {allowed}")
    except Exception as error:
        if isinstance(error, MEDIUM_ERRORS) and not isinstance(error, InternalError):
            return Outcome(item=item, kind="error", message=f"{type(error).__name__}: {error}")
        found = internal_error(error)  # the cause is a bug, or an item or a result that cannot be pickled
        return Outcome(item=item, kind=INTERNAL_ERROR, message=found.what, traceback=found.traceback)
