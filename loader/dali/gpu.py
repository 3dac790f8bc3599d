"""Batches of clips as CUDA tensors. Clips are decoded with DALI, and batches are finished on a separate CUDA stream.

Two DALI pipelines decode movies on NVDEC and images on nvJPEG. DALI reuses the memory of its output as soon as the last
tensor of it is deleted, even if torch has queued work on that tensor. So DALI's output is never delivered. Frames are
copied, and the output is deleted after the copies are complete.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from framedex.loader.batches.faults import Fetched, Keep, LoaderReport
from framedex.loader.batches.frames import AtOnce, Collate, Finish, Frames, greatest_shape, have_one_shape
from framedex.loader.batches.on_gpu import (
    FrameFinisher,
    HostCopies,
    check_cuda,
    free_memory,
    is_out_of_memory,
    windows_of,
)
from framedex.loader.dali.nvdec_cache import cache_nvdec
from framedex.loader.dali.pipelines import MOVIES_AT_ONCE, ImageDecoder, MovieDecoder, transformers
from framedex.loader.routing.movie import groups, movie_feed
from framedex.records.clip import PAD


class GpuDecoder:
    """A decoder of clips on one GPU. Thread-safe.

    Args:
        device_id: The number of the GPU.
        batch_size: The number of clips per batch.
        threads: The number of threads of the pipeline for images.
        scaled: Whether the frames of each clip are scaled to `Fetched.size`.
    """

    def __init__(self, *, device_id: int, batch_size: int, threads: int, scaled: bool) -> None:
        self._movies = MovieDecoder(scaled=scaled, batch_size=batch_size, device_id=device_id)
        self._images = ImageDecoder(scaled=scaled, threads=threads, device_id=device_id)

    def decode(self, clips: Sequence[Fetched], report: LoaderReport, keep: Keep) -> list[Any]:
        """Decode clips, and return what `keep` returns for each clip. Raises RuntimeError if DALI fails."""
        movies = [place for place, clip in enumerate(clips) if clip.movie is not None]
        images = [place for place, clip in enumerate(clips) if clip.images is not None]
        frames: dict[int, Any] = {}
        for stage, decode, places in (("nvdec", self._decode_movies, movies), ("nvjpeg", self._decode_images, images)):
            begun = time.perf_counter()
            if places:
                frames |= zip(places, keep(decode([clips[place] for place in places]), places), strict=True)
            report.add_seconds(**{stage: time.perf_counter() - begun})
        return [frames[place] for place in range(len(clips))]

    def _decode_movies(self, clips: list[Fetched]) -> list[Tensor]:
        """Return the distinct frames of each clip's movie, uint8 [unique, H, W, 3]."""
        own = [clip.movie for clip in clips if clip.movie is not None]
        by_movie = {id(movie): clip for clip, movie in zip(clips, own, strict=True)}  # clips with one movie are alike
        movies = list({id(movie): movie for movie in own}.values())
        packets = [movie.packets for movie in movies]
        distinct = list(by_movie.values())
        parts = [None if clip.cutout is None else clip.cutout.part for clip in distinct]
        kinds = [(clip.size, part) for clip, part in zip(distinct, parts, strict=True)]
        together = groups(packets, kinds, most_packets=self._movies.most_packets)
        feeds = [
            movie_feed([packets[n] for n in group], [movies[n].wanted for n in group], parts[group[0]])
            for group in together
        ]
        outputs = self._movies.run(feeds, [distinct[group[0]].size for group in together])
        decoded = [tensor for output in outputs for tensor in tensors_of(output)]
        found: dict[int, Tensor] = {}
        for group, frames in zip(together, decoded, strict=True):
            lengths = [len(movies[number].wanted) for number in group]
            found |= zip((id(movies[number]) for number in group), torch.split(frames, lengths), strict=True)
        return [found[id(movie)] for movie in own]

    def _decode_images(self, clips: list[Fetched]) -> list[Tensor]:
        """Return the distinct images of each clip of images, uint8 [unique, H, W, 3]."""
        counts = [len(clip.images) for clip in clips if clip.images is not None]
        images = [{"image": image} | _area(clip) for clip in clips for image in clip.images or ()]
        sizes = [clip.size for clip, count in zip(clips, counts, strict=True) for _ in range(count)]
        outputs = self._images.run(images, sizes)
        pictures = [picture for output in outputs for picture in tensors_of(output)]
        ends = np.cumsum(counts).tolist()
        stacked = [torch.stack(pictures[end - count : end]) for count, end in zip(counts, ends, strict=True)]
        torch.cuda.current_stream().synchronize()  # before DALI's output, `pictures`, is deleted
        return stacked


