"""Encoded shards beside image shards: bytes, PSNR, seconds to pack, and seconds to load.

Sixteen clips of each video, at random places: 16 frames, 4 apart, with a shorter side of 256. The same clips are packed
as JPEG and encoded at several qualities. PSNR is that of each frame, as ClipDataset returns it, against the exact
frame, scaled to the same size with the same filter. Packing is one process, from the index to the finished dataset, the
faster of --turns turns.
Loading is a whole epoch: ClipDataset in one process, and ClipLoader with --workers processes; the datasets take turns,
and the page cache holds everything. With --device gpu, ClipLoader decodes on the GPU what it may, and the CPU the rest;
`decoded` says how many clips of an epoch which decoder took.

What was expected: at its default quality, H.264 takes a tenth of the bytes of JPEG at quality 90 and loses 2 to 4 dB
against it; HEVC and AV1 take a fifth less than H.264 at the same PSNR. Packing is slower than packing images: a little
for H.264, where decoding the source takes most of the time, and two or three times for HEVC. Loading on the CPU is as
fast as from JPEG or faster, because fewer bits are decoded.

usage: python -m benchmarks.encoded_shards VIDEO... [--workers 2] [--repeats 5] [--turns 2] [--defaults]
           [--device cpu|gpu]   prints JSON
       python -m benchmarks.encoded_shards --draw FOLDER        draws a video of framedex's own, with sensor noise
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import framedex
from benchmarks.environment import environment
from benchmarks.pack import tar_bytes
from benchmarks.training_videos import FORMATS, draw, video_path
from framedex import ClipDataset, ClipLoader, EncodeOptions, ImageOptions
from framedex.indexer.probing.image_facts import resize_rgb
from framedex.sharder.packing.pack_options import EncodeCodec

DRAWN = "720p60 GOP 250"
POLICY = {"policy": "random", "clips": 16, "frames": 16, "stride": 4, "seed": 1}
SHORT_SIDE = 256
QUALITIES = (90, 75)
CRFS: dict[EncodeCodec, tuple[int, ...]] = {"h264": (18, 23, 28), "hevc": (18, 23, 28), "av1": (20, 30, 40)}
DEFAULTS = ("JPEG, quality 90", "h264, crf 23", "hevc, crf 23", "av1, crf 30")
PEAK = 255.0


def variants(*, defaults: bool) -> dict[str, dict[str, Any]]:
    """Return the arguments of `framedex.shard` by the name of each way to store clips.

    Args:
        defaults: leave out other qualities than JPEG's 90 and each codec's default.
    """
    found: dict[str, dict[str, Any]] = {
        f"JPEG, quality {quality}": {"pack": "images", "images": ImageOptions(quality=quality, short_side=SHORT_SIDE)}
        for quality in QUALITIES
    }
    for codec, crfs in CRFS.items():
        for crf in crfs:
            encode = EncodeOptions(codec=codec, crf=crf, short_side=SHORT_SIDE)
            found[f"{codec}, crf {crf}"] = {"pack": "clips", "encode": encode}
    return {name: found[name] for name in DEFAULTS} if defaults else found


def pack(index: Path, out: Path, **how: Any) -> float:
    """Pack the clips in one process; return the seconds that it took."""
    began = time.perf_counter()
    framedex.shard(str(index), str(out), policy=POLICY, workers=1, progress=False, **how)
    return time.perf_counter() - began


def frame_psnr(dataset: ClipDataset, exact: ClipDataset) -> dict[str, NDArray[np.float64]]:
    """Return the PSNR of all frames of each video in dB."""
    found: dict[str, list[float]] = {}
    for number in range(len(dataset)):
        item, reference = dataset[number], exact[number]["frames"]
        for frame, own in zip(item["frames"], reference, strict=True):
            away = frame.astype(np.float32) - resize_rgb(own, *frame.shape[:2])
            found.setdefault(item["uri"], []).append(float(10 * np.log10(PEAK**2 / np.mean(away * away))))
    return {uri: np.array(values) for uri, values in found.items()}


def epoch_of(dataset: ClipDataset, workers: int, device: str) -> tuple[Callable[[], None], ClipLoader]:
    """Return a function that loads an epoch with ClipLoader, and the loader."""
    loader = ClipLoader(dataset, batch_size=8, num_workers=workers, device=device, collate="list")

    def epoch() -> None:
        assert sum(len(batch["frames"]) for batch in loader) == len(dataset)
        if device == "gpu":
            import torch

            torch.cuda.synchronize()

    return epoch, loader


def one_by_one(dataset: ClipDataset) -> None:
    """Load all clips in this process."""
    for number in range(len(dataset)):
        assert len(dataset[number]["frames"])


def load_seconds(datasets: dict[str, ClipDataset], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the median seconds for a clip, by dataset; the datasets take turns."""
    loaders = {name: epoch_of(dataset, options.workers, options.device) for name, dataset in datasets.items()}
    alone: dict[str, list[float]] = {name: [] for name in datasets}
    batched: dict[str, list[float]] = {name: [] for name in datasets}
    for epoch, _ in loaders.values():  # starts the processes
        epoch()
    before = {name: dict(loader.report.decoded) for name, (_, loader) in loaders.items()}
    for _ in range(options.repeats):
        for name, dataset in datasets.items():
            alone[name].append(seconds(lambda dataset=dataset: one_by_one(dataset)) / len(dataset))
            batched[name].append(seconds(loaders[name][0]) / len(dataset))
    return {
        name: {
            "load_seconds_a_clip": statistics.median(alone[name]),
            "loader_seconds_a_clip": statistics.median(batched[name]),
            "decoded": {kind: count for kind, count in before[name].items() if count},
        }
        for name in datasets
    }


