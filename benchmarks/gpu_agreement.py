"""Do NVDEC and the CPU return the same frames? Every clip of a dataset through both, compared picture by picture.

A frame counts as right when, among the clip's own distinct frames as the CPU decoded them, the one asked for is nearest
to what NVDEC returned, and the mean absolute difference is below `--limit`: saturated test patterns differ by up to
17 in how chroma is upsampled, other pictures by 40 or more. Prints JSON.

usage: python -m benchmarks.gpu_agreement DATASET [--limit 25] [--sample N]
"""

from __future__ import annotations

import argparse
import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.environment import environment
from framedex import ClipDataset, ClipLoader
from framedex.errors import FramedexError
from framedex.loader.routes import gpu_obstacle


def compare(clips: ClipDataset, number: int, limit: float) -> dict[str, Any]:
    """Return what NVDEC made of one clip."""
    clip = clips.clip(number)
    row: dict[str, Any] = {"clip_id": clip.clip_id, "uri": clip.medium.uri, "runs": len(clip.recipe.run_first)}
    obstacle = gpu_obstacle(clip)
    if obstacle is not None:
        return row | {"route": "cpu", "why": obstacle}
    truth = clips[number]["frames"].astype(np.int16)
    try:
        loader = ClipLoader(clips, sampler=[number], device="gpu")  # type: ignore[arg-type]
        (batch,) = list(loader)
    except FramedexError as error:
        return row | {"route": "gpu", "right": False, "error": str(error)[-400:]}
    found = batch["frames"][0].cpu().numpy().astype(np.int16)
    away = np.array([[np.abs(one - other).mean() for other in truth] for one in found])
    own = np.diagonal(away)
    right = bool((own <= away.min(axis=1) + 1e-6).all() and own.max() < limit)
    mean_square = np.mean((found - truth).astype(np.float64) ** 2)
    return row | {
        "route": "gpu",
        "right": right,
        "worst_mean_difference": round(float(own.max()), 3),
        "psnr": round(float(10 * np.log10(255**2 / max(mean_square, 1e-9))), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--limit", type=float, default=25.0)
    parser.add_argument("--sample", type=int)
    options = parser.parse_args()
    clips = ClipDataset(options.dataset)
    numbers = np.arange(len(clips))
    if options.sample is not None and options.sample < len(clips):
        numbers = np.random.default_rng(0).choice(len(clips), options.sample, replace=False)
    rows = [compare(clips, int(number), options.limit) for number in numbers]
    on_gpu = [row for row in rows if row["route"] == "gpu"]
    result = {
        "environment": environment("nvidia-dali-cuda120", "torch") | {"gpu": torch.cuda.get_device_name(0)},
        "clips": len(rows),
        "on_gpu": len(on_gpu),
        "right_on_gpu": sum(row["right"] for row in on_gpu),
        "wrong": [row for row in on_gpu if not row["right"]],
        "on_cpu_because": collections.Counter(row["why"] for row in rows if row["route"] == "cpu"),
        "median_psnr": float(np.median([row["psnr"] for row in on_gpu if "psnr" in row] or [0])),
        "psnr_by_medium": {
            uri: round(float(np.median([row["psnr"] for row in on_gpu if row["uri"] == uri and "psnr" in row])), 2)
            for uri in sorted({row["uri"] for row in on_gpu if "psnr" in row})
        },
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
