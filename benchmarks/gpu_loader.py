"""Clips a second of a training loader: framedex on NVDEC and on CPU processes, against DALI given whole files.

Clips of 16 frames at 1 fps from random places of each video, in shuffled order. Prints JSON.

usage: python -m benchmarks.gpu_loader VIDEO... [--clips 128] [--batch 8] [--workers 8] [--whole-file 16]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.environment import environment
from benchmarks.random_access import make_dataset
from framedex import ClipDataset, ClipLoader, ClipSampler


def time_loader(dataset: Path, options: argparse.Namespace, **how: Any) -> float:
    """Return seconds for all clips, after one pass over a few of them that starts workers and pipelines."""
    clips = ClipDataset(dataset)
    loader = ClipLoader(clips, batch_size=options.batch, sampler=ClipSampler(clips, shuffle=True), **how)
    warm_up = iter(loader)
    next(warm_up)
    del warm_up
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    started = time.perf_counter()
    frames = 0
    for batch in loader:
        frames += batch["frames"].shape[0] * batch["frames"].shape[1]
    torch.cuda.synchronize()
    assert frames == options.clips * options.frames
    return time.perf_counter() - started


def time_whole_file(video: Path, dataset: Path, clips: int) -> float:
    """Return seconds for `clips` clips with DALI's own frame numbers, the whole file as each sample's input."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=4, device_id=0, prefetch_queue_depth=1)
    def pipeline() -> Any:
        movie = fn.external_source(name="movie", dtype=types.UINT8, ndim=1)
        wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
        return fn.decoders.video(movie, device="mixed", frames=wanted)

    built = pipeline()
    built.build()
    content = np.fromfile(video, np.uint8)
    items = ClipDataset(dataset)
    seconds = 0.0
    for number in range(clips + 1):
        started = time.perf_counter()
        built.feed_input("movie", [content])
        built.feed_input("wanted", [items.clip(number).frame_index.astype(np.int32)])
        built.run()
        torch.cuda.synchronize()
        seconds += (time.perf_counter() - started) * (number > 0)  # the first one starts the decoder
    return seconds


def measure(video: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time every way on the same clips of one video."""
    with tempfile.TemporaryDirectory() as scratch:
        dataset, prepared = make_dataset(video, Path(scratch), options.clips, options.frames, options.fps, 0)
        seconds = {
            "framedex_nvdec": time_loader(dataset, options, device="gpu", num_workers=options.workers),
            "framedex_nvdec_224": time_loader(
                dataset, options, device="gpu", size=(224, 224), num_workers=options.workers
            ),
            "framedex_cpu": time_loader(dataset, options, device="cpu", num_workers=options.cpu_workers),
            "framedex_cpu_224": time_loader(
                dataset, options, device="cpu", size=(224, 224), num_workers=options.cpu_workers
            ),
        }
        result = {
            "video": video.name,
            "bytes": video.stat().st_size,
            "index_and_shard_seconds": round(prepared, 2),
            "clips": options.clips,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }
        if options.whole_file:
            whole = time_whole_file(video, dataset, options.whole_file)
            result["dali_whole_file"] = {"clips": options.whole_file, "seconds": round(whole, 3)}
            result["speedup_over_dali_whole_file"] = round(
                whole / options.whole_file / (seconds["framedex_nvdec"] / options.clips), 2
            )
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--clips", type=int, default=128)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--fps", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cpu-workers", type=int, default=16)
    parser.add_argument("--whole-file", type=int, default=16, metavar="CLIPS", help="0 leaves DALI's own way out")
    options = parser.parse_args()
    results = []
    for video in options.videos:
        results.append(measure(video, options))
        options.whole_file = 0  # DALI's own way is timed on the first video alone: on an hour it takes minutes a clip
    gpu = {"gpu": torch.cuda.get_device_name(0)}
    print(json.dumps({"environment": environment("nvidia-dali-cuda120", "torch") | gpu, "results": results}, indent=2))


if __name__ == "__main__":
    main()
