"""Measure one core on what people train on: seven formats, three samplings, at full size and at 224×224.

Clips of 16 frames at random places of a minute of video (benchmarks/training_videos.py), one after the other. Every
contender opens the video again for each clip and returns uint8 RGB; framedex has indexed and sharded before. Contenders
take turns, so that noise of the machine affects all of them. A frame of another library counts as the same picture if
it is nearer to framedex's frame than to the frames before and after it in the clip.

Rows are added to a JSON file as they arrive; those in it are not measured again.

usage: python -m benchmarks.one_core FOLDER --out RESULTS [--only FORMAT] [--sampling NAME] [--clips 8]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; datasets are made in it)
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import environment
from benchmarks.row_file import RowFile
from benchmarks.training import SAMPLINGS, SIZE, dataset_path, grid_parser, prepare
from benchmarks.training_videos import FORMATS
from framedex import ClipDataset
from framedex.bench.cpu_peers import ApproximateTorchCodec, CpuPeer, Decord, OpenCv, Spdl, TorchCodec
from framedex.sharder.decoding import rgb

Frames = NDArray[np.uint8]
Size = tuple[int, int] | None
COMPARED_ROWS = 200  # of a picture, with as much of its columns


CONTENDERS: dict[str, CpuPeer] = {
    "torchcodec, exact": TorchCodec(),
    "torchcodec, approximate": ApproximateTorchCodec(),
    "SPDL": Spdl(),
    "OpenCV": OpenCv(),
    "decord": Decord(),
}


def measure(folder: Path, name: str, sampling: str, size: Size, clips: int) -> dict[str, Any]:
    """Return the median milliseconds per clip of every contender, and the share of its frames that are the same.

    `failed` says why a contender has no figure.
    """
    dataset = ClipDataset(dataset_path(folder, name, sampling), size=size)
    readers = {who: peer for who, peer in CONTENDERS.items() if importlib.util.find_spec(peer.module.split(".")[0])}
    times: dict[str, list[float]] = {who: [] for who in ("framedex", *readers)}
    same: dict[str, int] = dict.fromkeys(readers, 0)
    failed = {who: "not installed" for who in CONTENDERS if who not in readers}
    packets = []
    for number in range(clips + 1):  # the first one imports and is not counted
        begun = time.perf_counter()
        item = dataset[number]
        times["framedex"].append(time.perf_counter() - begun)
        clip = dataset.clip(number)
        packets.append(len(clip.recipe.packet_size))
        for who, peer in readers.items():
            if who in failed:
                continue
            begun = time.perf_counter()
            try:
                found = peer.read(clip.medium.path, item["frame_index"].tolist(), item["seconds"].tolist(), size)
            except Exception as error:
                failed[who] = f"{type(error).__name__}: {error}"[:300]
                continue
            times[who].append(time.perf_counter() - begun)
            same[who] += count_same(found, item["frames"])
    medians = {who: statistics.median(taken[1:]) for who, taken in times.items() if who not in failed}
    best = min((taken for who, taken in medians.items() if who != "framedex"), default=None)
    total = (clips + 1) * len(item["frames"])
    return {
        "format": name,
        "sampling": sampling,
        "size": size,
        "packets_a_clip": round(statistics.mean(packets), 1),
        "milliseconds_a_clip": {who: round(1000 * taken, 1) for who, taken in medians.items()},
        "same_frames_share": {who: round(count / total, 4) for who, count in same.items() if who not in failed},
        "failed": failed,
        "times_as_fast_as_the_best_other": None if best is None else round(best / medians["framedex"], 2),
    }


def count_same(found: Frames, ours: Frames) -> int:
    """Return how many frames are nearer to their own frame of ours than to the neighbours of that frame."""
    if found.shape != ours.shape:
        return 0
    every = max(1, ours.shape[1] // COMPARED_ROWS)
    theirs, mine = (pictures[:, ::every, ::every].astype(np.int16) for pictures in (found, ours))
    away = np.array([[np.abs(one - other).mean() for other in mine] for one in theirs])
    return int((np.diag(away) <= away.min(axis=1)).sum())  # a clip of 16 s repeats pictures of the 10 drawn seconds


def main() -> None:
    parser = grid_parser(__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=8)
    options = parser.parse_args()
    rgb.COMPILED_FROM = 0  # as in a long run
    folder = options.folder.absolute()
    names = options.only or list(FORMATS)
    for name in names:
        prepare(folder, name)
    core = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, core)
    libraries = ("torchcodec", "torch", "spdl", "opencv-python-headless", "decord")
    rows = RowFile(options.out, environment(*libraries), {"clips": options.clips})
    for name, sampling, size in itertools.product(names, options.sampling or list(SAMPLINGS), (None, SIZE)):
        if not rows.has(format=name, sampling=sampling, size=size):
            rows.add(measure(folder, name, sampling, size, options.clips))


if __name__ == "__main__":
    main()
