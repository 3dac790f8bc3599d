"""Room in shared memory for the frames of a batch, into which decoders write the frames of their clips.

When a worker has decoded a clip, it asks for room. For the first clip of a batch, the feeder takes a slot that is large
enough for all clips of the batch. So the frames of clips with one shape form a whole batch in the slot, and are not
copied again before they leave the slot. A clip of another shape gets no room, and its frames are sent to the feeder.
Frames that a GPU has decoded are copied into the same slot.
"""

import contextlib
import math
import mmap
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framedex.loader.batches.faults import Fetched
from framedex.loader.batches.frames import Finish, Frames
from framedex.loader.batches.slots import Slot, SlotMaker, warn_once
from framedex.records.clip import PAD

Shape = tuple[int, ...]


class RoomRequest(NamedTuple):
    """The question of a worker for room for the frames of a clip.

    Attributes:
        shape: The shape of the frames.
        dtype: The name of their type, as of numpy.
    """

    shape: Shape
    dtype: str

    @property
    def size(self) -> int:
        """The size of the frames in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Placed(NamedTuple):
    """Frames of a clip that are in a slot.

    Attributes:
        batch: The key of the batch.
        slot: The number of the slot.
        begin: The first byte in the slot.
        frames: The shape and the type.
        path: The file of the slot's memory.
        slots: The numbers of all slots that exist.
    """

    batch: int
    slot: int
    begin: int
    frames: RoomRequest
    path: str
    slots: tuple[int, ...]


@dataclass(slots=True)
class Room:
    """The slot of a batch.

    Attributes:
        slot: The slot.
        clip: The shape and the type of the frames of each clip.
        writing: The number of clips whose frames may be written now.
        is_free: Whether the slot becomes free when nothing is written any more.
    """

    slot: Slot
    clip: RoomRequest
    writing: int = 0
    is_free: bool = False

    def array(self, begin: int, clips: int | None = None) -> NDArray[Any]:
        """Return the frames of a clip, or of this clip and the next ones, as an array of the slot's memory.

        Args:
            begin: The first byte of the frames.
            clips: The number of clips, which are the first axis of the array. If None, the array is of one clip.
        """
        size = self.clip.size * (1 if clips is None else clips)
        array = self.slot.array()[begin : begin + size].view(self.clip.dtype)
        return array.reshape(self.clip.shape if clips is None else (clips, *self.clip.shape))


class Rooms:
    """The rooms of the batches in progress, in the feeder. Thread-safe.

    Args:
        slots: The slots.
    """

    def __init__(self, slots: SlotMaker) -> None:
        self._slots = slots
        # A number of clips for a batch that has no room yet, and None for a batch that will not get any.
        self._rooms: dict[int, Room | int | None] = {}
        self._lock = threading.Lock()

    def begin(self, batch: int, clips: int) -> None:
        """Allow decoders to ask for room for a batch with this number of clips, unless they may already."""
        with self._lock:
            self._rooms.setdefault(batch, clips)

    def grant(self, batch: int, place: int, request: RoomRequest) -> tuple[Placed, Room] | None:
        """Return room for a clip, or None if there is none. `wrote` must be called when the frames are written.

        Args:
            batch: The key of the batch.
            place: The index of the clip in the batch.
            request: The shape and the type of the clip's frames.
        """
        with self._lock:
            room = self._rooms.get(batch)  # None if the batch was cancelled
            if isinstance(room, int):
                slot = None
                with contextlib.suppress(OSError):  # too many open files, or no memory
                    slot = self._slots.take_spare(room * request.size)
                room = self._rooms[batch] = None if slot is None else Room(slot, request)
            if room is None or room.clip != request:
                return None
            room.writing += 1
            begin = place * request.size
            return Placed(batch, room.slot.number, begin, request, room.slot.path, self._slots.numbers), room

    def wrote(self, rooms: list[Room]) -> None:
        """Note that frames were written, once into each room, or that they will not be written."""
        with self._lock:
            for room in rooms:
                room.writing -= 1
                self._release(room)

    def slot(self, batch: int) -> Slot | None:
        """Return the slot of a batch that was not ended, or None if it has none."""
        room = self._rooms[batch]
        return room.slot if isinstance(room, Room) else None

    def array(self, placed: Placed, clips: int | None = None) -> NDArray[Any]:
        """Return the frames of a clip, or of this clip and the next ones, as an array of the slot's memory.

        Args:
            placed: The place of the frames.
            clips: The number of clips, which are the first axis of the array. If None, the array is of one clip.
        """
        room = self._rooms[placed.batch]
        assert isinstance(room, Room)  # it has placed frames
        return room.array(placed.begin, clips)

    def end(self, batch: int, *, is_used: bool) -> None:
        """End the room of a batch that was finished or cancelled.

        Args:
            batch: The key of the batch.
            is_used: Whether the slot was sent to the trainer's process, which will release it.
        """
        with self._lock:
            room = self._rooms.pop(batch, None)
            if not isinstance(room, Room):
                return
            if is_used:
                self._slots.sent(room.slot.number)
            else:
                room.is_free = True
                self._release(room)

    def _release(self, room: Room) -> None:
        if room.is_free and not room.writing:
            room.is_free = False
            self._slots.release(room.slot.number)


class PlacedFrames(Frames):
    """The last stage of a feeder whose decoders write frames into rooms. Batches are made on the CPU.

    Args:
        finish: The options for the steps after decoding, which are done already except for collation.
        rooms: The rooms.
        decoding: The object that has the decoders.
    """

    def __init__(self, finish: Finish, rooms: Rooms, decoding: Frames) -> None:
        super().__init__(finish)
        self._rooms, self._decoding, self._copies = rooms, decoding, decoding.host_copies()
        self.decoders, self.at_once = decoding.decoders, decoding.at_once

    def working(self) -> AbstractContextManager[Any]:
        """Return the context manager of the decoders."""
        return self._decoding.working()

    def memory_left(self, error: BaseException) -> str | None:
        """If an error means that the GPU's memory is full, return a text with the free memory, otherwise None."""
        return self._decoding.memory_left(error)

    def kept(self, distinct: list[Any], clips: list[Fetched], places: list[tuple[int, int]]) -> list[Any]:
        """Copy decoded frames from the GPU into the rooms of their batches, or else into arrays, in their order."""
        from framedex.loader.batches.on_gpu import windows_of  # needs torch

        copies: list[tuple[Any, NDArray[Any]]] = []
        found: list[Any] = []
        rooms: list[Room] = []
        try:
            for frames, clip, (batch, place) in zip(distinct, clips, places, strict=True):
                windows = windows_of(frames, clip.cutout)
                order = clip.order
                assert order is not None  # every clip that a GPU decodes has an order
                shape = (len(windows), len(order), *windows.shape[2:])
                is_stacked = clip.cutout is not None and clip.cutout.is_stacked
                request = RoomRequest(shape if is_stacked else shape[1:], "uint8")
                granted = self._rooms.grant(batch, place, request)
                if granted is None:
                    array = np.empty(request.shape, np.uint8)
                else:
                    rooms.append(granted[1])
                    array = granted[1].array(granted[0].begin)
                found.append(array if granted is None else granted[0])
                array.reshape(shape)[:, order == PAD] = 0
                for into, first in runs_of(order):
                    copied = windows[:, first : first + into.stop - into.start]
                    copies += zip(copied, array.reshape(shape)[:, into], strict=True)
            assert self._copies is not None  # there are decoders
            self._copies.copy(copies)
        finally:
            self._rooms.wrote(rooms)
        return found

    def finish(self, frames: list[Any]) -> Any:
        """Return the frames of a batch: a part of the slot if they lie there one after the other, or else copies."""
        first = frames[0]
        if all(isinstance(clip, Placed) for clip in frames) and [clip.begin for clip in frames] == [
            first.begin + first.frames.size * number for number in range(len(frames))
        ]:
            if self._finish.collate == "list":
                return list(map(self._rooms.array, frames))
            return self._rooms.array(first, len(frames))
        return super().finish([self._rooms.array(clip).copy() if isinstance(clip, Placed) else clip for clip in frames])


