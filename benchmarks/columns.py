"""How long `ClipDataset.column` takes for a million clips, as numpy and as Arrow: of a dataset, and from an index.

The clips are those of synthetic videos with a listing of 400 classes, many clips of each video. A dataset without the
files of columns (as before schema 3.5) is read beside it, and the same column of one Parquet file with `pyarrow`.
Every turn has a dataset that was opened for it, which is timed apart; on one core, with files in the page cache.
Expected: some tens of milliseconds from files of columns and from an index, some seconds without them.

usage: python -m benchmarks.columns FOLDER [--media 10000] [--clips-of-each 100]   prints JSON
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.environment import environment
from benchmarks.scale import write
from framedex import ClipDataset
from framedex.files.outputs import write_json_aside
from framedex.indexer.parts.index import Index
from framedex.indexer.runs.merging import compact_index
from framedex.indexer.schema import LISTING, LISTING_NAME
from framedex.sharder.build import ShardOptions, build_from_policy
from framedex.sharder.policies.reading import make_policy
from framedex.sharder.schema import COLUMNS_NAME, FIELDS_NAME, HEADER

CLASSES = 400
NAMES = ("label", "uri", "duration_seconds", "begin_seconds")
PLANNED_ONLY = {"begin_seconds"}  # known only once clips are planned
TURNS = 5


def policy_of(clips_of_each: int) -> dict[str, Any]:
    """Return a policy that makes so many clips of each video."""
    return {"policy": "random", "clips": clips_of_each, "frames": 8, "fps": 8}


def make_datasets(folder: Path, media: int, clips_of_each: int) -> None:
    """Write INDEX, DATASET, PLAIN (a dataset without files of columns) and LABELS.parquet, unless a folder has them."""
    if (folder / "LABELS.parquet").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, media)
    compact_index(folder / "INDEX")
    names = [f"{number:016x}" for number in range(media)]
    listing = pa.Table.from_pydict(
        {"media_id": names, "listing_row": [0] * media, "listed_uri": [f"{name}.mp4" for name in names]}, schema=LISTING
    )
    labels = pa.array([f"class {number * 7 % CLASSES}" for number in range(media)])
    pq.write_table(listing.append_column("label", labels), folder / "INDEX" / LISTING_NAME)
    policy = make_policy(policy_of(clips_of_each), where="benchmark")
    for name in ("DATASET", "PLAIN"):
        shutil.rmtree(folder / name, ignore_errors=True)
    build_from_policy(Index(folder / "INDEX"), folder / "DATASET", policy, ShardOptions(workers=1))
    shutil.copytree(folder / "DATASET", folder / "PLAIN")
    for name in (COLUMNS_NAME, FIELDS_NAME):
        (folder / "PLAIN" / name).unlink()
    header = json.loads((folder / "PLAIN" / HEADER).read_text(encoding="utf-8"))
    earlier = {key: value for key, value in header.items() if key != "columns"} | {"schema_version": "3.4"}
    write_json_aside(folder / "PLAIN" / HEADER, earlier)
    column = ClipDataset(folder / "DATASET").column("label", as_arrow=True)
    pq.write_table(pa.table({"label": column}), folder / "LABELS.parquet")


def milliseconds(work: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> float:
    """Return the median time of some turns of `work`, which gets what `prepare` returns."""
    times = []
    for _ in range(TURNS):
        prepared = prepare()
        begun = time.perf_counter()
        work(prepared)
        times.append(1000 * (time.perf_counter() - begun))
    return round(statistics.median(times), 2)


def measured(open_dataset: Callable[[], ClipDataset], names: Sequence[str]) -> dict[str, Any]:
    """Return the times of opening a dataset, and of reading each of some columns of an opened one."""
    return {
        "open_ms": milliseconds(lambda _: open_dataset()),
        "columns": {
            name: {
                "numpy_ms": milliseconds(lambda dataset, name=name: dataset.column(name), open_dataset),
                "arrow_ms": milliseconds(lambda dataset, name=name: dataset.column(name, as_arrow=True), open_dataset),
            }
            for name in names
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--media", type=int, default=10_000)
    parser.add_argument("--clips-of-each", type=int, default=100)
    options = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    folder, policy = options.folder, policy_of(options.clips_of_each)
    make_datasets(folder, options.media, options.clips_of_each)
    of_media = [name for name in NAMES if name not in PLANNED_ONLY]
    datasets: dict[str, tuple[Callable[..., ClipDataset], Sequence[str]]] = {
        "dataset": (functools.partial(ClipDataset, folder / "DATASET"), NAMES),
        "from_index": (functools.partial(ClipDataset.from_index, folder / "INDEX", policy), of_media),
        "without_files": (functools.partial(ClipDataset, folder / "PLAIN"), NAMES),
    }
    result = {
        "environment": environment() | {"command": "python -m benchmarks.columns FOLDER"},
        "clips": len(ClipDataset(folder / "DATASET")),
        "media": options.media,
        "classes": CLASSES,
        "datasets": {name: measured(*found) for name, found in datasets.items()},
        "numbers_of_labels_ms": {
            name: milliseconds(lambda opened: opened.column("label"), functools.partial(make, labels="label"))
            for name, (make, _) in datasets.items()
        },
        "pyarrow_ms": milliseconds(lambda _: pq.read_table(folder / "LABELS.parquet")),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
