"""Batches of clips as CUDA tensors: decoding with DALI, and finishing on a stream of the loader's own.

One set of DALI pipelines decodes movies on NVDEC and images on nvJPEG. DALI reuses the memory of its results once their
tensors are dropped, although torch's work on them may not have begun. So its results are never delivered: frames are
copied, and the copies are complete before the results are dropped.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from framedex.errors import FramedexError
from framedex.loader.batches.faults import Fetched, LoaderReport
from framedex.loader.batches.frames import Collate, Finish, Frames, greatest_shape, have_one_shape
from framedex.loader.dali.nvdec_cache import cache_nvdec
from framedex.loader.dali.pipelines import MOVIES_AT_ONCE, ImageDecoder, MovieDecoder, transformers
from framedex.loader.pixels.options import CHANNEL_AXIS
from framedex.loader.routing.driver import driver_support
from framedex.loader.routing.movie import groups, movie_feed
from framedex.records.clip import PAD
from framedex.sharder.decoding.cutout import cut_into


class GpuDecoder:
    """Decodes clips on one GPU. Threads may call it.

    Args:
        device_id: The number of the GPU.
        batch_size: Clips per batch.
        threads: Threads of the pipeline for images.
        scaled: Whether frames are scaled, each clip to its own `size`.
    """

    def __init__(self, *, device_id: int, batch_size: int, threads: int, scaled: bool) -> None:
        self._movies = MovieDecoder(scaled=scaled, batch_size=batch_size, device_id=device_id)
        self._images = ImageDecoder(scaled=scaled, threads=threads, device_id=device_id)

    def decode(self, clips: Sequence[Fetched], report: LoaderReport) -> list[Tensor]:
        """Decode clips: uint8 [F, H, W, 3] each, with zeros for padding. Raises RuntimeError if DALI fails."""
        movies = [place for place, clip in enumerate(clips) if clip.movie is not None]
        images = [place for place, clip in enumerate(clips) if clip.images is not None]
        frames: dict[int, Tensor] = {}
        for stage, decode, places in (("nvdec", self._decode_movies, movies), ("nvjpeg", self._decode_images, images)):
            begun = time.perf_counter()
            some = [clips[place] for place in places]
            frames |= zip(places, _copied(decode(some), some), strict=True)
            report.add_seconds(**{stage: time.perf_counter() - begun})
        return [frames[place] for place in range(len(clips))]

    def _decode_movies(self, clips: list[Fetched]) -> list[Tensor]:
        """Decode clips of videos: uint8 [unique, H, W, 3] each."""
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
        """Decode clips of images: uint8 [unique, H, W, 3] each."""
        counts = [len(clip.images) for clip in clips if clip.images is not None]
        images = [{"image": image} for clip in clips for image in clip.images or ()]
        sizes = [clip.size for clip, count in zip(clips, counts, strict=True) for _ in range(count)]
        outputs = self._images.run(images, sizes)
        pictures = [picture for output in outputs for picture in tensors_of(output)]
        ends = np.cumsum(counts).tolist()
        stacked = [torch.stack(pictures[end - count : end]) for count, end in zip(counts, ends, strict=True)]
        torch.cuda.current_stream().synchronize()  # only then may DALI's memory, `pictures`, be dropped
        return stacked


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a DALI tensor list on the GPU, without a copy."""
    if output.is_dense_tensor():
        return list(from_dlpack(output.as_tensor()).unbind(0))
    return [from_dlpack(output[number]) for number in range(len(output))]


def owned_tensors(output: Any) -> list[Tensor]:
    """Return complete copies of the tensors of a DALI tensor list on the GPU."""
    tensors = tensors_of(output)
    copies = [tensor.clone() for tensor in tensors]
    torch.cuda.current_stream().synchronize()
    return copies


