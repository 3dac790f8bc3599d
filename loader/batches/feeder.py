"""A process that makes the batches of a loader, so that the trainer's process only receives them.

The feeder has the workers, the decoders of a GPU, collation and DALI. Its batches go through shared memory (`slots`).
The trainer's process sends the numbers of the clips of each batch, receives descriptions of finished batches, and
copies frames to its GPU. It has no threads for this.

Arrays of at least SHARED_FROM bytes are in a slot, all others in the description. Frames for a GPU come first in the
slot, so that one copy moves all of them. Normalization and layout of frames on a GPU are done after this copy, so that
frames are copied as uint8.
"""

import contextlib
import importlib.util
import io
import itertools
import logging
import multiprocessing
import multiprocessing.util
import os
import pickle
import queue
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from multiprocessing import connection, reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError, MissingExtraError, internal_error
from framedex.execution.spawning import leave_out_pandas, spawning
from framedex.loader.batches.batch_queue import Batches, BatchQueue, BatchSetup
from framedex.loader.batches.faults import Fault, LoaderReport
from framedex.loader.batches.maker import tensor_maker
from framedex.loader.batches.slots import SlotMaker, SlotReader

SHARED_FROM = 64 << 10  # bytes of the smallest array in a slot
ALIGNMENT = 256  # bytes, alignment of arrays in a slot; copies to and from a GPU are fast with it
ALL = -1  # in place of the run of a batch: the message ends all runs
COPIES = 2  # number of batches that are copied to the GPU ahead of the batch that the trainer takes
SECONDS_TO_END = 15.0  # seconds after which a feeder that does not end is killed
LOG = logging.getLogger("framedex.loader")


@dataclass(slots=True)
class _Made:
    """The description of a finished batch, or the error of a batch.

    Attributes:
        run: The number of calls of `clear` before the batch was begun.
        content: The pickled batch, without the arrays in the slot.
        slot: The number of the slot. None if the batch has no arrays in a slot.
        places: (begin, end) of each array on the CPU in the slot.
        device_bytes: The size of the first part of the slot, which is copied to the GPU.
        error: The error. None if the batch is complete.
        report: The values of the feeder's report, with the faults that were not sent before.
        records: The log records since the last batch.
        process_ids: The process ids of the feeder's workers.
    """

    run: int
    content: bytes = b""
    slot: int | None = None
    places: list[tuple[int, int]] = field(default_factory=list)
    device_bytes: int = 0
    error: BaseException | None = None
    report: dict[str, Any] = field(default_factory=dict)
    records: list[logging.LogRecord] = field(default_factory=list)
    process_ids: list[int] = field(default_factory=list)


class UnsendableError(Exception):
    """A loader's setup cannot be sent to another process."""


