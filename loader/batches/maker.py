"""Makes batches of fetched clips: decodes, finishes and collates them, in threads of its own if a GPU decodes."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from framedex.errors import DecodeError, FramedexError, printable
from framedex.loader.batches.collate import collate_clips
from framedex.loader.batches.faults import Fault, LoaderReport
from framedex.loader.batches.fetched import Fetched
from framedex.loader.batches.frames import Frames, Made
from framedex.loader.batches.options import BatchOptions
from framedex.loader.batches.supply import ClipSupply
from framedex.loader.batches.tensors import tensor_maker
from framedex.loader.routing.share import CpuShare
from framedex.sharder.decoding.video import Size

LOG = logging.getLogger("framedex.loader")


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch that is being fetched and made.

    Attributes:
        numbers: numbers of its clips.
        on_gpu: per clip, whether a GPU decodes it, if it can.
        padding: how many clips at the end are padding.
        fetched: the future result of each clip.
        made: the future batch, if threads make it.
    """

    numbers: list[int]
    on_gpu: list[bool]
    padding: int
    fetched: list[Future[Fetched | Fault]]
    made: Future[Made] | None = None

    def cancel(self) -> None:
        """Cancel the work that has not begun."""
        for future in (*self.fetched, self.made):
            if future is not None:
                future.cancel()


