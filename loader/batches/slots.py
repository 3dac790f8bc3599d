"""Memory for batches that two processes share: blocks (slots) that are written by one process and read by the other.

Each slot is anonymous shared memory (a memfd) that both processes map once. A slot is used again when nothing uses its
content any more: the reading process sees that its last array in the slot is freed, and that its last copy from the
slot to a GPU is complete.
"""

import contextlib
import functools
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import GIBIBYTE, machine_bytes
from framedex.errors import FramedexError

DROPPED = 1 << 31  # added to the number of a slot that must not be used again
SHARE, LEAST = 4, 3  # the slots of all ranks may take a quarter of the memory, but there may always be three
SHARED_FROM = 64 << 10  # bytes of the smallest array in a slot
STEP = 2 << 20  # slots have a multiple of this size in bytes
SPARE = 8  # a new slot is larger by this part than needed, so that it also suffices for slightly larger batches
LOG = logging.getLogger("framedex.loader")


class Slot:
    """A block of shared memory, as one of the processes maps it.

    Args:
        number: The number of the slot.
        descriptor: The file descriptor of the memfd. It is closed with this object.

    Attributes:
        path: A file from which other processes of the same user can map the slot while this object exists.
        size: The size in bytes.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self.number, self._file = number, os.fdopen(descriptor, "r+b", buffering=0)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED)  # this copies the descriptor
        self.size = len(self._memory)
        self._pinned_for: int | None = None  # number of the GPU

    def array(self) -> NDArray[np.uint8]:
        """Return a new array, uint8 [size], of the slot's memory. Arrays and tensors made from it keep it alive."""
        return np.frombuffer(self._memory, np.uint8)

    def close_file(self) -> None:
        """Close the descriptor, so that `path` does not exist any more. The memory stays mapped."""
        self._file.close()

    def pin(self, device_id: int) -> None:
        """Lock the memory for fast copies to and from a GPU. If CUDA refuses, copies are slower, but correct.

        A refusal is logged once.
        """
        import torch

        with torch.cuda.device(device_id):
            cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            result = cuda.cudaHostRegister(self.array().ctypes.data, self.size, 0)
            if int(result) == 0:
                self._pinned_for = device_id
                return
            with contextlib.suppress(RuntimeError):  # CUDA reports the refusal again at the next launch of a kernel
                torch.zeros(1, device="cuda").add_(1)
        warn_once(f"CUDA does not lock memory for batches (error {int(result)}), so copies to the GPU are slower")

    def unpin(self) -> None:
        """Undo `pin`. No copy from or to the memory may be in progress."""
        if self._pinned_for is not None:
            import torch

            with torch.cuda.device(self._pinned_for):
                torch.cuda.cudart().cudaHostUnregister(self.array().ctypes.data)  # type: ignore[no-untyped-call]
            self._pinned_for = None


