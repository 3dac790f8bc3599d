"""Measure other loaders on what benchmarks/training.py measures: the same clips, batches and size.

Each row is a format with a sampling and a loader, in a process of its own with a time limit: the seconds of one pass
over the first `--clips` clips after a few to warm up, or how many it delivered until the limit. Loaders on the CPU have
16 processes, as framedex has there. Whether frames are the wanted ones is compared with framedex's.

Rows are added to a JSON file as they arrive; those in it are not measured again.

usage: python -m benchmarks.training_peers FOLDER --out RESULTS [--only FORMAT] [--sampling NAME] [--peer NAME]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; datasets are made in it)
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.row_file import RowFile
from benchmarks.training import (
    BATCH,
    MIN_SECONDS,
    SAMPLINGS,
    SIZE,
    dataset_path,
    environment_of,
    grid_parser,
    prepare_all,
)
from benchmarks.training_videos import FORMATS
from framedex import ClipDataset
from framedex.bench.compare import run_peer
from framedex.bench.measure import checked_thumbnails, peer_clips
from framedex.bench.peer import PeerOptions
from framedex.bench.peers import PEERS

WORKERS = 16


def measure(folder: Path, name: str, sampling: str, peer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a loader did with the first clips of a row's dataset, and its clips per second."""
    dataset = ClipDataset(dataset_path(folder, name, sampling))
    asked = peer_clips({number: dataset.clip(number) for number in range(min(options.clips, len(dataset)))})
    gpu = 0 if options.device == "cuda" else None
    asks = PeerOptions(batch_size=BATCH, workers=WORKERS, size=SIZE, gpu=gpu)
    ours = checked_thumbnails(dataset, asked)
    result = run_peer(peer, asked, asks, limit_seconds=options.limit, ours=ours)
    taken = result.seconds or result.seconds_so_far
    rate = round(result.clips / taken, 2) if taken else None
    return asdict(result) | {"clips_per_second": rate}


def main() -> None:
    parser = grid_parser(__doc__.splitlines()[0])
    parser.add_argument("--peer", action="append", default=[], choices=list(PEERS))
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="of one row, with its start")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    folder, began = options.folder.absolute(), time.perf_counter()
    libraries = (peer.distribution for peer in PEERS.values())
    setup = {"clips": options.clips, "batch_size": BATCH, "size": SIZE, "workers": WORKERS}
    rows = RowFile(options.out, environment_of(options.device, "torch", *dict.fromkeys(libraries)), setup)
    names = options.only or list(FORMATS)
    prepare_all(folder, names)
    for sampling, name, peer in itertools.product(
        options.sampling or list(SAMPLINGS), names, options.peer or list(PEERS)
    ):
        left = options.budget - (time.perf_counter() - began)
        key = {"format": name, "sampling": sampling, "peer": peer}
        if left >= min(MIN_SECONDS, options.limit) and not rows.has(**key):
            rows.add(key | measure(folder, name, sampling, peer, options))


if __name__ == "__main__":
    main()
