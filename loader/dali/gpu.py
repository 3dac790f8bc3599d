"""Clips as CUDA tensors: decoded by NVDEC, by nvJPEG or by workers, with each clip's frames in their order.

The memory of DALI's results returns to DALI's pool when their tensors are dropped, and nothing tells DALI of work on
them that torch has queued. So nothing of DALI's is delivered: its results are copied, and dropped when the copies are
complete.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from framedex.loader.batches.collate import Collate, greatest_shape, have_one_shape
from framedex.loader.batches.faults import LoaderReport
from framedex.loader.batches.fetched import Fetched
from framedex.loader.batches.frames import Finish, Made
from framedex.loader.dali.cuda import check_cuda, free_memory, is_out_of_memory
from framedex.loader.dali.pipelines import ImageDecoder, MovieDecoder, transformers
from framedex.loader.routing.joining import groups, movie_feed
from framedex.sharder.schema import PAD


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
        for value in self.content.values():
            for tensor in value if isinstance(value, list) else [value]:
                if isinstance(tensor, Tensor) and tensor.is_cuda:
                    tensor.record_stream(current)
        return self.content


class GpuFrames:
    """Makes batches of fetched clips on one GPU.

    The work runs on a stream of its own, so that it runs beside the trainer's.

    Args:
        finish: what frames are made into.
        device_id: number of the GPU.
        batch_size: clips per batch.
        threads: threads of DALI's pipelines for images and transforms.
        scaled: whether frames are scaled, each clip to its own `size`.
    """

    def __init__(self, finish: Finish, *, device_id: int, batch_size: int, threads: int, scaled: bool) -> None:
        check_cuda(device_id)
        self._finish = finish
        self._device = torch.device("cuda", device_id)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._movies = MovieDecoder(scaled=scaled, batch_size=batch_size, device_id=device_id)
        self._images = ImageDecoder(scaled=scaled, threads=threads, device_id=device_id)
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

    def decode(self, clips: Sequence[Fetched], report: LoaderReport) -> list[Tensor]:
        """Return uint8 [F, H, W, 3] per clip, zeros where padded. Raises RuntimeError if DALI does."""
        frames: list[Tensor | None] = [None] * len(clips)
        movies = [place for place, clip in enumerate(clips) if clip.movie is not None]
        images = [place for place, clip in enumerate(clips) if clip.images is not None]
        begun = time.perf_counter()
        decoded = self._decode_movies([clips[place] for place in movies])
        frames_of_movies = [arranged(tensor, clips[place]) for place, tensor in zip(movies, decoded, strict=True)]
        self._stream.synchronize()
        report.add_seconds(nvdec=time.perf_counter() - begun)
        begun = time.perf_counter()
        decoded = self._decode_images([clips[place] for place in images])
        frames_of_images = [arranged(tensor, clips[place]) for place, tensor in zip(images, decoded, strict=True)]
        report.add_seconds(nvjpeg=time.perf_counter() - begun)
        for place, tensor in zip(movies + images, frames_of_movies + frames_of_images, strict=True):
            frames[place] = tensor
        begun = time.perf_counter()
        for place, clip in enumerate(clips):
            if clip.frames is not None:
                frames[place] = torch.from_numpy(clip.frames).to(self._device)
        report.add_seconds(upload=time.perf_counter() - begun)
        return [tensor for tensor in frames if tensor is not None]

    def _decode_movies(self, clips: list[Fetched]) -> list[Tensor]:
        """Return uint8 [unique, H, W, 3] per clip, in DALI's memory."""
        if not clips:
            return []
        movies = [clip.movie for clip in clips if clip.movie is not None]
        together = groups(
            [movie.packets for movie in movies], [clip.size for clip in clips], most_packets=self._movies.most_packets
        )
        feeds = [
            movie_feed([movies[n].packets for n in group], [movies[n].wanted for n in group]) for group in together
        ]
        outputs = self._movies.run(feeds, [clips[group[0]].size for group in together])
        decoded = [tensor for output in outputs for tensor in tensors_of(output)]
        by_clip: dict[int, Tensor] = {}
        for group, frames in zip(together, decoded, strict=True):
            by_clip |= dict(zip(group, torch.split(frames, [len(movies[n].wanted) for n in group]), strict=True))
        return [by_clip[number] for number in range(len(clips))]

    def _decode_images(self, clips: list[Fetched]) -> list[Tensor]:
        """Return uint8 [unique, H, W, 3] per clip, as complete copies."""
        if not clips:
            return []
        counts = [len(clip.images.content) for clip in clips if clip.images is not None]
        images = [image for clip in clips if clip.images for image in clip.images.content]
        sizes = [clip.size for clip, count in zip(clips, counts, strict=True) for _ in range(count)]
        outputs = self._images.run(images, sizes)
        pictures = [picture for output in outputs for picture in tensors_of(output)]
        ends = np.cumsum(counts).tolist()
        clips_of_pictures = [torch.stack(pictures[end - count : end]) for count, end in zip(counts, ends, strict=True)]
        self._stream.synchronize()
        return clips_of_pictures

    def finish(self, frames: list[Tensor]) -> Tensor | list[Tensor]:
        """Return a batch's frames as delivered."""
        if self._transformer is not None:
            self._stream.synchronize()  # DALI reads these frames on a stream of its own
            frames = self._owned(self._transformer.run(frames))
        return collated("frames", frames, self._finish.collate, self._one)

    def sound(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Transform a batch's audio and remove it from the items; return an empty dict if there is no transform."""
        if self._audio is None:
            return {}
        made = self._owned(self._audio.run([item.pop("audio") for item in items]))
        return {"audio": collated("audio", made, self._finish.collate, lambda clip: clip)}

    def _owned(self, output: Any) -> list[Tensor]:
        """Return complete copies of the tensors of a DALI tensor list on the GPU."""
        made = tensors_of(output)
        copies = [tensor.clone() for tensor in made]
        self._stream.synchronize()
        return copies

    def _one(self, frames: Tensor) -> Tensor:
        if self._finish.normalize is not None:
            scale, offset = (torch.from_numpy(values).to(self._device) for values in self._finish.scale_and_offset())
            frames = torch.addcmul(offset, frames.float(), scale)
        if self._finish.layout == "FCHW":
            frames = frames.movedim(-1, -3).contiguous()
        return frames


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
    batch = finished[0].new_zeros([len(finished), *shape])
    for row, clip in zip(batch, finished, strict=True):
        row[tuple(slice(size) for size in clip.shape)] = clip
    return batch


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a DALI tensor list on the GPU, without a copy."""
    if output.is_dense_tensor():
        return list(from_dlpack(output.as_tensor()).unbind(0))
    return [from_dlpack(output[number]) for number in range(len(output))]


def arranged(decoded: Tensor, clip: Fetched) -> Tensor:
    """Return a copy of the frames of a clip, upright at their places, zeros where padded."""
    assert clip.order is not None
    frames = decoded[torch.from_numpy(np.maximum(clip.order, 0)).to(decoded.device)]
    if (clip.order == PAD).any():
        frames[torch.from_numpy(clip.order == PAD).to(decoded.device)] = 0
    return torch.rot90(frames, clip.turns, dims=(1, 2)).contiguous() if clip.turns else frames
