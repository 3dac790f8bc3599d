"""Measure planning and reading a manifest, on one core.

(a) Planning a 16-frame clip of a 180 000-frame video and building its tiny MP4's header, with the index row in memory.
(b) Opening a dataset of 100 000 clips, reading one clip's recipe in shuffled order, and the memory that this uses.
Prints JSON. The index row is synthetic (GOP 250, three B-frames per mini-GOP, one of them a reference). Nothing is
decoded.

usage: python -m benchmarks.manifest [--frames 180000] [--clips 100000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.environment import environment
from framedex.files.outputs import write_json_aside
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.packets import Packets
from framedex.indexer.schema import FORMAT, HEADER, SCHEMA_VERSION, VIDEOS
from framedex.indexer.timeline import CLOSED, NON_REFERENCE, summarise
from framedex.records.medium import OK
from framedex.sharder.build import ShardOptions, build_from_policy
from framedex.sharder.packing.mp4 import movie_header
from framedex.sharder.planning.planner import Planner
from framedex.sharder.policies.reading import make_policy


def synthetic_packets(count: int, seed: int = 0) -> Packets:
    """Return packets as x264's default settings make them."""
    rng = np.random.default_rng(seed)
    number = np.arange(count)
    in_gop = number % 250
    flags = np.where(in_gop == 0, CLOSED, 0)
    turn = (in_gop - 1) % 4
    shift = np.array([3, 0, -2, -1])[turn]  # decode order P B b b against presentation order b B b P
    last = (in_gop >= 249 - (249 - 1) % 4) | (in_gop == 0)
    pts = number + np.where(last, 0, shift)
    flags = np.where(~last & (turn >= 2), NON_REFERENCE, flags)
    size = rng.integers(200, 6000, count)
    gap = rng.integers(0, 2, count) * 400  # interleaved audio
    return Packets(
        pts=pts * 512,
        offset=np.cumsum(size + gap) - size,
        size=size.astype(np.int64),
        flags=flags.astype(np.int32),
        read=np.ones(count, np.bool_),
        state=np.zeros(count, np.int32),
    )


def synthetic_video(media_id: str, packets: Packets) -> dict[str, Any]:
    """Return the row of `videos` that belongs to synthetic packets."""
    summary = summarise(packets.pts, packets.flags, last_duration=512, time_base_seconds=1 / 30720)
    return asdict(summary) | {
        "media_id": media_id, "uri": f"{media_id}.mp4", "kind": "video", "stream_index": 0, "status": OK,
        "probed_by": "synthetic", "size_bytes": 1 << 30, "mtime_ns": 0, "fingerprint": "0" * 32, "container": "mp4",
        "depth": "packets", "codec": "h264", "profile": "High", "pixel_format": "yuv420p", "width": 1280, "height": 720,
        "rotation_degrees": 0, "color_matrix": 1, "color_primaries": 1, "color_transfer": 1, "time_base_num": 1,
        "time_base_den": 30720, "pts_source": "container", "extradata": b"\1" * 45, "states": [b""],
        "reorder_depth": 2, "inband_parameter_sets": False, "inner_start_codes": False, "varying_shape": False,
        "chroma_format": 1, "max_ref_frames": 4, "field_coded": False,
        "hidden_unordered": False,
        "packet_count": len(packets.size), "byte_addressable": True,
    }  # fmt: skip


