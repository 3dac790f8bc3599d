"""Writes what qwen-vl-utils takes of videos: numbers of frames, frame numbers, and sizes.

usage: python -m tests.support.media FOLDER h264_default.mp4 hevc_open_gop.mp4 h264_vfr.mp4 h264_24_to_60.mp4
       python tests/data/qwen/make.py FOLDER     (in an environment with qwen-vl-utils, torchcodec and torchvision)

The output is tests/data/qwen/taken.json.
"""

from __future__ import annotations

import json
import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from qwen_vl_utils.vision_process import fetch_video, smart_nframes

VIDEOS = ("h264_default.mp4", "hevc_open_gop.mp4", "h264_vfr.mp4", "h264_24_to_60.mp4")
RATES = ["10", "12", "15", "24000/1001", "24", "25", "30000/1001", "30", "50", "60000/1001", "60"]
WAYS: list[dict[str, Any]] = [
    {"fps": 2.0},
    {"fps": 1.0, "min_frames": 8, "max_frames": 64},
    {"fps": 4.0, "min_frames": 4, "max_frames": 31},
    {"fps": 0.5},
]
WAYS_OF_VIDEOS: list[dict[str, Any]] = [{"fps": 8.0}, {"fps": 12.0, "min_frames": 4, "max_frames": 10}]


def of_lengths() -> list[dict[str, Any]]:
    """Return what is taken of videos of many lengths, by number alone."""
    draw = random.Random(0)
    rows = []
    for _ in range(400):
        rate, frames, way = (
            draw.choice(RATES),
            draw.choice([draw.randint(2, 80), draw.randint(80, 4000)]),
            draw.choice(WAYS),
        )
        numerator, _, denominator = rate.partition("/")
        count = smart_nframes(dict(way), frames, int(numerator) / int(denominator or 1))
        numbers = torch.linspace(0, frames - 1, count).round().long().tolist()
        rows.append({"rate": rate, "frames": frames, "way": way, "taken": numbers})
    return rows


def of_video(path: Path, way: dict[str, Any]) -> dict[str, Any]:
    """Return what is taken of a video file."""
    (pixels, metadata), rate = fetch_video(
        {"video": str(path), **way}, return_video_sample_fps=True, return_video_metadata=True
    )
    return {
        "video": path.name,
        "way": way,
        "taken": list(map(int, metadata["frames_indices"])),
        "rate": rate,
        "size": list(pixels.shape[2:]),
    }


def main(folder: Path) -> None:
    found = {
        "versions": {name: version(name) for name in ("qwen-vl-utils", "torchcodec", "torch")},
        "lengths": of_lengths(),
        "videos": [of_video(folder / name, way) for name in VIDEOS for way in WAYS_OF_VIDEOS],
    }
    lines = ",\n".join(
        f'"{name}": '
        + (json.dumps(value) if name == "versions" else "[\n" + ",\n".join(map(json.dumps, value)) + "\n]")
        for name, value in found.items()
    )
    Path(__file__).with_name("taken.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
