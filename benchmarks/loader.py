"""Measure the loader's speed on a GPU beside other loaders: clips of 16 frames at 1 fps, random places, 720p60 videos.

SOURCE is a minute of video. Longer videos are made from it by repeating its packets:

    ffmpeg -f lavfi -i color=c=blue:s=1280x720:d=60:r=60 -c:v libx264 -vf "drawtext=fontfile=FONT.ttf:fontsize=96:\
fontcolor=white:x=(w-tw)/2:y=(h-th)/2:text='%{frame_num}'" SOURCE

Batches of 64 clips are delivered at 224×224 as float FCHW on the GPU. framedex is timed over whole epochs after one
warm-up epoch, other loaders over one epoch after 8 clips. Each runs in its own process with a time limit. A sample of
frames from every loader is compared with the CPU's frames.

Results are added to a JSON file as they arrive; rows that the file already contains are not measured again. After a run
that was cut short by its --budget, the same command continues.

usage: python -m benchmarks.loader SOURCE --folder FOLDER --out RESULTS [--seconds 60,3000] [--only nvdec,auto]
       python -m benchmarks.loader SOURCE --folder FOLDER --out RESULTS --devices 0,1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.loader_child import SIZE, run_child
from benchmarks.loader_datasets import FRAMES, make_dataset
from benchmarks.make_video import PERIOD_SECONDS
from framedex import ClipDataset
from framedex.bench.compare import CHECKED_CLIPS, count_different, load_thumbnails, run_peer
from framedex.bench.measure import checked_thumbnails, peer_clips
from framedex.bench.peer import PeerOptions
from framedex.loader.order.order import epoch_order

BATCH = 64
MIN_SECONDS = 15  # of the budget that must be left to begin another measurement


@dataclass(frozen=True)
class Way:
    """A configuration of framedex: the dataset, the decoder, and the number of worker processes."""

    dataset: str
    decode: str
    workers: int


@dataclass(frozen=True)
class Other:
    """Another loader by its name in benchmarks/bench/peers.py, and its number of threads or processes."""

    peer: str
    workers: int


WAYS: dict[str, Way | Other] = {
    "nvdec": Way("reference", "gpu", 4),
    "auto": Way("reference", "auto", 16),
    "images_720p": Way("images_720p", "gpu", 8),
    "images_256px": Way("images_256px", "gpu", 8),
    "cpu": Way("reference", "cpu", 16),
    "images_720p_auto": Way("images_720p", "auto", 16),
    "images_256px_auto": Way("images_256px", "auto", 16),
    "dali_decoders_video": Other("DALI decoders.video", 16),
    "dali_readers_video": Other("DALI readers.video", 16),
    "pynvvideocodec": Other("PyNvVideoCodec", 16),
    "opencv": Other("OpenCV", 16),
    "decord": Other("decord", 16),
}
USUAL = [way for way in WAYS if way != "cpu" and not way.endswith("_auto")]


class Results:
    """The JSON file of results. A new row replaces an earlier one with the same `way` and video length."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path = path
        made = environment("nvidia-dali-cuda120", "torch") | {"gpu": gpu_name()}
        self.content: dict[str, Any] = {"environment": made, "commands": [], "setup": {}, "results": []}
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
        if made["command"] not in self.content["commands"]:
            self.content["commands"].append(made["command"])
        if options.devices:
            self.write()
            return
        self.content["setup"] = {
            "clips": options.clips,
            "frames_a_clip": FRAMES,
            "batch_size": BATCH,
            "size": SIZE,
            "epochs_measured": options.epochs,
            "warm_up_epochs": 1,
            "warm_up_clips_of_others": CHECKED_CLIPS,
        }
        self.write()

    def has(self, way: str, seconds: int) -> bool:
        """Return whether a row of this `way` and video length exists, measured or failed."""
        return any((row["way"], row["video_seconds"]) == (way, seconds) for row in self.content["results"])

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, write the file and print the row."""
        key = (row["way"], row["video_seconds"])
        kept = [old for old in self.content["results"] if (old["way"], old["video_seconds"]) != key]
        self.content["results"] = [*kept, row]
        self.write()
        print(
            json.dumps({name: row.get(name) for name in ("way", "video_seconds", "median_seconds", "reason")}),
            flush=True,
        )

    def write(self) -> None:
        """Write to a temporary file, then rename it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".tmp")
        aside.write_text(json.dumps(self.content, indent=2) + "\n", encoding="utf-8")
        aside.replace(self.path)


