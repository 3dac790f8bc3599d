"""The trainer's side of a process that makes batches (`feeder`): it sends clip numbers, and receives batches.

This process has no threads for it. When the trainer takes a batch, all messages that have arrived in the socket are
received, and the copies of their frames to the GPU begin. Frames on a GPU are normalized and laid out after this copy,
so that they are copied as uint8.
"""

import contextlib
import importlib.util
import io
import logging
import multiprocessing.util
import os
import pickle
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import connection, reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import GIBIBYTE
from framedex.errors import FramedexError, MissingExtraError
from framedex.execution.spawning import is_starting, spawning
from framedex.loader.batches.batch_queue import Batches, BatchSetup
from framedex.loader.batches.faults import LoaderReport
from framedex.loader.batches.feeder import feed
from framedex.loader.batches.maker import tensor_maker
from framedex.loader.batches.shared import Later
from framedex.loader.batches.slots import SlotReader
from framedex.loader.batches.transfer import ALL, BatchMessage, BatchUnpickler

COPIES = 2  # number of batches that are copied to the GPU ahead of the batch that the trainer takes
SECONDS_TO_END = 15.0  # seconds after which a feeder that does not end is killed


class UnsendableError(Exception):
    """A loader's setup cannot be sent to another process."""


class FedBatches(Batches):
    """Batches that a feeder makes. The feeder is started at once if possible, or else with the next batch.

    Args:
        setup: The dataset and the options.

    Raises:
        UnsendableError: The setup cannot be sent to another process.
        FramedexError: There is no usable GPU.
        MissingExtraError: DALI is needed, but is not installed.
    """

    def __init__(self, setup: BatchSetup) -> None:
        options, finish = setup.options, setup.finish
        self._device_id = options.device_id if options.device == "gpu" else None
        self._finish: Callable[[Any], Any] | None = None
        fed = replace(setup, to_torch=False)
        if self._device_id is not None:
            from framedex.loader.batches.on_gpu import FrameFinisher, check_cuda

            check_cuda(self._device_id)
            # With both, padding would be normalized, too, so the feeder finishes frames.
            if finish.collate != "pad" or finish.normalize is None:
                fed = replace(fed, finish=replace(finish, normalize=None, layout="FHWC"))
                self._finish = FrameFinisher(finish)
        if self._finish is not None and options.decode == "cpu" and not setup.has_functions:
            fed = replace(fed, options=replace(options, device="cpu"))  # the feeder needs no GPU
        if fed.options.device == "gpu" or setup.has_functions:
            check_dali()
        self._as_torch = tensor_maker() if options.output == "torch" else None
        self._context = spawning(fed.without_functions())
        try:
            self._setup = fed.packed()
        except Exception as error:  # `__reduce__` of a user's class may raise anything
            raise UnsendableError(f"{type(error).__name__}: {error}") from error
        self.report = LoaderReport()
        self._process_ids: list[int] = []
        self._owner = os.getpid()
        self._begun = 0
        self._feeder: _Connection | None = None if is_starting() else self._started()
        self._error: BaseException | None = None  # an error that the next call raises
        self._pending: set[int] = set()  # batches that were begun, and not taken or cancelled
        self._arrived: dict[int, Callable[[], dict[str, Any]]] = {}
        self._copying: list[tuple[Any, NDArray[np.uint8]]] = []  # (event after the copy to the GPU, source)
        self._stream: Any = None

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the feeder's workers, when the last batch that arrived was sent."""
        return self._process_ids

    @property
    def process_id(self) -> int | None:
        """The process id of the feeder. None if it is not running."""
        return None if self._feeder is None else self._feeder.process_id

    def begin(
        self, items: list[int], padding: int, *, is_first: bool, later: Mapping[int, Sequence[Later]] | None = None
    ) -> int:
        """Begin a batch, and start the feeder if it is not running."""
        if os.getpid() != self._owner:  # a forked process, which needs a feeder of its own
            self._owner, self._feeder = os.getpid(), None
            self._forget()
        self._raise_error()
        if self._feeder is None:
            self._feeder = self._started()
        self._forget_copies()
        self._begun += 1
        self._pending.add(self._begun)
        level = logging.getLogger("framedex").getEffectiveLevel() if is_first else None
        self._send(self._feeder, ("begin", self._begun, items, padding, is_first, level, later))
        return self._begun

    def _started(self) -> "_Connection":
        return _Connection(self._context, self._setup, device_id=self._device_id)

    def take(self, key: int) -> dict[str, Any]:
        """Wait for a batch, and return it. Raises the error of the batch."""
        if os.getpid() != self._owner:
            raise _closed()
        self._forget_copies()
        while key not in self._arrived:
            self._raise_error()
            if self._feeder is None or key not in self._pending:
                raise _closed()
            if not self._feeder.has_message:
                self._end_copies()
                self._send(self._feeder, ("starve", key, self._feeder.received))
                self._feeder.wait()
            self._receive(self._feeder)
        self._pending.discard(key)
        content = self._arrived.pop(key)  # first, because the feeder may have ended, which forgets all batches
        self._receive_ahead()
        return content()

    def _receive_ahead(self) -> None:
        """Receive batches that have arrived, so that their copies to the GPU begin. Keep an error for the next call."""
        if self._device_id is None:
            return
        while self._feeder is not None and len(self._arrived) < COPIES and self._feeder.has_message:
            try:
                self._receive(self._feeder)
            except Exception as error:
                self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _send(self, feeder: "_Connection", message: tuple[Any, ...]) -> None:
        """Send a message. If the feeder has ended, raise its last error."""
        try:
            feeder.send(message)
        except ConnectionError:
            while True:  # until the end of the connection, which raises an error
                self._receive(feeder)
        except BaseException:  # a part of the message may be lost
            self._end(at_once=True)
            raise

    def _receive(self, feeder: "_Connection") -> None:
        """Receive a message of the feeder. If it has a batch, begin its copy to the GPU.

        Raises:
            FramedexError: The feeder has died.
            Exception: The error with which the feeder has ended.
        """
        try:
            made = feeder.receive()
            arrays = [] if made is None else [feeder.content(slot) for slot in made.slots]
        except EOFError as error:
            self._end(at_once=True)
            raise _death(feeder.exit_code) from error
        except BaseException:  # a part of the message may be lost
            self._end(at_once=True)
            raise
        if made is None:
            return
        for record in made.records:
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        self._process_ids = list(made.process_ids)
        self.report.extend(made.report)
        problem = made.error
        if made.key == ALL and problem is not None:
            self._end(at_once=False)
            raise problem
        if made.key not in self._pending:
            return  # it was cancelled
        if problem is not None:
            self._arrived[made.key] = lambda: _fail(problem)
            return
        try:
            with self._remedies(made):
                uploads = [self._upload(array, size) for array, size in zip(arrays, made.device_bytes, strict=True)]
        except Exception as error:
            failure = error
            self._arrived[made.key] = lambda: _fail(failure)
            return
        self._arrived[made.key] = lambda: self._finished(made, arrays, uploads)

    @contextlib.contextmanager
    def _remedies(self, made: BatchMessage) -> Iterator[None]:
        """In a `with` block, replace errors that mean that the GPU's memory is full by an error with a remedy."""
        try:
            yield
        except Exception as error:
            if self._device_id is None:
                raise
            from framedex.loader.batches.on_gpu import free_memory, is_out_of_memory

            if not is_out_of_memory(error):
                raise
            raise FramedexError(
                "the GPU's memory is full",
                where=f"a batch with frames of {sum(made.device_bytes) / GIBIBYTE:.2f} GiB",
                found=f"{str(error).splitlines()[0]} ({free_memory(self._device_id)})",
                remedy="use a smaller batch_size, or a smaller size=(height, width)",
            ) from error

    def _upload(self, array: NDArray[np.uint8] | None, size: int) -> tuple[Any, Any]:
        """Copy the first bytes of a slot to the GPU. Return the tensor, and an event after the copy."""
        if array is None or not size or self._device_id is None:
            return None, None
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device_id)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            uploaded = torch.from_numpy(array[:size]).to(torch.device("cuda", self._device_id), non_blocking=True)
            event = self._stream.record_event()
        self._copying.append((event, array))
        return uploaded, event

    def _finished(
        self, made: BatchMessage, arrays: list[NDArray[np.uint8] | None], uploads: list[tuple[Any, Any]]
    ) -> dict[str, Any]:
        """Return the result of `_content`. If the GPU's memory is full, raise an error with a remedy."""
        with self._remedies(made):
            return self._content(made, arrays, uploads)

    def _content(
        self, made: BatchMessage, arrays: list[NDArray[np.uint8] | None], uploads: list[tuple[Any, Any]]
    ) -> dict[str, Any]:
        """Return a batch. Its tensors on the GPU are used by the caller's CUDA stream."""
        for uploaded, event in uploads:
            if event is not None:
                import torch

                current = torch.cuda.current_stream(self._device_id)
                current.wait_event(event)
                uploaded.record_stream(current)
        memory = [memoryview(b"") if array is None else array.data for array in arrays]
        buffers: list[Any] = [memory[slot][begin:end] for slot, begin, end in made.places]
        if self._device_id is not None:
            # The slot is pinned. A copy of the caller's from pinned memory to the GPU may run after the caller has
            # dropped the array, when the slot has other content. So these arrays are not in the slot.
            buffers = list(map(bytearray, buffers))
        tensors = [uploaded for uploaded, _ in uploads]
        content: dict[str, Any] = BatchUnpickler(io.BytesIO(made.content), buffers=buffers, uploaded=tensors).load()
        if self._finish is not None:
            content["frames"] = _mapped(self._finish, content["frames"])
        return content if self._as_torch is None else _mapped(self._as_torch, content)

    def cancel(self, keys: list[int]) -> None:
        """Cancel all batches with these keys that were not taken."""
        # At exit, when a generator is closed, the feeder has ended before, and modules such as os may be gone.
        if self._feeder is None or not self._feeder.is_open or os.getpid() != self._owner:
            return
        keys = [key for key in keys if key in self._pending]
        for key in keys:
            self._pending.discard(key)
            self._arrived.pop(key, None)
        try:  # noqa: SIM105
            self._feeder.send(("cancel", keys))
        except OSError:  # the feeder has died; the next call of `begin` or `take` raises an error
            pass

    def close(self) -> None:
        """End the feeder."""
        self._end(at_once=False)
        self._error = None

    def _forget_copies(self) -> None:
        """Forget the copies to the GPU that are complete, which makes their slots free."""
        self._copying = [pair for pair in self._copying if not pair[0].query()]

    def _end_copies(self) -> None:
        """Wait for the copies to the GPU, which makes their slots free."""
        for event, _ in self._copying:
            event.synchronize()
        self._copying.clear()

    def _forget(self) -> None:
        self._pending.clear()
        self._arrived.clear()
        self._copying.clear()
        self._error, self._process_ids = None, []

    def _end(self, *, at_once: bool) -> None:
        feeder, self._feeder = self._feeder, None
        if feeder is None or os.getpid() != self._owner:
            return
        self._end_copies()
        self._forget()
        feeder.close(at_once=at_once)


