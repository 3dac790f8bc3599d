"""Both decoders agree on colour: NVDEC pictures are close to CPU pictures for each matrix, range and bit depth."""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import ClipDataset, ClipLoader, ClipSampler
from framedex.loader.routing.movie import joined_movie
from tests.contract.test_decoders import DEVICES
from tests.loader.routing.test_colour import dali
from tests.support.datasets import run, shard_clips
from tests.support.gpu import first_driver, gpu_obstacles, movie_for_gpu
from tests.support.pictures import (
    FORMATS,
    HEIGHT,
    WIDTH,
    flat,
    frame_of,
    natural,
    patch_middles,
    pattern,
    planes_of,
    psnr,
)

GPU = [device for device in DEVICES if device != "cpu"]
PATCHES = 4  # number of frames with flat patches
# The frames of every video, in order, with the lowest allowed PSNR in dB of the GPU's against the CPU's. The frames of
# flat patches follow; they may differ by MAX_LEVELS.
MIN_PSNR = {"natural": 40, "testsrc2": 30, "smptebars": 30}
MAX_LEVELS = 2
MATRICES = {"bt709": 1, "bt601": 6, "bt2020": 9}


@dataclass(frozen=True, kw_only=True)
class Video:
    """One stream.

    Attributes:
        matrix: a key of MATRICES.
    """

    codec: str
    bits: int
    matrix: str
    full_range: bool

    @property
    def name(self) -> str:
        return f"{self.codec}_{self.bits}_{self.matrix}_{'full' if self.full_range else 'limited'}.mp4"


VIDEOS = [
    Video(codec=codec, bits=bits, matrix=matrix, full_range=full_range)
    for (codec, bits), matrix, full_range in itertools.product(
        (("libx264", 8), ("libx265", 8), ("libx265", 10)), MATRICES, (False, True)
    )
]


def _pictures() -> list[NDArray[np.float64]]:
    return [natural(), pattern("testsrc2"), pattern("smptebars"), *(flat(seed) for seed in range(PATCHES))]


def _encode(video: Video, path: Path) -> None:
    options = {"preset": "ultrafast", "crf": "8"}
    options |= {"x265-params": "log-level=none:pools=1:keyint=20"} if video.codec == "libx265" else {"g": "20"}
    with av.open(str(path), "w") as out:
        stream = out.add_stream(video.codec, rate=25, options=options)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, FORMATS[video.bits]
        context.colorspace = context.color_primaries = context.color_trc = MATRICES[video.matrix]
        context.color_range = 2 if video.full_range else 1
        context.thread_count = 1
        for number, rgb in enumerate(_pictures()):
            planes = planes_of(rgb, MATRICES[video.matrix], full_range=video.full_range, bits=video.bits)
            frame = frame_of(planes, MATRICES[video.matrix], full_range=video.full_range, bits=video.bits)
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> ClipDataset:
    """A dataset with one clip per video, which has all of its frames."""
    folder = tmp_path_factory.mktemp("coloured")
    (folder / "videos").mkdir()
    for video in VIDEOS:
        _encode(video, folder / "videos" / video.name)
    run("index", folder / "videos", "--out", folder / "INDEX")
    frames = list(range(len(_pictures())))
    clips = [{"uri": video.name, "clip_id": video.name, "frames": frames} for video in VIDEOS]
    return ClipDataset(shard_clips(folder / "INDEX", folder / "D", clips))


def _disagreements(clip_id: str, gpu: NDArray[np.uint8], cpu: NDArray[np.uint8]) -> list[str]:
    """Return a line for each frame of a clip whose difference exceeds the limits.

    Args:
        gpu: frames from the GPU, uint8 [F, H, W, 3].
        cpu: the same frames from the CPU.
    """
    found = [
        f"{clip_id} {kind}: {psnr(one, other):.1f} dB"
        for (kind, least), one, other in zip(MIN_PSNR.items(), gpu, cpu, strict=False)
        if psnr(one, other) < least
    ]
    for one, other in zip(gpu[len(MIN_PSNR) :], cpu[len(MIN_PSNR) :], strict=True):
        apart = patch_middles(one) - patch_middles(other)
        if np.abs(apart).max() > MAX_LEVELS:
            found.append(f"{clip_id} flat: {np.abs(apart).max()} levels, mean {apart.mean():+.2f}")
    return found