def _copied(decoded: list[Tensor], clips: list[Fetched]) -> list[Tensor]:
    """Return complete copies of decoded frames, arranged for their clips."""
    copies = [arranged(frames, clip) for frames, clip in zip(decoded, clips, strict=True)]
    torch.cuda.current_stream().synchronize()  # only then may DALI's memory, `decoded`, be dropped
    return copies


def arranged(decoded: Tensor, clip: Fetched) -> Tensor:
    """Return a copy of a clip's frames, turned, cropped and in order, with zeros for padding."""
    assert clip.order is not None
    if clip.cutout is None:
        return _in_order(decoded[None], clip.order)[0]
    cutout = clip.cutout
    unique = decoded.new_zeros((len(cutout.windows), len(decoded), *cutout.size, decoded.shape[-1]))
    cut_into(unique, decoded, cutout, torch)
    frames = _in_order(unique, clip.order)
    return frames if cutout.is_stacked else frames[0]


def _in_order(unique: Tensor, order: NDArray[np.int64]) -> Tensor:
    """Return a copy of [windows, unique, H, W, 3] as [windows, F, H, W, 3], with zeros for padding."""
    frames = unique[:, torch.from_numpy(np.maximum(order, 0)).to(unique.device)]
    if (order == PAD).any():
        frames[:, torch.from_numpy(order == PAD).to(unique.device)] = 0
    return frames


GIBIBYTE = 1 << 30
# torch, DALI and NVDEC raise RuntimeErrors that differ only in their messages.
OUT_OF_MEMORY = re.compile(
    r"out[ _]of[ _]memory|cudaErrorMemoryAllocation|CUDA allocation failed|bad_alloc", re.IGNORECASE
)
VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_cuda(device_id: int) -> None:
    """Raise FramedexError with a remedy if torch cannot use the GPU."""
    if torch.version.cuda is None:
        raise _unusable(
            f"torch {torch.__version__}, a build without CUDA",
            "install a build of torch with CUDA, or take device='cpu'",
        )
    if not torch.cuda.is_available():
        hidden = f"{VISIBLE}={os.environ[VISIBLE]!r}" if VISIBLE in os.environ else None
        reason = driver_support(0).reason or hidden or "no GPU that torch can use"
        raise _unusable(reason, "check that nvidia-smi lists a GPU, or take device='cpu'")
    count = torch.cuda.device_count()
    if device_id >= count:
        raise FramedexError(
            "there is no such GPU",
            found=f"cuda:{device_id}",
            allowed="cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}",
            remedy=f"name one of these; {VISIBLE} sets the GPUs that a process sees",
        )


def _unusable(found: str, remedy: str) -> FramedexError:
    return FramedexError("decoding on a GPU needs an NVIDIA GPU that torch can use", found=found, remedy=remedy)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch, DALI or NVDEC means that the GPU's memory is full."""
    return isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def free_memory(device_id: int) -> str:
    """Return the free memory of a GPU, in words."""
    free, total = torch.cuda.mem_get_info(device_id)
    return f"{free / GIBIBYTE:.1f} of {total / GIBIBYTE:.1f} GiB free on cuda:{device_id}"


THREADS = 2  # while one thread builds its movies or copies frames, the GPU decodes the movies of the other
FEWEST_CLIPS = 8  # fewer clips would leave some of the GPU's decoders idle


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors of a batch, which may be in lists and in dicts by view."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | dict):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors(entry)