def seconds(action: Callable[[], None]) -> float:
    """Return how long a function takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(videos: list[Path], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the results for some videos."""
    framedex.index([str(video) for video in videos], str(folder / "INDEX"), progress=False)
    framedex.shard(str(folder / "INDEX"), str(folder / "EXACT"), policy=POLICY, progress=False)
    exact, ways = ClipDataset(folder / "EXACT"), variants(defaults=options.defaults)
    packed: dict[str, list[float]] = {name: [] for name in ways}
    datasets = {}
    for turn in range(options.turns):
        for number, (name, how) in enumerate(ways.items()):
            packed[name].append(pack(folder / "INDEX", folder / f"D{number}-{turn}", **how))
            datasets[name] = ClipDataset(folder / f"D{number}-{turn}")
    loaded = load_seconds(datasets, options)
    rows = []
    for name, dataset in datasets.items():
        psnr = frame_psnr(dataset, exact)
        everything = np.concatenate(list(psnr.values()))
        sizes = payload_bytes(dataset)
        rows.append(
            {
                "stored": name,
                "bytes_a_clip": round(sum(sum(each) for each in sizes.values()) / len(dataset)),
                "tar_bytes": tar_bytes(Path(str(dataset.manifest.path))),
                "worst_psnr": round(float(everything.min()), 2),
                "median_psnr": round(float(np.median(everything)), 2),
                "pack_seconds_a_clip": round(min(packed[name]) / len(dataset), 4),
                **{key: round(v, 5) if isinstance(v, float) else v for key, v in loaded[name].items()},
                "videos": {
                    Path(uri).name: {
                        "bytes_a_clip": round(statistics.mean(sizes[uri])),
                        "median_psnr": round(float(np.median(values)), 2),
                        "worst_psnr": round(float(values.min()), 2),
                    }
                    for uri, values in psnr.items()
                },
            }
        )
    shapes = {name: list(dataset[0]["frames"].shape) for name, dataset in datasets.items()}
    return {"clips": len(exact), "shape_of_first": shapes, "rows": rows}


def payload_bytes(dataset: ClipDataset) -> dict[str, list[int]]:
    """Return the bytes of coded pictures that each clip reads, by video."""
    found: dict[str, list[int]] = {}
    for number in range(len(dataset)):
        clip = dataset.clip(number)
        found.setdefault(clip.medium.uri, []).append(int(clip.recipe.range_length.sum()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", type=Path, nargs="*")
    parser.add_argument("--draw", type=Path, help="draw a video into this folder, and do nothing else")
    parser.add_argument("--workers", type=int, default=2, help="of ClipLoader")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--defaults", action="store_true", help="only JPEG of quality 90, and each codec's default")
    parser.add_argument("--turns", type=int, default=2, help="of packing, of which the faster one counts")
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"], help="of ClipLoader")
    options = parser.parse_args()
    if options.draw is not None:
        options.draw.mkdir(parents=True, exist_ok=True)
        draw(video_path(options.draw, DRAWN), FORMATS[DRAWN])
        return
    made = environment("pillow", "torch", *(["nvidia-dali-cuda120"] if options.device == "gpu" else []))
    if options.device == "gpu":
        import torch

        made["gpu"] = torch.cuda.get_device_name(0)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options.videos, Path(folder), options)
    print(json.dumps({"environment": made, "policy": POLICY, "device": options.device, **results}, indent=1))


if __name__ == "__main__":
    main()
