"""Fetch clips in worker processes. If a clip is not available, retry, replace or skip it, or raise its error.

torch's DataLoader gives whole batches to workers. Here, each clip is a separate task, so that several workers decode
the clips of one batch. Workers return large arrays through shared memory. If a worker dies, only its current task is
lost. During a task, a worker may ask its caller questions.
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
import select
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
from framedex.loader.batches.faults import TRIES, ClipRequest, Fault, Fetched, GroupRequest, LoaderReport, replacements
from framedex.loader.batches.fetch import Fetcher, FetchOptions, ReadableClips
from framedex.loader.batches.frames import JoinsViews, LoaderOptions
from framedex.loader.batches.slots import SHARED_FROM

Task = TypeVar("Task")
Result = TypeVar("Result")
View = TypeVar("View", int, str)

Answer = Callable[[Any], Any]

ALIGNMENT = 64  # bytes, the alignment that numpy and torch give to their own arrays
NICENESS = 10  # added to the nice value of workers, so that they do not delay a main process that feeds a GPU
SECONDS_TO_END = 5.0  # seconds after which a worker that does not end is killed: it may hang in a decoder


class WorkerDiedError(Exception):
    """The worker process of a task died, or was killed because the task took too long."""


@dataclass(frozen=True, slots=True)
class _Question:
    content: Any


class WorkerPool(Generic[Task, Result]):
    """A pool of worker processes that call a function.

    Processes are spawned and not forked, because decoder libraries have threads.

    Args:
        function: A picklable function whose argument is a task. Each process receives the function once. For a task
            that is submitted with `answer`, the function has a second argument: a function that asks a question and
            returns the answer.
        workers: The number of processes. If 0, `submit` calls the function in this process.
        timeout_seconds: The time limit per call.
        own_code: Whether the function runs only framedex's code, so that its processes need not import pandas.
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
        # For each worker, one thread waits for results. While waiting, threads sleep in the kernel.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="framedex") if workers else None
        self._close = weakref.finalize(self, _close, os.getpid(), self._threads, self._workers)

    def submit(self, task: Task, answer: Answer | None = None) -> Future[Result]:
        """Submit a task, and return the future of its result. Tasks begin in the order in which they are submitted.

        The future raises WorkerDiedError if the process dies, and InternalError if the function raises an exception.

        Args:
            task: The argument of the function.
            answer: A function that answers the worker's questions. It is called in a thread.
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

    def start(self) -> None:
        """Begin to start all processes. Otherwise, each process starts with its first task."""
        if self._threads is not None:
            for _ in self._workers:
                self._threads.submit(self._start_one)

    def _start_one(self) -> None:
        worker = self._idle.get()
        try:
            worker.start(self._timeout)
        finally:
            self._idle.put(worker)

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running workers."""
        return [worker.process_id for worker in self._workers if worker.process_id is not None]

    def close(self) -> None:
        """End all processes, and cancel the tasks that have not begun."""
        self._close()


def _close(owner: int, threads: ThreadPoolExecutor | None, workers: list[_Worker]) -> None:
    # A forked process, such as a worker of torch's DataLoader, has a copy of the pool, but must not end the workers of
    # its parent.
    if os.getpid() != owner:
        return
    if threads is not None:
        threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.stop()


