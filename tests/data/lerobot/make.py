"""Writes a small dataset with the lerobot package, and what the package reads from it, which tests compare.

It needs an environment of its own, for the package's pins clash with ours, and FFmpeg's libraries for torchcodec:

    v3:  pip install lerobot==0.4.4
    v21: the same, and before it on PYTHONPATH: lerobot==0.3.3 datasets==3.6.0 dill==0.3.8 multiprocess==0.70.16
    python make.py v3

A dataset that is there is not written again.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found, unused-ignore]

FPS = 10
EPISODES = ((17, "push the block"), (23, "lift the cup"), (9, "push the block"))
TOP, WRIST = "observation.images.top", "observation.images.wrist"
DELTA_TIMESTAMPS = {
    TOP: [-0.2, 0, 0.1],
    WRIST: [-0.3, -0.1, 0, 0.2],
    "action": [0, 0.1, 0.2, 0.3],
    "observation.state": [-0.1, 0],
}


def pictures(episode: int, frame: int) -> tuple[Any, Any]:
    """Return a frame of each camera; all frames differ."""
    top = np.full((64, 96, 3), 40 * episode + 20, np.uint8)
    top[:, : 4 * (frame % 24) + 4] = (200, 30 * episode, 255 - 8 * frame)
    wrist = np.full((48, 64, 3), 200 - 50 * episode, np.uint8)
    wrist[: 2 * (frame % 24) + 2] = (10 * frame % 256, 90, 60 * episode)
    return top, wrist


def write(root: Path) -> None:
    """Write the dataset."""
    colour = ["height", "width", "channels"]
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        TOP: {"dtype": "video", "shape": (64, 96, 3), "names": colour},
        WRIST: {"dtype": "video", "shape": (48, 64, 3), "names": colour},
    }
    dataset = LeRobotDataset.create("framedex/small", FPS, features, root=root, use_videos=True)
    is_old = "task" in inspect.signature(LeRobotDataset.add_frame).parameters
    for episode, (frames, task) in enumerate(EPISODES):
        for number in range(frames):
            top, wrist = pictures(episode, number)
            frame = {
                "observation.state": np.array([episode, number, number / FPS], np.float32),
                "action": np.array([number * 2, -number], np.float32),
                TOP: top,
                WRIST: wrist,
            }
            if is_old:
                dataset.add_frame(frame, task=task)
            else:
                dataset.add_frame(frame | {"task": task})
        dataset.save_episode()
    if not is_old:
        dataset.finalize()


def read(root: Path, out: Path) -> None:
    """Write what the package returns for every sample; pictures as uint8."""
    dataset = LeRobotDataset("framedex/small", root=root, delta_timestamps=DELTA_TIMESTAMPS)
    found: dict[str, list[Any]] = {}
    for number in range(len(dataset)):
        for key, value in dataset[number].items():
            value = value if isinstance(value, str) else value.numpy()
            if key in (TOP, WRIST):
                value = np.round(value * 255).astype(np.uint8)
            found.setdefault(key, []).append(value)
    np.savez_compressed(out, **{key: np.array(values) for key, values in found.items()})


if __name__ == "__main__":
    folder = Path(__file__).parent / sys.argv[1]
    if not folder.exists():
        write(folder)
    read(folder, folder.with_name(f"{sys.argv[1]}.npz"))
