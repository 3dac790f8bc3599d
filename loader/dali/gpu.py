"""Batches of clips as CUDA tensors, finished on a stream of the loader's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framedex.loader.batches.collate import Collate, greatest_shape, have_one_shape
from framedex.loader.batches.fetched import Fetched
from framedex.loader.batches.frames import Decode, Finish, Made
from framedex.loader.dali.cuda import check_cuda, free_memory, is_out_of_memory
from framedex.loader.dali.decoder import GpuDecoder, owned_tensors
from framedex.loader.dali.nvdec_cache import cache_nvdec
from framedex.loader.dali.pipelines import MOVIES_AT_ONCE, transformers
from framedex.loader.pixels.layouts import CHANNEL_AXIS

THREADS = 2  # while one lays out its movies or copies frames, those of the other are decoded
FEWEST_CLIPS = 8


@dataclass(frozen=True, kw_only=True)
class OnStream(Made):
    """A batch that a CUDA stream of the loader works on.

    Attributes:
        event: the stream reaches it when the batch is complete.
        device: the GPU.
    """

    event: torch.cuda.Event
    device: torch.device

    def hand_over(self) -> dict[str, Any]:
        """Let the caller's stream wait until the batch is complete, and own the batch from then on."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.event)
        for tensor in _tensors(self.content):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return self.content


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors of a batch: values, and those in lists and in dicts by view."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | dict):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors(entry)


class GpuFrames:
    """Makes batches of fetched clips on one GPU.

    Threads call it, one per batch. The work runs on a stream of its own, so that it runs beside the trainer's.

    Args:
        finish: what frames are made into.
        device_id: number of the GPU.
        batch_size: clips per batch.
        in_progress: clips that are in progress at the same time.
        threads: threads of DALI's pipelines for images and transforms.
        scaled: whether frames are scaled, each clip to its own `size`.
    """

    def __init__(
        self, finish: Finish, *, device_id: int, batch_size: int, in_progress: int, threads: int, scaled: bool
    ) -> None:
        check_cuda(device_id)
        self._finish = finish
        self._device = torch.device("cuda", device_id)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self.at_once = at_once(in_progress, is_cached=cache_nvdec())
        decoder = GpuDecoder(device_id=device_id, batch_size=batch_size, threads=threads, scaled=scaled)
        self.decoders: Sequence[Decode] = [decoder.decode] * THREADS
        self._transformer, self._audio = transformers(
            finish.transform, finish.audio_transform, batch_size=batch_size, threads=threads, device_id=device_id
        )

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Put work on the loader's own stream."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def made(self, content: dict[str, Any]) -> Made:
        """Return a batch that is complete when the loader's stream has finished the work submitted so far."""
        return OnStream(content=content, event=self._stream.record_event(), device=self._device)

    def memory_left(self, error: BaseException) -> str | None:
        """Return how much GPU memory is free if an error of torch, DALI or NVDEC says that it is full, else None."""
        return free_memory(self._device.index) if is_out_of_memory(error) else None

    def given(self, clip: Fetched) -> Tensor:
        """Return the frames that a worker decoded, on the GPU."""
        assert clip.frames is not None
        # torch has few operations for uint16 on a GPU, so that its bits are int16 on the way (`_one`).
        frames = clip.frames.view(np.int16) if clip.frames.dtype == np.uint16 else clip.frames
        return torch.from_numpy(frames).to(self._device)

    def finish(self, frames: list[Tensor]) -> Tensor | list[Tensor]:
        """Return a batch's frames as delivered."""
        if self._transformer is not None:
            self._stream.synchronize()  # DALI reads these frames on a stream of its own
            frames = owned_tensors(self._transformer.run(frames))
        return collated("frames", frames, self._finish.collate, self._one)

    def sound(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Transform a batch's audio and remove it from the items; return an empty dict if there is no transform."""
        if self._audio is None:
            return {}
        made = owned_tensors(self._audio.run([item.pop("audio") for item in items]))
        return {"audio": collated("audio", made, self._finish.collate, lambda clip: clip)}

    def _one(self, frames: Tensor) -> Tensor:
        if self._finish.normalize is not None:
            scale, offset = (torch.from_numpy(values).to(self._device) for values in self._finish.scale_and_offset())
            wide = frames.to(torch.int32) & 0xFFFF if frames.dtype == torch.int16 else frames
            frames = torch.addcmul(offset, wide.float(), scale)
        axis = CHANNEL_AXIS[self._finish.layout]
        frames = frames if axis == -1 else frames.movedim(-1, axis).contiguous()
        return frames.view(torch.uint16) if frames.dtype == torch.int16 else frames


def at_once(in_progress: int, *, is_cached: bool) -> tuple[int, int]:
    """Return the fewest clips for which a run of DALI is worth its time, and the most that a run takes.

    Args:
        in_progress: clips that are in progress at the same time; a quarter of them may be waited for.
        is_cached: whether movies cost no time. Else clips are joined, and more of them at once are better.
    """
    fewest, most = (FEWEST_CLIPS, MOVIES_AT_ONCE) if is_cached else (MOVIES_AT_ONCE, FEWEST_CLIPS * MOVIES_AT_ONCE)
    return max(1, min(fewest, in_progress // 4)), most


def collated(
    name: str, clips: list[Tensor], collate: Collate, finish: Callable[[Tensor], Tensor]
) -> Tensor | list[Tensor]:
    """Return a batch of finished tensors.

    Args:
        name: the batch's key, for errors.
        clips: one tensor per clip.
        collate: what to do if shapes differ, as in `collate_clips`.
        finish: applied to each tensor, or to all of them stacked.

    Raises:
        FramedexError: shapes differ, and `collate` is "error".
    """
    if collate == "list":
        return [finish(clip) for clip in clips]
    if have_one_shape(name, [tuple(clip.shape) for clip in clips], collate):
        return finish(torch.stack(clips))
    finished = [finish(clip) for clip in clips]
    shape = greatest_shape([tuple(clip.shape) for clip in finished])
    is_deep = any(clip.dtype == torch.uint16 for clip in finished)  # samples as stored may differ in their bits
    batch = finished[0].new_zeros([len(finished), *shape], dtype=torch.uint16 if is_deep else finished[0].dtype)
    for row, clip in zip(batch, finished, strict=True):
        row[tuple(slice(size) for size in clip.shape)] = clip
    return batch