def _area(clip: Fetched) -> dict[str, NDArray[np.int32]]:
    """Return the pipeline's inputs for the part of an image that is scaled: `start` (y, x) and `shape`, int32 [2]."""
    start, shape = (None if clip.cutout is None else clip.cutout.part) or ((0, 0), clip.stored)
    return {"start": np.array(start, np.int32), "shape": np.array(shape, np.int32)}


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a DALI tensor list on the GPU. They share DALI's memory."""
    if output.is_dense_tensor():
        return list(from_dlpack(output.as_tensor()).unbind(0))
    return [from_dlpack(output[number]) for number in range(len(output))]


def owned_tensors(output: Any) -> list[Tensor]:
    """Copy the tensors of a DALI tensor list on the GPU, and wait until the copies are complete."""
    tensors = tensors_of(output)
    copies = [tensor.clone() for tensor in tensors]
    torch.cuda.current_stream().synchronize()
    return copies


def arranged(decoded: Tensor, clip: Fetched) -> Tensor:
    """Return a copy of a clip's frames, turned, cropped and in order, with zeros for padding."""
    assert clip.order is not None  # every clip that a GPU decodes has an order
    windows = windows_of(decoded, clip.cutout)
    if np.array_equal(clip.order, np.arange(len(decoded))):  # without the copy of indices, which waits for the GPU
        frames = windows.clone() if clip.cutout is None else windows
    else:
        frames = _in_order(windows, clip.order)
    return frames if clip.cutout is not None and clip.cutout.is_stacked else frames[0]


def _in_order(unique: Tensor, order: NDArray[np.int64]) -> Tensor:
    """Copy distinct frames, [windows, unique, H, W, 3], into the clip's order, [windows, F, H, W, 3].

    Args:
        unique: The distinct frames.
        order: int64 [F], the index in `unique` of each frame of the clip. -1 stands for padding, which becomes black.
    """
    frames = unique[:, torch.from_numpy(np.maximum(order, 0)).to(unique.device)]
    if (order == PAD).any():
        frames[:, torch.from_numpy(order == PAD).to(unique.device)] = 0
    return frames


# Number of threads that decode. The GPU decodes for one thread while the other builds movies or copies frames.
THREADS = 2
FEWEST_MOVIES = 8  # minimum number of movies per run. With fewer, some of the GPU's decoders would be idle
# The unscaled pictures of one call take at most this many bytes, or a 24th of the GPU's memory if that is more, without
# the copies that DALI makes. 32 clips of 16 frames of 1080p take 3 GiB, but groups of 8 such clips are only 4 movies.
# On an H200, 3 GiB gave 110 clips/s, and 6 GiB gave 171.
CALL_BYTES, CALLS_IN_MEMORY = 3 << 30, 24


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors of a batch, including those in nested lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | dict):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors(entry)


