"""Batches in progress, in the order in which they are delivered, and the options from which they are made."""

import contextlib
import importlib
import os
import pickle
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from framedex.loader.batches.faults import Fault, Fetched, LoaderReport
from framedex.loader.batches.fetch import FetchOptions, ReadableClips
from framedex.loader.batches.frames import Finish, Frames, JoinsViews, LoaderOptions
from framedex.loader.batches.maker import Batch, BatchMaker
from framedex.loader.batches.rooms import Placed, PlacedFrames, Room, RoomRequest, Rooms, warn_of_copies
from framedex.loader.batches.shared import Later, SharedClips
from framedex.loader.batches.supply import ClipSupply, Replacements
from framedex.loader.routing.balance import Balance, ClipCost
from framedex.loader.routing.routes import Share, is_on_cpu

DALI_THREADS = 8  # maximum number of DALI's CPU threads; more threads hardly help, and workers need the cores


class Batches(Protocol):
    """Interface of an object that makes the batches of a loader in the order in which they were begun."""

    report: LoaderReport

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running workers."""

    def begin(
        self, items: list[int], padding: int, *, is_first: bool, later: Mapping[int, Sequence[Later]] | None = None
    ) -> int:
        """Begin a batch, and return its key.

        Args:
            items: The numbers of the items.
            padding: The number of items at the end that are padding.
            is_first: Whether this is the first batch of an iteration.
            later: The clips that are decoded together with an item, by the index of the item. None if there are none.
        """

    def take(self, key: int) -> dict[str, Any]:
        """Wait for a batch, and return it. Raises the error of the batch."""

    def cancel(self, keys: list[int]) -> None:
        """Cancel all batches with these keys that were not taken."""

    def close(self) -> None:
        """End all threads and processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSetup:
    """The dataset and the options from which a process makes the batches of a loader.

    Attributes:
        clips: The dataset of clips.
        fetching: The options for reading and decoding clips.
        options: The options of ClipLoader.
        finish: The options for the steps after decoding.
        share: The share of clips that workers decode. If None, measured times determine who decodes a clip.
        replacements: A function that draws clips to replace a clip. If None, they are drawn from all clips.
        views: An object that joins the views of an item. If None, each item is a clip.
        as_lists: The keys whose values are a list in each batch, even if they are numbers or arrays.
        to_torch: Whether arrays become torch tensors. Frames on a GPU are always tensors.
    """

    clips: ReadableClips
    fetching: FetchOptions
    options: LoaderOptions
    finish: Finish
    share: Share
    replacements: Replacements | None = None
    views: JoinsViews | None = None
    as_lists: frozenset[str] = field(default_factory=frozenset)
    to_torch: bool = False

    @property
    def runs_own_code(self) -> bool:
        """Whether workers run only framedex's code: no transform, and no class of datasets of the user's."""
        return self.options.pixels.transform is None and type(self.clips).__module__.startswith("framedex.")

    @property
    def has_functions(self) -> bool:
        """Whether there are functions of DALI operations."""
        return self.finish.transform is not None or self.finish.audio_transform is not None

    @property
    def workers_finish(self) -> bool:
        """Whether the frames that workers return need no more steps than collation."""
        is_raw = self.finish.normalize is None and self.finish.layout == "FHWC"
        return (self.options.device == "cpu" or is_raw) and not self.has_functions and self.views is None

    def without_functions(self) -> "BatchSetup":
        """Return a copy without the functions of DALI operations, which only cloudpickle can pickle in most cases."""
        return replace(self, finish=replace(self.finish, transform=None, audio_transform=None))

    def packed(self) -> bytes:
        """Return the setup as bytes for another process. Raises the exception of pickle if that is not possible."""
        functions = self.finish.transform, self.finish.audio_transform
        dumps: Callable[[Any], bytes] = pickle.dumps
        if any(functions):
            with contextlib.suppress(ModuleNotFoundError):
                dumps = importlib.import_module("cloudpickle").dumps
        return pickle.dumps((self.without_functions(), dumps(functions)))

    @staticmethod
    def unpacked(packed: bytes) -> "BatchSetup":
        """Return the setup that `packed` turned into bytes."""
        setup, functions = pickle.loads(packed)
        transform, audio_transform = pickle.loads(functions)
        found: BatchSetup = replace(
            setup, finish=replace(setup.finish, transform=transform, audio_transform=audio_transform)
        )
        return found

    def frames(self) -> Frames:
        """Return the object for the loader's last stage, which makes batches on the device."""
        finish, options = self.finish, self.options
        clips = options.batch_size * (1 if self.views is None else len(self.views.views))
        threads = max(1, min(DALI_THREADS, os.cpu_count() or 1))
        if options.device == "cpu":
            if not self.has_functions:
                return Frames(finish)
            from framedex.loader.dali.pipelines import transformers  # needs DALI

            transformer, audio = transformers(
                finish.transform, finish.audio_transform, batch_size=clips, threads=threads, device_id=None
            )
            return Frames(finish, transformer=transformer, audio=audio)
        from framedex.loader.dali.gpu import GpuFrames  # needs DALI and torch

        return GpuFrames(
            finish,
            device_id=options.device_id,
            batch_size=clips,
            in_progress=clips * (options.ahead + 1),
            threads=threads,
            scaled=any(framing.scales for framing in options.framings),
        )


