"""ClipStream beside ClipDataset in shuffled order, from a disk and from slow object storage.

The clips are 16 frames, 2 apart, at random places of a minute of video in the format "640x360 GOP 30" of
benchmarks/training_videos.py, packed into tars of 16 MB: as tiny videos (`--pack clips`) and as images of 256 pixels
(`--pack images --short-side 256`). torch's DataLoader delivers them as 224x224 in batches of 8 with 2 workers. The
order of ClipDataset is that of `ClipSampler(shuffle=True)`; ClipStream has a shuffle buffer of 64 clips in each worker.
Each dataset lies on a disk, and in a bucket of a real S3 server (Ceph's gateway, from Debian's packages ceph-mon,
ceph-osd and radosgw) behind a proxy that adds a delay to every response. Server, proxy, loader and decoders share the
machine. "cold": the tars are dropped from the page cache before each turn.

A turn delivers the first clips of an epoch; its rate counts from the first batch on. The first turn of a loader, in
which its workers start, is not counted. The datasets have more clips than a turn delivers, so that ClipDataset reads
its manifest at random places, as in a large dataset. Reading alone is measured with decode="movie", which decodes
nothing; images have no such form.

What was expected, before any run:
- from a warm disk, both are as fast, because decoding bounds them;
- from a cold disk, the stream is a little faster (1.0 to 1.2 times), because it reads ahead and in one direction;
- from the bucket, ClipDataset waits for some requests of 30 ms for each clip (its rows of the manifest, its bytes), and
  the stream for almost none: 3 times as fast or more, and close to its own speed from the disk.

usage: python -m benchmarks.streams --folder FOLDER [--delay 0.03] [--clips 1024] [--delivered 160] [--runs 3]
prints JSON
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import framedex
from benchmarks.environment import environment
from benchmarks.training_videos import FORMATS, draw, make_minute, video_path
from framedex import ClipDataset, ClipSampler, ClipStream
from framedex.storage.objects import upload
from tests.support import rgw

FORMAT = "640x360 GOP 30"
FRAMES, STRIDE, SIZE, BATCH, WORKERS, BUFFER, TAR_BYTES = 16, 2, (224, 224), 8, 2, 64, 16_000_000
PACKS: dict[str, dict[str, Any]] = {
    "clips": {"pack": "clips"},
    "images": {"pack": "images", "images": framedex.ImageOptions(short_side=256)},
}


def make(folder: Path, clips: int) -> dict[str, Path]:
    """Return the packed datasets by the name of the packing."""
    drawn, minute = video_path(folder, "drawn"), folder / "minute.mp4"
    draw(drawn, FORMATS[FORMAT])
    make_minute(drawn, minute)
    framedex.index(minute, folder / "INDEX", progress=False)
    policy = {"policy": "random", "clips": clips, "frames": FRAMES, "stride": STRIDE, "seed": 1}
    made = {}
    for name, options in PACKS.items():
        made[name] = folder / name
        framedex.shard(
            folder / "INDEX", made[name], policy=policy, shard_bytes=TAR_BYTES, workers=2, progress=False, **options
        )
    return made


def put(dataset: Path, uri: str) -> str:
    """Copy a dataset into a bucket; return its uri."""
    for path in sorted(path for path in dataset.rglob("*") if path.is_file()):
        upload(path, f"{uri}/{path.relative_to(dataset)}")
    return uri


def drop_cached(dataset: Path) -> None:
    """Drop a dataset's tars from the page cache."""
    for path in dataset.glob("shards/*.tar"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def loader_of(reader: str, place: str | Path, decode: Any) -> Any:
    """Return a DataLoader that delivers a dataset's clips in shuffled order, with workers that persist."""
    from torch.utils.data import DataLoader

    size = SIZE if decode == "cpu" else None
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "multiprocessing_context": "spawn"}
    options |= {"persistent_workers": True}
    options |= {} if decode == "cpu" else {"collate_fn": list}  # movies differ in length
    if reader == "ClipStream":
        return DataLoader(ClipStream(place, shuffle=BUFFER, seed=1, decode=decode, size=size), **options)
    dataset = ClipDataset(place, decode=decode, size=size)
    return DataLoader(dataset, sampler=ClipSampler(dataset, shuffle=True, seed=1), **options)


