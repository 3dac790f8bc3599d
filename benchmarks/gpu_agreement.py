"""Check that NVDEC and the CPU return the same frames: decode every clip of a dataset with both and compare pictures.

A frame is right if two conditions hold. Among the clip's distinct frames as the CPU decoded them, the requested one is
nearest to NVDEC's picture, and the mean absolute difference is below `--limit`. Saturated test patterns differ by up to
17 because chroma is upsampled in another way, different pictures by 40 or more. Given a folder of media instead of a
dataset, this program indexes them and plans clips of each: frames in random order with repeats, and one clip padded at
both ends. Prints JSON: counts, PSNR, and mean differences at the pictures' edges and inside.

All clips pass through one pipeline in shuffled order, as in training, so that anything that one stream leaves in the
decoder would show in the next. `--force` sends every clip to NVDEC, whatever `loader/routing/routes.py` says, with one
pipeline per medium, to see what might be added to the routes.

usage: python -m benchmarks.gpu_agreement DATASET|FOLDER [--limit 25] [--sample N] [--depth auto] [--force]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.environment import environment
from benchmarks.exactness import written
from framedex import ClipDataset, ClipLoader
from framedex.errors import FramedexError
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.loader.batches import fetch
from framedex.loader.routing.routes import gpu_obstacle
from framedex.sharder.build import build_from_requests
from framedex.sharder.selection.explicit_clips import ExplicitClip

CLIPS_A_MEDIUM = 6
FRAMES_A_CLIP = 7
EDGE = 4  # pixels; NVDEC's pictures are cut out of coded ones, and chroma is upsampled across their edges


def plan_clips(folder: Path, scratch: Path, depth: Depth) -> tuple[Path, dict[str, int]]:
    """Index a folder and plan clips of each medium; return the dataset and the number of media at each depth."""
    build_index(IndexOptions(sources=[str(folder)], root=str(folder), out=scratch / "INDEX", depth=depth))
    index = Index(scratch / "INDEX")
    rng = np.random.default_rng(3)
    requests: list[ExplicitClip] = []
    depths: dict[str, int] = collections.Counter()
    for row in index.videos.to_pylist():
        if row["status"] != "ok" or row["frame_count"] == 0:
            continue
        depths[row["depth"]] += 1
        for number in range(CLIPS_A_MEDIUM):
            frames = rng.integers(0, row["frame_count"], FRAMES_A_CLIP).tolist()
            frames[3] = frames[1]
            if number == 0:
                frames[0] = frames[-1] = -1
            requests.append(
                ExplicitClip(line=len(requests), clip_id=f"{row['uri']}-{number}", uri=row["uri"], frames=frames)
            )
    build_from_requests(index, scratch / "DATASET", written(requests, scratch / "clips.jsonl"), choose="nearest")
    return scratch / "DATASET", dict(depths)


def decode_on_gpu(clips: ClipDataset, numbers: list[int]) -> Iterator[tuple[int, Any]]:
    """Yield the number of each clip with its frames from one pipeline, or with its error; continue after errors."""
    at = 0
    while at < len(numbers):
        try:
            loader = ClipLoader(clips, sampler=numbers[at:], device="gpu")  # type: ignore[arg-type]
            for batch in loader:
                at += 1
                yield numbers[at - 1], batch["frames"][0].cpu().numpy()
        except (FramedexError, ValueError) as error:
            at += 1
            yield numbers[at - 1], error


def compare(clips: ClipDataset, number: int, found: Any, limit: float) -> dict[str, Any]:
    """Return how NVDEC decoded one clip."""
    clip = clips.clip(number)
    row: dict[str, Any] = {
        "clip_id": clip.clip_id,
        "uri": clip.medium.uri,
        "runs": len(clip.recipe.run_first),
        "obstacle": gpu_obstacle(clip),
    }
    try:
        truth = clips[number]["frames"].astype(np.int16)
    except FramedexError as error:
        nvdec = str(found)[-400:] if isinstance(found, Exception) else "returns pictures without an error"
        return row | {"right": None, "error": f"the CPU refuses it: {error}"[:400], "nvdec": nvdec}
    if isinstance(found, Exception):
        return row | {"right": False, "error": str(found)[-400:]}
    if truth.shape != found.shape:
        return row | {"right": False, "error": f"shape {found.shape}, not {truth.shape}"}
    found = found.astype(np.int16)
    away = np.array([[np.abs(one - other).mean() for other in truth] for one in found])
    own = np.diagonal(away)
    right = bool((own <= away.min(axis=1) + 1e-6).all() and own.max() < limit)
    shown = clip.mask
    mean_square = np.mean((found[shown] - truth[shown]).astype(np.float64) ** 2)
    return (
        row
        | {
            "right": right,
            "worst_mean_difference": round(float(own.max()), 3),
            "psnr": round(float(10 * np.log10(255**2 / max(mean_square, 1e-9))), 2),
        }
        | edge_and_inside(np.abs(found[shown] - truth[shown]))
    )


def edge_and_inside(apart: NDArray[np.int16]) -> dict[str, float]:
    """Return the mean difference in levels of the outermost `EDGE` pixels of pictures, and of the others.

    Args:
        apart: absolute differences, [F, H, W, 3].
    """
    is_edge = np.ones(apart.shape[1:3], bool)
    is_edge[EDGE:-EDGE, EDGE:-EDGE] = False
    return {"edge": float(apart[:, is_edge].mean()), "inside": float(apart[:, ~is_edge].mean())}


def groups(clips: ClipDataset, numbers: list[int], force: bool) -> list[list[int]]:
    """Return groups of clips that share a pipeline: all clips, or, with `force`, those of one medium."""
    if not force:
        return [[number for number in numbers if gpu_obstacle(clips.clip(number)) is None]]
    by_medium: dict[str, list[int]] = {}
    for number in numbers:
        by_medium.setdefault(clips.clip(number).medium.uri, []).append(number)
    return list(by_medium.values())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts, the wrong clips, and how close the pictures were."""
    media = sorted({row["uri"] for row in rows})
    psnr = {uri: [row["psnr"] for row in rows if row["uri"] == uri and "psnr" in row] for uri in media}
    return {
        "on_gpu": len(rows),
        "right_on_gpu": sum(row["right"] is True for row in rows),
        "several_runs_on_gpu": sum(row["runs"] > 1 for row in rows),
        "wrong": [row for row in rows if row["right"] is False],
        "refused_on_cpu": [row for row in rows if row["right"] is None],
        "median_psnr": float(np.median([row["psnr"] for row in rows if "psnr" in row] or [0])),
        "levels_by_medium": {uri: mean_levels(rows, uri) for uri, values in psnr.items() if values},
        "psnr_by_medium": {uri: round(float(np.median(values)), 2) for uri, values in psnr.items() if values},
    }