def time_planning(frames: int, clips: int) -> dict[str, float]:
    """Return median milliseconds for setting up a planner, planning a clip, and building a movie's header."""
    packets = synthetic_packets(frames)
    rng = np.random.default_rng(1)
    whole, plans, headers, kept = [], [], [], []
    for _ in range(clips):
        wanted = rng.integers(0, frames - 960) + 60 * np.arange(16)
        started = time.perf_counter()
        planner = Planner(packets, drop_leading=False)
        ready = time.perf_counter()
        recipe = planner.plan(wanted)
        planned = time.perf_counter()
        movie_header(
            codec="h264", width=1280, height=720, configuration=b"\1" * 40,
            packet_size=recipe.packet_size, packet_rank=recipe.packet_rank, sync=recipe.run_first,
        )  # fmt: skip
        done = time.perf_counter()
        whole.append(done - started)
        plans.append(planned - ready)
        headers.append(done - planned)
        kept.append(len(recipe.packet_size))
    return {
        "median_ms_planner_plan_and_movie": round(1000 * statistics.median(whole), 3),
        "median_ms_plan_alone": round(1000 * statistics.median(plans), 3),
        "median_ms_movie_alone": round(1000 * statistics.median(headers), 3),
        "median_packets_a_clip": statistics.median(kept),
    }


class SyntheticIndex(Index):
    """An index of synthetic videos, without files."""

    def __init__(self, folder: Path, videos: int, frames: int) -> None:
        write_json_aside(folder / HEADER, {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/videos"})
        super().__init__(folder)
        self._shared = synthetic_packets(frames)
        rows = [synthetic_video(f"{number:016x}", self._shared) for number in range(videos)]
        self.videos = pa.Table.from_pylist(rows, schema=VIDEOS)

    def __len__(self) -> int:
        return len(self.videos)

    def columns(self, names: Sequence[str]) -> pa.Table:
        return self.videos.select(names)

    def some_videos(self, most: int) -> Iterator[pa.Table]:
        return (self.videos.slice(first, most) for first in range(0, len(self), most))

    def video(self, media_id: str) -> dict[str, Any]:
        row: dict[str, Any] = self.videos.slice(int(media_id, 16), 1).to_pylist()[0]
        return row

    def packets(self, media_id: str) -> Packets:
        return self._shared


def time_dataset(folder: Path, clips: int) -> dict[str, float]:
    """Write a dataset and read it in a new process."""
    frames = 60_000  # a clip every 96 frames: 16 frames, 60 apart, overlapping
    per_video = (frames - 960) // 96
    index = SyntheticIndex(folder, -(-clips // per_video), frames)
    made = make_policy(
        {"policy": "segments", "segments": [{"fps": 1, "frames": 16}], "every_seconds": 1.6, "last": "drop"},
        where="benchmark",
    )
    started = time.perf_counter()
    report = build_from_policy(index, folder / "DATASET", made, ShardOptions(workers=1))
    seconds = time.perf_counter() - started
    read = subprocess.run(
        [sys.executable, "-m", "benchmarks.manifest", "--read", str(folder / "DATASET")],
        check=True,
        capture_output=True,
    )
    size = sum(path.stat().st_size for path in (folder / "DATASET").rglob("*") if path.is_file())
    written = {
        "clips": report.clips,
        "clips_planned_and_written_a_minute": round(60 * report.clips / seconds),
        "manifest_bytes_a_clip": round(size / report.clips, 1),
    }
    return written | json.loads(read.stdout)


def read_dataset(dataset: Path) -> dict[str, float]:
    """Return what opening and reading a dataset cost in this process."""
    from framedex.loader.clip_dataset import ClipDataset

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    before = resident()
    started = time.perf_counter()
    clips = ClipDataset(dataset)
    count = len(clips)
    opened = time.perf_counter() - started
    times = []
    for number in np.random.default_rng(0).permutation(count)[:4000].tolist():
        started = time.perf_counter()
        clips.clip(number)
        times.append(time.perf_counter() - started)
    return {
        "open_ms": round(1000 * opened, 2),
        "median_ms_fetch_a_clip": round(1000 * statistics.median(times), 3),
        "p99_ms_fetch_a_clip": round(1000 * float(np.quantile(times, 0.99)), 3),
        "resident_mb_kept": round((resident() - before) / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=180_000)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    if options.read:
        print(json.dumps(read_dataset(options.read)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        planning = time_planning(options.frames, 50)
        dataset = time_dataset(Path(scratch), options.clips)
    print(json.dumps({"environment": environment(), "planning": planning, "dataset": dataset}, indent=2))


if __name__ == "__main__":
    main()
