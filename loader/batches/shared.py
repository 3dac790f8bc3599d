"""Clips that are decoded together, although they belong to different batches.

A worker decodes a group of clips when the first one is needed. The frames of the others are written into the memory of
their batches, which begin later. If this memory would be more than allowed, clips are left out and requested again.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from framedex.loader.batches.faults import Fault, Fetched, GroupSizes, OfMember
from framedex.loader.batches.frames import LoaderOptions
from framedex.loader.batches.rooms import Placed, Room, Rooms, warn_of_copies
from framedex.loader.batches.supply import ClipSupply, WorkerDiedError
from framedex.loader.order.order import GroupedVisit
from framedex.loader.routing.balance import Balance, ClipCost

LOG = logging.getLogger("framedex.loader")
# Each later batch takes one file descriptor in the trainer's process and two in the feeder, which may have 1024 each.
MAX_LATER_BATCHES = 128
# A function that gives clips with one movie to the GPU. Its arguments are (key of the batch, index in the batch, clip)
# of each clip. It returns the future of each clip with its frames.
DecodeTogether = Callable[[Sequence[tuple[int, int, Fetched]]], Sequence["Future[Any]"]]


class Later(NamedTuple):
    """A clip that is decoded together with a clip of an earlier or the same batch.

    Attributes:
        batches_later: The number of batches between the two clips. 0 for the same batch.
        place: The index of the clip in its batch.
        number: The number of the clip.
    """

    batches_later: int
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
    """Clips that are requested together.

    Attributes:
        members: The clips. Empty when the task has finished, because the futures of the clips refer to the group, which
            would be a circle of references that keeps all frames.
        on_gpu: As for `ClipSupply.submit`.
        task: The task of a worker, until it has finished.
    """

    members: list[_Member]
    on_gpu: bool | None
    task: "Future[list[Fetched | Fault | int]] | None" = None

    def cancel(self, _: object) -> None:
        """Cancel the task if all clips were cancelled."""
        if self.task is not None and all(member.done.cancelled() for member in self.members):
            self.task.cancel()


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
        self._filled: dict[int, int] = {}  # bytes of memory by batch, for batches that have memory and have not begun
        self._newest = 0
        self._is_short = False  # whether the memory did not suffice for a group
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
            self._filled.pop(batch, None)
            members = self._early.pop(batch, {})
            groups = list({id(one.rest): one.rest for one in members.values() if one.rest is not None}.values())
            for group in groups:
                for member in group.members:
                    member.rest = None
        self._request(*groups)
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
            The futures of the requested clips of this batch, by place. Futures of later batches are not returned.
        """
        members = [_Member(batch, place, number)]
        with self._lock:
            for one in sorted(later):
                member = _Member(batch + one.batches_later, one.place, one.number)
                if one.batches_later:
                    early = self._early.setdefault(member.batch, {})
                    if one.place in early:  # a clip of another iteration, which may be written there
                        continue
                    early[one.place] = member
                    if self._rooms is not None:
                        self._rooms.begin(member.batch, self._batch_size)
                members.append(member)
        self._request(_Group(members, on_gpu))
        return {member.place: member.done for member in members if member.batch == batch}

    def _request(self, *groups: _Group) -> None:
        """Request the clips of groups, and then the clips that finished tasks leave out and that are needed now."""
        waiting = deque(groups)
        while waiting:  # no recursion, because a pool without processes finishes tasks at once
            group = waiting.popleft()
            members = [member for member in group.members if not member.done.cancelled()]
            if not members:
                continue
            granted: list[Room] = []
            answer = partial(self._answer, members, granted)
            try:
                task = self._supply.submit_group([one.number for one in members], on_gpu=group.on_gpu, answer=answer)
            except RuntimeError:  # the pool was closed
                for member in members:
                    member.done.cancel()
                continue
            requested = _Group(members, group.on_gpu, task)
            for member in members:
                member.done.add_done_callback(requested.cancel)
            if task.done():
                waiting.extend(self._arrived(task, requested, granted))
            else:
                task.add_done_callback(partial(self._finish, requested, granted))

    def _finish(self, group: _Group, granted: list[Room], task: "Future[list[Fetched | Fault | int]]") -> None:
        self._request(*self._arrived(task, group, granted))

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
            waiting, allowed = sum(self._filled.values()), 0
            for member, size in zip(members, sizes, strict=True):
                before = self._filled.get(member.batch, 0)
                needed = max(before, size * self._batch_size)
                if member.batch > self._newest and needed > before and not member.done.cancelled():
                    is_full = not before and len(self._filled) >= MAX_LATER_BATCHES
                    if is_full or waiting - before + needed > self._most_bytes:
                        break
                    self._filled[member.batch], waiting = needed, waiting - before + needed
                allowed += 1
            is_first_time = allowed < len(members) and not self._is_short
            self._is_short |= is_first_time
        self._supply.report.note_waiting(waiting)
        if is_first_time:
            LOG.warning(
                "share_memory=%d bytes suffices for %d later batches of %d bytes, so fewer clips are decoded together; "
                "give ClipLoader more share_memory, or the sampler a smaller window",
                self._most_bytes,
                min(self._most_bytes // max(1, needed), MAX_LATER_BATCHES),
                needed,
            )
        return max(1, allowed)

    def _arrived(self, task: "Future[list[Fetched | Fault | int]]", group: _Group, granted: list[Room]) -> list[_Group]:
        """Give the clips of a finished task to their batches.

        Clips that were left out form groups. A group that is needed now is returned, and must be requested again. A
        group that is not needed yet is requested when a batch of one of its clips begins.
        """
        members, group.members, group.task = group.members, [], None
        if self._rooms is not None:
            self._rooms.wrote(granted)
        if task.cancelled():
            for member in members:
                member.done.cancel()
            return []
        error = task.exception()
        if isinstance(error, WorkerDiedError) and len(members) > 1:
            LOG.warning("%s while it was at a group of %d clips, which are fetched again alone", error, len(members))
            self._supply.report.add(retried="crash")
            return self._needed_now([[member] for member in members], group.on_gpu)
        if error is not None:
            for member in members:
                if member.done.set_running_or_notify_cancel():
                    member.done.set_exception(error)
            return []
        found = task.result()
        fetched = [one for one in found if isinstance(one, Fetched)]
        if fetched and fetched[0].frames is not None:
            warn_of_copies(granted, [one.frames for one in fetched])
            if self._balance is not None and fetched[0].cost.cpu:
                self._balance.decoded_by_cpu(fetched[0].cost, fetched[0].decode_seconds)
        self._give_to_gpu(members, found)
        left: dict[int, list[_Member]] = {}
        for member, one in zip(members, found, strict=True):
            if isinstance(one, int):
                left.setdefault(one, []).append(member)
            elif member.done.set_running_or_notify_cancel():
                member.done.set_result(one)
        return self._needed_now(list(left.values()), group.on_gpu)

    def _needed_now(self, left: list[list[_Member]], on_gpu: bool | None) -> list[_Group]:
        """Make groups of clips that were left out, and return the groups that are needed now.

        `begin` requests the other groups.
        """
        needed = []
        with self._lock:
            for rest in (_Group(members, on_gpu) for members in left):
                if any(member.batch <= self._newest for member in rest.members):
                    needed.append(rest)
                else:
                    for member in rest.members:
                        member.rest = rest
        return needed

    def _give_to_gpu(self, members: list[_Member], found: Sequence[Fetched | Fault | int]) -> None:
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


def later_clips(
    grouped: GroupedVisit, options: LoaderOptions, batch: int, numbers: Sequence[int]
) -> dict[int, list[Later]]:
    """Return the clips that are decoded together with clips of a batch, by the index of the clip in the batch.

    Args:
        grouped: The clips of the iteration.
        options: The options of ClipLoader.
        batch: The index of the batch in the iteration. All batches before it are full.
        numbers: The clips of the batch, without padding.
    """
    size, count = options.batch_size, len(grouped.clips)
    end = count - count % size if options.last == "drop" else count  # the clips that become part of a batch
    found = {}
    for place, number in enumerate(numbers):
        others = [one for one in grouped.later(batch * size + place, number) if one[0] < end]
        if others:
            found[place] = [Later(index // size - batch, index % size, clip) for index, clip in others]
    return found