class FedBatches(Batches):
    """Batches that a feeder makes. The feeder is started with the first batch.

    Args:
        setup: The dataset and the options.

    Raises:
        UnsendableError: The setup cannot be sent to another process.
        FramedexError: There is no usable GPU.
        MissingExtraError: DALI is needed, but is not installed.
    """

    def __init__(self, setup: BatchSetup) -> None:
        options, finish = setup.options, setup.finish
        self._on_gpu = options.device == "gpu"
        self._device_id = options.device_id if self._on_gpu else None
        self._exit_code: int | None = None
        self._finish: Callable[[Any], Any] | None = None
        fed = replace(setup, to_torch=False)
        if self._on_gpu and (finish.collate != "pad" or finish.normalize is None):
            # Frames are finished in this process.
            fed = replace(fed, finish=replace(finish, normalize=None, layout="FHWC"))
            from framedex.loader.batches.on_gpu import finished_frames

            self._finish = lambda frames: finished_frames(frames, finish)
        self._uploads = self._on_gpu and options.decode == "cpu" and not _has_dali(setup) and self._finish is not None
        if self._uploads:  # then the feeder needs no GPU
            fed = replace(fed, options=replace(options, device="cpu"))
        if self._on_gpu:
            from framedex.loader.batches.on_gpu import check_cuda

            check_cuda(options.device_id)
        if (self._on_gpu and not self._uploads) or _has_dali(setup):
            check_dali()
        self._as_torch = tensor_maker() if options.output == "torch" else None
        self._context = spawning(fed.without_functions())
        try:
            self._setup = fed.packed()
        except Exception as error:  # `__reduce__` of a user's class may raise anything
            raise UnsendableError(f"{type(error).__name__}: {error}") from error
        self.report = LoaderReport()
        self._process_ids: list[int] = []
        self._run = 0
        self._feeder: _Connection | None = None
        self._arrived: deque[Callable[[], dict[str, Any]]] = deque()
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

    def begin(self, items: list[int], padding: int) -> None:
        """Begin a batch, and start the feeder if it is not running."""
        if self._feeder is None:
            self._feeder = _Connection(self._context, self._setup, uploads=self._uploads, device_id=self._device_id)
        with self._noticing_death():
            self._feeder.send(("begin", self._run, items, padding))

    def take(self) -> dict[str, Any]:
        """Wait for the oldest batch, and return it. Raises the error of the batch."""
        assert self._feeder is not None  # a batch was begun
        self._copying = [pair for pair in self._copying if not pair[0].query()]
        while not self._arrived:
            if not self._feeder.has_message:
                self._end_copies()
                with self._noticing_death():
                    self._feeder.wait()
            self._receive()
        while len(self._arrived) <= COPIES and self._on_gpu and self._feeder.has_message:
            self._receive()
        return self._arrived.popleft()()

    @contextlib.contextmanager
    def _noticing_death(self) -> Iterator[None]:
        """Convert an error of the connection within a `with` block to the error that the feeder has died."""
        try:
            yield
        except (EOFError, OSError) as error:
            self._end(at_once=True)
            raise self._death() from error

    def _end_copies(self) -> None:
        """Wait for the copies to the GPU, which makes their slots free."""
        for event, _ in self._copying:
            event.synchronize()
        self._copying.clear()

    def _receive(self) -> None:
        """Receive a message of the feeder. If it has a batch, begin its copy to the GPU."""
        assert self._feeder is not None
        with self._noticing_death():
            try:
                made = self._feeder.receive()
            except (KeyboardInterrupt, SystemExit):  # a part of the message may be lost
                self._end(at_once=True)
                raise
        for record in made.records:
            logging.getLogger(record.name).handle(record)
        _add_to(self.report, made.report)
        self._process_ids = made.process_ids
        array = None if made.slot is None else self._feeder.slots.content(made.slot)
        if made.run not in (self._run, ALL):
            return
        if made.error is not None:
            error = made.error

            def fail() -> dict[str, Any]:
                raise error

            self._arrived.append(fail)
        else:
            uploaded, event = self._upload(array, made.device_bytes)
            self._arrived.append(lambda: self._content(made, array, uploaded, event))

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

    def _content(self, made: _Made, array: NDArray[np.uint8] | None, uploaded: Any, event: Any) -> dict[str, Any]:
        """Return a batch. Its tensors on the GPU are used by the caller's CUDA stream."""
        if event is not None:
            import torch

            current = torch.cuda.current_stream(self._device_id)
            current.wait_event(event)
            uploaded.record_stream(current)
        memory = memoryview(b"") if array is None else array.data
        buffers = [memory[begin:end] for begin, end in made.places]
        content: dict[str, Any] = _Unpickler(io.BytesIO(made.content), buffers=buffers, uploaded=uploaded).load()
        if self._finish is not None:
            content["frames"] = _mapped(self._finish, content["frames"])
        return content if self._as_torch is None else _mapped(self._as_torch, content)

    def clear(self) -> None:
        """Cancel all batches that were not taken."""
        self._run += 1
        self._arrived.clear()
        # At exit, when a generator is closed, the feeder has ended before, and modules such as contextlib may be gone.
        if self._feeder is not None and self._feeder.is_open:
            try:  # noqa: SIM105
                self._feeder.send(("clear", self._run))
            except OSError:  # the feeder has died; the next call of `begin` or `take` raises an error
                pass

    def close(self) -> None:
        """End the feeder."""
        self._arrived.clear()
        self._end(at_once=False)

    def _end(self, *, at_once: bool) -> None:
        if self._feeder is not None:
            self._end_copies()
            self._feeder.close(at_once=at_once)
            self._exit_code, self._feeder, self._process_ids = self._feeder.exit_code, None, []

    def _death(self) -> FramedexError:
        code = self._exit_code
        name = signal.Signals(-code).name if code is not None and code < 0 else None
        return FramedexError(
            "the process that makes the batches has died",
            found=f"signal {name}" if name else f"exit code {code}",
            remedy="if the system ended it for lack of memory, use fewer num_workers, smaller batches, or a smaller "
            "size; its own messages are on standard error",
        )


