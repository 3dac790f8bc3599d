"""Clips that are decoded together, although they belong to different batches.

A worker decodes a group of clips when the first one is needed. The frames of the others are written into the memory of
their batches, which begin later. If this memory would be more than allowed, clips are left out and requested again.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from framedex.core.limits import GIBIBYTE
from framedex.loader.batches.faults import Fault, Fetched, GroupSizes, OfMember
from framedex.loader.batches.rooms import Placed, Room, Rooms
from framedex.loader.batches.supply import ClipSupply
from framedex.loader.routing.balance import Balance, ClipCost

LOG = logging.getLogger("framedex.loader")
# A function that gives clips with one movie to the GPU. Its arguments are (key of the batch, index in the batch, clip)
# of each clip. It returns the future of each clip with its frames.
DecodeTogether = Callable[[Sequence[tuple[int, int, Fetched]]], Sequence["Future[Any]"]]


class Later(NamedTuple):
    """A clip that is decoded together with a clip of an earlier or the same batch.

    Attributes:
        batches: The number of batches between the two clips. 0 for the same batch.
        place: The index of the clip in its batch.
        number: The number of the clip.
    """

    batches: int
    place: int
    number: int


@dataclass(slots=True, eq=False)
class _Member:
    batch: int
    place: int
    number: int
    done: "Future[Fetched | Fault]" = field(default_factory=Future)
    rest: "_Group | None" = None  # the group with which the clip is requested again when its batch begins


@dataclass(slots=True, eq=False)
class _Group:
    members: list[_Member]
    on_gpu: bool | None


class SharedClips:
    """The clips of a loader that are decoded together. Thread-safe.

    Args:
        supply: The supply of clips.
        rooms: The memory of batches. If None, frames wait in memory of their own.
        balance: The object that divides clips between GPU and workers. None if the division is fixed.
        decode: A function that gives clips to the GPU.
        batch_size: The number of clips of a batch.
        most_bytes: The maximum number of bytes of memory for later batches.
    """

    def __init__(
        self,
        supply: ClipSupply,
        rooms: Rooms | None,
        balance: Balance | None,
        decode: DecodeTogether,
        *,
        batch_size: int,
        most_bytes: int,
    ) -> None:
        self._supply, self._rooms, self._balance, self._decode = supply, rooms, balance, decode
        self._batch_size, self._most_bytes = batch_size, most_bytes
        self._early: dict[int, dict[int, _Member]] = {}  # clips of batches that have not begun, by batch and place
        self._filled: set[int] = set()  # those of these batches that have memory
        self._newest = 0
        self._is_short = False  # whether the memory did not suffice for a group
        self._largest = 0  # the largest number of bytes of a clip's frames so far
        self._lock = threading.RLock()  # a worker pool without processes answers in the thread that submits

    def fits(self, batch: int, numbers: Sequence[int]) -> bool:
        """Return whether all clips that were requested for a batch are the clips that it has now."""
        early = self._early.get(batch, {})
        return all(place < len(numbers) and numbers[place] == member.number for place, member in early.items())

    def forget(self) -> int:
        """Cancel all clips of batches that have not begun.

        Returns:
            The greatest key of these batches, or 0. Workers may still write to their memory, so these keys must not be
            used any more.
        """
        with self._lock:
            early, self._early = self._early, {}
            self._filled.clear()
            for batch, members in early.items():
                for member in members.values():
                    member.done.cancel()
                if self._rooms is not None:
                    self._rooms.end(batch, is_used=False)
            return max(early, default=0)

    def begin(self, batch: int) -> dict[int, "Future[Fetched | Fault]"]:
        """Begin a batch for which `fits` is true. Return the futures of the clips that were requested, by place."""
        with self._lock:
            self._newest = batch
            self._filled.discard(batch)
            members = self._early.pop(batch, {})
            groups = list({id(one.rest): one.rest for one in members.values() if one.rest is not None}.values())
            for group in groups:
                for member in group.members:
                    member.rest = None
        for group in groups:
            self._request(group)
        return {place: member.done for place, member in members.items()}

    def submit(
        self, batch: int, place: int, number: int, later: Sequence[Later], *, on_gpu: bool | None
    ) -> dict[int, "Future[Fetched | Fault]"]:
        """Request a clip of the batch that began last, and the clips that are decoded together with it.

        Args:
            batch: The key of the batch. Batches that begin later have consecutive keys.
            place: The index of the clip in the batch.
            number: The number of the clip.
            later: The other clips.
            on_gpu: As for `ClipSupply.submit`.

        Returns:
            The futures of those of these clips that belong to the batch, by place.
        """
        members = [
            _Member(batch, place, number),
            *(_Member(batch + one.batches, one.place, one.number) for one in sorted(later)),
        ]
        with self._lock:
            for member in members:
                if member.batch > batch:
                    self._early.setdefault(member.batch, {})[member.place] = member
                    if self._rooms is not None:
                        self._rooms.begin(member.batch, self._batch_size)
        self._request(_Group(members, on_gpu))
        return {member.place: member.done for member in members if member.batch == batch}

    def _request(self, group: _Group) -> None:
        members = [member for member in group.members if not member.done.cancelled()]
        if not members:
            return
        granted: list[Room] = []
        task = self._supply.submit_group(
            [member.number for member in members], on_gpu=group.on_gpu, answer=partial(self._answer, members, granted)
        )

        def cancel(_: object) -> None:
            if all(member.done.cancelled() for member in members):
                task.cancel()

        for member in members:
            member.done.add_done_callback(cancel)
        task.add_done_callback(lambda task: self._arrived(task, _Group(members, group.on_gpu), granted))

    def _answer(self, members: list[_Member], granted: list[Room], question: object) -> int | bool | Placed | None:
        """Answer a worker's question about clips that it decodes together."""
        if isinstance(question, GroupSizes):
            return self._allowed(members, question.sizes)
        if isinstance(question, ClipCost):
            return self._balance is not None and self._balance.gives_to_gpu(members[0].batch, question)
        assert isinstance(question, OfMember)
        member = members[question.member]
        with self._lock:  # so that no room of a batch is granted after `forget`
            if self._rooms is None or member.done.cancelled():
                return None
            found = self._rooms.grant(member.batch, member.place, question.question)
        if found is None:
            return None
        granted.append(found[1])
        return found[0]

    def _allowed(self, members: list[_Member], sizes: list[int]) -> int:
        """Return how many of the clips may be decoded now. Others would need too much memory for later batches."""
        with self._lock:
            self._largest = max(self._largest, *sizes)
            each = self._largest * self._batch_size
            most, allowed = self._most_bytes // max(1, each), 0
            for member in members:
                if member.batch > self._newest and member.batch not in self._filled:
                    if len(self._filled) >= most:
                        break
                    self._filled.add(member.batch)
                allowed += 1
            waiting = len(self._filled) * each
            is_new = allowed < len(members) and not self._is_short
            self._is_short = self._is_short or is_new
        self._supply.report.note_waiting(waiting)
        if is_new:
            LOG.warning(
                "share_memory suffices for %d later batches of %.3f GiB (%d clips of up to %.3f GiB), so fewer clips "
                "are decoded together; give ClipLoader more share_memory, or the sampler a smaller window",
                most,
                each / GIBIBYTE,
                self._batch_size,
                self._largest / GIBIBYTE,
            )
        return max(1, allowed)

    def _arrived(self, task: "Future[list[Fetched | Fault | None]]", group: _Group, granted: list[Room]) -> None:
        """Give the clips of a finished task to their batches, and request those again that were left out."""
        members = group.members
        if self._rooms is not None:
            self._rooms.wrote(granted)
        if task.cancelled():
            for member in members:
                member.done.cancel()
            return
        if (error := task.exception()) is not None:
            for member in members:
                if member.done.set_running_or_notify_cancel():
                    member.done.set_exception(error)
            return
        found = task.result()
        fetched = [one for one in found if isinstance(one, Fetched)]
        if self._balance is not None and fetched and fetched[0].frames is not None and fetched[0].cost.cpu:
            self._balance.decoded_by_cpu(fetched[0].cost, fetched[0].decode_seconds)
        self._give_to_gpu(members, found)
        for member, one in zip(members, found, strict=True):
            if one is not None and member.done.set_running_or_notify_cancel():
                member.done.set_result(one)
        rest = _Group([member for member, one in zip(members, found, strict=True) if one is None], group.on_gpu)
        with self._lock:
            is_needed = any(member.batch <= self._newest for member in rest.members)
            for member in rest.members:
                member.rest = None if is_needed else rest
        if is_needed:
            self._request(rest)

    def _give_to_gpu(self, members: list[_Member], found: Sequence[Fetched | Fault | None]) -> None:
        """Give clips that have a movie together to the GPU."""
        clips = [
            (member.batch, member.place, clip)
            for member, clip in zip(members, found, strict=True)
            if isinstance(clip, Fetched) and clip.movie is not None and not member.done.cancelled()
        ]
        together = [entry for entry in clips if entry[2].movie is clips[0][2].movie]
        if len(together) > 1:
            for (_, _, clip), future in zip(together, self._decode(together), strict=True):
                clip.decoding = future


def later_by_place(
    decoded_with: Callable[[int], list[tuple[int, int]]], first: int, count: int, *, batch_size: int, end: int
) -> Mapping[int, list[Later]]:
    """Return the clips that are decoded together with a clip of a batch, by the index of this clip in the batch.

    Args:
        decoded_with: `decoded_with` of the sampler.
        first: The index of the batch's first clip among the clips of the iteration.
        count: The number of clips of the batch.
        batch_size: The number of clips of a full batch. All batches before this one are full.
        end: The number of clips of the iteration that become part of a batch.
    """
    found = {}
    for place in range(count):
        others = [(index, number) for index, number in decoded_with(first + place) if index < end]
        if others:
            batch = first // batch_size
            found[place] = [Later(index // batch_size - batch, index % batch_size, number) for index, number in others]
    return found
