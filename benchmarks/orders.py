"""How long samplers take for a million clips: making one, and the first batch of an epoch, by which its order is known.

The clips are those of a dataset over synthetic videos, whose shapes are read from its manifest. Expected: each sampler
is made in a second or two, and begins an epoch in less than a second.

usage: python -m benchmarks.orders FOLDER [--clips 1000000]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import environment
from benchmarks.manifest import SyntheticIndex
from framedex import BucketSampler, ClipDataset, ClipSampler, ConcatClips, MixtureSampler, visual_tokens
from framedex.sharder.build import ShardOptions, build_from_policy
from framedex.sharder.policies.reading import make_policy

FRAMES, STEP = 60_000, 60  # of a synthetic video, and from clip to clip
POLICY = {"policy": "windows", "frames": 16, "stride": 4, "step": STEP, "last": "drop"}
TURNS = 3


def make_dataset(folder: Path, clips: int) -> Path:
    """Write a dataset of synthetic videos with so many clips, unless a folder has one; return its path."""
    if (folder / "DATASET" / "dataset.json").exists():
        return folder / "DATASET"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index = SyntheticIndex(folder, -(-clips // (FRAMES // STEP)), FRAMES)
    build_from_policy(index, folder / "DATASET", make_policy(POLICY, where="benchmark"), ShardOptions(workers=1))
    return folder / "DATASET"


def tokens_of(count: int) -> Any:
    """Return int64 [clips]: tokens with a long tail, as clips of different lengths have."""
    return np.random.default_rng(0).lognormal(7, 1, count).astype(np.int64).clip(1, 30_000)


def samplers(dataset: ClipDataset, joined: ConcatClips) -> dict[str, Callable[[], Any]]:
    """Return what makes each sampler."""
    count = len(dataset)
    weights, labels = np.random.default_rng(1).random(count), np.arange(count) % 400
    names = np.array([f"class {label}" for label in range(400)], object)[labels]
    tokens = tokens_of(count)
    one = visual_tokens(dataset.shapes()[:1], patch=14, merge=2, temporal_patch=2).item()
    return {
        "ClipSampler, shuffled": lambda: ClipSampler(dataset, shuffle=True),
        "ClipSampler, blocks by medium": lambda: ClipSampler(dataset, shuffle=True, blocks="medium"),
        "ClipSampler, weights": lambda: ClipSampler(dataset, weights=weights),
        "ClipSampler, balance of 400 names": lambda: ClipSampler(dataset, balance=names),
        "MixtureSampler, two datasets": lambda: MixtureSampler(
            joined, rates=[3, 1], until="all_exhausted", shuffle=True
        ),
        "BucketSampler, by shape": lambda: BucketSampler(dataset, max_batch=16, shuffle=True),
        "BucketSampler, by tokens of shapes": lambda: BucketSampler(
            dataset,
            by="tokens",
            tokens=lambda shapes: visual_tokens(shapes, patch=14, merge=2, temporal_patch=2),
            max_tokens=16 * one,
            shuffle=True,
        ),
        "BucketSampler, by tokens of an array": lambda: BucketSampler(
            dataset, by="tokens", tokens=tokens, max_tokens=32_000, shuffle=True
        ),
    }


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long something took, and what it returned."""
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def measured(make: Callable[[], Any]) -> dict[str, float]:
    """Return the medians of making a sampler, of its first entry, and of all others of an epoch, in seconds."""
    turns = []
    for _ in range(TURNS):
        making, sampler = seconds_of(make)
        entries = iter(sampler)
        first, _ = seconds_of(lambda entries=entries: next(entries))
        rest, _ = seconds_of(lambda entries=entries: sum(1 for _ in entries))
        turns.append((making, first, rest))
    making, first, rest = (statistics.median(values) for values in zip(*turns, strict=True))
    return {"making_seconds": round(making, 3), "first_seconds": round(first, 3), "rest_seconds": round(rest, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=1_000_000)
    options = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    dataset = ClipDataset(make_dataset(options.folder, options.clips))
    shapes = statistics.median(seconds_of(dataset.shapes)[0] for _ in range(TURNS))
    joined = ConcatClips([dataset, dataset])
    rows = {name: measured(make) for name, make in samplers(dataset, joined).items()}
    tokens = tokens_of(len(dataset))
    full = BucketSampler(dataset, by="tokens", tokens=tokens, max_tokens=32_000, shuffle=True)
    result = {
        "environment": environment() | {"command": "python -m benchmarks.orders FOLDER"},
        "clips": len(dataset),
        "shapes_seconds": round(shapes, 3),
        "samplers": rows,
        "share_of_max_tokens": round(float(tokens.sum()) / (32_000 * len(full)), 3),
        "buckets": len(full.buckets),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