def _closed() -> FramedexError:
    return FramedexError("the loader was closed during an iteration", remedy="begin another iteration")


def _fail(error: BaseException) -> dict[str, Any]:
    raise error


def _death(code: int | None) -> FramedexError:
    name = signal.Signals(-code).name if code is not None and code < 0 else None
    return FramedexError(
        "the process that makes the batches has died",
        found=f"signal {name}" if name else f"exit code {code}",
        remedy="if the system ended it for lack of memory, use fewer num_workers, smaller batches, or a smaller size; "
        "its own messages are on standard error",
    )


def check_dali() -> None:
    """Raise MissingExtraError if DALI is not installed. DALI is not imported, because that takes seconds."""
    try:
        found = importlib.util.find_spec("nvidia.dali")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingExtraError("nvidia-dali", "dali", "transform and device='gpu'")


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each value of a dict."""
    return {key: _mapped(function, own) for key, own in value.items()} if isinstance(value, dict) else function(value)


class _Connection:
    """A running feeder, as the trainer's process sees it.

    Args:
        context: The multiprocessing context in which the feeder is started.
        setup: The packed setup.
        device_id: The number of the GPU to which this process copies frames. None if it does not.

    Attributes:
        received: The number of batches that were received.
    """

    def __init__(self, context: Any, setup: bytes, *, device_id: int | None) -> None:
        self._connection, theirs = context.Pipe()
        released, release = os.pipe()
        self._releases = _Releases(release)
        self._slots = SlotReader(self._releases.add, device_id=device_id)
        self.received = 0
        self._heard: list[bool] = []  # not empty when a message has arrived
        options = {"uploads": device_id is not None, "trainer_id": os.getpid()}
        self._process = context.Process(
            target=feed, args=(theirs, connection.Connection(released), setup), kwargs=options
        )
        self._process.start()
        theirs.close()
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)
        # At exit, multiprocessing waits for processes that are not daemons, but calls this function before.
        self._close = multiprocessing.util.Finalize(
            self, _close, args=(self._connection, self._process, self._slots, self._heard), exitpriority=10
        )

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message, after the slots that are free again. Raises ConnectionError if the feeder has died."""
        self._releases.send()
        self._connection.send_bytes(pickle.dumps(message))

    @property
    def is_open(self) -> bool:
        """Whether the connection was not closed by this process."""
        return not self._connection.closed

    @property
    def has_message(self) -> bool:
        """Whether a message has arrived, or the feeder has ended."""
        return bool(self._poll.poll(0))

    def wait(self) -> None:
        """Wait for the next message, or for the end of the feeder."""
        with self._releases.at_once():
            self._poll.poll()

    def receive(self) -> BatchMessage | None:
        """Return the next description, or None for a message about a slot. Raises EOFError if the feeder has ended."""
        try:
            message = pickle.loads(self._connection.recv_bytes())
        except OSError as error:  # the feeder has died in the middle of a message, or with unread messages
            raise EOFError from error
        self._heard[:] = [True]
        if isinstance(message, BatchMessage):
            self.received += 1
            return message
        kind, number = message
        if kind == "slot":
            try:
                handle = reduction.recv_handle(self._connection)
            except ConnectionError as error:  # the feeder has died before it handed over the slot
                raise EOFError from error
            self._slots.add(number, handle)
        else:
            self._slots.drop(number)
        return None

    def content(self, slot: int | None) -> NDArray[np.uint8] | None:
        """Return the content of a slot, which is free again when the array and its views are freed."""
        return None if slot is None else self._slots.content(slot)

    @property
    def process_id(self) -> int | None:
        """The process id of the feeder."""
        found: int | None = self._process.pid
        return found

    @property
    def exit_code(self) -> int | None:
        """The exit code of the feeder after `close`."""
        code: int | None = self._process.exitcode
        return code

    def close(self, *, at_once: bool) -> None:
        """End the feeder."""
        if at_once:
            self._process.join(0.2)
            self._process.kill()
        self._close()