def mean_levels(rows: list[dict[str, Any]], uri: str) -> dict[str, float]:
    """Return the mean differences of a medium's clips at the edge and inside (`edge_and_inside`)."""
    compared = [row for row in rows if row["uri"] == uri and "edge" in row]
    return {place: round(float(np.mean([row[place] for row in compared])), 3) for place in ("edge", "inside")}


def by_medium(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each medium of a forced run: clips, right clips, the first error, and what keeps it off NVDEC."""
    return {
        uri: {
            "clips": sum(row["uri"] == uri for row in rows),
            "right": sum(row["right"] is True for row in rows if row["uri"] == uri),
            "obstacle": next((row["obstacle"] for row in rows if row["uri"] == uri and row["obstacle"]), None),
            "error": next((row["error"] for row in rows if row["uri"] == uri and "error" in row), None),
        }
        for uri in sorted({row["uri"] for row in rows})
    }


def measure(dataset: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return how NVDEC decoded the clips of a dataset."""
    clips = ClipDataset(dataset, rotation="stored")
    numbers = np.random.default_rng(0).permutation(len(clips))[: options.sample].tolist()
    blocked = collections.Counter(gpu_obstacle(clips.clip(number)) for number in numbers)
    if options.force:
        fetch.gpu_obstacle = lambda *arguments, **options: None
    rows = []
    for group in groups(clips, numbers, options.force):
        for number, found in decode_on_gpu(clips, group):
            rows.append(compare(clips, number, found, options.limit))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = {"clips": len(numbers)} | summary(rows)
    if options.force:
        silent = [row for row in rows if row["right"] is False and "error" not in row]
        return result | {"wrong": silent, "media": by_medium(rows)}
    return result | {"on_cpu_because": {why: count for why, count in blocked.items() if why is not None}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, metavar="DATASET|FOLDER")
    parser.add_argument("--limit", type=float, default=25.0)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--depth", choices=["auto", "packets", "tables"], default="auto")
    parser.add_argument("--force", action="store_true", help="send every clip to NVDEC")
    options = parser.parse_args()
    facts = {"environment": environment("nvidia-dali-cuda120", "torch") | {"gpu": torch.cuda.get_device_name(0)}}
    with contextlib.ExitStack() as stack:
        dataset = options.source
        if not (dataset / "clips").is_dir():
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            dataset, depths = plan_clips(options.source.resolve(), scratch, options.depth)
            facts |= {"media_by_depth": depths}
        result = measure(dataset, options)
    print(json.dumps(facts | result, indent=2))


if __name__ == "__main__":
    main()
