"""Videos and datasets for benchmarks/loader.py. Clips have 16 frames at 1 fps and start at random positions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.make_video import PERIOD_SECONDS, repeat

FPS, FRAMES = 60, 16
PACKED = {
    "reference": [],
    "images_720p": ["--pack", "images", "--quality", "90"],
    "images_256px": ["--pack", "images", "--quality", "90", "--short-side", "256"],
}


def framedex_command(*arguments: object) -> None:
    """Run `framedex ARGUMENTS`. Raise RuntimeError with its error output if it fails."""
    command = [sys.executable, "-c", "from framedex.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"framedex {arguments[0]} ended with {done.returncode}: {done.stderr[-600:]}")


def make_dataset(source: Path, folder: Path, seconds: int, clips: int, name: str) -> Path:
    """Return a dataset of clips at random positions of a video. Create the files that do not exist yet.

    Args:
        source: a video of PERIOD_SECONDS, which is repeated.
        folder: the folder for videos, indexes and datasets.
        seconds: the length of the repeated video.
        clips: the number of clips.
        name: a key of PACKED, which selects how clips are packed.
    """
    home = folder / f"{seconds}s-{clips}"
    video, index, dataset = folder / f"{seconds}s.mp4", folder / f"{seconds}s-index", home / name
    if (dataset / "dataset.json").exists():
        return dataset
    home.mkdir(parents=True, exist_ok=True)
    if not video.exists():
        aside = folder / f"{seconds}s.aside.mp4"
        repeat(source, aside, seconds // PERIOD_SECONDS)
        aside.rename(video)
    if not index.exists():
        framedex_command("index", video, "--out", index)
    starts = np.random.default_rng(seconds).integers(0, seconds * FPS - FRAMES * FPS + 1, clips).tolist()
    wanted = [{"uri": video.name, "frames": [start + FPS * place for place in range(FRAMES)]} for start in starts]
    (home / "clips.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in wanted), encoding="utf-8")
    shutil.rmtree(dataset, ignore_errors=True)
    framedex_command("shard", index, "--clips", home / "clips.jsonl", "--out", dataset, *PACKED[name])
    return dataset
