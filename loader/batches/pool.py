"""Worker processes that are given one task at a time.

Large arrays come back through shared memory. A worker that dies costs only the task that it was working on. A worker
may ask its caller questions while it works.

torch's DataLoader gives whole batches to workers. Here every clip is a task, so that all workers decode the same batch.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import pickle
import queue
import socket
import struct
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import SpawnContext
from typing import Any, Generic, TypeVar

from framedex.errors import internal_error
from framedex.execution.spawning import leave_out_pandas, spawning

Task = TypeVar("Task")
Result = TypeVar("Result")

Answer = Callable[[Any], Any]

ALIGNMENT = 64  # of arrays in shared memory
NICENESS = 10  # so that a main process which feeds a GPU does not wait for its own workers
SECONDS_TO_END = 5.0  # how long a worker may take to end before it is killed


class WorkerDiedError(Exception):
    """The process that worked on a task ended, or took too long and was ended."""


@dataclass(frozen=True, slots=True)
class _Question:
    content: Any


class WorkerPool(Generic[Task, Result]):
    """Calls a function in other processes.

    Processes are spawned, not forked, because decoder libraries have threads.

    Args:
        function: a picklable function of a task. Each process receives it once. For a task that is submitted with
            `answer`, its second argument is a function that asks a question and returns the answer.
        workers: number of processes. 0: the function is called in this process, at once.
        timeout_seconds: time limit per call.
        own_code: the function runs framedex's code alone, so that its processes need not import pandas.
    """

    def __init__(
        self, function: Callable[..., Result], *, workers: int, timeout_seconds: float, own_code: bool = False
    ) -> None:
        self._function, self._timeout = function, timeout_seconds
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        context = spawning(function if workers else None)
        self._workers = [_Worker(function, context, own_code) for _ in range(workers)]
        for worker in self._workers:
            self._idle.put(worker)
        # One thread per worker waits for it. All of them sleep in the kernel.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="framedex") if workers else None
        self._close = weakref.finalize(self, _close, os.getpid(), self._threads, self._workers)

    def submit(self, task: Task, answer: Answer | None = None) -> Future[Result]:
        """Return the future of a task's result. Tasks begin in the order in which they are submitted.

        `answer` answers the worker's questions. It is called in a thread.

        The future raises WorkerDiedError if the process died, and InternalError for anything that the function raised.
        """
        if self._threads is not None:
            return self._threads.submit(self._call, task, answer)
        done: Future[Result] = Future()
        try:
            done.set_result(_called(self._function, task, answer))
        except Exception as error:
            done.set_exception(internal_error(error))
        return done

    def _call(self, task: Task, answer: Answer | None) -> Result:
        worker = self._idle.get()
        try:
            result: Result = worker.call(task, answer, self._timeout)
            return result
        finally:
            self._idle.put(worker)

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes that are running."""
        return [worker.process_id for worker in self._workers if worker.process_id is not None]

    def close(self) -> None:
        """End all processes. Tasks that have not begun are cancelled."""
        self._close()


def _close(owner: int, threads: ThreadPoolExecutor | None, workers: list[_Worker]) -> None:
    # A forked process, such as a worker of torch's DataLoader, has a copy of the pool; the workers are its parent's.
    if os.getpid() != owner:
        return
    if threads is not None:
        threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.stop()


class _Worker:
    """One process, started at its first call, and again at the first call after it died."""

    def __init__(self, function: Callable[[Any], Any], context: SpawnContext, own_code: bool) -> None:
        self._function, self._context, self._own_code = function, context, own_code
        self._process: Any = None
        self._connection: Any = None

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def call(self, task: object, answer: Answer | None, timeout: float) -> Any:
        if self._process is None:
            self._start(timeout)
        connection = self._connection
        try:
            connection.send((task, answer is not None))
            while True:
                if not connection.poll(timeout):
                    raise WorkerDiedError(f"a worker took longer than {timeout:g} s and was ended")
                received = connection.recv()
                if not isinstance(received, _Question):
                    break
                assert answer is not None
                connection.send(answer(received.content))
            done, result = _unpacked(connection, *received)
        except (EOFError, OSError) as error:
            code = self._exit_code()
            raise WorkerDiedError(f"a worker died (exit code {code})") from error
        except BaseException:
            self.stop(at_once=True)
            raise
        if not done:
            raise result
        return result

    def _start(self, timeout: float) -> None:
        self._connection, theirs = self._context.Pipe()
        _limit(self._connection, timeout)
        self._process = self._context.Process(target=_serve, args=(theirs, self._function, self._own_code), daemon=True)
        self._process.start()
        theirs.close()

    def _exit_code(self) -> int | None:
        process = self._process
        self.stop(at_once=True)
        return None if process is None else process.exitcode

    def stop(self, *, at_once: bool = False) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            if at_once:
                process.kill()
            process.join(SECONDS_TO_END)
            if process.exitcode is None:
                process.kill()
                process.join()


def _limit(connection: Any, seconds: float) -> None:
    """Limit the time of each read and write of a connection: a worker may be stopped in the middle of its answer."""
    whole = max(1, math.ceil(seconds))
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            shared.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, 0))


def _serve(connection: Any, function: Callable[[Any], Any], own_code: bool) -> None:
    """Answer tasks until the other side has closed the connection."""
    os.nice(NICENESS)
    if own_code:
        leave_out_pandas()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            task, may_ask = connection.recv()
            try:
                answer = True, _called(function, task, functools.partial(_ask, connection) if may_ask else None)
            except Exception as error:  # a bug in one task must not end the worker
                answer = False, internal_error(error)
            _send(connection, answer)


def _called(function: Callable[..., Any], task: object, ask: Answer | None) -> Any:
    return function(task) if ask is None else function(task, ask)


def _ask(connection: Any, content: object) -> Any:
    """Ask the caller a question, and return its answer."""
    connection.send(_Question(content))
    return connection.recv()


def _send(connection: Any, answer: tuple[bool, object]) -> None:
    """Send an object, with the bytes of its arrays in shared memory that has no name and ends with its last user."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(answer, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    places = _places([len(view) for view in views])
    connection.send((content, places))
    if not places:
        return
    descriptor = os.memfd_create("framedex", os.MFD_CLOEXEC)
    try:
        for view, (begin, _) in zip(views, places, strict=True):
            _write(descriptor, view, begin)
        os.ftruncate(descriptor, max(1, places[-1][1]))
        reduction.send_handle(connection, descriptor, None)
    finally:
        os.close(descriptor)


def _write(descriptor: int, view: memoryview, at: int) -> None:
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


def _unpacked(connection: Any, content: bytes, places: list[tuple[int, int]]) -> tuple[bool, Any]:
    """Return what `_send` sent: its message was received already, the shared memory was not."""
    if not places:
        answer: tuple[bool, Any] = pickle.loads(content)
        return answer
    descriptor = reduction.recv_handle(connection)
    try:
        shared = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(descriptor)
    whole = memoryview(shared)
    answer = pickle.loads(content, buffers=[whole[begin:end] for begin, end in places])
    return answer


def _places(sizes: list[int]) -> list[tuple[int, int]]:
    """Return (begin, end) of each array in shared memory."""
    places, at = [], 0
    for size in sizes:
        places.append((at, at + size))
        at += size + -size % ALIGNMENT
    return places
