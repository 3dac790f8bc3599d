"""ClipLoader: the ready-made whole. Worker processes read clips and decode on the CPU; a GPU decodes what is proven there."""

from __future__ import annotations

import collections
import logging
import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from framedex.errors import DecodeError, FramedexError, printable
from framedex.loader.arguments import (
    Decode,
    Device,
    Last,
    Output,
    check_choices,
    check_counts,
    check_normalize,
    check_together,
    placed,
)
from framedex.loader.batches.collate import COLLATES, Collate, collate_clips
from framedex.loader.batches.faults import ON_ERROR, Fault, LoaderReport, OnError
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.batches.fetched import ClipRequest, Fetched
from framedex.loader.batches.frames import CpuFrames, Finish, Frames, Layout, Made, Normalize
from framedex.loader.batches.pool import WorkerDiedError, WorkerPool
from framedex.loader.batches.rotation import Rotation
from framedex.loader.batches.tensors import tensor_maker
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.dali.stagger import Stagger
from framedex.loader.order.sampler import ClipSampler
from framedex.loader.routing.colour import Colour
from framedex.loader.routing.driver import driver_support
from framedex.loader.routing.share import Share, adapted, first_share, is_on_cpu
from framedex.sharder.decoding.video import Size

TASK_SECONDS = 600.0  # a clip may take in a worker
MAKERS, DALI_THREADS = 2, 8
TRIES = 8  # other clips that are tried in place of a bad one
LOG = logging.getLogger("framedex.loader")


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch on its way. on_gpu: whether each clip is a GPU's, if it can be. padding: of its last clips, how many only fill it up."""

    numbers: list[int]
    on_gpu: list[bool]
    padding: int
    fetched: list[Future[Fetched | Fault]]
    made: Future[Made] | None = None


