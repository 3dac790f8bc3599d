"""Batches on their way from the feeder to the trainer: descriptions, and arrays in slots of shared memory.

Arrays of at least SHARED_FROM bytes are in a slot, all others in the description. Frames for a GPU come first in the
slot, so that one copy moves all of them.
"""

import io
import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framedex.loader.batches.slots import SHARED_FROM, Slot

ALIGNMENT = 256  # bytes, alignment of arrays in a slot; copies to and from a GPU are fast with it
ALL = -1  # in place of the key of a batch: the error ends the feeder


class BatchMessage(NamedTuple):
    """The description of a finished batch, or the error of a batch.

    Attributes:
        key: The key of the batch, or ALL for an error that ends the feeder.
        content: The pickled batch, without the arrays in the slot.
        slots: The number of the slot with arrays of the batch, and of the slot that was the batch's room. None if there
            is no such slot.
        places: (index in `slots`, begin, end) of each array on the CPU.
        device_bytes: For each slot, the size of its first part, which is copied to the GPU.
        error: The error. None if the batch is complete.
        report: The counts since the last batch, as `LoaderReport.take` returns them.
        records: The log records since the last batch.
        process_ids: The process ids of the feeder's workers.
    """

    key: int
    content: bytes = b""
    slots: tuple[int | None, int | None] = (None, None)
    places: Sequence[tuple[int, int, int]] = ()
    device_bytes: Sequence[int] = (0, 0)
    error: BaseException | None = None
    report: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    records: Sequence[logging.LogRecord] = ()
    process_ids: Sequence[int] = ()


@dataclass(slots=True)
class Upload:
    """An array that the trainer's process copies to its GPU."""

    array: NDArray[Any]


def marked(frames: Any) -> Any:
    """Mark the frames of a batch for the copy to the trainer's GPU. Tensors on a GPU are copied in any case."""
    if isinstance(frames, dict):
        return {view: marked(own) for view, own in frames.items()}
    if isinstance(frames, list):
        return list(map(marked, frames))
    return Upload(frames) if isinstance(frames, np.ndarray) else frames


def aligned(size: int) -> int:
    """Return a size, rounded up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class BatchPickler:
    """Pickles a batch, and lists the arrays that belong into its slots.

    Args:
        room: The slot in which arrays may be already.

    Attributes:
        text: The pickled batch.
        places: (1, begin, end) of each large array on the CPU that is in the room, and None for each other one.
        views: The bytes of each large array that is not in the room.
        for_device: (begin in the slot, array or CUDA tensor) of all values for the trainer's GPU that are not in the
            room.
        device_bytes: The sizes of the parts of the slot and of the room that are copied to the trainer's GPU.
        uses_room: Whether an array is in the room.
    """

    def __init__(self, room: Slot | None) -> None:
        self.text, self.uses_room, self.device_bytes = b"", False, [0, 0]
        self.places: list[tuple[int, int, int] | None] = []
        self.views: list[memoryview] = []
        self.for_device: list[tuple[int, Any]] = []
        self._room = (0, 0) if room is None else (_address(room.array()), room.size)

    def dump(self, content: dict[str, Any]) -> None:
        """Pickle a batch."""
        written = io.BytesIO()
        pickler = pickle.Pickler(written, protocol=5, buffer_callback=self._in_band)
        pickler.persistent_id = self._place  # type: ignore[method-assign]
        pickler.dump(content)
        self.text = written.getvalue()

    def _in_room(self, array: NDArray[Any]) -> int | None:
        """Return where an array begins in the room, or None if it is not there."""
        first, size = self._room
        begin = _address(array) - first
        if not 0 <= begin < size:
            return None
        self.uses_room = True
        return begin

    def _in_band(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if len(view) < SHARED_FROM:
            return True
        begin = self._in_room(np.frombuffer(view, np.uint8))
        self.places.append(None if begin is None else (1, begin, begin + len(view)))
        if begin is None:
            self.views.append(view)
        return False

    def _place(self, value: Any) -> Any:
        """Return where a value is in the parts for the GPU, or None if it is not there."""
        begin = None
        if isinstance(value, Upload):
            value = value.array
            name, begin = value.dtype.name, self._in_room(value)
        elif getattr(value, "is_cuda", False):
            name = str(value.dtype).removeprefix("torch.")
        else:
            return None
        slot = 0 if begin is None else 1
        if begin is None:
            begin = self.device_bytes[0]
            self.for_device.append((begin, value))
        end = begin + value.nbytes
        self.device_bytes[slot] = max(self.device_bytes[slot], aligned(end) if slot == 0 else end)
        return slot, begin, end, name, tuple(value.shape)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class BatchUnpickler(pickle.Unpickler):
    """Unpickles a batch whose arrays are in a slot.

    Args:
        file: The pickled batch.
        buffers: The parts of the slot with arrays on the CPU.
        uploaded: uint8 [device bytes], for each slot the tensor on the GPU with its first part.
    """

    def __init__(self, file: io.BytesIO, *, buffers: list[memoryview], uploaded: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._uploaded = uploaded

    def persistent_load(self, place: tuple[int, int, int, str, tuple[int, ...]]) -> Any:
        """Return a tensor on the GPU."""
        import torch

        slot, begin, end, name, shape = place
        return self._uploaded[slot][begin:end].view(getattr(torch, name)).view(shape)
