"""Loaders that decode on the CPU: one small class each, which imports its library when it is used.

Each of them opens a file again for every clip, as a dataset of many videos makes it do, and returns uint8 RGB of the
requested frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from framedex.bench.peer import Batches, Frames, Peer, PeerClip, PeerOptions, Size
from framedex.errors import FramedexError


class CpuPeer(Peer):
    """A peer that decodes on the CPU: one clip per task, in the processes of torch's DataLoader."""

    def read(self, path: str, frames: list[int], seconds: list[float], size: Size | None) -> Frames:
        """Return uint8 [F, H, W, 3]: some frames of a file.

        Args:
            path: the video file.
            frames: frame numbers, ascending, each once.
            seconds: the time of each frame.
            size: (height, width) of the result. None: as stored.
        """
        raise NotImplementedError

    def open(self, clips: Sequence[PeerClip], options: PeerOptions) -> Batches:
        from torch.utils.data import DataLoader

        asked: list[tuple[int, Size | None]] = []
        in_flight = math.ceil(2 * options.batch_size / max(1, options.workers))
        loader: Any = DataLoader(
            _Reads(self, list(clips)),  # type: ignore[arg-type]
            batch_size=None,  # one clip per task, as in ClipLoader; `batches` puts batches together
            sampler=asked,
            num_workers=options.workers,
            multiprocessing_context="spawn" if options.workers else None,
            persistent_workers=options.workers > 0,
            prefetch_factor=max(2, in_flight) if options.workers else None,
        )

        def batches(places: Sequence[int], size: Size | None) -> Iterator[tuple[list[int], list[Any]]]:
            asked[:] = [(place, size) for place in places]
            pictures: list[Any] = []
            for number, picture in enumerate(loader, 1):
                pictures.append(picture)
                if len(pictures) == options.batch_size or number == len(places):
                    yield list(places[number - len(pictures) : number]), pictures
                    pictures = []

        return batches


class _Reads:
    """The dataset that the workers of a CPU peer read."""

    def __init__(self, peer: CpuPeer, clips: list[PeerClip]) -> None:
        self._peer, self._clips = peer, clips

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, asked: tuple[int, Size | None]) -> Any:
        import torch

        place, size = asked
        clip = self._clips[place]
        frames, first, order = np.unique(clip.frames, return_index=True, return_inverse=True)
        seconds = np.asarray(clip.seconds)[first]
        pictures = self._peer.read(clip.path, frames.tolist(), seconds.tolist(), size)
        if len(pictures) != len(frames):
            raise FramedexError(
                f"{self._peer.name} gave {len(pictures)} of {len(frames)} frames", where=clip.path, found=clip.frames
            )
        return torch.from_numpy(np.ascontiguousarray(pictures[order]))


class TorchCodec(CpuPeer):
    """torchcodec's VideoDecoder, which scans the file to be exact."""

    name, distribution, module = "torchcodec", "torchcodec", "torchcodec.decoders"
    seek_mode: Literal["exact", "approximate"] = "exact"

    def read(self, path: str, frames: list[int], seconds: list[float], size: Size | None) -> Frames:
        from torch.nn.functional import interpolate
        from torchcodec.decoders import VideoDecoder

        decoder = VideoDecoder(path, seek_mode=self.seek_mode, num_ffmpeg_threads=1)
        pictures = decoder.get_frames_at(frames).data
        if size is not None:
            pictures = interpolate(pictures, size, mode="bilinear", antialias=True)
        found: Frames = pictures.permute(0, 2, 3, 1).numpy()
        return found


class ApproximateTorchCodec(TorchCodec):
    """torchcodec's VideoDecoder, which takes the frame rate for constant and does not scan the file."""

    name = "torchcodec, approximate"
    seek_mode = "approximate"


class Spdl(CpuPeer):
    """SPDL, which demuxes a clip's seconds and decodes the wanted ones of their frames."""

    name, distribution, module = "SPDL", "spdl", "spdl.io"
    tolerance_seconds = 0.001

    def read(self, path: str, frames: list[int], seconds: list[float], size: Size | None) -> Frames:
        import spdl.io

        window = (seconds[0] - self.tolerance_seconds, seconds[-1] + self.tolerance_seconds)
        packets = spdl.io.demux_video(path, timestamp=window)
        scale = "" if size is None else f"scale={size[1]}:{size[0]},"
        wanted = [frame - frames[0] for frame in frames]
        decoded = spdl.io.sample_decode_video(packets, wanted, filter_desc=f"{scale}format=pix_fmts=rgb24")
        found: Frames = np.asarray(spdl.io.to_numpy(spdl.io.convert_frames(decoded)))
        return found


class Decord(CpuPeer):
    """decord's VideoReader, which scales as it decodes."""

    name, distribution, module = "decord", "decord", "decord"

    def read(self, path: str, frames: list[int], seconds: list[float], size: Size | None) -> Frames:
        import decord

        height, width = size or (-1, -1)
        found: Frames = decord.VideoReader(path, width=width, height=height, num_threads=1).get_batch(frames).asnumpy()
        return found


class OpenCv(CpuPeer):
    """OpenCV's VideoCapture, which seeks each frame by its number."""

    name, distribution, module = "OpenCV", "opencv-python-headless", "cv2"

    def read(self, path: str, frames: list[int], seconds: list[float], size: Size | None) -> Frames:
        import cv2

        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        pictures = []
        for frame in frames:
            capture.set(cv2.CAP_PROP_POS_FRAMES, frame)
            read, picture = capture.read()
            if not read:
                raise FramedexError("OpenCV reads no picture", where=path, found=f"frame {frame}")
            if size is not None:
                picture = cv2.resize(picture, size[::-1], interpolation=cv2.INTER_AREA)
            pictures.append(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
        capture.release()
        return np.stack(pictures)
