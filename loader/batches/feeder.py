"""The process that makes the batches of a loader, and sends them to the trainer's process (`fed_batches`).

The feeder has the workers, the decoders of a GPU, collation and DALI.
"""

import contextlib
import itertools
import logging
import os
import pickle
import queue
import signal
import threading
from collections import deque
from multiprocessing import connection, reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import internal_error
from framedex.execution.spawning import leave_out_pandas
from framedex.loader.batches.batch_queue import BatchQueue, BatchSetup
from framedex.loader.batches.rooms import Rooms
from framedex.loader.batches.slots import DROPPED, Slot, SlotMaker
from framedex.loader.batches.transfer import ALL, BatchMessage, BatchPickler, aligned, marked
from framedex.loader.routing.driver import sleep_while_waiting

SECONDS_TO_SEND = 5.0  # seconds after which a feeder that ends does not wait for its last message any more


def feed(trainer: Any, released: Any, setup: bytes, *, uploads: bool, trainer_id: int) -> None:
    """Make batches until the trainer's process closes the connection, or ends. This is the feeder's main function.

    Args:
        trainer: The connection to the trainer's process.
        released: The pipe from which the numbers of slots arrive that are not in use any more.
        setup: The packed BatchSetup.
        uploads: Whether the trainer's process copies frames to its GPU.
        trainer_id: The process id of the trainer's process.
    """
    # A signal to all processes of a job must not end the feeder before the trainer has saved its state.
    signal.signal(signal.SIGTERM, lambda *_: None)
    outbox, feeder = _Outbox(trainer), None
    try:
        own = BatchSetup.unpacked(setup)
        if own.runs_own_code and not own.has_functions:
            leave_out_pandas()
        if own.options.device == "gpu":
            sleep_while_waiting(own.options.device_id)
        feeder = _Feeder(outbox, own, uploads=uploads)
        watched = [trainer, released, *_end_of(trainer_id)]
        while True:
            ready = connection.wait(watched)
            if ready and not {trainer, released} & set(ready):
                return  # the trainer's process has ended
            if trainer in ready:
                message = pickle.loads(trainer.recv_bytes())
                _release(feeder.slots, released)  # first, because the message may be that the trainer waits
                feeder.obey(*message)
            else:
                _release(feeder.slots, released)
    except (EOFError, ConnectionError):
        pass
    except Exception as error:
        outbox.put(BatchMessage(key=ALL, error=_sendable(error)))
    finally:
        if feeder is not None:
            feeder.close()
        outbox.close()


def _end_of(process: int) -> list[int]:
    """Return a descriptor that becomes readable when a process ends. The list is empty if the system has none.

    The connection is not sufficient, because processes that the trainer's process has forked keep it open.
    """
    try:
        return [os.pidfd_open(process)]
    except (OSError, AttributeError):
        return []


def _release(slots: SlotMaker, released: Any) -> None:
    """Make the slots free whose numbers have arrived. Raises EOFError if the pipe is closed."""
    while released.poll():
        numbers = os.read(released.fileno(), 4096)
        if not numbers:
            raise EOFError
        for at in range(0, len(numbers), 4):
            number = int.from_bytes(numbers[at : at + 4], "little")
            slots.release(number & ~DROPPED, is_reusable=not number & DROPPED)


class _Outbox:
    """Sends messages in a thread, so that no other thread waits until the trainer's process receives them."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._messages: queue.SimpleQueue[tuple[Any, int | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="framedex-send", daemon=True)
        self._thread.start()

    def put(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message, and a copy of a descriptor if one is given."""
        self._messages.put((message, None if descriptor is None else os.dup(descriptor)))

    def _send(self) -> None:
        while (entry := self._messages.get()) is not None:
            message, descriptor = entry
            try:
                self._trainer.send_bytes(pickle.dumps(message))
                if descriptor is not None:
                    reduction.send_handle(self._trainer, descriptor, None)
            except OSError:  # the trainer's process has closed the connection
                return
            except Exception as error:  # such as MemoryError while the message is pickled
                with contextlib.suppress(Exception):
                    self._trainer.send_bytes(pickle.dumps(BatchMessage(key=ALL, error=_sendable(error))))
                return
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def close(self) -> None:
        """Send the messages that wait, and end the thread."""
        self._messages.put(None)
        self._thread.join(SECONDS_TO_SEND)


