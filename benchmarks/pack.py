"""Measure packing on one machine: tiny files against `cp` of the same bytes, images against a plain loop, and reading.

Videos are indexed before, and the page cache holds them. A packing run plans, copies and writes all tars and the
manifest. It flushes them to disk (fsync) unless stated otherwise; without flushing, the benchmark disables fsync. `cp`
copies the same tars, with and without a flush (`sync -f`) at the end. Contenders take turns, so that noise of the
machine affects all of them; between turns, the previous output is removed and flushed. Prints JSON.

usage: python -m benchmarks.pack VIDEO... [--folder DIR] [--runs 5] [--frames 250]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
from PIL import Image

from benchmarks.environment import environment
from framedex import ClipDataset
from framedex.indexer.parts.index import Index
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.sharder.build import ShardOptions, build_from_policy
from framedex.sharder.policies.reading import make_policy

QUALITY = 90
MIN_BYTES = 4_000_000_000  # of sources that are packed; smaller videos are used several times
IMAGE_STRIDE, IMAGE_FRAMES = 15, 8
READ_FRAMES = 8  # a clip's frames when reading back


def repeated(video: Path, folder: Path) -> int:
    """Make a folder of links to a video, MIN_BYTES in total, and return their number."""
    folder.mkdir()
    count = -(-MIN_BYTES // video.stat().st_size)
    for number in range(count):
        (folder / f"{number}{video.suffix}").symlink_to(video.resolve())
    return count


def median_seconds(
    runs: int, contenders: dict[str, Callable[[], None]], *, clean: Sequence[Path] = ()
) -> dict[str, float]:
    """Return the median time of each contender; contenders take turns.

    Args:
        clean: folders that are removed before each turn.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            for folder in clean:
                shutil.rmtree(folder, ignore_errors=True)
            os.sync()
            started = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def shard(index: Path, out: Path, options: ShardOptions, **policy: Any) -> None:
    """Write a dataset; replace an existing one."""
    shutil.rmtree(out, ignore_errors=True)
    build_from_policy(Index(index), out, make_policy({"policy": "stride", **policy}, where="benchmark"), options)


def without_flushing(action: Callable[[], None]) -> None:
    """Run `action` with fsync and fdatasync disabled."""
    kept = os.fsync, os.fdatasync
    os.fsync = os.fdatasync = lambda descriptor: None
    try:
        action()
    finally:
        os.fsync, os.fdatasync = kept


def copy(dataset: Path, out: Path, *, flush: bool) -> None:
    """Copy a dataset's tars like `cp`."""
    subprocess.run(["cp", "-r", dataset / "shards", out], check=True)
    if flush:
        subprocess.run(["sync", "-f", out], check=True)


def tar_bytes(dataset: Path) -> int:
    """Return the total size of a dataset's tars."""
    return sum(path.stat().st_size for path in (dataset / "shards").glob("*.tar"))


def time_copying(index: Path, folder: Path, runs: int, frames: int) -> dict[str, Any]:
    """Pack clips of `frames` consecutive frames, and copy the tars."""
    packed = folder / "PACKED"
    options = ShardOptions(pack="clips")
    shard(index, packed, options, stride=1, frames=frames)
    new = folder / "NEXT"

    def pack() -> None:
        shard(index, new, options, stride=1, frames=frames)

    seconds = median_seconds(
        runs,
        {
            "pack": pack,
            "pack, not flushed": lambda: without_flushing(pack),
            "cp and sync": lambda: copy(packed, new, flush=True),
            "cp": lambda: copy(packed, new, flush=False),
        },
        clean=[new],
    )
    size = tar_bytes(packed)
    speed = {name: size / value / 1e6 for name, value in seconds.items()}
    return {
        "bytes": size,
        "clips": len(ClipDataset(packed)),
        "megabytes_a_second": {name: round(value) for name, value in speed.items()},
        "share_of_cp": {
            "both flushed": round(speed["pack"] / speed["cp and sync"], 2),
            "neither flushed": round(speed["pack, not flushed"] / speed["cp"], 2),
        },
    }