def check_dali() -> None:
    """Raise MissingExtraError if DALI is not installed. DALI is not imported, because that takes seconds."""
    try:
        found = importlib.util.find_spec("nvidia.dali")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingExtraError("nvidia-dali", "dali", "transform and device='gpu'")


def _has_dali(setup: BatchSetup) -> bool:
    return setup.finish.transform is not None or setup.finish.audio_transform is not None


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each value of a dict."""
    return {key: _mapped(function, own) for key, own in value.items()} if isinstance(value, dict) else function(value)


def _add_to(report: LoaderReport, values: dict[str, Any]) -> None:
    """Replace the values of a report by newer ones, and add the new faults."""
    for name, value in values.items():
        if name == "faults":
            report.faults += value
        elif name == "seconds":
            report.seconds.update({stage: seconds for stage, seconds in value.items() if stage != "waiting"})
        else:
            setattr(report, name, value)


class _Connection:
    """A running feeder, as the trainer's process sees it.

    Args:
        context: The multiprocessing context in which the feeder is started.
        setup: The packed setup.
        uploads: Whether frames that are on the CPU in the feeder are copied to the GPU by this process.
        device_id: The number of the GPU for which slots are pinned in this process. None if they are not pinned.
    """

    def __init__(self, context: Any, setup: bytes, *, uploads: bool, device_id: int | None) -> None:
        self._connection, theirs = context.Pipe()
        released, release = os.pipe()
        self.slots = SlotReader(_Releases(release).write, device_id=device_id)
        self._process = context.Process(target=_feed, args=(theirs, connection.Connection(released), setup, uploads))
        self._process.start()
        theirs.close()
        self._received = 0
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)
        # At exit, multiprocessing waits for processes that are not daemons, but calls this function before.
        self._close = multiprocessing.util.Finalize(
            self, _close, args=(self._connection, self._process), exitpriority=10
        )

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message. Raises OSError if the feeder has died."""
        self._connection.send(message)

    @property
    def is_open(self) -> bool:
        """Whether the connection was not closed by this process."""
        return not self._connection.closed

    @property
    def has_message(self) -> bool:
        """Whether a message has arrived."""
        return bool(self._poll.poll(0))

    def wait(self) -> None:
        """Wait for the next message, or for the death of the feeder. Raises OSError if the feeder has died before."""
        self.send(("starve", self._received))
        self._poll.poll()

    def receive(self) -> _Made:
        """Return the next description. Messages about slots that come before it are handled."""
        while True:
            message = self._connection.recv()
            if isinstance(message, _Made):
                self._received += 1
                return message
            kind, number = message
            if kind == "slot":
                self.slots.add(number, reduction.recv_handle(self._connection))
            else:
                self.slots.drop(number)

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
        self.slots.close()