class GpuFrames(Frames):
    """Makes batches of fetched clips on one GPU. Thread-safe.

    The work runs on a separate CUDA stream, in parallel to the training.

    Args:
        finish: The form of the delivered frames.
        device_id: The number of the GPU.
        batch_size: The number of clips per batch.
        in_progress: The number of clips that are in progress at the same time.
        threads: The number of threads of the DALI pipelines for images and for transforms.
        scaled: Whether the frames of each clip are scaled to `Fetched.size`.
    """

    def __init__(
        self, finish: Finish, *, device_id: int, batch_size: int, in_progress: int, threads: int, scaled: bool
    ) -> None:
        check_cuda(device_id)
        self._device = torch.device("cuda", device_id)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        memory = torch.cuda.get_device_properties(self._device).total_memory
        self.at_once = at_once(in_progress, memory, is_cached=cache_nvdec())
        decoder = GpuDecoder(device_id=device_id, batch_size=batch_size, threads=threads, scaled=scaled)
        self.decoders = [decoder.decode] * THREADS
        transformer, audio = transformers(
            finish.transform, finish.audio_transform, batch_size=batch_size, threads=threads, device_id=device_id
        )
        super().__init__(finish, transformer=transformer, audio=audio)
        self._finisher = FrameFinisher(finish)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Run the GPU work of a `with` block on the loader's stream."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def made(self, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the batch `content` for use on its caller's CUDA stream.

        When the function is called, the caller's stream waits for the work that the loader's stream has queued so far.
        The tensors' memory is not reused before the work of the caller's stream on them is complete.
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
        """Return a text with the GPU's free memory if an error says that this memory is full, otherwise None."""
        return free_memory(self._device.index) if is_out_of_memory(error) else None

    def kept(self, distinct: list[Any], clips: list[Fetched], places: list[tuple[int, int]]) -> list[Any]:
        """Copy decoded frames into the order and orientation of their clips, and wait until the copies are complete."""
        copies = [arranged(frames, clip) for frames, clip in zip(distinct, clips, strict=True)]
        torch.cuda.current_stream().synchronize()
        return copies

    def host_copies(self) -> HostCopies:
        """Return an object that copies frames from this GPU to the host."""
        return HostCopies(self._device)

    def given(self, clip: Fetched) -> Tensor:
        """Copy the frames that a worker decoded to the GPU."""
        # torch has few operations for uint16 on a GPU, so uint16 samples are int16 until FrameFinisher returns them.
        frames = clip.frames.view(np.int16) if clip.frames.dtype == np.uint16 else clip.frames
        return torch.from_numpy(frames).to(self._device)

    def finish(self, frames: list[Tensor]) -> Tensor | list[Tensor]:
        """Return the frames of a batch after the transform, normalization, change of layout and collation."""
        if self._transformer is not None:
            self._stream.synchronize()  # DALI reads these frames on another stream
            frames = owned_tensors(self._transformer.run(frames))
        return collated("frames", frames, self._finish.collate, self._finisher)

    def sound(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Transform a batch's audio, remove it from the items, and return it as {"audio": …}.

        Without an audio transform, the items are not changed, and the result is an empty dict.
        """
        if self._audio is None:
            return {}
        clips = owned_tensors(self._audio.run([item.pop("audio") for item in items]))
        return {"audio": collated("audio", clips, self._finish.collate, lambda clip: clip)}


def at_once(in_progress: int, memory: int, *, is_cached: bool) -> AtOnce:
    """Return the number of movies that a decoder takes in one call.

    Args:
        in_progress: The number of clips that are in progress at the same time. The minimum is at most a quarter of it.
        memory: The size of the GPU's memory in bytes.
        is_cached: Whether `nvdec_cache` works, so that starting a movie takes hardly any time. Otherwise clips are
            joined into movies, and larger numbers of clips are faster.
    """
    fewest, most = (FEWEST_MOVIES, MOVIES_AT_ONCE) if is_cached else (MOVIES_AT_ONCE, FEWEST_MOVIES * MOVIES_AT_ONCE)
    most_bytes = max(CALL_BYTES, memory // CALLS_IN_MEMORY)
    return AtOnce(fewest=max(1, min(fewest, in_progress // 4)), most=most, most_bytes=most_bytes)


def collated(
    name: str, clips: list[Tensor], collate: Collate, finish: Callable[[Tensor], Tensor]
) -> Tensor | list[Tensor]:
    """Return the finished tensors of a batch, collated.

    Args:
        name: The key of the tensors in the batch, for error messages.
        clips: One tensor per clip.
        collate: The treatment of different shapes, as in `collate_clips`.
        finish: The function that finishes one tensor, or the stacked tensors of all clips.

    Raises:
        FramedexError: Shapes differ, and `collate` is "error".
    """
    if collate == "list":
        return [finish(clip) for clip in clips]
    if have_one_shape(name, [tuple(clip.shape) for clip in clips], collate):
        return finish(torch.stack(clips))
    finished = [finish(clip) for clip in clips]
    shape = greatest_shape([tuple(clip.shape) for clip in finished])
    is_deep = any(clip.dtype == torch.uint16 for clip in finished)  # with dtype="raw", clips may differ in bit depth
    batch = finished[0].new_zeros([len(finished), *shape], dtype=torch.uint16 if is_deep else finished[0].dtype)
    for row, clip in zip(batch, finished, strict=True):
        row[tuple(slice(size) for size in clip.shape)] = clip
    return batch
