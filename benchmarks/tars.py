"""Clips out of one webdataset tar of H.264 videos: by range, beside the same videos as files and webdataset's reading.

The tar holds as many copies of one video of benchmarks/training_videos.py, "640x360 GOP 30", as give 2 GB. A clip is
16 frames, 2 apart, at a random place, as 224x224. One epoch has one clip of each video. framedex loads the clips in
random order, from the tar and from the unpacked videos. webdataset reads the tar from its beginning to its end;
torchcodec decodes the clip from the bytes of the video; each of the processes takes its share of the samples. All have
the same number of processes, and the page cache holds everything.

What was expected: framedex is as fast from the tar as from files, because it reads the same ranges through one open
file; webdataset is slower, because it reads and scans whole videos.

usage: python -m benchmarks.tars FOLDER [--gigabytes 2] [--workers 2] [--repeats 3]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import framedex
from benchmarks.environment import environment
from benchmarks.training_videos import FORMATS, draw, make_minute, video_path

FORMAT = "640x360 GOP 30"
POLICY = {"policy": "random", "clips": 1, "frames": 16, "stride": 2, "seed": 1}
SIZE, BATCH = (224, 224), 8


def make(folder: Path, gigabytes: float) -> tuple[Path, Path]:
    """Return (tar, folder of its members unpacked). Both are made unless they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, minute = video_path(folder, "drawn"), video_path(folder, "minute")
    if not minute.exists():
        draw(drawn, FORMATS[FORMAT])
        make_minute(drawn, minute)
    tar, unpacked = folder / "videos.tar", folder / "videos"
    count = round(gigabytes * 1e9 / minute.stat().st_size)
    if not tar.exists():
        with tarfile.open(tar, "w") as out:
            for number in range(count):
                out.add(minute, arcname=f"{number:05}.mp4")
    if not unpacked.exists():
        unpacked.mkdir()
        with tarfile.open(tar) as packed:
            packed.extractall(unpacked, filter="data")
    return tar, unpacked


def by_framedex(source: Path, workers: int) -> Callable[[], int]:
    """Return a function that loads an epoch and returns its number of clips."""
    planned = source.parent / f"DATASET-{source.name}"
    if not planned.exists():
        framedex.index(source, str(source.parent / f"INDEX-{source.name}"), progress=False)
        framedex.shard(str(source.parent / f"INDEX-{source.name}"), str(planned), policy=POLICY, progress=False)
    clips = framedex.ClipDataset(str(planned))
    sampler = framedex.ClipSampler(clips, shuffle=True, seed=0)
    loader = framedex.ClipLoader(clips, batch_size=BATCH, sampler=sampler, size=SIZE, num_workers=workers)

    def epoch() -> int:
        return sum(len(batch["frames"]) for batch in loader)

    return epoch


def by_webdataset(tar: Path, workers: int) -> Callable[[], int]:
    """Return a function that loads an epoch and returns its number of clips."""
    import torch
    import webdataset
    from torch.nn.functional import interpolate
    from torchcodec.decoders import VideoDecoder

    def clip(sample: dict[str, Any]) -> Any:
        decoder = VideoDecoder(sample["mp4"], seek_mode="approximate", num_ffmpeg_threads=1)
        count = decoder.metadata.num_frames
        first = int(np.random.default_rng(int(sample["__key__"])).integers(count - 31))
        return interpolate(
            decoder.get_frames_at(list(range(first, first + 32, 2))).data, SIZE, mode="bilinear", antialias=True
        )

    def mine(samples: Iterator[Any]) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        for number, sample in enumerate(samples):
            if worker is None or number % worker.num_workers == worker.id:
                yield sample

    samples = webdataset.WebDataset(str(tar), shardshuffle=False, workersplitter=None).compose(mine).map(clip)
    loader = torch.utils.data.DataLoader(samples, batch_size=BATCH, num_workers=workers, persistent_workers=True)

    def epoch() -> int:
        return sum(len(batch) for batch in loader)

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    tar, unpacked = make(options.folder, options.gigabytes)
    epochs = {
        "framedex, tar": by_framedex(tar, options.workers),
        "framedex, files": by_framedex(unpacked, options.workers),
        "webdataset and torchcodec": by_webdataset(tar, options.workers),
    }
    clips = {name: {epoch()} for name, epoch in epochs.items()}  # the first epoch starts the processes
    rates: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(options.repeats):
        for name, epoch in epochs.items():
            began = time.perf_counter()
            count = epoch()
            rates[name].append(count / (time.perf_counter() - began))
            clips[name].add(count)
    rows = [
        {"reader": name, "clips": max(clips[name]), "clips_a_second": round(statistics.median(several), 1)}
        | {"each": [round(rate, 1) for rate in several]}
        for name, several in rates.items()
    ]
    videos = len(list(unpacked.iterdir()))
    print(
        json.dumps(
            {
                "environment": environment("webdataset", "torchcodec"),
                "format": FORMAT,
                "videos": videos,
                "tar_bytes": tar.stat().st_size,
                "workers": options.workers,
                "rows": rows,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
