"""A supply of clips from worker processes, which retries, replaces, skips or raises a clip that is not available.

torch's DataLoader gives whole batches to workers. Here every clip is a task, so that all workers decode the same batch.
Large arrays come back through shared memory. A worker that dies costs only its current task. A worker may ask its
caller questions while it works.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
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
from functools import partial
from multiprocessing import reduction
from multiprocessing.context import SpawnContext
from typing import Any, Generic, TypeVar, cast

from framedex.errors import DecodeError, internal_error
from framedex.execution.spawning import leave_out_pandas, spawning
from framedex.loader.batches.faults import TRIES, ClipRequest, Fault, Fetched, LoaderReport, replacements
from framedex.loader.batches.fetch import Fetcher, FetchOptions, ReadableClips
from framedex.loader.batches.frames import JoinsViews, LoaderOptions
from framedex.loader.routing.balance import Balance

Task = TypeVar("Task")
Result = TypeVar("Result")
View = TypeVar("View", int, str)

Answer = Callable[[Any], Any]

ALIGNMENT = 64  # bytes, the alignment that numpy and torch give to their own arrays
NICENESS = 10  # so that a main process which feeds a GPU does not wait for its own workers
SECONDS_TO_END = 5.0  # then a worker is killed: it may hang in a decoder


class WorkerDiedError(Exception):
    """The process of a task ended, or took too long and was ended."""


@dataclass(frozen=True, slots=True)
class _Question:
    content: Any


class WorkerPool(Generic[Task, Result]):
    """Calls a function in other processes.

    Processes are spawned, not forked, because decoder libraries have threads.

    Args:
        function: a picklable function of a task. Each process receives it once. For a task that is submitted with
            `answer`, its second argument is a function that asks a question and returns the answer.
        workers: number of processes. If 0, the function is called in this process, at once.
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
            return cast("Result", worker.call(task, answer, self._timeout))
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
            done, result = _receive(connection, *received)
        except (EOFError, OSError) as error:
            process = self._process
            self.stop(at_once=True)
            code = None if process is None else process.exitcode
            raise WorkerDiedError(f"a worker died (exit code {code})") from error
        except BaseException:
            self.stop(at_once=True)
            raise
        if not done:
            raise result
        return result

    def _start(self, timeout: float) -> None:
        self._connection, theirs = self._context.Pipe()
        # Each read and write of the connection is limited: a worker may be stopped in the middle of its answer.
        limit = struct.pack("ll", max(1, math.ceil(timeout)), 0)
        with socket.socket(fileno=os.dup(self._connection.fileno())) as shared:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                shared.setsockopt(socket.SOL_SOCKET, option, limit)
        self._process = self._context.Process(target=_serve, args=(theirs, self._function, self._own_code), daemon=True)
        self._process.start()
        theirs.close()

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


def _serve(connection: Any, function: Callable[[Any], Any], own_code: bool) -> None:
    """Answer tasks until the other side has closed the connection."""
    os.nice(NICENESS)
    if own_code:
        leave_out_pandas()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            task, may_ask = connection.recv()
            try:
                answer = True, _called(function, task, partial(_ask, connection) if may_ask else None)
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
    sizes = [len(view) for view in views]
    begins = itertools.accumulate((size + -size % ALIGNMENT for size in sizes), initial=0)
    places = [(begin, begin + size) for begin, size in zip(begins, sizes, strict=False)]
    connection.send((content, places))
    if not places:
        return
    descriptor = os.memfd_create("framedex", os.MFD_CLOEXEC)
    try:
        for view, (at, _) in zip(views, places, strict=True):
            while view:  # one call writes 2 GiB at most
                count = os.pwrite(descriptor, view, at)
                view, at = view[count:], at + count
        os.ftruncate(descriptor, max(1, places[-1][1]))  # mmap refuses an empty file
        reduction.send_handle(connection, descriptor, None)
    finally:
        os.close(descriptor)


def _receive(connection: Any, content: bytes, places: list[tuple[int, int]]) -> Any:
    """Return the object that `_send` sent. Its message was received already, the shared memory was not."""
    if not places:
        return pickle.loads(content)
    descriptor = reduction.recv_handle(connection)
    try:
        shared = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(descriptor)
    whole = memoryview(shared)
    return pickle.loads(content, buffers=[whole[begin:end] for begin, end in places])


# Returns numbers of clips that may replace a clip, from its number and the count of replacements.
Replacements = Callable[[int, int], list[int]]
TASK_SECONDS = 600.0  # far more than any clip takes in a worker: only a decoder that hangs is ended
LOG = logging.getLogger("framedex.loader")