def _decoded(dataset: ClipDataset, device: str) -> dict[str, NDArray[np.uint8]]:
    loader = ClipLoader(dataset, batch_size=6, sampler=ClipSampler(dataset), device=device, collate="list")
    return {
        clip_id: frames.cpu().numpy()
        for batch in loader
        for clip_id, frames in zip(batch["clip_id"], batch["frames"], strict=True)
    }


def test_streams_say_what_they_are_and_most_go_to_the_gpu(coloured: ClipDataset) -> None:
    obstacles = gpu_obstacles(coloured)
    for number, video in enumerate(VIDEOS):
        clip = coloured.clip(number)
        assert clip.medium.color_matrix == MATRICES[video.matrix]
        assert clip.medium.color_range == ("full" if video.full_range else "limited")
        is_clipped = video.full_range and video.matrix != "bt601"
        assert (obstacles[number] is not None) == is_clipped, (video.name, obstacles[number])


def test_what_dali_is_fed_gives_the_cpu_s_colours_by_dali_s_own_conversion(coloured: ClipDataset) -> None:
    cpu = _decoded(coloured, "cpu")
    disagreements, obstacles = [], gpu_obstacles(coloured)
    for number, video in enumerate(VIDEOS):
        clip = coloured.clip(number)
        if obstacles[number] is not None:
            continue
        movie = movie_for_gpu(coloured, number)
        assert movie is not None
        affine = movie.correction.astype(np.float64)
        seen = [dali(planes, video.bits) for planes in _planes(joined_movie([movie]), video.bits)]
        corrected = np.clip(np.rint(np.stack(seen) @ affine[:, :3].T + affine[:, 3]), 0, 255).astype(np.uint8)
        disagreements += _disagreements(clip.clip_id, corrected, cpu[clip.clip_id])
    assert not disagreements, "\n".join(disagreements)


def _planes(movie: NDArray[np.uint8], bits: int) -> list[tuple[NDArray[np.uint16], ...]]:
    """Return the planes of a movie's pictures. Every picture must be tagged as full range."""
    found = []
    with av.open(io.BytesIO(movie.tobytes())) as container:
        for frame in container.decode(video=0):
            assert int(frame.color_range) == 2
            rows = [
                np.frombuffer(plane, np.uint8 if bits == 8 else np.uint16).reshape(plane.height, -1)[:, : plane.width]
                for plane in frame.planes
            ]
            found.append(tuple(plane.astype(np.uint16) for plane in rows))
    return found


@pytest.mark.parametrize("device", GPU)
def test_colours_of_the_gpu_are_near_those_of_the_cpu(coloured: ClipDataset, device: str) -> None:
    cpu, gpu = _decoded(coloured, "cpu"), _decoded(coloured, device)
    disagreements = [line for clip_id in cpu for line in _disagreements(clip_id, gpu[clip_id], cpu[clip_id])]
    for clip_id in cpu:  # print the figures of this run
        figures = ", ".join(f"{psnr(one, other):.1f}" for one, other in zip(gpu[clip_id], cpu[clip_id], strict=True))
        print(f"{clip_id}: {figures} dB")
    assert not disagreements, "\n".join(disagreements)


@pytest.mark.parametrize("device", GPU)
def test_ten_bits_lose_what_the_correction_expects(coloured: ClipDataset, device: str) -> None:
    cpu, gpu = _decoded(coloured, "cpu"), _decoded(coloured, device)
    for video in VIDEOS:
        if video.bits == 10:
            apart = gpu[video.name][0].astype(np.float64) - cpu[video.name][0]
            assert abs(apart.mean()) < 0.3, f"{video.name}: {apart.mean():+.2f}; colour.LOST_OF_DEEP is off by that"


@pytest.mark.parametrize("device", GPU)
def test_the_driver_says_that_it_decodes_what_was_decoded(coloured: ClipDataset, device: str) -> None:
    support = first_driver()
    assert support.reason is None
    for video, obstacle in zip(VIDEOS, gpu_obstacles(coloured, caps=support), strict=True):
        assert obstacle is None or obstacle.startswith("colour"), (video.name, obstacle)
