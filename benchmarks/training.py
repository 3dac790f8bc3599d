"""Measure what people train on: seven formats, three samplings, decoded by NVDEC alone, by CPUs alone, and by both.

Each row is a format with a sampling: clips of 16 frames that are consecutive, 4 frames apart, or a second apart, at
random places of a minute of video (benchmarks/training_videos.py). Batches of 16 clips are delivered at 224×224 on the
GPU. A row gives the seconds of 5 epochs after one to warm up, for each way of decoding, and what decoded the clips. All
frames of the first clips are compared with a full decode by PyAV: the wanted frame must be nearer than its neighbours.

Each row has its own process. Rows are added to a JSON file as they arrive; those in it are not measured again.

usage: python -m benchmarks.training FOLDER --out RESULTS [--only FORMAT] [--sampling NAME] [--budget SECONDS]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; datasets are made in it)
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import environment
from benchmarks.loader_datasets import framedex_command
from benchmarks.row_file import Row, RowFile
from benchmarks.training_videos import DRAWN_SECONDS, FORMATS, SECONDS, make_minute, video_path
from framedex.bench.measure import run_epoch, wait_for

FRAMES, BATCH, SIZE, EPOCHS = 16, 16, (224, 224), 5
CHECKED = 2  # clips of the first batch
WAYS = {"nvdec": ("gpu", 8), "cpu": ("cpu", 16), "auto": ("auto", 16)}  # decode=, num_workers=
# Clips of an epoch, and the distance of frames: None is a second.
SAMPLINGS: dict[str, tuple[int, int | None]] = {"16 consecutive": (128, 1), "stride 4": (128, 4), "1 fps": (64, None)}
MIN_SECONDS = 60  # of the budget that must be left to begin another row


def dataset_path(folder: Path, name: str, sampling: str) -> Path:
    """Return where the dataset of a row lies."""
    return folder / "datasets" / f"{video_path(folder, name).stem}-{sampling.replace(' ', '_')}"


def prepare(folder: Path, name: str) -> None:
    """Make the minute of video of a format, its index, and a dataset for each sampling."""
    drawn = video_path(folder, name)
    home = folder / "datasets"
    home.mkdir(exist_ok=True)
    video, index = home / drawn.name, home / f"{drawn.stem}-index"
    make_minute(drawn, video)
    if not index.exists():
        framedex_command("index", video, "--out", index)
    fps = FORMATS[name].fps
    for sampling, (clips, apart) in SAMPLINGS.items():
        out = dataset_path(folder, name, sampling)
        if (out / "dataset.json").exists():
            continue
        step = apart or fps
        first = np.random.default_rng(5).integers(0, SECONDS * fps - FRAMES * step, clips).tolist()
        listed = home / f"{out.name}.jsonl"
        wanted = [{"uri": video.name, "frames": [begin + step * k for k in range(FRAMES)]} for begin in first]
        listed.write_text("".join(json.dumps(clip) + "\n" for clip in wanted), encoding="utf-8")
        framedex_command("shard", index, "--clips", listed, "--out", out)


def prepare_all(folder: Path, names: list[str]) -> None:
    """Make the videos, indexes and datasets of several formats."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: prepare(folder, name), names))


def environment_of(device: str, *libraries: str) -> dict[str, object]:
    """Return the command, the machine and the versions of libraries, with the name of the GPU where one is used."""
    found = environment(*libraries)
    if device == "cuda":
        import torch

        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def measure(folder: Path, name: str, sampling: str, device: str) -> Row:
    """Return the seconds of epochs by way, with what decoded the clips."""
    from framedex import ClipDataset

    dataset = ClipDataset(dataset_path(folder, name, sampling))
    truth = Truth(video_path(folder, name), FORMATS[name].fps * DRAWN_SECONDS)
    packets = [len(dataset.clip(number).recipe.packet_size) for number in range(len(dataset))]
    row: Row = {"clips": len(dataset), "packets_a_clip": statistics.mean(packets)}
    for way, (decode, workers) in WAYS.items():
        if device == "cpu" and decode != "cpu":
            continue
        row[way] = epochs_of(dataset, truth, decode, workers, device)
        print(way, row[way], file=sys.stderr, flush=True)
    return row


