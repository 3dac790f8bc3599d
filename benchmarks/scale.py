"""Measure what a large index costs: writing, compacting, opening, planning, sampling and look-up; time, memory, bytes.

The index is synthetic: videos of 50 to 150 frames, as x264's default settings make them. Each stage runs in its own
process, so that its memory is measured alone. Expected: no stage uses memory in proportion to frames; opening uses some
memory per video. The last stages make a dataset of `--repeat` copies of the planned clips and their media, and read
clips of it at random.

usage: python -m benchmarks.scale FOLDER [--media 1000000] [--repeat 10]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.environment import environment
from benchmarks.manifest import synthetic_packets, synthetic_video
from framedex import ClipDataset, ClipSampler
from framedex.files.outputs import write_json_aside
from framedex.files.parquet_parts import PartWriter, part_path
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.part_pairs import PartPairs
from framedex.indexer.runs.merging import compact_index
from framedex.indexer.schema import FORMAT, HEADER, SCHEMA_VERSION
from framedex.sharder import schema
from framedex.sharder.build import ShardOptions, build_from_policy
from framedex.sharder.layout import part_files
from framedex.sharder.policies.reading import make_policy
from framedex.sharder.writing.whole import write_clips

MIN_FRAMES, MAX_FRAMES = 50, 150
RANKS = 1024
LOOKUPS = 1000
ROWS = 2000  # the second half is measured
POLICY = {"policy": "uniform", "frames": 8}
Facts = dict[str, Any]


def write(folder: Path, media: int, copies: int) -> Facts:
    """Write the index in the way that a run writes probe results."""
    shutil.rmtree(folder / "INDEX", ignore_errors=True)
    (folder / "INDEX").mkdir(parents=True)
    header = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/videos", "generation": 1}
    write_json_aside(folder / "INDEX" / HEADER, header)
    shared = []
    for frames in range(MIN_FRAMES, MAX_FRAMES + 1):
        packets = synthetic_packets(frames, seed=frames)
        video = synthetic_video("", packets) | {"damaged_gop_count": 0}
        shared.append((video, {"pts": packets.pts, "flags": packets.flags}))
    parts, rng = PartPairs(folder / "INDEX"), np.random.default_rng(0)
    frames_written = 0
    for number in range(media):
        video, row = shared[number * 7 % len(shared)]
        identity = f"{number:016x}"
        size = rng.integers(200, 6000, len(row["pts"]))
        frames_written += len(size)
        frames = row | {"media_id": identity, "size": size, "offset": np.cumsum(size) - size}
        parts.add([(video | {"media_id": identity, "uri": f"{identity}.mp4"}, frames)])
    parts.flush()
    return {"media": media, "frames": frames_written} | stored(folder / "INDEX")


def stored(folder: Path) -> Facts:
    """Return the number of files in a folder, and their bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def compact(folder: Path, media: int, copies: int) -> Facts:
    """Merge the parts."""
    report = compact_index(folder / "INDEX")
    return {"parts_before": report.parts_before, "parts": report.parts} | stored(folder / "INDEX")


def open_index(folder: Path, media: int, copies: int) -> Facts:
    """Open the index and count its media."""
    return {"media": len(Index(folder / "INDEX"))}


def look_up(folder: Path, media: int, copies: int) -> Facts:
    """Look up random videos: the row and the packets."""
    index = Index(folder / "INDEX")
    times: list[tuple[float, float]] = []
    for number in np.random.default_rng(0).integers(0, media, LOOKUPS).tolist():
        begin = time.perf_counter()
        index.packets(f"{number:016x}")
        packets = time.perf_counter()
        index.video(f"{number:016x}")
        times.append((packets - begin, time.perf_counter() - packets))
    packets_ms, row_ms = (1000 * np.array(column) for column in zip(*times, strict=True))
    return {
        "lookups": LOOKUPS,
        "packets_median_ms": round(statistics.median(packets_ms.tolist()), 3),
        "packets_p99_ms": round(float(np.percentile(packets_ms, 99)), 3),
        "first_row_ms": round(float(row_ms[0]), 1),
        "row_median_ms": round(statistics.median(row_ms.tolist()), 3),
    }


def plan(folder: Path, media: int, copies: int) -> Facts:
    """Plan a clip of each video and write the dataset."""
    for path in folder.glob("DATASET*"):
        shutil.rmtree(path)
    policy = make_policy(POLICY, where="benchmark")
    report = build_from_policy(Index(folder / "INDEX"), folder / "DATASET", policy, ShardOptions(workers=1))
    return {"clips": report.clips, "failed": report.failed} | stored(folder / "DATASET")


