"""Compare clips planned at load time (`ClipDataset.from_index`) with the manifest of the same clips: open, hold, read.

The index is synthetic and is written by the writer that `framedex index` uses. Videos have 200 to 400 frames; their
lengths differ so much that counts are computed for each of them. Nothing is decoded: only `clip` is timed. Each dataset
runs in its own process.

usage: python -m benchmarks.from_index [--media 10000]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import environment
from benchmarks.manifest import synthetic_packets, synthetic_video
from framedex import ClipDataset
from framedex.files.outputs import write_json_aside
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.part_pairs import PartPairs
from framedex.indexer.schema import FORMAT, HEADER, SCHEMA_VERSION
from framedex.sharder.build import build_from_policy
from framedex.sharder.policies.reading import make_policy

POLICIES: dict[str, dict[str, Any]] = {
    "windows of 16, jittered": {"policy": "windows", "frames": 16, "jitter_frames": 2},
    "four random clips": {"policy": "random", "clips": 4, "frames": 16, "fps": 8},
    "8 at 5 fps within 20 ms": {"policy": "fps", "fps": 5, "frames": 8, "tolerance_seconds": 0.02},
}
CLIPS_READ = 2000


def write_index(out: Path, media: int) -> None:
    """Write an index of videos of many lengths."""
    out.mkdir(parents=True)
    write_json_aside(out / HEADER, {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/videos"})
    parts = PartPairs(out)
    shared = {frames: synthetic_packets(frames, seed=frames) for frames in range(200, 401)}
    for number in range(media):
        packets = shared[200 + number * 7 % 201]
        video = synthetic_video(f"{number:016x}", packets) | {"damaged_gop_count": 0}
        video["duration_pts"] += number  # no two videos are equally long
        row = {"media_id": video["media_id"], "pts": packets.pts, "offset": packets.offset, "size": packets.size}
        parts.add([(video, row | {"flags": packets.flags})])
    parts.flush()


def measure(path: Path, policy: dict[str, Any] | None) -> dict[str, float]:
    """Return what a dataset costs in this process.

    Args:
        policy: the policy to plan with; None for a dataset on disk.
    """
    before = _resident_mb()
    begin = time.perf_counter()
    dataset = ClipDataset(path) if policy is None else ClipDataset.from_index(path, policy)
    found = {"clips": len(dataset), "open_seconds": round(time.perf_counter() - begin, 3)}
    stored = len(pickle.dumps(dataset))
    order = np.random.default_rng(0).permutation(len(dataset))[:CLIPS_READ].tolist()
    dataset.clip(0)
    for name, numbers in (("shuffled", order), ("in_order", range(CLIPS_READ))):
        dataset.set_epoch(1)
        times = []
        for number in numbers:
            begin = time.perf_counter()
            dataset.clip(int(number) % len(dataset))
            times.append(time.perf_counter() - begin)
        found[f"mean_clip_ms_{name}"] = round(1000 * statistics.mean(times), 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {
        "pickled_kb": round(stored / 1000),
        "held_mb": round(_resident_mb() - before),
        "peak_mb": round(peak),
    }


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError("no VmRSS in /proc/self/status")


def alone(path: Path, policy: str | None) -> dict[str, float]:
    """Return what a dataset costs, measured in its own process."""
    command = [sys.executable, "-m", "benchmarks.from_index", "--read", str(path)]
    done = subprocess.run(
        [*command, *([] if policy is None else ["--policy", policy])], check=True, capture_output=True
    )
    row: dict[str, float] = json.loads(done.stdout)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--media", type=int, default=10_000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--policy", choices=POLICIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(measure(options.read, POLICIES.get(options.policy))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_index(folder / "INDEX", options.media)
        rows: dict[str, Any] = {}
        for number, (name, policy) in enumerate(POLICIES.items()):
            out = folder / f"DATASET-{number}"
            begin = time.perf_counter()
            build_from_policy(Index(folder / "INDEX"), out, make_policy(policy, where="benchmark"))
            seconds = time.perf_counter() - begin
            rows[name] = {"from_index": alone(folder / "INDEX", name), "from_disk": alone(out, None)}
            rows[name]["from_disk"]["shard_seconds"] = round(seconds, 1)
    print(json.dumps({"environment": environment(), "media": options.media, "datasets": rows}, indent=2))


if __name__ == "__main__":
    main()