class ClipLoader:
    """Iterates batches of decoded clips: dicts, the keys of `ClipDataset.__getitem__`, batched.

    sampler: yields clip numbers; a ClipSampler in order unless given. device: where frames are in the end: "cpu", or "cuda", "cuda:1", a
    torch.device, or "gpu" with its number in device_id. decode: who
    decodes: "cpu" workers alone; "gpu": NVDEC and nvJPEG what is proven exact there (see `routes`), workers the rest, in the
    same batch; "auto" (the default): on a GPU as "gpu", and workers take a share of the clips besides. cpu_share: that share, 0 to
    1; None: what so many workers manage beside one GPU; "adaptive": what they turn out to manage, which makes the route,
    though not the frames, depend on time. colour: how close to the CPU's colours a GPU's must come, "close" or "exact"
    (`colour.colour_obstacle`); clips that it cannot colour so go to workers. rotation: "apply" turns frames upright, to
    the nearest quarter turn. size: (height, width) to scale to, of what comes out. transform: a function of DALI operations, frames →
    frames, defined in a pipeline; its input is uint8 FHWC on the device. audio_transform: one of a clip's sound, float32
    [channels, samples], such as a spectrogram. normalize: (mean, std) for RGB in 0…1, which makes
    float32. layout: of `frames` as delivered. collate: what to do where clips of a batch differ in shape. last: what to do
    with a last batch that is not full; "pad" repeats its clips, marked in `is_padding`. on_error: what to do with a clip
    that cannot be had; "skip" makes its batch smaller, "replace" takes another clip; neither changes how many batches there are.
    num_workers: processes; 0 does all in this one. threads: decoder threads a clip. prefetch: batches made ahead.
    output: "torch" tensors, or "numpy" arrays, for which torch need not be installed.

    Raises FramedexError for a wrong argument, MissingExtraError where DALI or torch is needed and not installed.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        *,
        batch_size: int = 1,
        sampler: Iterable[int] | None = None,
        device: object = "cpu",
        device_id: int = 0,
        decode: Decode = "auto",
        cpu_share: Share = None,
        colour: Colour = "close",
        rotation: Rotation = "report",
        size: Size | None = None,
        transform: Callable[[Any], Any] | None = None,
        audio_transform: Callable[[Any], Any] | None = None,
        normalize: Normalize | None = None,
        layout: Layout = "FHWC",
        collate: Collate = "error",
        last: Last = "partial",
        on_error: OnError = "raise",
        num_workers: int = 0,
        threads: int = 1,
        prefetch: int = 2,
        output: Output = "torch",
    ) -> None:
        device, device_id = placed(device, device_id)
        check_choices(
            decode=(decode, get_args(Decode)),
            colour=(colour, get_args(Colour)),
            rotation=(rotation, get_args(Rotation)),
            layout=(layout, get_args(Layout)),
            collate=(collate, COLLATES),
            last=(last, get_args(Last)),
            on_error=(on_error, ON_ERROR),
            output=(output, get_args(Output)),
        )
        check_counts(
            batch_size=(batch_size, 1), num_workers=(num_workers, 0), threads=(threads, 1), prefetch=(prefetch, 0)
        )
        check_together(device, decode, output)
        check_normalize(normalize)
        self.dataset = dataset
        self.sampler: Iterable[int] = ClipSampler(dataset) if sampler is None else sampler
        self.report = LoaderReport()
        self._size = size = size or dataset.size
        self._asked, self._prefetch, self._device_id = 0, prefetch, device_id
        self._batch_size, self._last, self._on_error, self._collate = batch_size, last, on_error, collate
        self._as_torch = tensor_maker() if output == "torch" else None
        self._adaptive = cpu_share == "adaptive"
        self._share = first_share(device, decode, cpu_share, num_workers)
        self._ahead = 0 if device == "cpu" and not num_workers else max(prefetch, -(-2 * num_workers // batch_size))
        options = FetchOptions(
            size=size,
            threads=threads,
            upright=rotation == "apply",
            colour=colour,
            caps=driver_support(device_id) if device == "gpu" else None,
        )
        self._pool: WorkerPool[ClipRequest, Fetched | Fault] = WorkerPool(
            Fetcher(dataset, options), workers=num_workers, timeout_seconds=TASK_SECONDS
        )
        finish = Finish(
            transform=transform, audio_transform=audio_transform, normalize=normalize, layout=layout, collate=collate
        )
        self._open_stages(finish, device, device_id, scaled=size is not None)

    def _open_stages(self, finish: Finish, device: Device, device_id: int, *, scaled: bool) -> None:
        """Prepare what makes batches. On a GPU in threads beside the trainer's, two at a time, staggered: while one
        sets decoders up, waits for NVDEC's last pictures or finishes, the other keeps NVDEC busy.
        """
        self._stages: queue.SimpleQueue[Frames] = queue.SimpleQueue()
        self._makers: ThreadPoolExecutor | None = None
        how = {"batch_size": self._batch_size, "threads": max(1, min(DALI_THREADS, os.cpu_count() or 1))}
        if device == "cpu":
            self._stages.put(_cpu_frames(finish, **how))
            return
        from framedex.loader.dali.gpu import GpuFrames  # which needs DALI and torch

        stagger = Stagger()
        for _ in range(MAKERS):
            self._stages.put(GpuFrames(finish, device_id=device_id, scaled=scaled, stagger=stagger, **how))
        self._makers = ThreadPoolExecutor(MAKERS, thread_name_prefix="framedex-gpu")

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        count = len(self.sampler) if isinstance(self.sampler, Sized) else len(self.dataset)
        return count // self._batch_size if self._last == "drop" else -(-count // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of an epoch; after an iteration that was broken off, the rest of that epoch."""
        numbers_of_epoch = iter(self.sampler)
        self._asked = 0  # clips of this iteration that were asked for
        self._count_delivered(0)
        if isinstance(self.sampler, ClipSampler):
            self.dataset.set_epoch(self.sampler.epoch)  # of a dataset on disk, nothing changes
        waiting: collections.deque[_Batch] = collections.deque()
        try:
            for numbers, padding in self._batches(numbers_of_epoch):
                waiting.append(self._begin(numbers, padding))
                if len(waiting) > self._ahead:
                    yield self._deliver(waiting.popleft())
            while waiting:
                yield self._deliver(waiting.popleft())
        finally:
            for batch in waiting:
                _cancel(batch)
        if isinstance(self.sampler, ClipSampler):
            self.sampler.set_epoch(self.sampler.epoch + 1)

    def _count_delivered(self, clips: int) -> None:
        """Tell a ClipSampler what was delivered; it was asked for clips ahead."""
        if isinstance(self.sampler, ClipSampler):
            self.sampler.deliver(clips)

    def close(self) -> None:
        """End the worker processes."""
        if self._makers is not None:
            self._makers.shutdown(cancel_futures=True)
        self._pool.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a ClipSampler continues after the last batch delivered."""
        return self._clip_sampler().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; the next iteration yields the rest of that epoch."""
        self._clip_sampler().load_state_dict(state)

    def _clip_sampler(self) -> ClipSampler:
        if not isinstance(self.sampler, ClipSampler):
            raise FramedexError(
                "resuming needs a ClipSampler", found=type(self.sampler).__name__, remedy="sampler=ClipSampler(dataset)"
            )
        return self.sampler

    def _batches(self, numbers_of_epoch: Iterator[int]) -> Iterator[tuple[list[int], int]]:
        """Yield the clip numbers of each batch, and how many of the last ones only fill it up."""
        numbers: list[int] = []
        for number in numbers_of_epoch:
            if not -len(self.dataset) <= number < len(self.dataset):
                raise IndexError(f"the sampler asks for clip {number} of {len(self.dataset)}")
            numbers.append(int(number))
            if len(numbers) == self._batch_size:
                yield numbers, 0
                numbers = []
        if numbers and self._last == "partial":
            yield numbers, 0
        elif numbers and self._last == "pad":
            padding = self._batch_size - len(numbers)
            yield [numbers[place % len(numbers)] for place in range(self._batch_size)], padding

    def _begin(self, numbers: list[int], padding: int) -> _Batch:
        """Have a batch fetched: first what a GPU decodes, which can then begin."""
        share = self._share
        on_gpu = [share is not None and not is_on_cpu(self._asked + place, share) for place in range(len(numbers))]
        self._asked += len(numbers)
        futures: dict[int, Future[Fetched | Fault]] = {}
        for place in sorted(range(len(numbers)), key=lambda place: not on_gpu[place]):
            futures[place] = self._pool.submit(ClipRequest(number=numbers[place], on_gpu=on_gpu[place]))
        fetched = [futures[place] for place in range(len(numbers))]
        batch = _Batch(numbers=numbers, on_gpu=on_gpu, padding=padding, fetched=fetched)
        if self._makers is not None:
            batch.made = self._makers.submit(self._make, batch)
        return batch

    def _deliver(self, batch: _Batch) -> dict[str, Any]:
        begun = time.perf_counter()
        made = self._make(batch) if batch.made is None else batch.made.result()
        self.report.add_seconds(waiting=time.perf_counter() - begun)
        self._count_delivered(len(batch.numbers) - batch.padding)
        return made.hand_over()

    def _make(self, batch: _Batch) -> Made:
        """Return a batch as delivered."""
        stage = self._stages.get()
        try:
            with stage.working():
                return stage.made(self._content(batch, stage))
        except RuntimeError as error:
            if self._is_out_of_memory(error):
                raise self._too_little_memory(batch, error) from error
            raise
        finally:
            self._stages.put(stage)

    def _is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether the GPU's memory is full."""
        if self._makers is None:
            return False
        from framedex.loader.dali.cuda import is_out_of_memory  # which needs torch

        return is_out_of_memory(error)

    def _too_little_memory(self, batch: _Batch, error: RuntimeError) -> FramedexError:
        """Return the error that says what was asked of the GPU's memory, and how to ask for less."""
        from framedex.loader.dali.cuda import free_memory

        clips = [self.dataset.clip(number) for number in batch.numbers]
        frames = sum(len(clip.frame_index) for clip in clips)
        height, width = self._size or max((clip.medium.height, clip.medium.width) for clip in clips)
        scale = "a smaller size=(height, width)" if self._size else "size=(height, width), which scales frames down"
        return FramedexError(
            "the GPU's memory is full",
            where=f"a batch of {len(clips)} clips, {frames} frames of {width}×{height}, {self._prefetch} batches ahead",
            found=f"{str(error).splitlines()[0]} ({free_memory(self._device_id)})",
            remedy=f"a smaller batch_size, {scale}, or fewer batches ahead (prefetch); look at nvidia-smi for other processes",
        )

    def _content(self, batch: _Batch, stage: Frames) -> dict[str, Any]:
        had = self._decoded(batch, stage)
        begun = time.perf_counter()
        clips, frames = [clip for clip, _ in had.values()], [frames for _, frames in had.values()]
        items = [clip.item for clip in clips]
        if self._last == "pad":
            real = len(batch.numbers) - batch.padding
            items = [item | {"is_padding": place >= real} for place, item in zip(had, items, strict=True)]
        try:
            finished, sound = stage.finish(frames), stage.sound(items)
        except RuntimeError as error:
            if self._is_out_of_memory(error):
                raise
            names = ", ".join(clip.item["clip_id"] for clip in clips)
            raise DecodeError(
                f"DALI failed on a batch of clips {names}", found=error, remedy="look at the transform"
            ) from error
        content = {"frames": finished} | sound | collate_clips(items, self._collate)
        self.report.add_seconds(finishing=time.perf_counter() - begun)
        return content if self._as_torch is None else {name: self._as_torch(value) for name, value in content.items()}

    def _decoded(self, batch: _Batch, stage: Frames) -> dict[int, tuple[Fetched, Any]]:
        """Return the clips of a batch that can be had, or were taken instead, and their frames, by their places in order.

        What a GPU decodes comes first: workers decode the rest meanwhile.
        """
        had: dict[int, tuple[Fetched, Any] | None] = {}
        decoding = 0.0
        for on_gpu in (True, False):
            places = [place for place, gpu in enumerate(batch.on_gpu) if gpu == on_gpu]
            begun = time.perf_counter()
            fetched = [self._or_another(self._result(batch.numbers[place], batch.fetched[place])) for place in places]
            waited = time.perf_counter() - begun
            self.report.add_seconds(fetching=waited)
            clips = {place: clip for place, clip in zip(places, fetched, strict=True) if clip is not None}
            begun = time.perf_counter()
            had |= dict(zip(clips, self._frames_of(list(clips.values()), stage), strict=True))
            if on_gpu:
                decoding = time.perf_counter() - begun
            elif self._adaptive and self._share is not None:
                self._share = adapted(self._share, waited=waited, decoding=decoding)
        clips_had = {place: pair for place, pair in sorted(had.items()) if pair is not None}
        if not clips_had:
            other = self._another(batch.numbers[0])
            clips_had = {0: (other, stage.decode([other], self.report)[0])}
        for clip, _ in clips_had.values():
            self.report.count(clip)
        return clips_had

    def _frames_of(self, clips: list[Fetched], stage: Frames) -> list[tuple[Fetched, Any] | None]:
        """Return each clip, or what stands for it, and its frames; None where nothing does."""
        if not clips:
            return []
        try:
            return list(zip(clips, stage.decode(clips, self.report), strict=True))
        except RuntimeError as error:
            if self._is_out_of_memory(error):
                raise
            LOG.warning("a decoder on the GPU failed on a batch, which is decoded clip by clip: %s", error)
            self.report.add(retried="batch")
            return [self._alone(clip, stage) for clip in clips]

    def _alone(self, clip: Fetched, stage: Frames) -> tuple[Fetched, Any] | None:
        """Decode a clip by itself; where the GPU fails on it, a worker does."""
        try:
            return clip, stage.decode([clip], self.report)[0]
        except RuntimeError as error:
            if self._is_out_of_memory(error):
                raise
            LOG.warning(
                "a decoder on the GPU failed on clip %s, which the CPU gets: %s", printable(clip.item["clip_id"]), error
            )
            self.report.add(retried="clip")
        again = self._pool.submit(ClipRequest(number=clip.number, on_gpu=False))
        other = self._or_another(self._result(clip.number, again))
        return None if other is None else (other, stage.decode([other], self.report)[0])

    def _result(self, number: int, future: Future[Fetched | Fault]) -> Fetched | Fault:
        """Return what a worker gave; a clip whose worker died gets a second one."""
        try:
            return future.result()
        except WorkerDiedError as error:
            LOG.warning("%s while it was at clip %d, which is fetched again", error, number)
            self.report.add(retried="crash")
        try:
            return self._pool.submit(ClipRequest(number=number, on_gpu=False)).result()
        except WorkerDiedError as error:
            return Fault(number=number, kind="crash", message=str(error))

    def _or_another(self, fetched: Fetched | Fault) -> Fetched | None:
        """Return a clip, or what stands for one that cannot be had; None where nothing does. Raises by on_error."""
        if isinstance(fetched, Fetched):
            return fetched
        self.report.note(fetched)
        if self._on_error == "raise" or fetched.ends_the_run:
            raise fetched.error()
        if self._on_error == "skip":
            self.report.add(skipped=1)
            return None
        return self._another(fetched.number)

    def _another(self, number: int) -> Fetched:
        """Return a clip in place of one that cannot be had: of a few drawn by its number, the first that can be."""
        draws = np.random.default_rng(number).integers(0, len(self.dataset), TRIES).tolist()
        for draw in draws:
            result = self._result(draw, self._pool.submit(ClipRequest(number=draw, on_gpu=False)))
            if isinstance(result, Fetched):
                self.report.add(replaced=1)
                return result
            self.report.note(result)
        raise DecodeError(
            f"neither clip {number} nor any of {TRIES} drawn in its place can be had",
            remedy="look at framedex verify, and at report.faults",
        )


def _cancel(batch: _Batch) -> None:
    for future in (*batch.fetched, batch.made):
        if future is not None:
            future.cancel()


def _cpu_frames(finish: Finish, *, batch_size: int, threads: int) -> CpuFrames:
    """Return what makes batches on the CPU; DALI is needed only where the user has a transform."""
    if finish.transform is None and finish.audio_transform is None:
        return CpuFrames(finish)
    from framedex.loader.dali.pipelines import transformers  # which needs DALI

    transformer, audio = transformers(
        finish.transform, finish.audio_transform, batch_size=batch_size, threads=threads, device_id=None
    )
    return CpuFrames(finish, transformer=transformer, audio=audio)