class SlotMaker:
    """The slots of the writing process. Thread-safe.

    Args:
        send: A function that sends the number and the descriptor of a new slot to the reading process.
        drop: A function that sends the number of a slot that will not be used again to the reading process.
        device_id: The number of the GPU for which the slots are pinned in this process. None if they are not pinned.
        most: The maximum number of bytes of all slots. Defaults to a quarter of the machine's memory, divided by the
            number of ranks on this machine (LOCAL_WORLD_SIZE). Three slots are made in any case.
    """

    def __init__(
        self,
        send: Callable[[int, int], None],
        drop: Callable[[int], None],
        *,
        device_id: int | None,
        most: int | None = None,
    ) -> None:
        self._send, self._drop, self._device_id = send, drop, device_id
        self._most = machine_bytes() // SHARE // local_ranks() if most is None else most
        self._slots: dict[int, Slot] = {}
        self._free: list[int] = []
        self._made = 0
        self._early: set[int] = set()  # slots of `take_spare` that were not sent or released
        self._changed = threading.Condition()
        self._is_starving = False

    def take(self, size: int) -> Slot:
        """Return a free slot of at least `size` bytes. Wait for one if all slots together would be too large.

        Raises:
            FramedexError: The reading process waits for a batch, and keeps all slots.
        """
        with self._changed:
            while True:
                slot = self._fitting(size)
                if slot is not None:
                    return slot
                if self._is_starving and self._early:  # then not the reading process, but later batches hold memory
                    return self._new(_needed(size))
                if self._is_starving:
                    raise self._full(size)
                self._changed.wait()

    def take_spare(self, size: int) -> Slot | None:
        """Return a slot of at least `size` bytes if there is memory for one more of this size, or else None.

        So batches that get a slot early never take the memory that the oldest batch needs.
        """
        with self._changed:
            slot = self._fitting(size, spare=1)
            if slot is not None:
                self._early.add(slot.number)
            return slot

    def sent(self, number: int) -> None:
        """Note that a slot of `take_spare` was sent to the reading process."""
        with self._changed:
            self._early.discard(number)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the slots that were not dropped."""
        return tuple(self._slots)

    def _fitting(self, size: int, *, spare: int = 0) -> Slot | None:
        fitting = [number for number in self._free if self._slots[number].size >= size]
        needed = _needed(size)
        used = sum(slot.size for slot in self._slots.values()) - sum(self._slots[number].size for number in self._free)
        in_use = len(self._slots) - len(self._free)
        allowed = max(0 if spare else LEAST, in_use + (self._most - used) // needed)
        if in_use + 1 + spare > allowed:
            return None
        if fitting:
            number = min(fitting, key=lambda number: self._slots[number].size)
            self._free.remove(number)
            return self._slots[number]
        for number in self._free:  # they are too small, so they would only take memory
            self._slots.pop(number).unpin()
            self._drop(number)
        self._free.clear()
        return self._new(needed)

    def _new(self, size: int) -> Slot:
        self._made += 1
        descriptor = os.memfd_create("framedex-batch", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        self._send(self._made, descriptor)
        slot = Slot(self._made, descriptor)
        if self._device_id is not None:
            slot.pin(self._device_id)
        self._slots[slot.number] = slot
        return slot

    def _full(self, size: int) -> FramedexError:
        return FramedexError(
            "the batches that are in use leave no memory for another one",
            found=f"{len(self._slots)} batches in use, and one of {size / GIBIBYTE:.2f} GiB wanted",
            allowed=f"{self._most / GIBIBYTE:.2f} GiB of shared memory",
            remedy="keep copies of the arrays that you need, such as batch['frames'].clone() (of numpy arrays: "
            "copy()), or make smaller batches",
        )

    def release(self, number: int, *, is_reusable: bool = True) -> None:
        """Make a slot free, because the reading process does not use its content any more.

        Args:
            number: The number of the slot.
            is_reusable: Whether the slot may be used again. If not, it is dropped.
        """
        with self._changed:
            self._early.discard(number)
            if is_reusable:
                self._free.append(number)
            else:
                self._slots.pop(number).unpin()
                self._drop(number)
            self._changed.notify()

    def starve(self, is_starving: bool) -> None:
        """Set whether the reading process waits for a batch that was not sent yet."""
        with self._changed:
            self._is_starving = is_starving
            self._changed.notify()


def local_ranks() -> int:
    """Return the number of ranks on this machine, as torchrun and others set it. 1 if it is not set."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


def _needed(size: int) -> int:
    """Return the size of a new slot for `size` bytes."""
    return -(-(size + size // SPARE) // STEP) * STEP


class SlotReader:
    """The slots of the reading process.

    Args:
        release: The function that is called with the number of a slot when nothing uses its content any more.
        device_id: The number of the GPU for which the slots are pinned in this process. None if they are not pinned.
    """

    def __init__(self, release: Callable[[int], None], *, device_id: int | None) -> None:
        self._release, self._device_id = release, device_id
        self._slots: dict[int, Slot] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a new slot."""
        slot = self._slots[number] = Slot(number, descriptor)
        slot.close_file()
        if self._device_id is not None:
            slot.pin(self._device_id)

    def drop(self, number: int) -> None:
        """Forget a slot that is not in use and will not be used again."""
        self._slots.pop(number).unpin()

    def content(self, number: int) -> NDArray[np.uint8]:
        """Return the content of a slot, uint8 [size]. When the array and all of its views are freed, so is the slot."""
        array = self._slots[number].array()
        weakref.finalize(array, self._released, number, _forks).atexit = False
        return array

    def _released(self, number: int, forks: int) -> None:
        # A process that this process has forked since may still use the content.
        self._release(number if forks == _forks else number | DROPPED)

    def close(self) -> None:
        """Forget all slots. Arrays that are still in use stay valid."""
        if self._device_id is not None and self._slots:
            import torch

            torch.cuda.synchronize(self._device_id)  # copies from the slots may be in progress
        for slot in self._slots.values():
            slot.unpin()
        self._slots.clear()


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning, but only once in this process."""
    LOG.warning("%s", text)


_forks = 0  # number of times that this process was forked


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork)