class BatchMaker:
    """Makes batches of clips.

    Args:
        supply: where clips come from.
        stages: what decodes and finishes frames. Each stage serves one thread at a time.
        beside: make batches in threads, one per stage, while the caller continues.
        options: what batches are made of clips.
        share: the CPU's share of the clips. It learns from each batch.
        size: (height, width) to which frames are scaled, for messages.
        report: counts clips and seconds.
    """

    def __init__(
        self,
        supply: ClipSupply,
        stages: Sequence[Frames],
        *,
        beside: bool,
        options: BatchOptions,
        share: CpuShare,
        size: Size | None,
        report: LoaderReport,
    ) -> None:
        self._supply, self._options, self._share, self._size, self._report = supply, options, share, size, report
        self._stages: queue.SimpleQueue[Frames] = queue.SimpleQueue()
        for stage in stages:
            self._stages.put(stage)
        self._threads = ThreadPoolExecutor(len(stages), thread_name_prefix="framedex-gpu") if beside else None
        self._as_torch = tensor_maker() if options.output == "torch" else None

    def begin(self, batch: Batch) -> None:
        """Start to make a batch as its clips arrive, if threads make batches."""
        if self._threads is not None:
            batch.made = self._threads.submit(self._make, batch)

    def result(self, batch: Batch) -> Made:
        """Return a batch as delivered: wait for the thread that makes it, or make it here."""
        return self._make(batch) if batch.made is None else batch.made.result()

    def close(self) -> None:
        """Cancel the batches that are waiting, and wait for those that are being made."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _make(self, batch: Batch) -> Made:
        stage = self._stages.get()
        try:
            with stage.working():
                return stage.made(self._content(batch, stage))
        except RuntimeError as error:
            free = stage.memory_left(error)
            if free is None:
                raise
            raise self._too_little_memory(batch, free, error) from error
        finally:
            self._stages.put(stage)

    def _too_little_memory(self, batch: Batch, free: str, error: RuntimeError) -> FramedexError:
        """Return the error that says what needed the GPU's memory, and how to need less."""
        clips = [self._supply.dataset.clip(number) for number in batch.numbers]
        frames = sum(len(clip.frame_index) for clip in clips)
        height, width = self._size or max((clip.medium.height, clip.medium.width) for clip in clips)
        scale = "a smaller size=(height, width)" if self._size else "size=(height, width), which scales frames down"
        asked = f"a batch of {len(clips)} clips, {frames} frames of {width}×{height}"
        return FramedexError(
            "the GPU's memory is full",
            where=f"{asked}, {self._options.prefetch} batches ahead",
            found=f"{str(error).splitlines()[0]} ({free})",
            remedy=f"a smaller batch_size, {scale}, or fewer batches ahead (prefetch); "
            "look at nvidia-smi for other processes",
        )

    def _content(self, batch: Batch, stage: Frames) -> dict[str, Any]:
        had = self._decoded(batch, stage)
        begun = time.perf_counter()
        clips, frames = [clip for clip, _ in had.values()], [frames for _, frames in had.values()]
        items = [clip.item for clip in clips]
        if self._options.last == "pad":
            real = len(batch.numbers) - batch.padding
            items = [item | {"is_padding": place >= real} for place, item in zip(had, items, strict=True)]
        try:
            finished, sound = stage.finish(frames), stage.sound(items)
        except RuntimeError as error:
            if stage.memory_left(error) is not None:
                raise
            names = ", ".join(clip.item["clip_id"] for clip in clips)
            raise DecodeError(
                f"DALI failed on a batch of clips {names}", found=error, remedy="look at the transform"
            ) from error
        content = {"frames": finished} | sound | collate_clips(items, self._options.collate)
        self._report.add_seconds(finishing=time.perf_counter() - begun)
        return content if self._as_torch is None else {name: self._as_torch(value) for name, value in content.items()}

    def _decoded(self, batch: Batch, stage: Frames) -> dict[int, tuple[Fetched, Any]]:
        """Return the available clips of a batch, or their replacements, with their frames, by place in ascending order.

        The clips for the GPU come first: workers decode the rest meanwhile.
        """
        had: dict[int, tuple[Fetched, Any] | None] = {}
        decoding = 0.0
        for on_gpu in (True, False):
            places = [place for place, gpu in enumerate(batch.on_gpu) if gpu == on_gpu]
            begun = time.perf_counter()
            fetched = [self._supply.take(batch.numbers[place], batch.fetched[place]) for place in places]
            waited = time.perf_counter() - begun
            self._report.add_seconds(fetching=waited)
            clips = {place: clip for place, clip in zip(places, fetched, strict=True) if clip is not None}
            begun = time.perf_counter()
            had |= dict(zip(clips, self._frames_of(list(clips.values()), stage), strict=True))
            if on_gpu:
                decoding = time.perf_counter() - begun
            else:
                self._share.learn(waited=waited, decoding=decoding)
        clips_had = {place: pair for place, pair in sorted(had.items()) if pair is not None}
        if not clips_had:
            other = self._supply.another(batch.numbers[0])
            clips_had = {0: (other, stage.decode([other], self._report)[0])}
        for clip, _ in clips_had.values():
            self._report.count(clip)
        return clips_had

    def _frames_of(self, clips: list[Fetched], stage: Frames) -> list[tuple[Fetched, Any] | None]:
        """Return each clip, or its replacement, with its frames. An entry is None where there is neither."""
        if not clips:
            return []
        try:
            return list(zip(clips, stage.decode(clips, self._report), strict=True))
        except RuntimeError as error:
            if stage.memory_left(error) is not None:
                raise
            LOG.warning("a decoder on the GPU failed on a batch, which is decoded clip by clip: %s", error)
            self._report.add(retried="batch")
            return [self._alone(clip, stage) for clip in clips]

    def _alone(self, clip: Fetched, stage: Frames) -> tuple[Fetched, Any] | None:
        """Decode one clip by itself. If the GPU fails on it, a worker decodes it."""
        try:
            return clip, stage.decode([clip], self._report)[0]
        except RuntimeError as error:
            if stage.memory_left(error) is not None:
                raise
            LOG.warning(
                "a decoder on the GPU failed on clip %s, which the CPU gets: %s", printable(clip.item["clip_id"]), error
            )
            self._report.add(retried="clip")
        other = self._supply.decoded_by_cpu(clip.number)
        return None if other is None else (other, stage.decode([other], self._report)[0])