class _Worker:
    """A worker process. It is started at the first call, and again at the first call after it died."""

    def __init__(self, function: Callable[[Any], Any], context: SpawnContext, own_code: bool) -> None:
        self._function, self._context, self._own_code = function, context, own_code
        self._process: Any = None
        self._connection: Any = None
        self._arrival: Any = None

    @property
    def process_id(self) -> int | None:
        process = self._process  # another thread may end it meanwhile
        return None if process is None else process.pid

    def call(self, task: object, answer: Answer | None, timeout: float) -> Any:
        self.start(timeout)
        connection = self._connection
        try:
            connection.send((task, answer is not None))
            while True:
                if not self._arrival.poll(timeout * 1000):
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

    def start(self, timeout: float) -> None:
        """Start the process if it is not running. `timeout` is the time limit of each read and write, in seconds."""
        if self._process is not None:
            return
        self._connection, theirs = self._context.Pipe()
        # Each read and write of the connection has a time limit, because a worker may be stopped in the middle of its
        # answer.
        limit = struct.pack("ll", max(1, math.ceil(timeout)), 0)
        with socket.socket(fileno=os.dup(self._connection.fileno())) as shared:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                shared.setsockopt(socket.SOL_SOCKET, option, limit)
        self._arrival = select.poll()  # `Connection.poll` would make an object like it for each call
        self._arrival.register(self._connection.fileno(), select.POLLIN)
        process = self._context.Process(target=_serve, args=(theirs, self._function, self._own_code), daemon=True)
        process.start()
        theirs.close()
        self._process = process  # not before, because a process that was not started cannot be joined

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
    """Run the tasks that arrive on a connection, until the caller closes it."""
    os.nice(NICENESS)
    if own_code:
        leave_out_pandas()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            task, may_ask = connection.recv()
            try:
                answer = True, _called(function, task, partial(_ask, connection) if may_ask else None)
            except Exception as error:  # an exception in one task must not end the worker
                answer = False, internal_error(error)
            _send(connection, answer)


def _called(function: Callable[..., Any], task: object, ask: Answer | None) -> Any:
    return function(task) if ask is None else function(task, ask)


def _ask(connection: Any, content: object) -> Any:
    """Ask the caller a question, and return its answer. If the caller has closed the connection, end this process.

    An OSError would be taken for an error of the clip, and the worker would go on with the other clips of its task.
    """
    try:
        connection.send(_Question(content))
        return connection.recv()
    except (EOFError, OSError) as error:
        raise SystemExit from error


def _send(connection: Any, answer: tuple[bool, object]) -> None:
    """Send an object. The bytes of its large arrays are sent in anonymous shared memory (a memfd)."""
    views: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:  # then it is sent in the message
        view = buffer.raw()
        if len(view) >= SHARED_FROM:
            views.append(view)
        return len(view) < SHARED_FROM

    content = pickle.dumps(answer, protocol=5, buffer_callback=is_small)
    sizes = [len(view) for view in views]
    begins = itertools.accumulate((size + -size % ALIGNMENT for size in sizes), initial=0)
    places = [(begin, begin + size) for begin, size in zip(begins, sizes, strict=False)]
    connection.send((content, places))
    if not places:
        return
    descriptor = os.memfd_create("framedex", os.MFD_CLOEXEC)
    try:
        for view, (at, _) in zip(views, places, strict=True):
            while view:  # a single call writes at most 2 GiB
                count = os.pwrite(descriptor, view, at)
                view, at = view[count:], at + count
        os.ftruncate(descriptor, max(1, places[-1][1]))  # mmap refuses an empty file
        reduction.send_handle(connection, descriptor, None)
    finally:
        os.close(descriptor)


def _receive(connection: Any, content: bytes, places: list[tuple[int, int]]) -> Any:
    """Return the object that `_send` sent. Its message was already received, and this receives the shared memory.

    Args:
        connection: The connection from which the descriptor of the shared memory is received.
        content: The pickled object, from the message.
        places: The (begin, end) of each array in the shared memory, from the message.
    """
    if not places:
        return pickle.loads(content)
    descriptor = reduction.recv_handle(connection)
    try:
        shared = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(descriptor)
    whole = memoryview(shared)
    return pickle.loads(content, buffers=[whole[begin:end] for begin, end in places])


# A function that draws clips to replace a clip. Its arguments are the clip's number and the number of clips to draw.
Replacements = Callable[[int, int], list[int]]
TASK_SECONDS = 600.0  # time limit per clip in seconds, so long that only a hanging decoder exceeds it
LOG = logging.getLogger("framedex.loader")