def gpu_name() -> str:
    """Return the first GPU's name, or a text that says that no GPU is available."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "no GPU"


def bench_options(way: Way, epochs: int, gpu: int = 0, device: str = "gpu") -> dict[str, Any]:
    """Return the BenchOptions of a configuration in a form that JSON accepts."""
    facts = {"batch_size": BATCH, "device": device, "decode": way.decode, "workers": way.workers}
    return facts | {"epochs": epochs, "warm_up": 1, "gpu": gpu}


def reference(source: Path, seconds: int, options: argparse.Namespace, limit: float) -> Path:
    """Return small pictures of the first clips at a video length, decoded on the CPU."""
    path = options.folder / f"{seconds}s-{options.clips}" / "reference.npz"
    if not path.exists():
        dataset = make_dataset(source, options.folder, seconds, options.clips, "reference")
        way = Way("reference", "cpu", os.cpu_count() or 1)
        request = {"dataset": str(dataset), "options": bench_options(way, 1, device="cpu"), "check": options.check}
        child = options.folder / "child"
        answer = run_child(child, request | {"rank": 0, "world_size": 1, "task": "reference"}, limit)
        if "reason" in answer:
            raise RuntimeError(f"no reference pictures: {answer['reason']}")
        (child / "pictures.npz").rename(path)
    return path


def measure_way(name: str, seconds: int, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Return the row of one configuration at one video length."""
    way = WAYS[name]
    stored = way.dataset if isinstance(way, Way) else "reference"
    began = time.perf_counter()
    dataset = make_dataset(options.source, options.folder, seconds, options.clips, stored)
    truth = load_thumbnails(reference(options.source, seconds, options, limit)) if isinstance(way, Way) else {}
    row: dict[str, Any] = {
        "way": name,
        "video_seconds": seconds,
        "clips": options.clips,
        "prepared_in_seconds": round(time.perf_counter() - began, 2),
    }
    if isinstance(way, Way):
        request = {
            "dataset": str(dataset),
            "options": bench_options(way, options.epochs, device=options.device),
            "check": options.check,
        }
        child = options.folder / "child"
        answer = run_child(child, request | {"rank": 0, "world_size": 1, "task": "epochs"}, limit)
        compared, different = count_different(truth, load_thumbnails(child / "pictures.npz"))
        return row | {"workers": way.workers} | answer | {"compared": compared, "different": different}
    clips = ClipDataset(dataset)
    asked = peer_clips({number: clips.clip(number) for number in range(len(clips))})
    order = epoch_order(len(asked), shuffle=True, seed=0, epoch=1).tolist()
    gpu = 0 if options.device == "gpu" else None
    how = PeerOptions(batch_size=BATCH, workers=way.workers, size=SIZE, gpu=gpu, floats=True)
    asked = [asked[place] for place in order]
    truth = checked_thumbnails(clips, asked)
    result = run_peer(way.peer, asked, how, limit_seconds=limit, ours=truth)
    seconds_taken = [] if result.seconds is None else [result.seconds]
    facts = asdict(result) | {"clips_done": result.clips, "clips": options.clips, "seconds": seconds_taken}
    return row | {"workers": way.workers} | facts | {"median_seconds": result.seconds}


