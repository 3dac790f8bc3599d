"""Batches in progress, in the order in which they are delivered, and the options from which they are made."""

import contextlib
import importlib
import os
import pickle
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from framedex.loader.batches.faults import Fault, Fetched, LoaderReport
from framedex.loader.batches.fetch import FetchOptions, ReadableClips
from framedex.loader.batches.frames import Finish, Frames, JoinsViews, LoaderOptions
from framedex.loader.batches.maker import Batch, BatchMaker
from framedex.loader.batches.supply import ClipSupply, Replacements
from framedex.loader.routing.balance import Balance
from framedex.loader.routing.routes import Share, is_on_cpu

DALI_THREADS = 8  # maximum number of DALI's CPU threads; more threads hardly help, and workers need the cores


class Batches(Protocol):
    """Interface of an object that makes the batches of a loader in the order in which they were begun."""

    report: LoaderReport

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running workers."""

    def begin(self, items: list[int], padding: int) -> None:
        """Begin a batch. The last `padding` items are padding."""

    def take(self) -> dict[str, Any]:
        """Wait for the oldest batch that was begun, and return it. Raises the error of the batch."""

    def clear(self) -> None:
        """Cancel all batches that were begun and not taken."""

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
            if finish.transform is None and finish.audio_transform is None:
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
    """

    def __init__(self, setup: BatchSetup) -> None:
        self._views = setup.views
        self._division: Balance | float = Balance() if setup.share is None else setup.share
        self.supply = ClipSupply(
            setup.clips, setup.fetching, setup.options, setup.replacements, own_code=setup.runs_own_code
        )
        self.report = self.supply.report
        self.supply.pool.start()  # while this process imports DALI
        self._maker = BatchMaker(
            self.supply,
            setup.frames(),
            setup.options,
            balance=self._division if isinstance(self._division, Balance) else None,
            views=setup.views,
            as_lists=setup.as_lists,
            to_torch=setup.to_torch,
        )
        self._waiting: deque[Batch] = deque()
        self._begun = 0  # number of batches begun so far, which is the unique key of the newest batch
        self._asked = 0  # number of clips requested since the last call of `clear`

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the running workers."""
        return self.supply.pool.process_ids

    def begin(self, items: list[int], padding: int) -> None:
        """Request the clips of a batch."""
        self._begun += 1
        numbers, views = items, None
        if self._views is not None:
            numbers, views = [], []
            for of_item in map(self._views.numbers, items):
                views.append({view: len(numbers) + place for place, view in enumerate(of_item)})
                numbers += of_item.values()
        batch = Batch(key=self._begun, numbers=numbers, padding=padding, fetched=self._request(numbers), views=views)
        self._maker.begin(batch)
        self._waiting.append(batch)

    def _request(self, numbers: list[int]) -> list[Future[Fetched | Fault]]:
        """Request clips from workers.

        The clips are divided between GPU and workers in fixed shares, or so that each clip is decoded where it would be
        finished first.
        """
        first, self._asked = self._asked, self._asked + len(numbers)
        division = self._division
        if isinstance(division, Balance):
            division.begin(self._begun)
            return [self.supply.submit_balanced(number, division, self._begun) for number in numbers]
        on_gpu = [not is_on_cpu(first + place, division) for place in range(len(numbers))]
        futures: dict[int, Future[Fetched | Fault]] = {}
        for place in sorted(range(len(numbers)), key=lambda place: not on_gpu[place]):  # clips for the GPU first
            futures[place] = self.supply.submit(numbers[place], on_gpu=on_gpu[place])
        return [futures[place] for place in range(len(numbers))]

    def pop(self) -> Callable[[], dict[str, Any]]:
        """Remove the oldest batch. Return a function that waits for this batch and returns it, or raises its error."""
        batch = self._waiting.popleft()
        return lambda: self._maker.result(batch)()

    def take(self) -> dict[str, Any]:
        """Wait for the oldest batch, and return it. Raises the error of the batch."""
        return self.pop()()

    def clear(self) -> None:
        """Cancel all batches that were not taken."""
        self._asked = 0
        while self._waiting:
            self._maker.cancel(self._waiting.popleft())

    def close(self) -> None:
        """Stop the threads and the worker processes."""
        self._maker.close()
        self.supply.close()
