"""What framing costs when ClipLoader loads clips, beside frames stretched to the same size, on the CPU or a GPU.

Clips of 16 frames, each 4 frames of the video apart, in batches of 8. The ways take turns; each has one epoch that does
not count, and the median of --repeats epochs. What was expected: on a GPU, decoding takes most of the time, so cuts of
one part cost less than a tenth more, and three or ten parts cost what their pixels cost. On the CPU, the same.

usage: python -m benchmarks.framing VIDEO... [--device cpu|gpu] [--workers 8] [--clips 64] [--repeats 5]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import framedex
from benchmarks.environment import environment
from framedex import ClipDataset, ClipLoader, Framing, SmartResize

BATCH = 8
FRAMES, STRIDE = 16, 4
SIZE = (224, 224)
TOKENS = SmartResize(factor=28, max_pixels=256 * 28 * 28)
WAYS: dict[str, dict[str, Any]] = {
    "as stored": {},
    "stretched to 224×224": {"size": SIZE},
    "fit into 224×224": {"framing": Framing(size=SIZE, resize="fit")},
    "short side 256, center crop": {"framing": Framing(short_side=256, crop=SIZE)},
    "short side 256, random crop, mirrored": {
        "framing": Framing(short_side=256, crop=SIZE, position="random", flip=0.5)
    },
    "random-resized crop": {"framing": Framing(size=SIZE, scale=(0.3, 1.0), flip=0.5)},
    "short side 256, three crops": {"framing": Framing(short_side=256, crop=SIZE, position="three")},
    "random crop at the stored size": {"framing": Framing(crop=SIZE, position="random")},
    "smart resize, 256 patches of 28": {"framing": Framing(smart_resize=TOKENS)},
}


def make_dataset(videos: list[Path], folder: Path, clips: int) -> Path:
    """Index videos, plan clips of each, and return the dataset."""
    framedex.index(videos, folder / "INDEX", progress=False)
    policy = {"policy": "random", "clips": -(-clips // len(videos)), "frames": FRAMES, "stride": STRIDE, "seed": 1}
    framedex.shard(folder / "INDEX", folder / "DATASET", policy=policy, progress=False)
    return folder / "DATASET"


def epoch_of(loader: ClipLoader, clips: int, *, gpu: bool) -> tuple[float, list[int]]:
    """Return how long an epoch takes in seconds, and the shape of a clip's frames."""
    begun, count, shape = time.perf_counter(), 0, [0]
    for batch in loader:
        count += len(batch["clip_id"])
        shape = list(batch["frames"].shape[1:])
    if gpu:
        import torch

        torch.cuda.synchronize()
    assert count == clips
    return time.perf_counter() - begun, shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"], help="of ClipLoader")
    parser.add_argument("--workers", type=int, default=8, help="of ClipLoader")
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    gpu = options.device == "gpu"
    made = environment("torch", *(["nvidia-dali-cuda120"] if gpu else []))
    if gpu:
        import torch

        made["gpu"] = torch.cuda.get_device_name(0)
    with tempfile.TemporaryDirectory() as scratch:
        path = make_dataset(options.videos, Path(scratch), options.clips)
        loaders = {
            name: ClipLoader(
                ClipDataset(path, **way), batch_size=BATCH, num_workers=options.workers, device=options.device
            )
            for name, way in WAYS.items()
        }
        clips = len(ClipDataset(path))
        shapes: dict[str, list[int]] = {}
        taken: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(1 + options.repeats):
            for name, loader in loaders.items():
                seconds, shapes[name] = epoch_of(loader, clips, gpu=gpu)
                taken[name].append(seconds)
        for loader in loaders.values():
            loader.close()
    rows = {
        name: {"shape": shapes[name], "ms_a_clip": round(1000 * statistics.median(times[1:]) / clips, 2)}
        for name, times in taken.items()
    }
    print(json.dumps({"environment": made, "device": options.device, "clips": clips, "ways": rows}, indent=2))


if __name__ == "__main__":
    main()
