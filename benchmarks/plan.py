"""How fast clips are planned and written as a manifest, from an index in hand, on one core; and in how much memory.

(a) Sixteen-frame clips of a real video of 180 000 packets, indexed at both depths, by several policies: what
`framedex shard` does, but for starting Python.
(b) Datasets of a thousand to a million clips over synthetic videos, each in a process of its own: its peak memory.
Expected: 20 000 clips a minute or more everywhere, and memory that does not depend on the number of clips.

usage: python -m benchmarks.plan FOLDER [--most 1000000]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.index import make_videos
from benchmarks.manifest import SyntheticIndex
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.sharder.build import ShardOptions, build_from_policy
from framedex.sharder.policies.reading import make_policy

POLICIES: dict[str, dict[str, Any]] = {
    "16 frames in a row": {"policy": "windows", "frames": 16},
    "16 frames, every fourth": {"policy": "windows", "frames": 16, "stride": 4, "step": 64},
    "16 frames at 1 fps": {"policy": "fps", "fps": 1, "frames": 16},
    "16 places in 8 s, from 20 random places": {"policy": "random", "clips": 20, "frames": 16, "fps": 2},
}
SYNTHETIC_FRAMES = 60_000


def shard(index: Index, out: Path, policy: dict[str, Any]) -> dict[str, float]:
    """Return how many clips there are, and how many were planned and written a minute."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    report = build_from_policy(index, out, make_policy(policy, where="benchmark"), ShardOptions(workers=1))
    seconds = time.perf_counter() - started
    return {"clips": report.clips, "clips_a_minute": round(60 * report.clips / seconds)}


def time_policies(folder: Path, video: Path) -> dict[str, Any]:
    """Return one row per policy and depth."""
    sources = folder / "videos"
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir()
    for number in range(4):
        os.link(video, sources / f"{number}.mp4")
    found: dict[str, Any] = {}
    depths: tuple[Depth, ...] = ("packets", "tables")
    for depth in depths:
        shutil.rmtree(folder / depth, ignore_errors=True)
        build_index(IndexOptions(sources=[str(sources)], out=folder / depth, depth=depth))
        for name, policy in POLICIES.items():
            found[f"{name}, depth {depth}"] = shard(Index(folder / depth), folder / "DATASET", policy)
    return found


def measure_memory(folder: Path, clips: int) -> dict[str, float]:
    """Return the peak memory of planning so many clips, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.plan", str(folder), "--clips", str(clips)]
    done = subprocess.run(command, check=True, capture_output=True)
    row: dict[str, float] = json.loads(done.stdout)
    return row


def plan_synthetic(folder: Path, clips: int) -> dict[str, float]:
    """Plan windows over synthetic videos in this process."""
    scratch = folder / f"synthetic-{clips}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    index = SyntheticIndex(scratch, -(-clips // (SYNTHETIC_FRAMES // 60)), SYNTHETIC_FRAMES)
    found = shard(
        index, scratch / "DATASET", {"policy": "windows", "frames": 16, "stride": 4, "step": 60, "last": "drop"}
    )
    shutil.rmtree(scratch)
    return found | {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--clips", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    if options.clips:
        print(json.dumps(plan_synthetic(options.folder, options.clips)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    planning = time_policies(options.folder, make_videos(options.folder)["low bit rate"])
    memory = [measure_memory(options.folder, 10**power) for power in range(3, 7) if 10**power <= options.most]
    names = {"command": "python -m benchmarks.plan FOLDER"}
    print(json.dumps({"environment": environment() | names, "planning": planning, "memory": memory}, indent=2))


if __name__ == "__main__":
    main()