class _Feeder:
    """The batches of a feeder, and the thread that finishes and sends them.

    Args:
        outbox: The messages to the trainer's process.
        setup: The dataset and the options.
        uploads: See `feed`.
    """

    def __init__(self, outbox: _Outbox, setup: BatchSetup, *, uploads: bool) -> None:
        self._outbox, self._uploads = outbox, uploads
        self.slots = SlotMaker(
            lambda number, descriptor: outbox.put(("slot", number), descriptor),
            lambda number: outbox.put(("drop", number)),
            device_id=setup.options.device_id if setup.options.device == "gpu" else None,
        )
        # Decoders write frames into rooms if nothing but collation is left to do.
        self._rooms = Rooms(self.slots) if setup.workers_finish else None
        self._records: deque[logging.LogRecord] = deque()
        self._logger = logging.getLogger("framedex")
        self._logger.addHandler(_Collector(self._records))
        self._logger.propagate = False
        self._batches = BatchQueue(setup, self._rooms)
        self._own_keys: dict[int, int] = {}  # the key in `_batches` of each batch that was begun and not finished
        self._changing = threading.Lock()
        self._sent, self._last = 0, 0  # the number of batches that were sent, and the key of the last one
        self._begun: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._copies: Any = None
        self._thread = threading.Thread(target=self._deliver, name="framedex-deliver", daemon=True)
        self._thread.start()

    def obey(self, command: str, *arguments: Any) -> None:
        """Carry out a message of the trainer's process."""
        with self._changing:
            if command == "begin":
                key, items, padding, is_first, level, later = arguments
                if level is not None:  # the level of the logger in the trainer's process
                    self._logger.setLevel(level)
                self._own_keys[key] = self._batches.begin(items, padding, is_first=is_first, later=later)
                self._begun.put(key)
            elif command == "cancel":
                self._batches.cancel([self._own_keys.pop(key) for key in arguments[0] if key in self._own_keys])
            else:
                key, received = arguments
                # If a batch is on its way, the trainer sends this message again after it has received the batch.
                if key > self._last and received == self._sent:
                    self.slots.starve(True)

    def close(self) -> None:
        """End all threads and workers."""
        with self._changing:
            self._batches.cancel(list(self._own_keys.values()))
            self._own_keys.clear()
        self._begun.put(None)
        self.slots.starve(True)  # ends its wait for a slot
        self._batches.close()
        self._thread.join(SECONDS_TO_SEND)

    def _deliver(self) -> None:
        try:
            self._deliver_all()
        except Exception as error:
            self._outbox.put(BatchMessage(key=ALL, error=_sendable(error)))

    def _deliver_all(self) -> None:
        while (key := self._begun.get()) is not None:
            with self._changing:
                own = self._own_keys.pop(key, None)
                if own is None:
                    continue  # it was cancelled
                finished = self._batches.pop(own)
            try:
                made = self._described(key, finished, own)
            except BaseException as error:
                made = BatchMessage(key=key, error=_sendable(error))
            if self._rooms is not None:
                self._rooms.end(own, is_used=made.slots[1] is not None)
            made = made._replace(
                report=self._batches.report.take(),
                records=[self._records.popleft() for _ in range(len(self._records))],
                process_ids=self._batches.process_ids,
            )
            with self._changing:
                self.slots.starve(False)
                self._sent, self._last = self._sent + 1, key
            self._outbox.put(made)

    def _described(self, key: int, finished: Any, own: int) -> BatchMessage:
        """Wait for a batch, write its arrays into a slot unless they are in the batch's room, and describe it."""
        content = finished()
        room = None if self._rooms is None else self._rooms.slot(own)
        if self._uploads:
            content["frames"] = marked(content["frames"])
        pickled = BatchPickler(room)
        pickled.dump(content)
        sizes = [len(view) for view in pickled.views]
        *begins, total = itertools.accumulate(map(aligned, sizes), initial=pickled.device_bytes[0])
        number = None
        if total:
            slot = self.slots.take(total)
            try:
                self._fill(slot, pickled, begins)
            except BaseException:
                self.slots.release(slot.number)
                raise
            number = slot.number
        copied = iter([(0, begin, begin + size) for begin, size in zip(begins, sizes, strict=True)])
        return BatchMessage(
            key=key,
            content=pickled.text,
            slots=(number, room.number if room is not None and pickled.uses_room else None),
            places=[next(copied) if place is None else place for place in pickled.places],
            device_bytes=pickled.device_bytes,
        )

    def _fill(self, slot: Slot, pickled: BatchPickler, begins: list[int]) -> None:
        """Write the arrays of a batch into a slot. Wait until all copies from the GPU are complete."""
        array: NDArray[np.uint8] = slot.array()
        for begin, view in zip(begins, pickled.views, strict=True):
            array[begin : begin + len(view)] = np.frombuffer(view, np.uint8)
        on_gpu = []
        for begin, value in pickled.for_device:
            if isinstance(value, np.ndarray):
                target = array[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
                target[...] = value
            else:
                on_gpu.append((begin, value))
        if on_gpu:
            if self._copies is None:
                from framedex.loader.batches.on_gpu import HostCopies  # needs torch

                self._copies = HostCopies(on_gpu[0][1].device)
            self._copies.copy([(tensor, array[begin : begin + tensor.nbytes]) for begin, tensor in on_gpu])


class _Collector(logging.Handler):
    """A handler that collects log records for the trainer's process."""

    def __init__(self, records: deque[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
        with contextlib.suppress(Exception):  # a record with attributes that cannot be sent
            pickle.dumps(record)
            self._records.append(record)


def _sendable(error: BaseException) -> BaseException:
    """Return an exception that can be pickled: the exception itself if possible."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return internal_error(error) if isinstance(error, Exception) else RuntimeError(repr(error))
    return error