class GpuFrames(Frames):
    """Makes batches of fetched clips on one GPU.

    Threads call it, one per batch. The work has a CUDA stream of its own, so that it runs in parallel to the trainer's.

    Args:
        finish: The form of the delivered frames.
        device_id: The number of the GPU.
        batch_size: Clips per batch.
        in_progress: Clips that are in progress at the same time.
        threads: Threads of DALI's pipelines for images and transforms.
        scaled: Whether frames are scaled, each clip to its own `size`.
    """

    def __init__(
        self, finish: Finish, *, device_id: int, batch_size: int, in_progress: int, threads: int, scaled: bool
    ) -> None:
        check_cuda(device_id)
        self._device = torch.device("cuda", device_id)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self.at_once = at_once(in_progress, is_cached=cache_nvdec())
        decoder = GpuDecoder(device_id=device_id, batch_size=batch_size, threads=threads, scaled=scaled)
        self.decoders = [decoder.decode] * THREADS
        transformer, audio = transformers(
            finish.transform, finish.audio_transform, batch_size=batch_size, threads=threads, device_id=device_id
        )
        super().__init__(finish, transformer=transformer, audio=audio)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Run the GPU work inside on the loader's own stream."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def made(self, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Return a function that returns a batch, for use on the caller's stream.

        The caller's stream waits until the loader's stream has finished the work submitted so far. From then on, it
        owns the batch.
        """
        complete = self._stream.record_event()

        def wait() -> dict[str, Any]:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(complete)
            for tensor in _tensors(content):
                if tensor.is_cuda:
                    tensor.record_stream(current)
            return content

        return wait

    def memory_left(self, error: BaseException) -> str | None:
        """Return the free GPU memory in words if an error means that it is full, else None."""
        return free_memory(self._device.index) if is_out_of_memory(error) else None

    def given(self, clip: Fetched) -> Tensor:
        """Return the frames that a worker decoded, on the GPU."""
        # torch has few operations for uint16 on a GPU, so its bits are int16 until `_one` is done.
        frames = clip.frames.view(np.int16) if clip.frames.dtype == np.uint16 else clip.frames
        return torch.from_numpy(frames).to(self._device)

    def finish(self, frames: list[Tensor]) -> Tensor | list[Tensor]:
        """Return a batch's frames as delivered."""
        if self._transformer is not None:
            self._stream.synchronize()  # DALI reads these frames on another stream
            frames = owned_tensors(self._transformer.run(frames))
        return collated("frames", frames, self._finish.collate, self._one)

    def sound(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Transform a batch's audio and remove it from the items. Without a transform, return an empty dict."""
        if self._audio is None:
            return {}
        clips = owned_tensors(self._audio.run([item.pop("audio") for item in items]))
        return {"audio": collated("audio", clips, self._finish.collate, lambda clip: clip)}

    def _one(self, frames: Tensor) -> Tensor:
        if self._finish.normalize is not None:
            scale, offset = (torch.from_numpy(values).to(self._device) for values in self._finish.scale_and_offset())
            wide = frames.to(torch.int32) & 0xFFFF if frames.dtype == torch.int16 else frames
            frames = torch.addcmul(offset, wide.float(), scale)
        axis = CHANNEL_AXIS[self._finish.layout]
        frames = frames if axis == -1 else frames.movedim(-1, axis).contiguous()
        return frames.view(torch.uint16) if frames.dtype == torch.int16 else frames


def at_once(in_progress: int, *, is_cached: bool) -> tuple[int, int]:
    """Return the minimum and maximum number of clips for a run of DALI.

    Args:
        in_progress: Clips that are in progress at the same time. A run may wait for a quarter of them.
        is_cached: Whether the driver's answers are cached, so that movies take no time of their own. Otherwise clips
            are joined into movies, and larger runs are better.
    """
    fewest, most = (FEWEST_CLIPS, MOVIES_AT_ONCE) if is_cached else (MOVIES_AT_ONCE, FEWEST_CLIPS * MOVIES_AT_ONCE)
    return max(1, min(fewest, in_progress // 4)), most


def collated(
    name: str, clips: list[Tensor], collate: Collate, finish: Callable[[Tensor], Tensor]
) -> Tensor | list[Tensor]:
    """Return a batch of finished tensors.

    Args:
        name: The batch's key, for errors.
        clips: One tensor per clip.
        collate: The treatment of different shapes, as in `collate_clips`.
        finish: The function that finishes each tensor, or all of them stacked.

    Raises:
        FramedexError: Shapes differ, and `collate` is "error".
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