def sample(folder: Path, media: int, copies: int) -> Facts:
    """Open the dataset, draw an epoch of one of many ranks, and then the first batch of all ranks."""
    dataset = ClipDataset(folder / "DATASET")
    begin = time.perf_counter()
    one = list(ClipSampler(dataset, shuffle=True, seed=1, rank=RANKS // 2, world_size=RANKS))
    whole = time.perf_counter() - begin
    begin = time.perf_counter()
    first = [next(iter(ClipSampler(dataset, shuffle=True, seed=1, rank=rank, world_size=RANKS))) for rank in (0, 1, 2)]
    return {
        "ranks": RANKS,
        "clips_of_a_rank": len(one),
        "epoch_of_a_rank_seconds": round(whole, 3),
        "first_clip_of_a_rank_seconds": round((time.perf_counter() - begin) / len(first), 3),
    }


def repeat(folder: Path, media: int, copies: int) -> Facts:
    """Make a dataset of several copies of the planned clips and media. Copies have the same names."""
    source, out = folder / "DATASET", folder / "REPEATED"
    shutil.rmtree(out, ignore_errors=True)
    header = json.loads((source / schema.HEADER).read_text())
    clips, media_parts = len(header["clips_per_part"]), len(header["media_per_part"])
    rows_of_media = sum(header["media_per_part"])
    for name in (schema.CLIPS_FOLDER, schema.RECIPES_FOLDER, schema.MEDIA_FOLDER, schema.ROWS_FOLDER):
        (out / name).mkdir(parents=True)
    fields = pq.read_table(source / schema.FIELDS_NAME)
    all_fields = PartWriter(out / schema.FIELDS_NAME, fields.schema, version=schema.SCHEMA_VERSION)
    parts = [
        [pq.read_table(part_path(source / name, number)) for name in (schema.CLIPS_FOLDER, schema.RECIPES_FOLDER)]
        for number in range(clips)
    ]
    for turn in range(copies):
        for number in range(media_parts):
            new = part_files(schema.MEDIA_FOLDER, turn * media_parts + number)
            for one, other in zip(part_files(schema.MEDIA_FOLDER, number), new, strict=True):
                (out / other).hardlink_to(source / one)
        for number, (table, recipes) in enumerate(parts, turn * clips):
            write_clips(out, number, moved(table, turn * rows_of_media), recipes)
        all_fields.write(moved(fields, turn * rows_of_media))
    all_fields.commit()
    for name in (schema.FAILURES_NAME, schema.POLICY_NAME):
        shutil.copy(source / name, out / name)
    for name in ("clips_per_part", "media_per_part"):
        header[name] *= copies
    write_json_aside(out / schema.HEADER, header)
    return {"clips": copies * sum(len(table) for table, _ in parts)} | stored(out)


def moved(table: pa.Table, rows: int) -> pa.Table:
    """Add a number of rows to the column `media_row` of a table."""
    column = table.schema.get_field_index("media_row")
    return table.set_column(column, table.schema.field(column), pc.add(table["media_row"], pa.scalar(rows, pa.int32())))


def rows(folder: Path, media: int, copies: int) -> Facts:
    """Read clips of the dataset of copies at random."""
    dataset = ClipDataset(folder / "REPEATED")
    times: list[float] = []
    for number in np.random.default_rng(0).integers(0, len(dataset), ROWS).tolist():
        begin = time.perf_counter()
        dataset.clip(number)
        times.append(time.perf_counter() - begin)
    half = 1000 * np.array(times[ROWS // 2 :])
    return {
        "clips": len(dataset),
        "rows": ROWS,
        "row_median_ms": round(float(np.median(half)), 3),
        "row_p99_ms": round(float(np.percentile(half, 99)), 3),
    }


STAGES: dict[str, Callable[[Path, int, int], Facts]] = {
    "write": write,
    "open, many parts": open_index,
    "compact": compact,
    "open": open_index,
    "look up": look_up,
    "plan": plan,
    "sample": sample,
    "repeat": repeat,
    "rows": rows,
}


def alone(name: str, folder: Path, media: int, copies: int) -> Facts:
    """Return what a stage costs in its own process."""
    command = [sys.executable, "-m", "benchmarks.scale", str(folder), "--media", str(media), "--repeat", str(copies)]
    command += ["--stage", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    facts: Facts = json.loads(done.stdout)
    print(name, facts, file=sys.stderr, flush=True)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--media", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=10, help="number of copies")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        at_rest, begin = peak_mb(), time.perf_counter()
        found = STAGES[options.stage](options.folder, options.media, options.repeat)
        seconds = round(time.perf_counter() - begin, 3)
        print(json.dumps({"seconds": seconds, "peak_mb": peak_mb(), "at_rest_mb": at_rest} | found))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    stages = {name: alone(name, options.folder, options.media, options.repeat) for name in STAGES}
    command = f"python -m benchmarks.scale FOLDER --media {options.media} --repeat {options.repeat}"
    facts = environment() | {"command": command}
    print(json.dumps({"environment": facts, "stages": stages}, indent=2))


def peak_mb() -> int:
    """Return the peak memory of this process in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


if __name__ == "__main__":
    main()
