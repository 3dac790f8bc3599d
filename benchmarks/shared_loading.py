"""How fast ClipLoader delivers overlapping clips, alone and with `share`, in a shuffled order.

Each row is a format (benchmarks/training_videos.py) with a sampling: windows of 16 consecutive frames that begin at
every 16th frame, or of 16 frames that are a second apart and begin every 2 seconds. A dataset has several copies of a
minute of video. Batches of 16 clips are delivered at 224×224. Each way of decoding has its own process. With
`--ranks 2`, it has a loader for each rank, whose batches it takes in turn, as ranks of a training do that wait for one
another. All use one GPU.

The fields of a row:
- `share`, by its value: `rates`, clips/s of all ranks in turns of `--seconds`, of at least 4 batches or of whole
  windows of the order, most of which is decoded at its begin. The first one begins when the memory for later batches is
  filled, or after 15 seconds; `median`, their median; `packets`, the number of packets decoded for
  each delivered frame; `waiting_mib`, the greatest memory of later batches whose first clips were decoded;
  `decoded`, the number of clips by decoder; `media`, the mean number of distinct videos in a batch;
  `clips`, the number of clips in an epoch.

usage: python -m benchmarks.shared_loading FOLDER --out RESULTS [--only FORMAT] [--sampling NAME] [--ranks 2]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; datasets are made in it)
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loader_datasets import framedex_command
from benchmarks.row_file import Row, RowFile
from benchmarks.training import BATCH, FRAMES, SIZE, WAYS, environment_of, row_of
from benchmarks.training_videos import FORMATS, make_minute, video_path

# By sampling, the distance of frames and of the begins of windows, in seconds. 0 stands for consecutive frames, and for
# windows that follow one another.
SAMPLINGS = {"16 consecutive": (0, 0), "1 fps": (1, 2)}
VIDEOS = 64
SHARES = (1, 8)
TURNS, MIN_BATCHES = 3, 4
WARM_UP_SECONDS, LIMIT = 15.0, 240.0  # maximum seconds of the warm-up, and of a process


def dataset_path(folder: Path, name: str, sampling: str, videos: int) -> Path:
    """Return the path of the dataset of windows of several copies of a video. It is made first."""
    home = folder / "shared" / f"{video_path(folder, name).stem}-{videos}"
    out = home / sampling.replace(" ", "_")
    index = home / "index"
    if not index.exists():
        (home / "videos").mkdir(parents=True, exist_ok=True)
        minute = home / f"minute{video_path(folder, name).suffix}"
        make_minute(video_path(folder, name), minute)
        for number in range(videos):
            link = home / "videos" / f"{number:03d}{minute.suffix}"
            link.unlink(missing_ok=True)
            link.hardlink_to(minute)
        framedex_command("index", home / "videos", "--out", index, "--depth", "packets")
    if not (out / "dataset.json").exists():
        apart, step = (seconds * FORMATS[name].fps for seconds in SAMPLINGS[sampling])
        policy = {"policy": "windows", "frames": FRAMES, "stride": apart or 1, "step": step or FRAMES}
        (home / f"{out.name}.yaml").write_text(json.dumps(policy), encoding="utf-8")
        framedex_command("shard", index, "--policy", home / f"{out.name}.yaml", "--out", out)
    return out


def sampler_of(dataset: Any, share: int, **ranks: int) -> Any:
    """Return a sampler of a shuffled order."""
    from framedex import ClipSampler

    return ClipSampler(dataset, shuffle=True, seed=1, share=share if share > 1 else None, **ranks)


def batches_of_window(share: int) -> int:
    """Return the number of batches after which an order of `sampler_of` has begun and ended whole groups."""
    from framedex.loader.order.sampler import WINDOW_OF_GROUPS

    return share * WINDOW_OF_GROUPS // BATCH if share > 1 else 1


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    for _ in itertools.count():
        yield from loader


def measure(path: Path, way: str, share: int, ranks: int, seconds: float, device: str) -> Row:
    """Return the values of one way with one `share`."""
    from framedex import ClipDataset, ClipLoader
    from framedex.bench.measure import wait_for

    dataset = ClipDataset(path, size=SIZE)
    decode, workers = WAYS[way]
    samplers = [sampler_of(dataset, share, rank=rank, world_size=ranks) for rank in range(ranks)]
    loaders = [
        ClipLoader(
            dataset,
            batch_size=BATCH,
            device=device,
            decode=decode,  # type: ignore[arg-type]
            num_workers=min(workers, (os.cpu_count() or 1) // ranks),
            sampler=sampler,
        )
        for sampler in samplers
    ]
    steps = zip(*map(endless, loaders), strict=True)

    def rate(seconds: float, multiple: int, most: float) -> float:
        """Return clips/s of a multiple of so many steps in at least `seconds`. `most` is the maximum of steps."""
        count, begun = 0, time.perf_counter()
        while count < most and (count % multiple or time.perf_counter() - begun < seconds):
            for batch in next(steps):
                wait_for(batch["frames"])
            count += 1
        return count * BATCH * ranks / (time.perf_counter() - begun)

    whole = batches_of_window(share)
    rate(WARM_UP_SECONDS, 1, whole)  # until the memory is filled
    rates = [rate(seconds, max(whole, MIN_BATCHES), math.inf) for _ in range(TURNS)]
    reports = [loader.report for loader in loaders]
    found = {
        "rates": [round(one, 1) for one in rates],
        "median": round(statistics.median(rates), 1),
        "packets": round(sum(one.packets for one in reports) / sum(one.frames for one in reports), 3),
        "waiting_mib": sum(one.waiting_bytes for one in reports) >> 20,
        "decoded": dict(sum((Counter(one.decoded) for one in reports), Counter())),
        "media": round(samplers[0].distinct_media(BATCH), 2),
        "clips": len(dataset),
    }
    for loader in loaders:
        loader.close()
    return found


def child(*arguments: object) -> Row:
    """Return the values that another process measured, or the reason why there are none."""
    return row_of([sys.executable, "-m", "benchmarks.shared_loading", "--child", *map(str, arguments)], LIMIT)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        path, way, share, ranks, seconds, device = sys.argv[2:]
        print(json.dumps(measure(Path(path), way, int(share), int(ranks), float(seconds), device)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], choices=list(FORMATS))
    parser.add_argument("--sampling", action="append", default=[], choices=list(SAMPLINGS))
    parser.add_argument("--way", action="append", default=[], choices=list(WAYS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--videos", type=int, default=VIDEOS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    folder = options.folder.absolute()
    setup = {"frames_a_clip": FRAMES, "batch_size": BATCH, "size": SIZE, "videos": options.videos, "ways": WAYS}
    setup |= {"turns": TURNS, "seconds": options.seconds}
    rows = RowFile(options.out, environment_of(options.device, "nvidia-dali-cuda120", "torch", "av"), setup)
    for sampling, name, way in itertools.product(
        options.sampling or SAMPLINGS, options.only or FORMATS, options.way or WAYS
    ):
        row: Row = {"format": name, "sampling": sampling, "way": way, "ranks": options.ranks}
        if not rows.has(**row):
            path = dataset_path(folder, name, sampling, options.videos)
            how = (options.ranks, options.seconds, options.device)
            rows.add(row | {"share": {share: child(path, way, share, *how) for share in SHARES}})


if __name__ == "__main__":
    main()
