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

import argparse
import importlib.util
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import environment
from benchmarks.row_file import RowFile
from benchmarks.training import SAMPLINGS, SIZE, dataset_path, prepare
from benchmarks.training_videos import FORMATS
from framedex import ClipDataset
from framedex.loader.bench.peers import Decord, OpenCv, TorchCodec

Frames = NDArray[np.uint8]
Size = tuple[int, int] | None
Read = Callable[[str, list[int], list[float], Size], Frames]
TOLERANCE_SECONDS = 0.001
COMPARED_ROWS = 200  # of a picture, with as much of its columns


class ApproximateTorchCodec(TorchCodec):
    """torchcodec's VideoDecoder, which takes the frame rate for constant and does not scan the file."""

    seek_mode = "approximate"


def read_spdl(path: str, frames: list[int], seconds: list[float], size: Size) -> Frames:
    """Read with SPDL: demux the clip's seconds, and decode the wanted ones of these frames."""
    import spdl.io

    packets = spdl.io.demux_video(path, timestamp=(seconds[0] - TOLERANCE_SECONDS, seconds[-1] + TOLERANCE_SECONDS))
    scale = "" if size is None else f"scale={size[1]}:{size[0]},"
    wanted = [frame - frames[0] for frame in frames]
    decoded = spdl.io.sample_decode_video(packets, wanted, filter_desc=f"{scale}format=pix_fmts=rgb24")
    return np.asarray(spdl.io.to_numpy(spdl.io.convert_frames(decoded)))


def by_number(peer: Any) -> Read:
    """Return how a peer reads frames by their numbers."""
    return lambda path, frames, seconds, size: peer.read(path, frames, size)


CONTENDERS: dict[str, tuple[str, Read]] = {
    "torchcodec, exact": ("torchcodec", by_number(TorchCodec())),
    "torchcodec, approximate": ("torchcodec", by_number(ApproximateTorchCodec())),
    "SPDL": ("spdl", read_spdl),
    "OpenCV": ("cv2", by_number(OpenCv())),
    "decord": ("decord", by_number(Decord())),
}


def measure(folder: Path, name: str, sampling: str, size: Size, clips: int) -> dict[str, Any]:
    """Return the median milliseconds per clip of every contender, and the share of its frames that are the same.

    `failed` says why a contender has no figure.
    """
    dataset = ClipDataset(dataset_path(folder, name, sampling), size=size)
    readers = {who: read for who, (module, read) in CONTENDERS.items() if importlib.util.find_spec(module)}
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
        for who, read in readers.items():
            if who in failed:
                continue
            begun = time.perf_counter()
            try:
                found = read(clip.medium.path, item["frame_index"].tolist(), item["seconds"].tolist(), size)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], choices=list(FORMATS))
    parser.add_argument("--sampling", action="append", default=[], choices=list(SAMPLINGS))
    parser.add_argument("--clips", type=int, default=8)
    options = parser.parse_args()
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
