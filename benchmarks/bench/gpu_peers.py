"""Loaders that decode on a GPU: one small class each, which imports its library when it is used.

Each of them opens a file again for every clip, as a dataset of many videos makes it do, and returns uint8 RGB of the
requested frames.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from framedex.bench.peer import Batches, Peer, PeerClip, PeerOptions, Size
from framedex.errors import FramedexError


def _scaled(pictures: Any, size: Size | None) -> Any:
    """Scale a tensor uint8 [F, H, W, 3] on a GPU to (height, width). None leaves it as it is."""
    if size is None:
        return pictures
    from torch.nn.functional import interpolate

    planes = pictures.permute(0, 3, 1, 2).float()
    scaled = interpolate(planes, size, mode="bilinear", antialias=True)
    return scaled.round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)


class PyNvVideoCodec(Peer):
    """PyNvVideoCodec's SimpleDecoder on NVDEC: one decoder per thread, reconfigured for the file of each clip."""

    name, distribution, module, needs_gpu = "PyNvVideoCodec", "PyNvVideoCodec", "PyNvVideoCodec", True

    def open(self, clips: Sequence[PeerClip], options: PeerOptions) -> Batches:
        pool, own = ThreadPoolExecutor(max(1, options.workers)), threading.local()

        def batches(places: Sequence[int], size: Size | None) -> Iterator[tuple[list[int], list[Any]]]:
            pending: dict[int, Any] = {}  # two batches ahead
            for first in range(0, len(places), options.batch_size):
                for place in places[first : first + 2 * options.batch_size]:
                    if place not in pending:
                        pending[place] = pool.submit(self._read, own, clips[place], options.gpu or 0, size)
                batch = list(places[first : first + options.batch_size])
                yield batch, [pending.pop(place).result() for place in batch]

        return batches

    def _read(self, own: threading.local, clip: PeerClip, gpu: int, size: Size | None) -> Any:
        import PyNvVideoCodec
        import torch
        from torch.utils.dlpack import from_dlpack

        torch.cuda.set_device(gpu)
        if hasattr(own, "decoder"):
            own.decoder.reconfigure_decoder(clip.path)
        else:
            own.decoder = PyNvVideoCodec.SimpleDecoder(
                clip.path,
                gpu_id=gpu,
                use_device_memory=True,
                output_color_type=PyNvVideoCodec.OutputColorType.RGB,
            )
        frames, order = np.unique(clip.frames, return_inverse=True)
        found = own.decoder.get_batch_frames_by_index(frames.tolist())
        if len(found) != len(frames):
            raise FramedexError(f"PyNvVideoCodec gave {len(found)} of {len(frames)} frames", where=clip.path)
        pictures = _scaled(torch.stack([from_dlpack(frame) for frame in found]), size)
        torch.cuda.current_stream().synchronize()  # the decoder overwrites these frames with its next ones
        return pictures[torch.from_numpy(order).to(pictures.device)]


class DaliPeer(Peer):
    """A peer that is a DALI pipeline. Each run decodes a whole batch of clips."""

    distribution, module, needs_gpu = "nvidia-dali", "nvidia.dali", True

    def version(self) -> str:
        return str(importlib.import_module(self.module).__version__)

    def _arguments(self, options: PeerOptions) -> dict[str, Any]:
        threads = max(1, min(16, options.workers or os.cpu_count() or 1))
        return {"batch_size": options.batch_size, "num_threads": threads, "device_id": options.gpu or 0}


def _resized(pictures: Any, size: Size | None) -> Any:
    from nvidia.dali import fn, types

    if size is None:
        return pictures
    return fn.resize(pictures, size=list(size), interp_type=types.INTERP_LINEAR, antialias=True)