class _Releases:
    """A pipe to which the numbers of slots that are free again are written.

    Args:
        descriptor: The end of the pipe. It is closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._end, self._owner = os.fdopen(descriptor, "wb", buffering=0), os.getpid()

    def write(self, number: int) -> None:
        """Write the number of a slot, unless this is a forked process. Nothing happens if the feeder has ended."""
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                self._end.write(number.to_bytes(4, "little"))


def _close(ours: Any, process: Any) -> None:
    ours.close()
    process.join(SECONDS_TO_END)
    if process.exitcode is None:
        process.kill()
        process.join()


def _feed(trainer: Any, released: Any, setup: bytes, uploads: bool) -> None:
    """Make batches until the trainer's process closes the connection, or ends. This is the feeder's main function."""
    feeder: _Feeder | None = None
    try:
        own = BatchSetup.unpacked(setup)
        if own.runs_own_code:
            leave_out_pandas()
        feeder = _Feeder(trainer, own, uploads=uploads)
        while True:
            if trainer in connection.wait([trainer, released]):
                message = trainer.recv()
                _release(feeder.slots, released)  # first, because the message may say that no slot is free
                feeder.obey(*message)
            else:
                _release(feeder.slots, released)
    except (EOFError, OSError):
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            trainer.send(_Made(run=ALL, error=_sendable(error)))
    finally:
        if feeder is not None:
            feeder.close()


def _release(slots: SlotMaker, released: Any) -> None:
    """Make the slots free whose numbers have arrived. Raises EOFError if the pipe is closed."""
    while released.poll():
        numbers = os.read(released.fileno(), 4096)
        if not numbers:
            raise EOFError
        for at in range(0, len(numbers), 4):
            slots.release(int.from_bytes(numbers[at : at + 4], "little"))


class _Feeder:
    """The batches of a feeder, and the thread that sends them.

    Args:
        trainer: The connection to the trainer's process.
        setup: The dataset and the options.
        uploads: Whether frames are marked for the copy to the trainer's GPU although they are on the CPU here.
    """

    def __init__(self, trainer: Any, setup: BatchSetup, *, uploads: bool) -> None:
        self._trainer, self._uploads = trainer, uploads
        self._batches = BatchQueue(setup)
        self.slots = SlotMaker(
            self._announce,
            lambda number: trainer.send(("drop", number)),
            device_id=setup.options.device_id if setup.options.device == "gpu" else None,
        )
        self._run = self._sent = self._faults = 0
        self._begun: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # run of each batch
        self._changing = threading.Lock()
        self._copies: Any = None
        self._records: deque[logging.LogRecord] = deque()
        logger = logging.getLogger("framedex")
        logger.addHandler(_Collector(self._records))
        logger.propagate = False
        self._thread = threading.Thread(target=self._deliver, name="framedex-deliver", daemon=True)
        self._thread.start()

    def _announce(self, number: int, descriptor: int) -> None:
        self._trainer.send(("slot", number))
        reduction.send_handle(self._trainer, descriptor, None)

    def obey(self, command: str, number: int, *arguments: Any) -> None:
        """Carry out a message of the trainer's process."""
        if command == "begin":
            with self._changing:
                self._run = number  # a new feeder begins with the run of its first batch
                self._batches.begin(*arguments)
            self._begun.put(number)
        elif command == "clear":
            with self._changing:
                self._run = number
                self._batches.clear()
            self.slots.starve(False)
        else:
            self.slots.starve(number == self._sent)

    def close(self) -> None:
        """End all threads and workers."""
        with self._changing:
            self._run = ALL
            self._batches.clear()
        self._begun.put(None)
        self._batches.close()

    def _deliver(self) -> None:
        while (run := self._begun.get()) is not None:
            with self._changing:
                if run != self._run:
                    continue  # it was cancelled
                finished = self._batches.pop()
            try:
                made = self._described(run, finished())
            except BaseException as error:
                made = _Made(run=run, error=_sendable(error))
            made.report, made.process_ids = self._report(), self._batches.process_ids
            made.records = [self._records.popleft() for _ in range(len(self._records))]
            self.slots.starve(False)
            self._sent += 1
            try:
                self._trainer.send(made)
            except OSError:
                return

    def _report(self) -> dict[str, Any]:
        """Return the values of the report, with the faults that were not sent before."""
        report = self._batches.report
        values = {one.name: getattr(report, one.name) for one in fields(report) if one.name != "faults"}
        new: list[Fault] = report.faults[self._faults :]
        self._faults += len(new)
        return values | {"faults": new}

    def _described(self, run: int, content: dict[str, Any]) -> _Made:
        """Write the arrays of a batch into a slot, and return the description of the batch."""
        if self._uploads:
            content["frames"] = _marked(content["frames"])
        pickled = _Pickler()
        pickled.dump(content)
        sizes = [len(view) for view in pickled.views]
        begins = itertools.accumulate(map(_aligned, sizes), initial=pickled.device_bytes)
        places = [(begin, begin + size) for begin, size in zip(begins, sizes, strict=False)]
        total = places[-1][1] if places else pickled.device_bytes
        made = _Made(run=run, content=pickled.text, places=places, device_bytes=pickled.device_bytes)
        if not total:
            return made
        slot = self.slots.take(total)
        array, made.slot = slot.array(), slot.number
        for (begin, end), view in zip(places, pickled.views, strict=True):
            array[begin:end] = np.frombuffer(view, np.uint8)
        self._copy_to(array, pickled.for_device)
        return made

    def _copy_to(self, array: NDArray[np.uint8], values: list[tuple[int, Any]]) -> None:
        on_gpu = []
        for begin, value in values:
            if isinstance(value, np.ndarray):
                target = array[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
                target[...] = value
            else:
                on_gpu.append((begin, value))
        if on_gpu:
            if self._copies is None:
                from framedex.loader.batches.on_gpu import HostCopies  # needs torch

                self._copies = HostCopies()
            self._copies.copy(array, on_gpu)


class _Collector(logging.Handler):
    """A handler that collects log records for the trainer's process."""

    def __init__(self, records: deque[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        self._records.append(record)


def _sendable(error: BaseException) -> BaseException:
    """Return an exception that can be pickled: the exception itself if possible."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return internal_error(error) if isinstance(error, Exception) else RuntimeError(repr(error))
    return error


@dataclass(slots=True)
class _Upload:
    """An array that the trainer's process copies to its GPU."""

    array: NDArray[Any]


def _marked(frames: Any) -> Any:
    """Mark the frames of a batch for the copy to a GPU."""
    if isinstance(frames, dict):
        return {view: _marked(own) for view, own in frames.items()}
    return list(map(_Upload, frames)) if isinstance(frames, list) else _Upload(frames)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Pickler:
    """Pickles a batch, and lists the arrays that belong into its slot.

    Attributes:
        text: The pickled batch.
        views: The bytes of each large array on the CPU.
        for_device: (begin in the slot, array or CUDA tensor) of everything that the trainer's GPU gets.
        device_bytes: The size of the part of the slot with these.
    """

    def __init__(self) -> None:
        self.text, self.device_bytes = b"", 0
        self.views: list[memoryview] = []
        self.for_device: list[tuple[int, Any]] = []

    def dump(self, content: dict[str, Any]) -> None:
        """Pickle a batch."""
        written = io.BytesIO()
        pickler = pickle.Pickler(written, protocol=5, buffer_callback=self._in_band)
        pickler.persistent_id = self._place  # type: ignore[method-assign]
        pickler.dump(content)
        self.text = written.getvalue()

    def _in_band(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if len(view) < SHARED_FROM:
            return True
        self.views.append(view)
        return False

    def _place(self, value: Any) -> Any:
        """Return where a value is in the device part of the slot, or None if it is not there."""
        if isinstance(value, _Upload):
            value = value.array
            name = value.dtype.name
        elif getattr(value, "is_cuda", False):
            name = str(value.dtype).removeprefix("torch.")
        else:
            return None
        begin = self.device_bytes
        self.for_device.append((begin, value))
        self.device_bytes += _aligned(value.nbytes)
        return begin, begin + value.nbytes, name, tuple(value.shape)


class _Unpickler(pickle.Unpickler):
    """Unpickles a batch whose arrays are in a slot.

    Args:
        file: The pickled batch.
        buffers: The parts of the slot with arrays on the CPU.
        uploaded: uint8 [device bytes], the tensor on the GPU with the first part of the slot.
    """

    def __init__(self, file: io.BytesIO, *, buffers: list[memoryview], uploaded: Any) -> None:
        super().__init__(file, buffers=buffers)
        self._uploaded = uploaded

    def persistent_load(self, place: tuple[int, int, str, tuple[int, ...]]) -> Any:
        """Return a tensor on the GPU."""
        import torch

        begin, end, name, shape = place
        return self._uploaded[begin:end].view(getattr(torch, name)).view(shape)
