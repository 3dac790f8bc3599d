"""Faults during a run: damaged movies among intact ones, killed workers, a file that disappears.

A clip is damaged after a worker has made it, so that the index cannot detect the damage. The damage is in the `movie`
for NVDEC after it was read, or in the `source`: the packets that were read, whichever decoder gets them. Every other
clip of each batch must arrive with the right frames, checked by their barcodes, and no batch may be missing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.endurance_damage import DamagingFetcher, is_damaged
from benchmarks.endurance_media import make_dataset, shows
from framedex import ClipDataset, ClipLoader, ClipSampler
from framedex.loader import clip_loader
from framedex.loader.batches import supply
from framedex.loader.batches.batch_queue import BatchQueue

BATCH = 8


class Tally:
    """Count which clips of which batches were right. Clips in `harmed` may be missing or wrong."""

    def __init__(self, dataset: ClipDataset) -> None:
        self._dataset = dataset
        self.batches = self.right = self.wrong = self.harmed_right = self.harmed_wrong = 0
        self.wrong_clips: list[str] = []
        self.short_batches = 0

    def see(self, batch: dict[str, Any], harmed: set[int]) -> None:
        """Check every clip of a batch."""
        self.batches += 1
        self.short_batches += len(batch["number"]) < BATCH
        for number, frames, wanted, clip in zip(
            batch["number"], batch["frames"], batch["frame_index"], batch["clip_id"], strict=True
        ):
            pixels = np.asarray(frames.cpu() if hasattr(frames, "cpu") else frames)
            right = shows(pixels, np.asarray(wanted).tolist())
            if int(number) in harmed:
                self.harmed_right += right
                self.harmed_wrong += not right
            else:
                self.right += right
                self.wrong += not right
                if not right and len(self.wrong_clips) < 20:
                    self.wrong_clips.append(str(clip))

    def facts(self, loader: ClipLoader, expected: int, seconds: float) -> dict[str, Any]:
        """Return the counts, the loader's report, and whether everything is as promised."""
        report = loader.report
        return {
            "batches": self.batches,
            "expected_batches": expected,
            "short_batches": self.short_batches,
            "right": self.right,
            "wrong": self.wrong,
            "wrong_clips": self.wrong_clips,
            "harmed_clips_right": self.harmed_right,
            "harmed_clips_wrong": self.harmed_wrong,
            "clips_by_decoder": dict(report.decoded),
            "failures": dict(report.failures),
            "retried": dict(report.retried),
            "skipped": report.skipped,
            "replaced": report.replaced,
            "seconds": round(seconds, 2),
            "messages": sorted({fault.message[:160] for fault in report.faults})[:6],
            "as_promised": self.wrong == 0 and self.batches == expected,
        }


def run_damaged(
    home: Path, *, where: str, damage: str, on_error: str, gpu: bool, workers: int, clips: int, epochs: int = 1
) -> dict[str, Any]:
    """Load whole epochs in which one clip of EVERY is damaged."""
    dataset = ClipDataset(make_dataset(home, clips=clips))
    os.environ["FRAMEDEX_DAMAGE"] = f"{where}:{damage}"
    plain, supply.Fetcher = supply.Fetcher, DamagingFetcher  # type: ignore[misc]
    # Another process would have the plain fetcher, so batches are made in this process.
    fed, clip_loader.FedBatches = clip_loader.FedBatches, BatchQueue  # type: ignore[misc, assignment]
    try:
        sampler = ClipSampler(dataset, shuffle=True, seed=2)
        loader = ClipLoader(
            dataset,
            batch_size=BATCH,
            sampler=sampler,
            device="gpu" if gpu else "cpu",
            num_workers=workers,
            on_error=on_error,  # type: ignore[arg-type]
            collate="list",
        )
    finally:
        supply.Fetcher = plain  # type: ignore[misc]
        clip_loader.FedBatches = fed  # type: ignore[misc]
    harmed = {number for number in range(clips) if is_damaged(number)}
    tally, began = Tally(dataset), time.perf_counter()
    for _ in range(epochs):
        for batch in loader:
            tally.see(batch, harmed)
    facts = tally.facts(loader, epochs * len(loader), time.perf_counter() - began)
    loader.close()
    return facts


def run_killed(
    home: Path, *, on_error: str, gpu: bool, workers: int, clips: int, batches: int, every: int
) -> dict[str, Any]:
    """Kill a worker every few batches. No clip may be missing or wrong."""
    dataset = ClipDataset(make_dataset(home, clips=clips))
    loader = ClipLoader(
        dataset,
        batch_size=BATCH,
        sampler=ClipSampler(dataset, shuffle=True, seed=3),
        device="gpu" if gpu else "cpu",
        num_workers=workers,
        on_error=on_error,  # type: ignore[arg-type]
        collate="list",
    )
    tally, began, killed = Tally(dataset), time.perf_counter(), 0
    while tally.batches < batches:
        for batch in loader:
            tally.see(batch, set())
            running = loader._batches.process_ids
            if tally.batches % every == 0 and running:
                os.kill(running[killed % len(running)], signal.SIGKILL)
                killed += 1
            if tally.batches == batches:
                break
    facts = {"killed": killed} | tally.facts(loader, batches, time.perf_counter() - began)
    loader.close()
    return facts


def run_vanished(home: Path, *, on_error: str, gpu: bool, workers: int, clips: int) -> dict[str, Any]:
    """Empty and remove a movie after a third of an epoch, load another epoch, restore it, and load a third epoch."""
    dataset = ClipDataset(make_dataset(home, clips=clips))
    victim = dataset.clip(0).source.path
    facts_of, content = os.stat(victim), Path(victim).read_bytes()
    harmed = {number for number in range(clips) if dataset.clip(number).source.path == victim}
    loader = ClipLoader(
        dataset,
        batch_size=BATCH,
        sampler=ClipSampler(dataset, shuffle=True, seed=4),
        device="gpu" if gpu else "cpu",
        num_workers=workers,
        on_error=on_error,  # type: ignore[arg-type]
        collate="list",
    )
    tally, began = Tally(dataset), time.perf_counter()
    try:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                tally.see(batch, harmed)
                if epoch == 0 and number == len(loader) // 3:
                    os.truncate(victim, 0)  # a removed file stays readable for workers that have it open
                    os.unlink(victim)
    finally:
        Path(victim).write_bytes(content)
        os.utime(victim, ns=(facts_of.st_atime_ns, facts_of.st_mtime_ns))
    for batch in loader:
        tally.see(batch, harmed)
    facts = tally.facts(loader, 3 * len(loader), time.perf_counter() - began)
    loader.close()
    # Damaged clips that were delivered must be right as well: a missing source must not be shown as something else.
    return facts | {"harmed": len(harmed), "as_promised": facts["as_promised"] and facts["harmed_clips_wrong"] == 0}
