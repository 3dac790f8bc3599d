"""Measure how fast NVDEC decodes clips of each picture size: the cost of one movie, and of epochs of 16-frame clips.

- `sizes`: one movie of 16 frames, 64 times, 16 per run, each size alone: milliseconds per movie. Sizes whose coded
  picture is larger than the shown one are listed beside those of the same coded size that show all of it.
- `epochs`: 128 clips of 16 consecutive frames, or of 16 frames one second apart, from a minute of video, delivered at
  224×224: seconds of warm epochs, decoded by NVDEC alone, shared by `decode="auto"`, and by the CPU alone. "many sizes"
  has 320 clips of 80 videos, of 40 sizes in two codecs.

With FRAMEDEX_NVDEC_CACHE=off in the environment, DALI calls the driver for each movie, and clips are joined.

usage: python -m benchmarks.nvdec make FOLDER     (draws the videos; on any machine)
       python -m benchmarks.nvdec run FOLDER --out FILE [--only NAME] [--decode gpu] [--no-sizes]     (on a GPU)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.environment import environment
from benchmarks.make_video import pictures, repeat

SIZES = (
    (464, 256),
    (454, 256),
    (640, 368),
    (640, 360),
    (1280, 720),
    (1920, 1088),
    (1920, 1080),
    (352, 256),
    (340, 256),
)
CODECS = {"h264": "libx264", "hevc": "libx265"}
FRAMES, MOVIES, IN_A_RUN, EPOCHS = 16, 64, 16, 4
WORKERS = {"gpu": 4, "auto": 16, "cpu": 16}  # by decoder
# Videos of epochs: width, height, frames per second, GOP, distance in frames between the frames of a clip.
VIDEOS = {
    "1080p60": (1920, 1080, 60, 60, 1),
    "340x256": (340, 256, 30, 30, 1),
    "454x256": (454, 256, 30, 30, 1),
    "720p60": (1280, 720, 60, 60, 1),
    "720p60, GOP 250": (1280, 720, 60, 250, 1),
    "720p60, GOP 250, 1 fps": (1280, 720, 60, 250, 60),
}
DRAWN_SECONDS, SECONDS, CLIPS, SIZE = 5, 60, 128, (224, 224)
# Sizes of `many sizes`: 256 pixels on the short side, as datasets for action recognition are scaled.
MANY_SIZES = [(256 + 8 * n, 256) if n % 4 else (256, 256 + 8 * n) for n in range(1, 41)]
MANY, MANY_FRAMES, MANY_FIRST = "many sizes", 60, (3, 15, 22, 40)


def encode(path: Path, codec: str, width: int, height: int, fps: int, gop: int, count: int) -> None:
    """Write pictures of a few seconds with closed GOPs."""
    options = {"g": str(gop), "preset": "veryfast"}
    if codec == "libx265":
        options |= {"x265-params": f"log-level=0:open-gop=0:keyint={gop}"}
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"  # type: ignore[union-attr]
        for picture in pictures(width, height, count):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))  # type: ignore[union-attr]
        out.mux(stream.encode(None))  # type: ignore[union-attr]


def source(folder: Path, name: str) -> Path:
    """Return the path of a drawn video."""
    return folder / f"{name.replace(', ', '_').replace(' ', '')}.mp4"


def make(folder: Path) -> None:
    """Draw all videos."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES:
        for name, codec in CODECS.items():
            encode(source(folder, f"{name}_{width}x{height}"), codec, width, height, 25, FRAMES, FRAMES)
    for name, (width, height, fps, gop, _) in VIDEOS.items():
        if not name.endswith("1 fps"):
            encode(source(folder, name), "libx264", width, height, fps, gop, fps * DRAWN_SECONDS)
    for video, codec, size in many_videos(folder):
        video.parent.mkdir(exist_ok=True)
        encode(video, codec, *size, 30, 30, MANY_FRAMES)


def many_videos(folder: Path) -> list[tuple[Path, str, tuple[int, int]]]:
    """Return path, encoder, and (width, height) of each video of `many sizes`."""
    return [
        (folder / "many" / f"{name}_{size[0]}x{size[1]}.mp4", codec, size)
        for name, codec in CODECS.items()
        for size in MANY_SIZES
    ]


