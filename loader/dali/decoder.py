"""Decodes fetched clips on a GPU with one set of DALI pipelines: movies on NVDEC, images on nvJPEG.

DALI uses the memory of its results again once their tensors are dropped, although torch's work on them may not have
begun. So nothing of DALI's is delivered: frames are copied, and the copies are complete before the results are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from framedex.loader.batches.faults import LoaderReport
from framedex.loader.batches.fetched import Fetched
from framedex.loader.dali.pipelines import ImageDecoder, MovieDecoder
from framedex.loader.routing.joining import groups, movie_feed
from framedex.records.clip import PAD
from framedex.sharder.decoding.cutout import cut_into


class GpuDecoder:
    """Decodes clips on one GPU. Threads may call it.

    Args:
        device_id: number of the GPU.
        batch_size: clips per batch.
        threads: threads of the pipeline for images.
        scaled: whether frames are scaled, each clip to its own `size`.
    """

    def __init__(self, *, device_id: int, batch_size: int, threads: int, scaled: bool) -> None:
        self._movies = MovieDecoder(scaled=scaled, batch_size=batch_size, device_id=device_id)
        self._images = ImageDecoder(scaled=scaled, threads=threads, device_id=device_id)

    def decode(self, clips: Sequence[Fetched], report: LoaderReport) -> list[Tensor]:
        """Return uint8 [F, H, W, 3] per clip, zeros where padded. Raises RuntimeError if DALI does."""
        movies = [place for place, clip in enumerate(clips) if clip.movie is not None]
        images = [place for place, clip in enumerate(clips) if clip.images is not None]
        begun = time.perf_counter()
        of_movies = _copied(self._decode_movies([clips[place] for place in movies]), [clips[place] for place in movies])
        report.add_seconds(nvdec=time.perf_counter() - begun)
        begun = time.perf_counter()
        of_images = _copied(self._decode_images([clips[place] for place in images]), [clips[place] for place in images])
        report.add_seconds(nvjpeg=time.perf_counter() - begun)
        frames = dict(zip(movies + images, of_movies + of_images, strict=True))
        return [frames[place] for place in range(len(clips))]

    def _decode_movies(self, clips: list[Fetched]) -> list[Tensor]:
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
        """Return uint8 [unique, H, W, 3] per clip."""
        if not clips:
            return []
        counts = [len(clip.images.content) for clip in clips if clip.images is not None]
        images = [image for clip in clips if clip.images for image in clip.images.content]
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
    """Return copies of the tensors of a DALI tensor list on the GPU, which are complete."""
    tensors = tensors_of(output)
    copies = [tensor.clone() for tensor in tensors]
    torch.cuda.current_stream().synchronize()
    return copies


def _copied(decoded: list[Tensor], clips: list[Fetched]) -> list[Tensor]:
    """Return copies of decoded frames as their clips have them. The copies are complete."""
    copies = [arranged(frames, clip) for frames, clip in zip(decoded, clips, strict=True)]
    torch.cuda.current_stream().synchronize()  # only then may DALI's memory, `decoded`, be dropped
    return copies


def arranged(decoded: Tensor, clip: Fetched) -> Tensor:
    """Return a copy of the frames of a clip, upright, cut and at their places, zeros where padded."""
    assert clip.order is not None
    if clip.cutout is None:
        frames = _in_order(decoded[None], clip.order)[0]
        return torch.rot90(frames, clip.turns, dims=(1, 2)).contiguous() if clip.turns else frames
    cutout = clip.cutout
    upright = torch.rot90(decoded, clip.turns, dims=(1, 2)) if clip.turns else decoded
    unique = decoded.new_zeros((len(cutout.windows), len(decoded), *cutout.size, decoded.shape[-1]))
    cut_into(unique, upright, cutout, torch.flip)
    frames = _in_order(unique, clip.order)
    return frames if cutout.is_stacked else frames[0]


def _in_order(unique: Tensor, order: NDArray[np.int64]) -> Tensor:
    """Return a copy of [windows, unique, H, W, 3] as [windows, F, H, W, 3], zeros where padded."""
    frames = unique[:, torch.from_numpy(np.maximum(order, 0)).to(unique.device)]
    if (order == PAD).any():
        frames[:, torch.from_numpy(order == PAD).to(unique.device)] = 0
    return frames