def epochs_of(dataset: Any, truth: Truth, decode: str, workers: int, device: str) -> Row:
    """Return the seconds of epochs of one way of decoding, or the reason why there are none."""
    from framedex import ClipLoader, ClipSampler

    loader = ClipLoader(
        dataset,
        batch_size=BATCH,
        device=device,
        decode=decode,  # type: ignore[arg-type]
        size=SIZE,
        num_workers=workers,
        sampler=ClipSampler(dataset, shuffle=True, seed=1),
    )
    begun = time.perf_counter()
    iterator = iter(loader)
    batch = next(iterator)
    first = time.perf_counter() - begun
    wrong = truth.count_wrong(batch)
    for batch in iterator:
        wait_for(batch["frames"])
    if decode == "gpu" and not loader.report.decoded["nvdec"]:
        loader.close()
        return {"reason": "NVDEC gets no clip of this format (docs/exactness.md says why)"}
    before = dict(loader.report.decoded)
    seconds = [round(run_epoch(loader)[0], 4) for _ in range(EPOCHS)]
    decoded = {name: count - before.get(name, 0) for name, count in loader.report.decoded.items()}
    loader.close()
    assert sum(decoded.values()) == EPOCHS * len(dataset)
    facts: Row = {"seconds": seconds, "median": statistics.median(seconds), "first_batch": round(first, 2)}
    return facts | {"decoded": decoded, "frames_compared": CHECKED * FRAMES, "frames_wrong": wrong}


class Truth:
    """A full decode of the drawn video, whose frames repeat in the minute of video.

    Args:
        path: the drawn video.
        count: how many frames it has.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._count = path, count
        self._pictures: dict[int, NDArray[np.int16]] = {}

    def count_wrong(self, batch: dict[str, Any]) -> int:
        """Return how many frames of a batch's first clips are nearer to a neighbour than to the wanted frame."""
        numbers = np.asarray(batch["frame_index"][:CHECKED].cpu())
        frames = np.asarray(batch["frames"][:CHECKED].cpu()).astype(np.int16)
        near = np.stack([numbers - 1, numbers, numbers + 1], axis=-1).clip(0) % self._count
        self._decode(set(near.flatten().tolist()))
        wrong = 0
        for frame, three in zip(frames.reshape(-1, *SIZE, 3), near.reshape(-1, 3).tolist(), strict=True):
            before, own, after = (np.abs(frame - self._pictures[number]).mean() for number in three)
            wrong += bool(own > min(before, after))
        return wrong

    def _decode(self, wanted: set[int]) -> None:
        """Keep the wanted frames, int16 [*SIZE, 3]."""
        if wanted <= self._pictures.keys():
            return
        with av.open(str(self._path)) as container:
            container.streams.video[0].thread_type = "AUTO"
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    small = frame.to_ndarray(format="rgb24", height=SIZE[0], width=SIZE[1], interpolation="AREA")
                    self._pictures[number] = small.astype(np.int16)
                if number == max(wanted):
                    break


def grid_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks of these formats and samplings have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], choices=list(FORMATS))
    parser.add_argument("--sampling", action="append", default=[], choices=list(SAMPLINGS))
    return parser


def main() -> None:
    parser = grid_parser(__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--limit", type=float, default=240.0, metavar="SECONDS", help="of one row")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--child", nargs=2, metavar=("FORMAT", "SAMPLING"), help="print one row; used by this program")
    options = parser.parse_args()
    folder, began = options.folder.absolute(), time.perf_counter()
    if options.child:
        print(json.dumps(measure(folder, *options.child, options.device)))
        return
    made = environment_of(options.device, "nvidia-dali-cuda120", "torch")
    setup = {"frames_a_clip": FRAMES, "batch_size": BATCH, "size": SIZE, "epochs": EPOCHS, "ways": WAYS}
    rows = RowFile(options.out, made, setup)
    names = options.only or list(FORMATS)
    prepare_all(folder, names)
    for sampling, name in itertools.product(options.sampling or list(SAMPLINGS), names):
        left = options.budget - (time.perf_counter() - began)
        if left >= MIN_SECONDS and not rows.has(format=name, sampling=sampling):
            rows.add({"format": name, "sampling": sampling} | child(folder, name, sampling, options))


def child(folder: Path, name: str, sampling: str, options: argparse.Namespace) -> Row:
    """Return a row that was measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.training", str(folder), "--out", str(options.out)]
    command += ["--device", options.device, "--child", name, sampling]
    return row_of(command, options.limit)


def row_of(command: list[str], limit: float) -> Row:
    """Run a command that prints a row, and return the row, or the reason why there is none after `limit` seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"reason": f"past {limit:g} s"}
    if done.returncode:
        return {"reason": f"its process ended with {done.returncode}: {done.stderr[-600:]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
