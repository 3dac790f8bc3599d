"""Measure one configuration of framedex in a separate process, which benchmarks/loader.py can terminate."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from framedex import ClipDataset
from framedex.bench.compare import run_limited, save_thumbnails
from framedex.bench.measure import (
    BenchOptions,
    keep_thumbnails,
    measure_loader,
    open_loader,
    recipe_cost,
    run_epoch,
)

SIZE = (224, 224)  # size of the delivered frames
FLOATS = {"layout": "FCHW", "normalize": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), "collate": "error", "on_error": "raise"}


def run_child(folder: Path, request: dict[str, Any], limit: float) -> dict[str, Any]:
    """Run a request in a separate process.

    Args:
        folder: the folder for the request, the answer and error output. Its content is deleted first.
        limit: the time limit in seconds.

    Returns:
        The answer of the process, or {"reason": TEXT} if it gave no answer.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    code = run_limited("from benchmarks.loader_child import serve; serve()", folder, limit)
    if (folder / "answer.json").exists():
        return dict(json.loads((folder / "answer.json").read_text(encoding="utf-8")))
    if code is None:
        return {"reason": f"past {limit:g} s"}
    errors = (folder / "errors.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"reason": f"its process ended with {code}: {' '.join(errors[-4:])[-600:]}"}


def serve() -> None:
    """Measure the configuration of framedex in request.json. Its folder is the first command-line argument."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    options = BenchOptions(**request["options"] | {"size": SIZE})
    dataset = ClipDataset(request["dataset"])
    from framedex import ClipSampler

    sampler = ClipSampler(dataset, shuffle=True, rank=request["rank"], world_size=request["world_size"])
    checked = range(min(request["check"], len(dataset)))
    if request["task"] == "reference":
        loader = open_loader(dataset, options, list(checked))
    else:
        loader = open_loader(dataset, options, sampler, **FLOATS)
    found: dict[int, Any] = {}
    known = {dataset.clip(number).clip_id: number for number in checked}
    keep = keep_thumbnails(found, known)

    def see(batch: dict[str, Any]) -> None:
        rows = [row for row, clip_id in enumerate(batch["clip_id"]) if clip_id in known]
        keep({name: [batch[name][row] for row in rows] for name in ("clip_id", "frames")})

    if request["task"] == "together":
        run_epoch(loader)
        answer = run_together(loader, folder, options)
    elif request["task"] == "reference":
        run_epoch(loader, see)
        answer = {}
    else:
        result = measure_loader(loader, options, recipe_cost(map(dataset.clip, range(len(dataset)))), see)
        answer = asdict(result) | {"median_seconds": statistics.median(result.seconds)}
    if found:
        save_thumbnails(folder / "pictures.npz", found)
    (folder / "answer.tmp").write_text(json.dumps(answer), encoding="utf-8")
    (folder / "answer.tmp").rename(folder / "answer.json")
    sys.stdout.flush()
    os._exit(0)


def run_together(loader: Any, folder: Path, options: BenchOptions) -> dict[str, Any]:
    """Wait until all processes have warmed up, then run the timed epochs.

    Returns:
        The start and the end of this process's epochs, and the number of clips that it delivered.
    """
    (folder / "ready").touch()
    while not (folder.parent / "go").exists():
        time.sleep(0.01)
    started, clips = time.monotonic(), 0

    def count(batch: dict[str, Any]) -> None:
        nonlocal clips
        clips += len(batch["clip_id"])

    for _ in range(options.epochs):
        run_epoch(loader, count)
    return {"started": started, "ended": time.monotonic(), "clips": clips}