def runs_of(order: NDArray[np.int64]) -> list[tuple[slice, int]]:
    """Divide an order of frames into runs of frames that are copied together.

    Args:
        order: int64 [F], the index of the decoded frame for each frame of a clip, or PAD.

    Returns:
        (frames of the clip, index of the first decoded frame) of each run. Frames of padding are in no run.
    """
    is_pad = order == PAD
    begins = np.flatnonzero(np.r_[True, (np.diff(order) != 1) | is_pad[:-1]])
    ends = np.r_[begins[1:], len(order)]
    runs = [(slice(begin, end), int(order[begin])) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    return [run for run in runs if run[1] != PAD]


def warn_of_copies(granted: list[Room], frames: list[Any]) -> None:
    """Warn once if a worker was given room, but returned frames instead of writing them there."""
    if len(granted) > sum(isinstance(one, Placed) for one in frames):
        warn_once("workers must not open the memory of batches in /proc, so frames are copied once more")


_mapped: dict[int, mmap.mmap] = {}  # the slots that this worker has mapped, by number


def write(frames: NDArray[Any], placed: Placed) -> bool:
    """Write frames to a place in a slot. Return False if this process must not map the slot. Workers call this."""
    if placed.slot not in _mapped:
        for number in _mapped.keys() - set(placed.slots):
            del _mapped[number]
        try:
            with open(placed.path, "r+b", buffering=0) as file:
                _mapped[placed.slot] = mmap.mmap(file.fileno(), 0)
        except OSError:  # such as a process that other processes must not inspect
            return False
    target = np.frombuffer(_mapped[placed.slot], frames.dtype, frames.size, placed.begin)
    target.reshape(frames.shape)[...] = frames
    return True
