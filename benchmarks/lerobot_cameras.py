"""Load samples of two cameras from a LeRobot dataset, with framedex and with the lerobot package, in one run.

A sample is what `delta_timestamps` of both cameras (2 frames of 640×480 each) and of the action (16 steps) ask for, in
shuffled order, in batches of 8 of a torch DataLoader, with the same sampler. lerobot decodes with torchcodec in an
environment of its own (PYTHON), as its pins clash with framedex's:

    pip install lerobot==0.4.4 torch==2.10.0 torchvision==0.25.0 torchcodec==0.10.0

torchcodec needs FFmpeg's libraries, such as those of Debian's package ffmpeg. The dataset is written by the package
itself (AV1, with its defaults) into FOLDER. Both read it once to warm up, and then take turns. The pictures of some
samples are compared: colours differ by rounding, as both convert with other code.

usage: python -m benchmarks.lerobot_cameras PYTHON FOLDER [--samples 256] [--runs 5]   prints JSON
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from benchmarks.environment import environment
from framedex import ClipDataset, MultiViewDataset, index

PEER = Path(__file__).with_name("lerobot_peer.py")
VIEWS = ("observation.images.top", "observation.images.wrist")
POLICY = {
    "policy": "around",
    "seconds": [-0.1, 0.0],
    "pad": "ends",
    "tolerance_seconds": 0.0001,
    "range": {"start": "start_seconds", "end": "end_seconds", "tolerance_seconds": 0.0001, "frames": "length"},
    "views": {"group": "episode_index", "view": "camera", "clock": VIEWS[0], "missing": "error"},
}
COLUMNS = {"action": [number / 30 for number in range(16)]}
BATCH, COMPARED = 8, 16


class Peer:
    """The lerobot package in a process of its own."""

    def __init__(self, python: Path, root: Path) -> None:
        variables = os.environ | {"HF_HUB_OFFLINE": "1"}
        if not root.exists():
            subprocess.run([python, PEER, "write", root], check=True, env=variables, stdout=subprocess.DEVNULL)
        self._process = subprocess.Popen(
            [python, "-u", PEER, "serve", root],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # it is a pipe
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError("lerobot ended without an answer")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        assert self._process.stdin is not None  # it is a pipe
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None  # it is a pipe
        self._process.stdin.close()
        self._process.wait()


def passed(dataset: MultiViewDataset, numbers: list[int], workers: int) -> float:
    """Return the seconds from the first batch to the last one."""
    batches = iter(DataLoader(dataset, batch_size=BATCH, sampler=numbers, num_workers=workers))
    next(batches)
    begun = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - begun


def differences(dataset: MultiViewDataset, numbers: list[int], theirs: Path) -> dict[str, float]:
    """Return the mean difference of the pictures, and of those beside pictures one frame later, in 8-bit steps."""
    saved = np.load(theirs)
    same, other = [], []
    for place, number in enumerate(numbers):
        frames, later = dataset[number]["frames"], dataset[(number + 1) % len(dataset)]["frames"]
        for view in VIEWS:
            pictures = saved[view][place].transpose(0, 2, 3, 1) * 255
            same.append(float(np.abs(frames[view] - pictures).mean()))
            other.append(float(np.abs(later[view] - pictures).mean()))
    return {
        "mean": round(statistics.mean(same), 3),
        "worst": round(max(same), 3),
        "one_frame_later": round(min(other), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    reader = Peer(options.python, folder / "DATASET")
    begun = time.perf_counter()
    index([f"lerobot:{folder / 'DATASET'}"], folder / "INDEX", progress=False)
    index_seconds = time.perf_counter() - begun
    dataset = MultiViewDataset(ClipDataset.from_index(folder / "INDEX", POLICY, frame_columns=COLUMNS))
    assert len(dataset) == reader.facts["samples"]
    numbers = np.random.default_rng(0).permutation(len(dataset))[: options.samples].tolist()
    timed = (len(numbers) - BATCH) or 1
    rates: dict[str, dict[str, list[float]]] = {}
    for workers in (0, 2):
        own: dict[str, list[float]] = {"framedex": [], "lerobot": []}
        # One peer for each: the decoders that a process opened do not work in processes that it forks.
        peer = Peer(options.python, folder / "DATASET")
        for run in range(options.runs + 1):
            seconds = {
                "framedex": passed(dataset, numbers, workers),
                "lerobot": peer.ask(numbers=numbers, batch_size=BATCH, workers=workers)["seconds"],
            }
            if run:  # the first one warms up
                for name, taken in seconds.items():
                    own[name].append(round(timed / taken, 2))
        rates[f"{workers} workers"] = own
        peer.close()
    reader.ask(save=str(folder / "theirs.npz"), numbers=numbers[:COMPARED])
    medians = {
        workers: {name: statistics.median(values) for name, values in own.items()} for workers, own in rates.items()
    }
    result = {
        "environment": environment("torch"),
        "peer_versions": reader.facts["versions"],
        "samples": len(numbers),
        "batch_size": BATCH,
        "frames_a_sample": 2 * len(VIEWS),
        "samples_per_second": medians,
        "ratio": {name: round(own["framedex"] / own["lerobot"], 2) for name, own in medians.items()},
        "runs": rates,
        "difference": differences(dataset, numbers[:COMPARED], folder / "theirs.npz"),
        "index_seconds": round(index_seconds, 2),
    }
    reader.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
