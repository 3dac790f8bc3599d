"""Measure an index of ten million frames: its size, opening it, reading one video's row; and row sizes of real videos.

The rows are synthetic (GOP 250, three B-frames per mini-GOP, widely spread sizes, interleaved audio). They are written
by the writer that `framedex index` uses. VIDEOS is a folder of real videos that are indexed to measure bytes per frame.

usage: python -m benchmarks.index_rows [--media 2800] [--frames 3600] [--videos FOLDER]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.environment import environment
from benchmarks.manifest import synthetic_packets, synthetic_video
from framedex.files.outputs import write_json_aside
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.part_pairs import PartPairs
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.indexer.schema import FORMAT, FRAMES_FOLDER, HEADER, SCHEMA_VERSION


def write_index(out: Path, media: int, frames: int) -> None:
    """Write an index of `media` synthetic videos."""
    out.mkdir(parents=True)
    write_json_aside(out / HEADER, {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/"})
    parts = PartPairs(out)
    for number in range(media):
        packets = synthetic_packets(frames, seed=number)
        video = synthetic_video(f"{number:016x}", packets)
        row = {"media_id": video["media_id"], "pts": packets.pts, "offset": packets.offset, "size": packets.size}
        parts.add([(video, row | {"flags": packets.flags})])
    parts.flush()


def stored_bytes(out: Path) -> dict[str, float]:
    """Return the compressed bytes per frame of the frames table, by column and in total."""
    index = Index(out)
    frames = sum(count or 0 for count in index.videos["frame_count"].to_pylist())
    columns: dict[str, int] = {}
    for part in sorted((out / FRAMES_FOLDER).glob("part-*.parquet")):
        metadata = pq.ParquetFile(part).metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                name = column.path_in_schema.split(".")[0]
                columns[name] = columns.get(name, 0) + column.total_compressed_size
    return {name: size / frames for name, size in columns.items()} | {
        "all": sum(columns.values()) / frames,
        "frames": frames,
    }


def time_rows(out: Path, rows: int) -> dict[str, float]:
    """Return milliseconds for one row including opening, for opening alone, and for single rows in shuffled order."""
    opened, fetched, whole = [], [], []
    identities = Index(out).videos["media_id"].to_pylist()
    for number in range(9):
        begin = time.perf_counter()
        index = Index(out)
        opened.append(time.perf_counter() - begin)
        index.packets(identities[number * 300])
        whole.append(time.perf_counter() - begin)
    for number in np.random.default_rng(0).permutation(len(identities))[:rows]:
        begin = time.perf_counter()
        index.packets(identities[number])
        fetched.append(time.perf_counter() - begin)
    return {
        "open_and_one_row_ms": 1000 * statistics.median(whole),
        "open_ms": 1000 * statistics.median(opened),
        "median_row_ms": 1000 * statistics.median(fetched),
        "p99_row_ms": 1000 * float(np.percentile(fetched, 99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--media", type=int, default=2800)
    parser.add_argument("--frames", type=int, default=3600)
    parser.add_argument("--videos", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"environment": environment()}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "INDEX"
        write_index(out, options.media, options.frames)
        result["synthetic"] = stored_bytes(out) | time_rows(out, 300)
        if options.videos:
            build_index(IndexOptions(sources=[str(options.videos)], out=Path(scratch) / "REAL"))
            result["real_bytes_a_frame"] = stored_bytes(Path(scratch) / "REAL")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
