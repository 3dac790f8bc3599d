"""Measure what a long run holds and whether it grows: memory, open files and threads of all processes, GPU memory."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.endurance_media import make_dataset, medium_by_medium, wrong_clips
from framedex import ClipDataset, ClipLoader, ClipSampler

MIB = 1 << 20
BATCH = 8
RESULT = "/memfd:framedex (deleted)"  # a clip that a worker fetched; it is open as long as its arrays are in use
# How much may be added between the first and the last quarter: a share of the first value, and a minimum. Allocators
# keep some memory.
ALLOWED = {
    "host_mib": (0.03, 24.0),
    "workers_mib": (0.03, 24.0),
    "gpu_used_mib": (0.02, 64.0),
    "torch_allocated_mib": (0.05, 16.0),
    "open_files": (0.0, 2.0),
    "workers_open_files": (0.0, 2.0),
    "results_open": (0.0, BATCH),
    "threads": (0.0, 2.0),
    "workers_threads": (0.0, 2.0),
    "processes": (0.0, 0.0),
}
WARM_UP = 0.2  # this share of the samples, at the beginning, is ignored


def process_facts(process: int) -> dict[str, float]:
    """Return what a process holds; zeros if it has ended.

    Returns:
        Resident memory in MiB (including shared pages), open files except workers' results, open files of workers'
        results, and threads.
    """
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    except (OSError, ValueError):
        return {"mib": 0.0, "open_files": 0, "results_open": 0, "threads": 0}
    resident = float(status.get("VmRSS", "0 kB").split()[0]) / 1024
    files = files_by_kind(process)
    results = files.pop(RESULT, 0)
    threads = int(status.get("Threads", "0"))
    return {"mib": resident, "open_files": sum(files.values()), "results_open": results, "threads": threads}


def files_by_kind(process: int) -> dict[str, int]:
    """Return how many files of each kind a process has open, most frequent first. A kind is a name without digits."""
    kinds: collections.Counter[str] = collections.Counter()
    home = f"/proc/{process}/fd"
    try:
        places = os.listdir(home)
    except OSError:
        return {}
    for place in places:
        try:
            kinds[re.sub(r"\d+", "N", os.readlink(f"{home}/{place}"))] += 1
        except OSError:
            continue
    return dict(kinds.most_common())


def gpu_facts() -> dict[str, float]:
    """Return the GPU memory in use, in MiB, as reported by CUDA, by nvidia-smi and by torch."""
    import torch

    free, total = torch.cuda.mem_get_info()
    facts = {
        "gpu_used_mib": (total - free) / MIB,
        "torch_allocated_mib": torch.cuda.memory_allocated() / MIB,
        "torch_reserved_mib": torch.cuda.memory_reserved() / MIB,
    }
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        facts["nvidia_smi_mib"] = float(said[0])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        pass
    return facts


def sample(loader: ClipLoader, *, gpu: bool) -> dict[str, float]:
    """Return what this process, its workers and the GPU hold at this moment."""
    own = process_facts(os.getpid())
    workers = [process_facts(process) for process in loader._batches.process_ids]
    facts = {"host_mib": own["mib"]} | {name: own[name] for name in ("open_files", "results_open", "threads")}
    facts |= {f"workers_{name}": sum(worker[name] for worker in workers) for name in ("mib", "open_files", "threads")}
    return facts | {"processes": len(workers)} | (gpu_facts() if gpu else {})


def endless(loader: ClipLoader) -> Iterator[dict[str, Any]]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def verdict(samples: list[dict[str, float]]) -> dict[str, Any]:
    """Compare the medians of the first and the last quarter after warm-up for every measured quantity."""
    counted = samples[int(len(samples) * WARM_UP) :]
    quarter = max(1, len(counted) // 4)
    found: dict[str, Any] = {}
    for name, (share, least) in ALLOWED.items():
        if name not in samples[0]:
            continue
        values = np.array([row[name] for row in counted])
        batches = np.array([row["batch"] for row in counted])
        first, last = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
        slope = float(np.polyfit(batches, values, 1)[0]) if len(values) > 2 else 0.0
        found[name] = {
            "first_quarter": round(first, 1),
            "last_quarter": round(last, 1),
            "a_thousand_batches": round(1000 * slope, 2),
            "flat": bool(last - first <= max(least, share * first)),
        }
    return {"flat": all(entry["flat"] for entry in found.values()), "by": found}


def run_flat(
    home: Path,
    *,
    batches: int,
    gpu: bool,
    workers: int,
    clips: int,
    every: int,
    scaled: bool = False,
    break_off: int | None = None,
) -> dict[str, Any]:
    """Load `batches` batches; return the samples, the verdict, and how many checked clips were wrong.

    The first batches hold one medium each and need the most resources of one kind: DALI and NVDEC keep what they once
    needed.

    Args:
        scaled: load with size, transform, normalisation and sound, as a training run does; otherwise load clips of all
            sizes as decoded.
        break_off: begin a new iteration after this many batches of one; None: never.
    """
    dataset = ClipDataset(make_dataset(home, clips=clips, audio=True))
    device = "gpu" if gpu else "cpu"
    options: dict[str, Any] = {"collate": "list"}
    if scaled:
        from nvidia.dali import fn

        options = {"size": (96, 128), "transform": lambda frames: fn.flip(frames), "collate": "pad"}
        options |= {"normalize": ((0.5,) * 3, (0.25,) * 3), "layout": "FCHW"}
        options |= {"audio_transform": lambda sound: sound * 0.5}
    sampler = ClipSampler(dataset, shuffle=True, seed=1)
    loader = ClipLoader(
        dataset, batch_size=BATCH, sampler=sampler, device=device, num_workers=workers, output="torch", **options
    )
    began = time.perf_counter()
    warm_up = deliver(loader, medium_by_medium(clips, BATCH))
    warm_up_seconds = time.perf_counter() - began
    samples: list[dict[str, float]] = []
    files = [files_by_kind(os.getpid())]
    wrong = checked = delivered = 0
    began = time.perf_counter()
    for batch in broken_off(loader, break_off):
        delivered += 1
        if delivered % every == 0:
            samples.append({"batch": delivered} | sample(loader, gpu=gpu))
            if not scaled:
                wrong += len(wrong_clips(batch))
                checked += len(batch["number"])
        del batch
        if delivered == batches:
            break
    seconds = time.perf_counter() - began
    files.append(files_by_kind(os.getpid()))
    report = loader.report
    facts: dict[str, Any] = {
        "warm_up_batches": warm_up,
        "warm_up_seconds": round(warm_up_seconds, 2),
        "batches": delivered,
        "seconds": round(seconds, 2),
        "clips_by_decoder": dict(report.decoded),
        "failures": dict(report.failures),
        "retried": dict(report.retried),
        "checked_clips": checked,
        "wrong_clips": wrong,
        "faults_kept": len(report.faults),
        "files_after_warm_up": files[0],
        "files_at_the_end": files[1],
    }
    loader.close()
    return facts | {"verdict": verdict(samples), "samples": rounded(samples)}


def deliver(loader: ClipLoader, numbers: list[int]) -> int:
    """Load the clips with these numbers instead of those of the loader's sampler; return the number of batches."""
    loader.sampler, sampler = numbers, loader.sampler
    batches = sum(1 for _ in loader)
    loader.sampler = sampler
    return batches


def broken_off(loader: ClipLoader, after: int | None) -> Iterator[dict[str, Any]]:
    """Yield batches without end. Begin a new iteration after `after` batches of one."""
    if after is None:
        yield from endless(loader)
        return
    while True:
        for number, batch in enumerate(loader):
            yield batch
            if number + 1 == after:
                break


def rounded(samples: Iterable[dict[str, float]]) -> list[dict[str, float]]:
    """Return samples rounded to one decimal place."""
    return [{name: round(value, 1) for name, value in row.items()} for row in samples]