class _Releases:
    """The numbers of slots that are free again, and the pipe to which they are written. Thread-safe.

    Each write wakes the feeder, so numbers wait for the next message, unless this process waits for a batch.

    Args:
        descriptor: The end of the pipe. It is closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._end, self._owner = os.fdopen(descriptor, "wb", buffering=0), os.getpid()
        self._numbers: deque[int] = deque()
        self._is_waiting = False

    def add(self, number: int) -> None:
        """Add the number of a slot."""
        self._numbers.append(number)
        if self._is_waiting:
            self.send()

    def send(self) -> None:
        """Write all numbers, unless this is a forked process. Nothing happens if the feeder has ended."""
        numbers: list[int] = []
        try:
            with contextlib.suppress(IndexError):
                while True:
                    numbers.append(self._numbers.popleft())
            if numbers and os.getpid() == self._owner:
                with contextlib.suppress(OSError):
                    self._end.write(b"".join(number.to_bytes(4, "little") for number in numbers))
        except BaseException:  # such as KeyboardInterrupt
            self._numbers.extend(numbers)
            raise

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Write numbers at once during a `with` block."""
        self._is_waiting = True
        try:
            self.send()
            yield
        finally:
            self._is_waiting = False


def _close(ours: Any, process: Any, slots: SlotReader, heard: list[bool]) -> None:
    # Processes that this process has forked have copies of the connection, so closing it is not sufficient.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(ours.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)
    ours.close()
    if not heard:  # it may be importing libraries, which takes seconds
        process.kill()
    process.join(SECONDS_TO_END)
    if process.exitcode is None:
        process.kill()
        process.join()
    slots.close()