class DaliDecoders(DaliPeer):
    """`fn.decoders.video` on NVDEC, which takes whole files and frame numbers."""

    name = "DALI decoders.video"

    def open(self, clips: Sequence[PeerClip], options: PeerOptions) -> Batches:
        from nvidia.dali import fn, pipeline_def, types
        from torch.utils.dlpack import from_dlpack

        @pipeline_def(**self._arguments(options), prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
        def pipeline(size: Size | None) -> Any:
            movie = fn.external_source(name="movie", dtype=types.UINT8, ndim=1)
            wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
            return _resized(fn.decoders.video(movie, device="mixed", frames=wanted), size)

        last: dict[Size | None, Any] = {}  # the pipeline for the most recent size

        def batches(places: Sequence[int], size: Size | None) -> Iterator[tuple[list[int], list[Any]]]:
            if size not in last:
                last.clear()
                last[size] = pipeline(size)
                last[size].build()
            built = last[size]
            for first in range(0, len(places), options.batch_size):
                batch = list(places[first : first + options.batch_size])
                content = {clips[place].path: np.empty(0, np.uint8) for place in batch}
                for path in content:
                    content[path] = np.fromfile(path, np.uint8)
                built.feed_input("movie", [content[clips[place].path] for place in batch])
                built.feed_input("wanted", [np.array(clips[place].frames, np.int32) for place in batch])
                (output,) = built.run()
                yield batch, [from_dlpack(output[number]).clone() for number in range(len(batch))]

        return batches


class DaliReaders(DaliPeer):
    """`fn.readers.video`, with one line of its file list per clip.

    All clips must have the same number of frames and the same distance between frames.
    """

    name = "DALI readers.video"

    def open(self, clips: Sequence[PeerClip], options: PeerOptions) -> Batches:
        shapes = {(len(clip.frames), tuple(np.unique(np.diff(clip.frames)).tolist())) for clip in clips}
        steps = min(shapes)[1]
        stride = steps[0] if steps else 1
        if len(shapes) > 1 or len(steps) > 1 or stride < 1:
            raise FramedexError("readers.video takes clips of one length and one distance between frames alone")
        folder = tempfile.TemporaryDirectory()
        links = self._links(Path(folder.name), clips)

        def batches(places: Sequence[int], size: Size | None) -> Iterator[tuple[list[int], list[Any]]]:
            count = min(options.batch_size, len(places))  # the reader fills its last batch from the beginning
            lines = [(links[place], clips[place], place) for place in places]
            built = self._build(Path(folder.name), lines, replace(options, batch_size=count, size=size))
            return self._run(built, len(places), count)

        return batches

    def _run(self, built: Any, clips: int, batch_size: int) -> Iterator[tuple[list[int], list[Any]]]:
        from torch.utils.dlpack import from_dlpack

        for first in range(0, clips, batch_size):
            pictures, labels = built.run()
            numbers = np.asarray(labels.as_cpu().as_array()).reshape(-1).tolist()[: clips - first]
            yield numbers, [from_dlpack(pictures[number]).clone() for number in range(len(numbers))]

    def _links(self, folder: Path, clips: Sequence[PeerClip]) -> list[Path]:
        """Return a path without spaces for each clip's file, because a line of the list cannot hold spaces."""
        names: dict[str, Path] = {}
        for clip in clips:
            if clip.path not in names:
                names[clip.path] = folder / f"{len(names)}{Path(clip.path).suffix}"
                names[clip.path].symlink_to(clip.path)
        return [names[clip.path] for clip in clips]

    def _build(self, folder: Path, lines: list[tuple[Path, PeerClip, int]], options: PeerOptions) -> Any:
        """Return a pipeline that reads one sequence per line of the file list.

        Whether the end of a range is one frame or one stride after its last frame is tried out.
        """
        from nvidia.dali import fn, pipeline_def

        clip = lines[0][1]
        stride = clip.frames[1] - clip.frames[0] if len(clip.frames) > 1 else 1
        listing = folder / "list.txt"

        @pipeline_def(**self._arguments(options))  # type: ignore[untyped-decorator]
        def pipeline() -> Any:
            pictures, labels = fn.readers.video(  # type: ignore[misc]
                name="reader",
                device="gpu",
                file_list=str(listing),
                file_list_frame_num=True,
                sequence_length=len(clip.frames),
                stride=stride,
                step=1 << 30,  # one sequence per line
            )
            return _resized(pictures, options.size), labels

        for beyond in (1, stride):
            listing.write_text(
                "".join(
                    f"{link} {place} {asked.frames[0]} {asked.frames[-1] + beyond}\n" for link, asked, place in lines
                )
            )
            built = pipeline()
            built.build()
            if built.reader_meta("reader")["epoch_size"] == len(lines):
                return built
        raise FramedexError(
            "readers.video finds another number of sequences", found=built.reader_meta("reader")["epoch_size"]
        )