class ClipSupply:
    """Fetches clips in worker processes, and replaces clips that are not available.

    Args:
        dataset: the clips.
        fetching: how each is read and decoded.
        options: the number of workers, and the reaction to a clip that is not available. Without workers, this process
            fetches.
        replacements: draws the clips that may replace a clip. If None, any clip may.

    Attributes:
        report: counts clips, and keeps their faults.
    """

    def __init__(
        self,
        dataset: ReadableClips,
        fetching: FetchOptions,
        options: LoaderOptions,
        replacements: Replacements | None = None,
    ) -> None:
        self.dataset = dataset
        # Whether workers run no transform of the user, and no class of the user that extends a dataset.
        own_code = fetching.pixels.transform is None and type(dataset).__module__.startswith("framedex.")
        self.pool: WorkerPool[ClipRequest, Fetched | Fault] = WorkerPool(
            Fetcher(dataset, fetching), workers=options.num_workers, timeout_seconds=TASK_SECONDS, own_code=own_code
        )
        self._on_error, self.report, self._replacements = options.on_error, LoaderReport(), replacements

    def submit(self, number: int, *, on_gpu: bool) -> Future[Fetched | Fault]:
        """Let a worker fetch a clip, and with `on_gpu`, prepare it for a GPU if that can decode it."""
        return self.pool.submit(ClipRequest(number=number, on_gpu=on_gpu))

    def submit_balanced(self, number: int, balance: Balance, batch: int) -> Future[Fetched | Fault]:
        """Let a worker fetch a clip of a batch, and decode it unless the GPU would be done with it earlier."""

        def learn(future: Future[Fetched | Fault]) -> None:
            fetched = None if future.cancelled() or future.exception() is not None else future.result()
            if isinstance(fetched, Fetched) and fetched.frames is not None:
                balance.decoded_by_cpu(fetched.cost, fetched.decode_seconds)

        future = self.pool.submit(ClipRequest(number=number, on_gpu=True), partial(balance.gives_to_gpu, batch))
        future.add_done_callback(learn)
        return future

    def take(self, number: int, future: Future[Fetched | Fault], *, replaceable: bool = True) -> Fetched | None:
        """Return the submitted clip or its replacement, or None if it is skipped.

        Args:
            number: number of the clip.
            future: its result.
            replaceable: whether another clip may take its place. If not, None is returned instead of a replacement.

        Raises:
            FramedexError: the clip's error, if `on_error` is "raise", or if other clips are not available either.
        """
        fetched = self._result(number, future)
        if isinstance(fetched, Fetched):
            return fetched
        self.report.note(fetched)
        if self._on_error == "raise" or fetched.ends_the_run:
            raise fetched.error()
        if self._on_error == "skip":
            self.report.add(skipped=1)
            return None
        return self.another(fetched.number) if replaceable else None

    def decoded_by_cpu(self, number: int, *, replaceable: bool = True) -> Fetched | None:
        """Fetch a clip again, decoded by a worker. Return and raise as `take`."""
        return self.take(number, self.submit(number, on_gpu=False), replaceable=replaceable)

    def another(self, number: int) -> Fetched:
        """Return a replacement for an unavailable clip: the first available one of a few, drawn by the clip's number.

        Raises:
            DecodeError: none of them is available.
        """
        return self._drawn(f"clip {number}", self._draw(number, len(self.dataset)), lambda draw: {0: draw})[0]

    def another_item(self, number: int, views: JoinsViews) -> dict[str, Fetched]:
        """Return the views of another item in place of one that is not available, drawn by its number.

        Raises:
            DecodeError: none of a few is available.
        """
        return self._drawn("a clip of several views", self._draw(number, views.count), views.numbers)

    def _draw(self, number: int, count: int) -> list[int]:
        """Return numbers of clips or items, of `count` ones, that are tried in place of one."""
        return replacements(number, count) if self._replacements is None else self._replacements(number, TRIES)

    def _drawn(self, missing: str, draws: list[int], numbers: Callable[[int], dict[View, int]]) -> dict[View, Fetched]:
        """Return the views of the first item whose clips are all available. `numbers` returns an item's clips."""
        for draw in draws:
            found: dict[View, Fetched] = {}
            for view, clip in numbers(draw).items():
                result = self._result(clip, self.submit(clip, on_gpu=False))
                if not isinstance(result, Fetched):
                    self.report.note(result)
                    break
                found[view] = result
            else:
                self.report.add(replaced=1)
                return found
        raise DecodeError(
            f"neither {missing} nor any of {TRIES} drawn in its place can be loaded",
            remedy="look at framedex verify, and at report.faults",
        )

    def _result(self, number: int, future: Future[Fetched | Fault]) -> Fetched | Fault:
        """Return a worker's result; if the worker died, fetch the clip again with another worker."""
        try:
            return future.result()
        except WorkerDiedError as error:
            LOG.warning("%s while it was at clip %d, which is fetched again", error, number)
            self.report.add(retried="crash")
        try:
            return self.submit(number, on_gpu=False).result()
        except WorkerDiedError as error:
            return Fault(number=number, kind="crash", message=str(error))

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()
