"""The side of benchmarks/lerobot_cameras.py that runs in an environment with lerobot, which has no framedex.

usage: python lerobot_peer.py write ROOT
       python lerobot_peer.py serve ROOT    reads requests as lines of JSON, and answers each with a line of JSON
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found, unused-ignore]

FPS, EPISODES, FRAMES = 30, 8, 240
HEIGHT, WIDTH = 480, 640
VIEWS = ("observation.images.top", "observation.images.wrist")
DELTA_TIMESTAMPS = {VIEWS[0]: [-0.1, 0.0], VIEWS[1]: [-0.1, 0.0], "action": [n / FPS for n in range(16)]}


def picture(seed: int, frame: int) -> Any:
    """Return uint8 [H, W, 3]: a smooth scene in which a square moves, with a little noise."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    scene = np.stack([np.sin(rows / (40 + seed)), np.cos(columns / 50), np.sin((rows + columns) / 70)], axis=-1)
    noise = np.random.default_rng(seed * 10_000 + frame).normal(0, 3, (HEIGHT, WIDTH, 1))
    shown = (scene * 60 + 128 + noise).clip(0, 255).astype(np.uint8)
    left = 20 + (frame * 2 + 60 * seed) % (WIDTH - 120)
    shown[180:280, left : left + 100] = (220, 60 + 10 * seed, 40)
    return shown


def write(root: Path) -> None:
    """Write the dataset."""
    colour = ["height", "width", "channels"]
    video = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": colour}
    features = {
        "action": {"dtype": "float32", "shape": (7,), "names": list("abcdefg")},
        VIEWS[0]: video,
        VIEWS[1]: video,
    }
    dataset = LeRobotDataset.create("framedex/bench", FPS, features, root=root, use_videos=True)
    for episode in range(EPISODES):
        for frame in range(FRAMES):
            own = {view: picture(2 * episode + place, frame) for place, view in enumerate(VIEWS)}
            action = np.full(7, frame, np.float32)
            dataset.add_frame(own | {"action": action, "task": "push"})
        dataset.save_episode()
    dataset.finalize()


def passed(dataset: Any, numbers: list[int], batch_size: int, workers: int) -> float:
    """Return the seconds from the first batch to the last one."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=numbers, num_workers=workers)
    batches = iter(loader)
    next(batches)  # workers are there then
    begun = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - begun


def serve(root: Path) -> None:
    """Answer requests."""
    dataset = LeRobotDataset("framedex/bench", root=root, delta_timestamps=DELTA_TIMESTAMPS, video_backend="torchcodec")
    names = ("lerobot", "torch", "torchcodec")
    print(json.dumps({"samples": len(dataset), "versions": {name: importlib.metadata.version(name) for name in names}}))
    for line in sys.stdin:
        sys.stdout.flush()
        request = json.loads(line)
        if "save" in request:
            samples = [dataset[number] for number in request["numbers"]]
            kept = {view: np.stack([np.asarray(sample[view]) for sample in samples]) for view in VIEWS}
            np.savez(request["save"], **kept)
            answer: dict[str, Any] = {}
        else:
            answer = {"seconds": passed(dataset, request["numbers"], request["batch_size"], request["workers"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    {"write": write, "serve": serve}[sys.argv[1]](Path(sys.argv[2]))