class ClipSupply:
    """Fetches clips in worker processes, and replaces clips that are not available.

    Args:
        dataset: The dataset of clips.
        fetching: The options for reading and decoding clips.
        options: The options of ClipLoader. If `num_workers` is 0, this process fetches clips.
        replacements: A function that draws clips to replace a clip. If None, they are drawn from all clips.
        own_code: Whether workers run only framedex's code, so that they need not import pandas.

    Attributes:
        report: The counters of the loader, with the faults of clips.
    """

    def __init__(
        self,
        dataset: ReadableClips,
        fetching: FetchOptions,
        options: LoaderOptions,
        replacements: Replacements | None = None,
        *,
        own_code: bool = False,
    ) -> None:
        self.dataset = dataset
        self.pool: WorkerPool[ClipRequest | GroupRequest, Any] = WorkerPool(
            Fetcher(dataset, fetching), workers=options.num_workers, timeout_seconds=TASK_SECONDS, own_code=own_code
        )
        self._on_error, self.report, self._replacements = options.on_error, LoaderReport(), replacements

    def submit(self, number: int, *, on_gpu: bool | None, answer: Answer | None = None) -> Future[Fetched | Fault]:
        """Let a worker fetch a clip.

        Args:
            number: The number of the clip.
            on_gpu: Whether the worker prepares the clip for the GPU, if possible. If None, the worker asks.
            answer: A function that answers the worker's questions.
        """
        return self.pool.submit(ClipRequest(number=number, on_gpu=on_gpu), answer)

    def submit_group(
        self, numbers: list[int], *, on_gpu: bool | None, answer: Answer
    ) -> Future[list[Fetched | Fault | int]]:
        """Let a worker fetch clips of one medium, and decode them together if possible.

        Args:
            numbers: The numbers of the clips, in the order in which they are needed.
            on_gpu: As for `submit`.
            answer: A function that answers the worker's questions.

        Returns:
            The future of the clips. Clips with the same number were left out, and may be requested as a group.
        """
        return self.pool.submit(GroupRequest(numbers=numbers, on_gpu=on_gpu), answer)

    def take(self, number: int, future: Future[Fetched | Fault], *, replaceable: bool = True) -> Fetched | None:
        """Wait for a submitted clip. Return the clip or its replacement, or None if the clip is skipped.

        Args:
            number: The number of the clip.
            future: The future of the clip.
            replaceable: Whether another clip may replace the clip. If not, None is returned instead of a replacement.

        Raises:
            FramedexError: The clip is not available, and `on_error` is "raise", the fault ends the run, or no
                replacement is available.
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
        """Let a worker fetch a clip again and decode it on the CPU. Results and exceptions are those of `take`."""
        return self.take(number, self.submit(number, on_gpu=False), replaceable=replaceable)

    def another(self, number: int) -> Fetched:
        """Return a replacement for a clip that is not available.

        A few clips are drawn, with the clip's number as the seed, and the first available one is returned.

        Raises:
            DecodeError: None of the drawn clips is available.
        """
        return self._drawn(f"clip {number}", self._draw(number, len(self.dataset)), lambda draw: {0: draw})[0]

    def another_item(self, number: int, views: JoinsViews) -> dict[str, Fetched]:
        """Return the views of another item, which replaces an item that is not available.

        A few items are drawn, with the number of the item's first clip as the seed. The first item whose clips are all
        available is returned.

        Raises:
            DecodeError: None of the drawn items is available.
        """
        return self._drawn("a clip of several views", self._draw(number, views.count), views.numbers)

    def _draw(self, number: int, count: int) -> list[int]:
        """Return the numbers of the clips or items, among `count`, that are tried as replacements of clip `number`."""
        return replacements(number, count) if self._replacements is None else self._replacements(number, TRIES)

    def _drawn(self, missing: str, draws: list[int], numbers: Callable[[int], dict[View, int]]) -> dict[View, Fetched]:
        """Return the views of the first item whose clips are all available.

        Args:
            missing: The item to be replaced, for the error text.
            draws: The numbers of the items, in the order in which they are tried.
            numbers: A function that returns the clip number of each view of an item.

        Raises:
            DecodeError: None of the items is available.
        """
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
            f"{missing} cannot be loaded, and none of {TRIES} drawn as replacements either",
            remedy="framedex verify and the loader's report.faults show which clips fail and why",
        )

    def _result(self, number: int, future: Future[Fetched | Fault]) -> Fetched | Fault:
        """Return a worker's result. If the worker died, let another worker fetch the clip again."""
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
