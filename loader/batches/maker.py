"""Make batches of fetched clips: decode and collate them. With a GPU, this runs in threads.

A GPU decodes clips of several batches together. A free decoder takes all clips that have arrived, up to a limit.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from framedex.errors import DecodeError, FramedexError, MissingExtraError, printable
from framedex.loader.batches.faults import DecodeClips, Fault, Fetched
from framedex.loader.batches.frames import Frames, JoinsViews, LoaderOptions, collate_clips, common, per_view
from framedex.loader.batches.supply import ClipSupply
from framedex.loader.routing.balance import Balance

LOG = logging.getLogger("framedex.loader")
PATIENCE = 0.02  # seconds that a decoder waits for more clips, because each run of DALI has a constant overhead

# A clip, or its replacement, with its frames on the device, or the place of its frames in a room.
Decoded = tuple[Fetched, Any]


@dataclass(slots=True)
class _Waiting:
    """Clips that wait for a decoder. If there are several, they have the same movie.

    Attributes:
        places: The key of each clip's batch, and the index of the clip in the batch.
        clips: The clips.
        done: The futures of the clips with their frames.
    """

    places: list[tuple[int, int]]
    clips: list[Fetched]
    done: list[Future[Decoded | None]]

    @property
    def decoded_bytes(self) -> int:
        """The size of the decoded pictures before they are scaled."""
        clip, (height, width) = self.clips[0], self.clips[0].stored
        pictures = len(clip.images or ()) if clip.movie is None else len(clip.movie.wanted)
        return pictures * height * width * 3

    def without_cancelled(self) -> "_Waiting":
        """Return the clips that were not cancelled. They cannot be cancelled any more."""
        kept = [index for index, future in enumerate(self.done) if future.set_running_or_notify_cancel()]
        return _Waiting(
            [self.places[index] for index in kept],
            [self.clips[index] for index in kept],
            [self.done[index] for index in kept],
        )


class DecodingThreads:
    """Threads that decode clips, one for each of `frames.decoders`. Clips of earlier batches are decoded first.

    Args:
        frames: The last stage of the loader, which has the decoders.
        supply: The supply of clips. It fetches a clip again if the GPU fails to decode the clip, and counts failures.
        balance: The object that receives the GPU's decoding times. None if these times are not used.
        replaceable: Whether another clip may replace a clip that is not available.
    """

    def __init__(self, frames: Frames, supply: ClipSupply, balance: Balance | None, *, replaceable: bool) -> None:
        self._frames, self._supply, self._balance, self._replaceable = frames, supply, balance, replaceable
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None  # the error that ended a thread
        # An executor is not used, because its threads take one task at a time, but a decoder takes several clips.
        self._threads = [
            threading.Thread(target=self._work, args=(decode,), name="framedex-gpu", daemon=True)
            for decode in frames.decoders
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, clips: Sequence[tuple[int, int, Fetched]]) -> list[Future[Decoded | None]]:
        """Return the futures of clips with their frames. A result is None if neither GPU nor CPU can decode the clip.

        A future raises RuntimeError if the GPU's memory is full, and the exceptions of `ClipSupply.decoded_by_cpu`.

        Args:
            clips: (key of the batch, index of the clip in the batch, clip) of a clip, or of clips with the same movie.
        """
        places = [(batch, place) for batch, place, _ in clips]
        waiting = _Waiting(places, [clip for *_, clip in clips], [Future() for _ in clips])
        with self._changed:
            self._waiting.append(waiting)
            self._changed.notify()
        if self._error is not None:
            self._fail(self._error)
        return waiting.done

    def close(self) -> None:
        """Cancel all waiting clips, and end each thread after the clips that it is decoding now."""
        with self._changed:
            self._closed = True
            for waiting in self._waiting:
                for future in waiting.done:
                    future.cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, decode: DecodeClips) -> None:
        try:
            with self._frames.working():
                while part := self._next_part():
                    self._decode(part, decode)
        except BaseException as error:  # such as an error of CUDA; otherwise, batches would wait for ever
            self._error = error
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Let the futures of all waiting clips raise an error."""
        with self._changed:
            failed, self._waiting = self._waiting, []
        for waiting in failed:
            for future in waiting.without_cancelled().done:
                future.set_exception(error)

    def _next_part(self) -> list[_Waiting]:
        """Wait for movies, and take those of the earliest batches. Return an empty list if the threads are to end."""
        limits = self._frames.at_once
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: len(self._waiting) >= limits.fewest or self._closed, PATIENCE)
                if self._closed:
                    return []
                self._waiting.sort(key=lambda waiting: waiting.places[0][0])
                sizes = np.cumsum([waiting.decoded_bytes for waiting in self._waiting])
                count = max(1, min(limits.most, int(np.searchsorted(sizes, limits.most_bytes, side="right"))))
                taken, self._waiting = self._waiting[:count], self._waiting[count:]
                part = [left for waiting in taken if (left := waiting.without_cancelled()).done]
                if part:
                    return part

    def _decode(self, part: list[_Waiting], decode: DecodeClips) -> None:
        try:
            seconds: Counter[int] = Counter()
            for waiting in part:
                for (batch, _), clip in zip(waiting.places, waiting.clips, strict=True):
                    seconds[batch] += clip.cost.gpu  # type: ignore[assignment]
            with contextlib.nullcontext() if self._balance is None else self._balance.decoding(seconds):
                found = self._decode_together(part, decode)
        except BaseException as error:  # the futures raise the error, and the thread continues
            for waiting in part:
                for future in waiting.done:
                    future.set_exception(error)
            return
        for future, decoded in zip((future for waiting in part for future in waiting.done), found, strict=True):
            future.set_result(decoded)

    def _decode_together(self, part: list[_Waiting], decode: DecodeClips) -> list[Decoded | None]:
        """Return each clip with its frames, or None for a clip that neither GPU nor CPU can decode."""
        try:
            return list(self._decoded(part, decode))
        except RuntimeError as error:
            if self._frames.memory_left(error) is not None:
                raise
            LOG.warning("a decoder on the GPU failed on several clips, which are decoded one by one: %s", error)
            self._supply.report.add(retried="batch")
            return [decoded for waiting in part for decoded in self._decode_alone(waiting, decode)]

    def _decoded(self, part: list[_Waiting], decode: DecodeClips) -> list[Decoded]:
        """Decode clips on the GPU, and return them with their frames."""

        clips = [clip for waiting in part for clip in waiting.clips]
        places = [place for waiting in part for place in waiting.places]

        def keep(distinct: list[Any], numbers: list[int]) -> list[Any]:
            return self._frames.kept(
                distinct, [clips[number] for number in numbers], [places[number] for number in numbers]
            )

        return list(zip(clips, decode(clips, self._supply.report, keep), strict=True))

    def _decode_alone(self, waiting: _Waiting, decode: DecodeClips) -> list[Decoded | None]:
        """Decode one movie on the GPU. If the GPU fails, let workers decode its clips."""
        try:
            return list(self._decoded([waiting], decode))
        except RuntimeError as error:
            if self._frames.memory_left(error) is not None:
                raise
            for clip in waiting.clips:
                name = printable(clip.item["clip_id"])
                LOG.warning("a decoder on the GPU failed on clip %s, which the CPU decodes instead: %s", name, error)
                self._supply.report.add(retried="clip")
        others = [self._supply.decoded_by_cpu(clip.number, replaceable=self._replaceable) for clip in waiting.clips]
        return [None if other is None else (other, self._frames.given(other)) for other in others]


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch in progress.

    Attributes:
        key: A number that is unique among all batches of the loader.
        numbers: The numbers of the batch's clips.
        padding: The number of items at the end of the batch that are padding.
        fetched: The future of each clip.
        views: For each item of several views, a mapping from its views to indices into `numbers`. If None, each clip is
            an item.
        made: The future of the batch, if threads make batches. Its result is a function that waits until the batch is
            complete on the device, and returns the batch.
    """

    key: int
    numbers: list[int]
    padding: int
    fetched: list[Future[Fetched | Fault]]
    views: list[dict[str, int]] | None = None
    made: Future[Callable[[], dict[str, Any]]] | None = None

    @property
    def items(self) -> int:
        """The number of items, including padding."""
        return len(self.numbers) if self.views is None else len(self.views)


class BatchMaker:
    """Makes batches of clips.

    Args:
        supply: The supply of clips.
        frames: The last stage of the loader, which decodes and finishes frames on the device.
        options: The options of ClipLoader. With a GPU, threads make several batches at once, while the caller
            continues. Without a GPU, the caller makes them.
        balance: The object that divides clips between GPU and workers by their speeds. None if the division is fixed.
        views: An object that joins the views of an item. If None, each clip is an item.
        as_lists: The keys whose values are a list in each batch, even if they are numbers or arrays.
        to_torch: Whether arrays become torch tensors.
    """

    def __init__(
        self,
        supply: ClipSupply,
        frames: Frames,
        options: LoaderOptions,
        *,
        balance: Balance | None,
        views: JoinsViews | None = None,
        as_lists: frozenset[str] = frozenset(),
        to_torch: bool = False,
    ) -> None:
        self._views, self._as_lists = views, as_lists
        self._supply, self._frames, self._options, self._balance = supply, frames, options, balance
        self._report, self._threads = supply.report, None
        if options.device == "gpu":
            self._threads = ThreadPoolExecutor(options.ahead + 1, thread_name_prefix="framedex-batch")
        self._gpu = DecodingThreads(frames, supply, balance, replaceable=views is None)  # no threads without decoders
        self._as_torch = tensor_maker() if to_torch else None

    def decode_together(self, clips: Sequence[tuple[int, int, Fetched]]) -> Sequence[Future[Decoded | None]]:
        """Decode clips with the same movie on the GPU, as `DecodingThreads.submit` does."""
        return self._gpu.submit(clips)

    def begin(self, batch: Batch) -> None:
        """If threads make batches, start a thread that makes this batch while its clips arrive."""
        if self._threads is not None:
            batch.made = self._threads.submit(self._make, batch)

    def result(self, batch: Batch) -> Callable[[], dict[str, Any]]:
        """Return the result of `Batch.made`. Wait for the thread that makes the batch, or make the batch here."""
        return self._make(batch) if batch.made is None else batch.made.result()

    def cancel(self, batch: Batch) -> None:
        """Cancel those tasks of a batch that have not begun."""
        for future in (*batch.fetched, batch.made):
            if future is not None:
                future.cancel()
        if self._balance is not None:
            self._balance.end(batch.key)

    def close(self) -> None:
        """Cancel all batches that have not begun, and wait for the others."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._gpu.close()

    def _make(self, batch: Batch) -> Callable[[], dict[str, Any]]:
        try:
            with self._frames.working():
                return self._frames.made(self._content(batch))
        except RuntimeError as error:
            free = self._frames.memory_left(error)
            if free is None:
                raise
            raise self._memory_error(batch, free, error) from error
        finally:
            if self._balance is not None:
                self._balance.end(batch.key)

    def _memory_error(self, batch: Batch, free: str, error: RuntimeError) -> FramedexError:
        """Return an error for full GPU memory, with the size of the batch and remedies."""
        dataset = self._supply.dataset
        clips = [dataset.clip(number) for number in batch.numbers]
        frames = sum(len(clip.frames) for clip in clips)
        framings = self._options.framings
        size = framings[0].fixed_size if len(framings) == 1 else None
        height, width = size or max((clip.medium.height, clip.medium.width) for clip in clips)
        scale = "a smaller size=(height, width)" if size else "size=(height, width), which scales frames down"
        return FramedexError(
            "the GPU's memory is full",
            where=f"a batch of {len(clips)} clips, {frames} frames of {width}×{height}, "
            f"{self._options.prefetch} batches ahead",
            found=f"{str(error).splitlines()[0]} ({free})",
            remedy=f"use a smaller batch_size, {scale}, or fewer batches ahead (prefetch); "
            "nvidia-smi shows whether other processes use the memory",
        )

    def _content(self, batch: Batch) -> dict[str, Any]:
        decoded = self._decoded(batch)
        begun = time.perf_counter()
        if batch.views is None or self._views is None:
            real = batch.items - batch.padding
            items = self._marked([clip.item for clip, _ in decoded.values()], [place >= real for place in decoded])
            content = self._finish(list(decoded.values()), items)
        else:
            content = self._finish_views(decoded, batch, batch.views, self._views)
        self._report.add_seconds(finishing=time.perf_counter() - begun)
        return content

    def _marked(self, items: list[dict[str, Any]], is_padding: list[bool]) -> list[dict[str, Any]]:
        """Return the items, with the additional key `is_padding` if batches are padded."""
        if self._options.last != "pad":
            return items
        return [item | {"is_padding": padding} for item, padding in zip(items, is_padding, strict=True)]

    def _finish(self, decoded: list[Decoded], items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch. `items` has the item of each clip, without frames."""
        try:
            finished = self._frames.finish([frames for _, frames in decoded])
            sound = self._frames.sound(items)
        except RuntimeError as error:
            if self._frames.memory_left(error) is not None:
                raise
            names = ", ".join(clip.item["clip_id"] for clip, _ in decoded)
            raise DecodeError(
                f"DALI failed on a batch of clips {names}", found=error, remedy="check the transform"
            ) from error
        return self._delivered({"frames": finished} | sound, items)

    def _delivered(self, finished: dict[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate items, and join them with the finished values into one batch of torch tensors or numpy arrays."""
        content = finished | collate_clips(items, self._options.collate, self._as_lists)
        return content if self._as_torch is None else {name: self._as_torch(value) for name, value in content.items()}

    def _finish_views(
        self, decoded: dict[int, Decoded], batch: Batch, places: list[dict[str, int]], views: JoinsViews
    ) -> dict[str, Any]:
        """Return a batch of items of several views. Items that are not available are replaced or left out.

        An item is available if all of its clips are available.
        """
        items: list[dict[str, Decoded]] = []
        is_padding: list[bool] = []
        first = [batch.numbers[min(of_item.values())] for of_item in places]
        for number, of_item in enumerate(places):
            if all(place in decoded for place in of_item.values()):
                items.append({view: decoded[place] for view, place in of_item.items()})
            elif self._options.on_error == "replace":
                items.append(self._replace_item(first[number], views))
            else:
                continue
            is_padding.append(number >= batch.items - batch.padding)
        if not items:  # a batch is never empty, so that the number of batches stays the same
            items, is_padding = [self._replace_item(first[0], views)], [False]
        leading = [min((clip for clip, _ in item.values()), key=lambda clip: clip.number) for item in items]
        for item, clip in zip(items, leading, strict=True):
            blanks = {view: views.blank(view, clip) for view in views.views if view not in item}
            item |= {view: (padding, self._frames.given(padding)) for view, padding in blanks.items()}
        of_view = {}
        for view in views.views:
            own = [item[view] for item in items]
            of_view[view] = self._finish(own, [per_view(clip.item) for clip, _ in own])
        shared = self._marked([common(clip.item) for clip in leading], is_padding)
        return views.join(of_view, self._delivered({}, shared))

    def _replace_item(self, number: int, views: JoinsViews) -> dict[str, Decoded]:
        """Return the decoded views of an item that replaces item `number`."""
        return {view: (clip, self._given(clip)) for view, clip in self._supply.another_item(number, views).items()}

    def _decoded(self, batch: Batch) -> dict[int, Decoded]:
        """Return the clips of a batch with their frames, by their indices in the batch, in ascending order.

        Clips that are not available are replaced or left out. The GPU decodes clips as they arrive, while workers fetch
        or decode other clips.
        """
        decoded: dict[int, Decoded | None] = {}
        on_gpu: dict[int, Future[Decoded | None]] = {}
        try:
            for place in self._places(batch):
                clip = self._supply.take(batch.numbers[place], batch.fetched[place], replaceable=batch.views is None)
                if clip is None or clip.frames is not None:
                    decoded[place] = None if clip is None else (clip, self._given(clip))
                elif clip.decoding is not None:
                    # The result of the future has the clip, so that this would be a circle of references.
                    on_gpu[place], clip.decoding = clip.decoding, None
                else:
                    (on_gpu[place],) = self._gpu.submit([(batch.key, place, clip)])
            decoded |= {place: future.result() for place, future in on_gpu.items()}
        finally:
            for future in on_gpu.values():
                future.cancel()
        available = {place: pair for place, pair in sorted(decoded.items()) if pair is not None}
        if not available and batch.views is None:
            # A batch is never empty, so that the number of batches stays the same.
            other = self._supply.another(batch.numbers[0])
            available = {0: (other, self._given(other))}
        for clip, _ in available.values():
            self._report.count(clip)
        return available

    def _places(self, batch: Batch) -> Iterator[int]:
        """Yield the places of a batch's clips in the order in which the clips arrive.

        Without threads, yield the places in ascending order, so that the error of the first wrong clip is raised.
        """
        if self._threads is None:
            yield from range(len(batch.numbers))
            return
        arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place, future in enumerate(batch.fetched):  # the callback is also called for a cancelled future
            future.add_done_callback(lambda _, place=place: arrived.put(place))  # type: ignore[misc]
        for _ in batch.fetched:
            begun = time.perf_counter()
            place = arrived.get()
            self._report.add_seconds(fetching=time.perf_counter() - begun)
            yield place

    def _given(self, clip: Fetched) -> Any:
        """Return the frames that a worker decoded, on the device."""
        begun = time.perf_counter()
        frames = self._frames.given(clip)
        if self._threads is not None:
            self._report.add_seconds(upload=time.perf_counter() - begun)
        return frames


def tensor_maker() -> Callable[[Any], Any]:
    """Return a function that converts an array, or a list of arrays, to torch tensors without a copy.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "torch", "ClipLoader with output='torch'") from error

    def as_torch(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [torch.from_numpy(entry) for entry in value]
        return value  # a text, a number, or a tensor

    return as_torch