def turn_of(loader: Any, epoch: int, clips: int) -> dict[str, float]:
    """Deliver the first clips of an epoch; return the seconds until the first batch, and those after it."""
    of_epochs = loader.dataset if isinstance(loader.dataset, ClipStream) else loader.sampler
    of_epochs.set_epoch(epoch)
    begun, delivered, first = time.perf_counter(), 0, 0.0
    for batch in loader:
        if not delivered:
            first = time.perf_counter()
        delivered += len(batch["clip_id"] if isinstance(batch, dict) else batch)
        if delivered >= clips:
            break
    end = time.perf_counter()
    if delivered != clips:
        raise RuntimeError(f"{delivered} of {clips} clips were delivered")
    return {"until_first_batch": first - begun, "after_it": end - first}


def measure(datasets: dict[str, Path], uris: dict[str, str], clips: int, runs: int) -> list[dict[str, Any]]:
    """Return a row for each packing, place, decoding and reader. The readers take turns."""
    rows = []
    for pack, path in datasets.items():
        for decode in ("cpu", "movie") if pack == "clips" else ("cpu",):
            for where in ("disk, warm", "disk, cold", "bucket"):
                place: str | Path = uris[pack] if where == "bucket" else path
                loaders = {reader: loader_of(reader, place, decode) for reader in ("ClipDataset", "ClipStream")}
                found: dict[str, list[dict[str, float]]] = {reader: [] for reader in loaders}
                for turn in range(runs + 1):
                    for reader, loader in loaders.items():
                        if where == "disk, cold":
                            drop_cached(path)
                        found[reader].append(turn_of(loader, turn, clips))
                        print(turn, pack, where, decode, reader, found[reader][-1], file=sys.stderr, flush=True)
                case = {"pack": pack, "from": where, "decode": decode}
                rows += [case | row_of(reader, turns[1:], clips) for reader, turns in found.items()]
    return rows


def row_of(reader: str, turns: list[dict[str, float]], clips: int) -> dict[str, Any]:
    """Return the figures of a reader: clips a second of each turn, and their median."""
    rates = [(clips - BATCH) / one["after_it"] for one in turns]
    return {
        "reader": reader,
        "until_first_batch": [one["until_first_batch"] for one in turns],
        "each": rates,
        "clips_a_second": statistics.median(rates),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where everything is made")
    parser.add_argument("--delay", type=float, default=0.03, metavar="SECONDS", help="added to every response")
    parser.add_argument("--clips", type=int, default=1024, help="in each dataset")
    parser.add_argument("--delivered", type=int, default=160, help="clips of a turn")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    datasets = make(options.folder, options.clips)
    with rgw.running(options.folder) as server:
        os.environ.update(server.environment())
        rgw.create_bucket(server, "benchmark")
        uris = {name: put(path, f"s3://benchmark/{name}") for name, path in datasets.items()}
        command = [sys.executable, "-m", "tests.support.proxy", server.endpoint, "--delay", str(options.delay)]
        proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert proxy.stdout is not None
            os.environ["AWS_ENDPOINT_URL"] = proxy.stdout.readline().strip()
            rows = measure(datasets, uris, options.delivered, options.runs)
        finally:
            proxy.kill()
    tars = {name: [tar.stat().st_size for tar in path.glob("shards/*.tar")] for name, path in datasets.items()}
    setup: dict[str, Any] = {"clips": options.clips, "delivered": options.delivered, "frames_a_clip": FRAMES}
    setup |= {"stride": STRIDE, "format": FORMAT, "batch_size": BATCH}
    setup |= {"workers": WORKERS, "buffer": BUFFER, "delay_seconds": options.delay}
    sizes = {name: {"tars": len(found), "bytes": sum(found)} for name, found in tars.items()}
    libraries = ("obstore", "torch", "webdataset")
    print(json.dumps({"environment": environment(*libraries), "setup": setup, "tars": sizes, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