def measure_devices(devices: Sequence[int], options: argparse.Namespace, results: Results) -> None:
    """Add rows with clips per second on several GPUs.

    The rows are: all clips on the first GPU; each rank's clips on its GPU while the others are idle; and all ranks at
    once, each with its own process and GPU.
    """
    dataset = make_dataset(options.source, options.folder, PERIOD_SECONDS, options.device_clips, "reference")
    count = len(devices)
    measure_ranks("nvdec_on_1_gpus", [0], 1, devices, dataset, options, results)
    for rank in range(count):
        measure_ranks(f"rank_{rank}_of_{count}_alone", [rank], count, devices, dataset, options, results)
    measure_ranks(f"nvdec_on_{count}_gpus", list(range(count)), count, devices, dataset, options, results)


def measure_ranks(
    name: str,
    ranks: Sequence[int],
    world_size: int,
    devices: Sequence[int],
    dataset: Path,
    options: argparse.Namespace,
    results: Results,
) -> None:
    """Add the row of some ranks that run at once, each on its GPU."""
    home = options.folder / "together"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    answers: dict[int, dict[str, Any]] = {}

    def one(rank: int) -> None:
        made = bench_options(Way("reference", "gpu", 4), 1, devices[rank], options.device)
        request = {"dataset": str(dataset), "options": made, "check": 0, "task": "together"}
        answers[rank] = run_child(home / str(rank), request | {"rank": rank, "world_size": world_size}, options.limit)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if all((home / str(rank) / "ready").exists() for rank in ranks):
            (home / "go").touch()
        time.sleep(0.05)
    row: dict[str, Any] = {"way": name, "video_seconds": PERIOD_SECONDS, "gpus": len(ranks)}
    reasons = [answer["reason"] for answer in answers.values() if "reason" in answer]
    if reasons:
        results.add(row | {"reason": "; ".join(reasons)})
        return
    taken = max(a["ended"] for a in answers.values()) - min(a["started"] for a in answers.values())
    clips = sum(answer["clips"] for answer in answers.values())
    row |= {"clips": clips, "median_seconds": taken, "clips_a_second": clips / taken}
    results.add(row | {"seconds_of_ranks": [answers[rank]["ended"] - answers[rank]["started"] for rank in ranks]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a minute of 720p60 video")
    parser.add_argument("--folder", type=Path, required=True, help="where videos and datasets are made, and kept")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file that results are added to")
    parser.add_argument("--seconds", type=numbers, default=[60, 120, 300, 3000], help="lengths of video")
    parser.add_argument("--only", type=lambda text: text.split(","), default=USUAL, help=", ".join(WAYS))
    parser.add_argument("--again", action="store_true", help="measure what is in the file already, too")
    parser.add_argument("--clips", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3, help="measured, of which the median counts")
    parser.add_argument("--check", type=int, default=32, metavar="CLIPS", help="whose frames are compared")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="of one way at one length")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS", help="of this whole call")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: to try this without a GPU")
    parser.add_argument("--devices", type=numbers, help="measure these GPUs, first one by one, then at once")
    parser.add_argument("--device-clips", type=int, default=512)
    options = parser.parse_args()
    unknown = [way for way in options.only if way not in WAYS]
    if unknown:
        parser.error(f"unknown ways {', '.join(unknown)}; there are {', '.join(WAYS)}")
    options.folder, started = options.folder.absolute(), time.perf_counter()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options)
    if options.devices:
        measure_devices(options.devices, options, results)
        return
    for way in options.only:
        for seconds in options.seconds:
            left = options.budget - (time.perf_counter() - started)
            if left < MIN_SECONDS or (results.has(way, seconds) and not options.again):
                continue
            try:
                row = measure_way(way, seconds, options, min(options.limit, left))
            except Exception as error:
                row = {"reason": f"{type(error).__name__}: {error}"}
            cut = str(row.get("reason")).startswith("past") and left < options.limit
            if not cut:  # otherwise the next call, with a new budget, does it
                results.add({"way": way, "video_seconds": seconds} | row)


def numbers(text: str) -> list[int]:
    """Return the integers of a comma-separated list."""
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    main()