def plain_loop(videos: list[Path], out: Path) -> None:
    """Write the same frames as the same JPEGs by decoding each video from its beginning."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for video in videos:
        with av.open(str(video)) as container:
            container.streams.video[0].codec_context.thread_count = 1
            for number, frame in enumerate(container.decode(video=0)):
                if number % IMAGE_STRIDE == 0:
                    picture = Image.fromarray(frame.to_ndarray(format="rgb24"))
                    picture.save(out / f"{video.stem}-{number}.jpg", quality=QUALITY, subsampling="4:2:0")


def time_images(index: Path, videos: list[Path], folder: Path, runs: int) -> dict[str, Any]:
    """Store every n-th frame in one process, in all processes, and with a plain loop."""
    policy = {"stride": IMAGE_STRIDE, "frames": IMAGE_FRAMES, "last": "partial"}
    workers = os.cpu_count() or 1
    contenders = {
        f"framedex, {count} workers": lambda count=count: shard(
            index, folder / "IMAGES", ShardOptions(pack="images", workers=count), **policy
        )
        for count in sorted({1, workers})
    }
    seconds = median_seconds(runs, contenders | {"plain loop": lambda: plain_loop(videos, folder / "LOOP")})
    images = len(list((folder / "LOOP").iterdir()))
    rates = {name: images / value for name, value in seconds.items()}
    return {
        "images": images,
        "images_a_second": {name: round(rate, 1) for name, rate in rates.items()},
        "times_the_plain_loop": {
            name: round(rate / rates["plain loop"], 2) for name, rate in rates.items() if name != "plain loop"
        },
    }


def read_framedex(dataset: Path) -> None:
    """Read all clips with ClipDataset."""
    opened = ClipDataset(dataset)
    for number in range(len(opened)):
        assert len(opened[number]["frames"])


def read_webdataset_torchcodec(dataset: Path) -> None:
    """Read tiny files with webdataset, and their requested frames with torchcodec."""
    import webdataset
    from torchcodec.decoders import VideoDecoder

    for sample in webdataset.WebDataset([str(p) for p in sorted(dataset.glob("shards/*.tar"))], shardshuffle=False):
        decoder = VideoDecoder(sample["mp4"], dimension_order="NHWC", num_ffmpeg_threads=1)
        assert len(decoder.get_frames_at(json.loads(sample["json"])["frames_in_file"]).data)


def read_webdataset_images(dataset: Path) -> None:
    """Read and decode images with webdataset."""
    import webdataset

    paths = [str(path) for path in sorted(dataset.glob("shards/*.tar"))]
    for sample in webdataset.WebDataset(paths, shardshuffle=False).decode("rgb8"):
        assert len(sample["json"]["images"])


def time_reading(index: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Read the same clips as RGB: from the source, from tiny files, and as images."""
    policy = {"stride": IMAGE_STRIDE, "frames": READ_FRAMES, "last": "drop"}
    for name, options in (
        ("REFERENCE", ShardOptions()),
        ("CLIPS", ShardOptions(pack="clips")),
        ("STORED", ShardOptions(pack="images")),
    ):
        shard(index, folder / name, options, **policy)
    seconds = median_seconds(
        runs,
        {
            "by reference, framedex": lambda: read_framedex(folder / "REFERENCE"),
            "clips, framedex": lambda: read_framedex(folder / "CLIPS"),
            "clips, webdataset and torchcodec": lambda: read_webdataset_torchcodec(folder / "CLIPS"),
            "images, framedex": lambda: read_framedex(folder / "STORED"),
            "images, webdataset": lambda: read_webdataset_images(folder / "STORED"),
        },
    )
    clips = len(ClipDataset(folder / "REFERENCE"))
    return {
        "clips": clips,
        "frames_a_clip": READ_FRAMES,
        "clips_a_second": {name: round(clips / value, 1) for name, value in seconds.items()},
        "images_a_second": {name: round(clips * READ_FRAMES / value, 1) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", type=Path, nargs="+", help="the first one is also stored as images and read back")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk to be measured")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--frames", type=int, default=250, help="of each clip that is copied")
    parser.add_argument("--only-copying", action="store_true", help="leave out images and reading back")
    options = parser.parse_args()
    results: dict[str, Any] = {"copying": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        for video in options.videos:
            index = folder / f"INDEX-{video.stem}"
            links = repeated(video, folder / video.stem)
            build_index(IndexOptions(sources=[str(folder / video.stem)], out=index, workers=1, follow_symlinks=True))
            copied = time_copying(index, folder, options.runs, options.frames)
            results["copying"].append({"video": video.name, "times": links, **copied})
        if not options.only_copying:
            first = folder / "INDEX"
            build_index(IndexOptions(sources=[str(options.videos[0])], out=first, workers=1))
            results["storing"] = time_images(first, options.videos[:1], folder, options.runs)
            results["reading"] = time_reading(first, folder, options.runs)
    libraries = ("pillow", "torch", "torchcodec", "webdataset")
    print(json.dumps({"environment": environment(*libraries), "results": results}, indent=2))


if __name__ == "__main__":
    main()