class BatchQueue(Batches):
    """Batches that this process makes, in the order in which they were begun.

    Args:
        setup: The dataset and the options.
        rooms: The memory in which batches are made. If None, workers send frames, and batches are made on the device.
    """

    def __init__(self, setup: BatchSetup, rooms: Rooms | None = None) -> None:
        self._views, self._rooms = setup.views, rooms
        if setup.workers_finish:
            plain = replace(setup.finish, normalize=None, layout="FHWC")
            setup = replace(setup, fetching=replace(setup.fetching, finish=setup.finish), finish=plain)
        self._division: Balance | float = Balance(setup.options.ahead) if setup.share is None else setup.share
        self.supply = ClipSupply(
            setup.clips, setup.fetching, setup.options, setup.replacements, own_code=setup.runs_own_code
        )
        self.report = self.supply.report
        self.supply.pool.start()  # while this process imports DALI
        self._maker = BatchMaker(
            self.supply,
            setup.frames() if rooms is None else PlacedFrames(setup.finish, rooms, setup.frames()),
            setup.options,
            balance=self._division if isinstance(self._division, Balance) else None,
            views=setup.views,
            as_lists=setup.as_lists,
            to_torch=setup.to_torch,
        )
        self._shared = SharedClips(
            self.supply,
            rooms,
            self._division if isinstance(self._division, Balance) else None,
            self._maker.decode_together,
            batch_size=setup.options.batch_size,
            most_bytes=setup.options.share_memory,
        )
        self._waiting: dict[int, Batch] = {}  # by key
        self._begun = 0  # the key of the newest batch, which is greater than all keys before
        self._asked = 0  # number of clips requested in this iteration

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running workers."""
        return self.supply.pool.process_ids

    def begin(
        self, items: list[int], padding: int, *, is_first: bool, later: Mapping[int, Sequence[Later]] | None = None
    ) -> int:
        """Request the clips of a batch, and return the key of the batch."""
        self._begun += 1
        if is_first:
            self._asked = 0
        if is_first or not self._shared.fits(self._begun, items):
            self._begun = max(self._begun, self._shared.forget() + 1)
        numbers, views = items, None
        if self._views is not None:
            numbers, views = [], []
            for of_item in map(self._views.numbers, items):
                views.append({view: len(numbers) + place for place, view in enumerate(of_item)})
                numbers += of_item.values()
        batch = Batch(
            key=self._begun,
            numbers=numbers,
            padding=padding,
            fetched=self._request(numbers, is_first, later or {}),
            views=views,
        )
        self._maker.begin(batch)
        self._waiting[batch.key] = batch
        return batch.key

    def _request(
        self, numbers: list[int], is_first: bool, later: Mapping[int, Sequence[Later]]
    ) -> list[Future[Fetched | Fault]]:
        """Request clips from workers, unless they were requested together with clips of earlier batches.

        The clips are divided between GPU and workers in fixed shares, or so that each clip is decoded where it would be
        finished first.
        """
        first, self._asked = self._asked, self._asked + len(numbers)
        division, batch = self._division, self._begun
        if self._rooms is not None:
            self._rooms.begin(batch, len(numbers))
        on_gpu: list[bool | None] = [None] * len(numbers)
        if isinstance(division, Balance):
            division.begin(batch, is_first=is_first)
        else:
            on_gpu = [not is_on_cpu(first + place, division) for place in range(len(numbers))]
        futures = self._shared.begin(batch)
        groups = _own_groups(numbers, later, futures)
        covered = {one.place for others in groups.values() for one in others if not one.batches_later}
        for place in sorted(range(len(numbers)), key=lambda place: on_gpu[place] is False):  # clips for the GPU first
            if place in futures or place in covered:
                continue
            if place in groups:
                futures |= self._shared.submit(batch, place, numbers[place], groups[place], on_gpu=on_gpu[place])
            else:
                futures[place] = self._submit(numbers[place], place, on_gpu=on_gpu[place])
        return [futures[place] for place in range(len(numbers))]

    def _submit(self, number: int, place: int, *, on_gpu: bool | None) -> Future[Fetched | Fault]:
        """Let a worker fetch a clip of the batch that was begun last, and answer its questions.

        Args:
            number: The number of the clip.
            place: The index of the clip in the batch.
            on_gpu: Whether the GPU decodes the clip. If None, this depends on when the GPU and the worker would finish.
        """
        rooms, batch = self._rooms, self._begun
        balance = self._division if on_gpu is None and isinstance(self._division, Balance) else None
        if rooms is None and balance is None:
            return self.supply.submit(number, on_gpu=on_gpu)
        granted: list[Room] = []

        def answer(question: ClipCost | RoomRequest) -> bool | Placed | None:
            if isinstance(question, ClipCost):
                return balance is not None and balance.gives_to_gpu(batch, question)
            found = None if rooms is None else rooms.grant(batch, place, question)
            if found is None:
                return None
            granted.append(found[1])
            return found[0]

        def end(future: Future[Fetched | Fault]) -> None:
            if rooms is not None:
                rooms.wrote(granted)
            fetched = None if future.cancelled() or future.exception() is not None else future.result()
            if not isinstance(fetched, Fetched) or fetched.frames is None:
                return
            warn_of_copies(granted, [fetched.frames])
            if balance is not None:
                balance.decoded_by_cpu(fetched.cost, fetched.decode_seconds)

        future = self.supply.submit(number, on_gpu=on_gpu, answer=answer)
        future.add_done_callback(end)
        return future

    def pop(self, key: int) -> Callable[[], dict[str, Any]]:
        """Remove a batch, so that it cannot be cancelled. Return a function that waits for it and returns it."""
        batch = self._waiting.pop(key)
        return lambda: self._maker.result(batch)()

    def take(self, key: int) -> dict[str, Any]:
        """Wait for a batch, and return it. Raises the error of the batch."""
        return self.pop(key)()

    def cancel(self, keys: list[int]) -> None:
        """Cancel all batches with these keys that were not taken."""
        self._begun = max(self._begun, self._shared.forget())
        for key in keys:
            batch = self._waiting.pop(key, None)
            if batch is not None:
                self._maker.cancel(batch)
                if self._rooms is not None:
                    self._rooms.end(key, is_used=False)

    def close(self) -> None:
        """Stop the threads and the worker processes."""
        self._shared.forget()
        self._maker.close()
        self.supply.close()


def _own_groups(
    numbers: Sequence[int], later: Mapping[int, Sequence[Later]], requested: Container[int]
) -> dict[int, list[Later]]:
    """Return those clips of `later` that can be requested together with a clip of a batch, by the clip's index.

    Args:
        numbers: The numbers of the batch's clips.
        later: See `Batches.begin`. It may be wrong if a sampler changes the clips of its base class.
        requested: The indices of clips that were requested already.
    """
    found: dict[int, list[Later]] = {}
    taken: set[int] = set()
    for place, others in sorted(later.items()):
        if place in requested or place in taken:
            continue
        free = {one for one in range(place + 1, len(numbers)) if one not in requested and one not in taken}
        found[place] = own = [
            one for one in others if one.batches_later or (one.place in free and numbers[one.place] == one.number)
        ]
        taken |= {one.place for one in own if not one.batches_later}
    return found