def command(*arguments: object) -> None:
    """Run a framedex command."""
    subprocess.run([sys.executable, "-m", "framedex", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def stored(folder: Path, videos: list[Path], clips: list[list[int]]) -> Path:
    """Return a dataset with these clips of each video."""
    index, out, listed = folder / "INDEX", folder / "DATASET", folder / "clips.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"uri": video.name, "frames": frames} for video in videos for frames in clips]
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command("index", *videos, "--out", index)
    command("shard", index, "--clips", listed, "--out", out)
    return out


def by_size(folder: Path, work: Path) -> dict[str, Any]:
    """Return the milliseconds per movie of each size, warm."""
    import torch

    from framedex import ClipDataset
    from framedex.loader.batches.faults import ClipRequest, Fetched
    from framedex.loader.batches.fetch import Fetcher, FetchOptions
    from framedex.loader.dali.pipelines import MovieDecoder
    from framedex.loader.routing.driver import driver_support
    from framedex.loader.routing.movie import movie_feed

    found = {}
    for name in CODECS:
        for width, height in SIZES:
            video = source(folder, f"{name}_{width}x{height}")
            dataset = ClipDataset(stored(work / video.stem, [video], [list(range(FRAMES))]))
            options = FetchOptions(pixels=[dataset.pixels], caps=driver_support(0))
            fetched = Fetcher(dataset, options)(ClipRequest(number=0, on_gpu=True))
            assert isinstance(fetched, Fetched), fetched
            assert fetched.movie is not None, f"{video.stem} does not go to NVDEC"
            feed = movie_feed([fetched.movie.packets], [fetched.movie.wanted])
            decoder = MovieDecoder(scaled=True, batch_size=IN_A_RUN, device_id=0)
            times = []
            for _ in range(4):
                begun = time.perf_counter()
                for _ in range(MOVIES // IN_A_RUN):
                    decoder.run([feed] * IN_A_RUN, [SIZE] * IN_A_RUN)
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begun) / MOVIES * 1000)
            found[f"{name} {width}x{height}"] = round(float(np.median(times[1:])), 2)
            print(video.stem, found[f"{name} {width}x{height}"], file=sys.stderr, flush=True)
    return found


def datasets(folder: Path, work: Path, only: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of the dataset of each of `VIDEOS`, and of `MANY`."""
    for name, (_, _, fps, _, step) in VIDEOS.items():
        if not only or name in only:
            home = work / source(folder, name).stem
            home.mkdir(parents=True, exist_ok=True)
            video = home / "video.mp4"
            repeat(source(folder, name.removesuffix(", 1 fps")), video, SECONDS // DRAWN_SECONDS)
            first = np.random.default_rng(5).integers(0, SECONDS * fps - FRAMES * step, CLIPS)
            yield name, stored(home, [video], [[int(begin) + step * k for k in range(FRAMES)] for begin in first])
    if not only or MANY in only:
        videos = [video for video, _, _ in many_videos(folder)]
        yield MANY, stored(work / "many", videos, [list(range(begin, begin + FRAMES)) for begin in MANY_FIRST])


def epochs(folder: Path, work: Path, only: list[str], decoders: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the seconds of warm epochs of each dataset by decoder, after each measurement."""
    import torch

    from framedex import ClipDataset, ClipLoader, ClipSampler

    found: dict[str, Any] = {}
    for name, path in datasets(folder, work, only):
        dataset = ClipDataset(path)
        found[name] = {}
        for decode in decoders:
            sampler = ClipSampler(dataset, shuffle=True, seed=1)
            loader = ClipLoader(
                dataset,
                batch_size=16,
                device="gpu",
                decode=decode,  # type: ignore[arg-type]
                size=SIZE,
                num_workers=WORKERS[decode],
                sampler=sampler,
            )
            times = []
            for _ in range(EPOCHS):
                begun = time.perf_counter()
                clips = sum(len(batch["frames"]) for batch in loader)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begun)
                assert clips == len(dataset)
            found[name][decode] = {
                "clips": len(dataset),
                "first": round(times[0], 2),
                "warm": round(float(np.median(times[1:])), 3),
                "decoded": dict(loader.report.decoded),
            }
            loader.close()
            print(name, decode, found[name][decode], file=sys.stderr, flush=True)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["make", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/nvdec"))
    parser.add_argument("--out", type=Path, help="where results go, after each that was measured")
    parser.add_argument("--only", action="append", default=[], choices=[*VIDEOS, MANY])
    parser.add_argument("--decode", action="append", default=[], choices=list(WORKERS))
    parser.add_argument("--no-sizes", action="store_true")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder)
        return
    if options.out is None:
        parser.error("run needs --out FILE")
    import torch

    from framedex.loader.dali.nvdec_cache import cache_nvdec

    result: dict[str, Any] = {"environment": environment("torch", "nvidia-dali-cuda120")}
    result["environment"]["gpu"] = torch.cuda.get_device_name(0)
    result["nvdec_cached"] = cache_nvdec()
    if not options.no_sizes:
        result["milliseconds_a_movie"] = by_size(options.folder, options.work)
    for found in epochs(options.folder, options.work, options.only, options.decode or list(WORKERS)):
        result["epochs"] = found
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
