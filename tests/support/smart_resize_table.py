"""Writes tests/data/smart_resize.csv: the sizes that `qwen_vl_utils.fetch_video` gives videos.

It needs an environment with qwen-vl-utils (which needs torchvision); the suite only reads the table:

    python -m tests.support.smart_resize_table tests/data/smart_resize.csv
"""

from __future__ import annotations

import csv
import importlib.metadata
import random
import sys
from pathlib import Path
from typing import Any

LIMITS = ("min_pixels", "max_pixels", "total_pixels")
COLUMNS = ("height", "width", "frames", "patch", *LIMITS, "resized_height", "resized_width")
COMMON = [(240, 320), (360, 640), (480, 640), (720, 1280), (1080, 1920), (2160, 3840), (1920, 1080), (16, 16), (70, 98)]


def resized(case: dict[str, Any]) -> tuple[int, int]:
    """Return the size that fetch_video scales a video to, without decoding one."""
    import torch
    from qwen_vl_utils import vision_process

    found: list[tuple[int, int]] = []

    def read(_: object) -> Any:
        video = torch.zeros(1).expand(case["frames"], 3, case["height"], case["width"])
        return video, {}, 2.0

    def resize(video: Any, size: list[int], **_: object) -> Any:
        found.append((int(size[0]), int(size[1])))
        return torch.zeros(1)

    vision_process.VIDEO_READER_BACKENDS = dict.fromkeys(vision_process.VIDEO_READER_BACKENDS, read)
    vision_process.transforms.functional.resize = resize
    given = {name: case[name] for name in LIMITS if case[name] is not None}
    vision_process.fetch_video({"video": "none.mp4", **given}, image_patch_size=case["patch"])
    return found[0]


def cases() -> list[dict[str, Any]]:
    """Return videos and limits: usual ones, and ones drawn at random."""
    drawn = random.Random(25)
    found = [
        {"height": height, "width": width, "frames": frames, "patch": patch, **dict.fromkeys(LIMITS)}
        for height, width in COMMON
        for frames in (4, 32, 768)
        for patch in (14, 16)
    ]
    for _ in range(400):
        least = drawn.choice([None, drawn.randint(16, 200) * 28 * 28])
        most = drawn.choice([None, (least or 128 * 32 * 32) + drawn.randint(0, 800_000)])
        case = {
            "height": drawn.randint(16, 2200),
            "width": drawn.randint(16, 2200),
            "frames": drawn.randint(1, 768),
            "patch": drawn.choice([7, 14, 16]),
            "min_pixels": least,
            "max_pixels": most,
            "total_pixels": drawn.choice([None, drawn.randint(1_000_000, 100_000_000)]),
        }
        if max(case["height"], case["width"]) <= 200 * min(case["height"], case["width"]):
            found.append(case)
    return found


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
        file.write(f"# qwen-vl-utils {importlib.metadata.version('qwen-vl-utils')}, fetch_video\n")
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for case in cases():
            height, width = resized(case)
            table.writerow(case | {"resized_height": height, "resized_width": width})
