"""What framedex bench says about what bounds a loader's speed, and what would help."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framedex import Index
from framedex.bench.advice import advice
from framedex.bench.machine_load import Load
from framedex.bench.measure import BenchOptions, BenchResult, Cost
from tests.support.datasets import run, shard_clips

COST = Cost(clips=100, frames=1600, wanted_frames=1600, decoded_frames=16_000, bytes=1_000_000)
CORES = 16


def measured(*, cores: float, nvdec: float | None = None, reading: float = 0.0, decoding: float = 0.0) -> BenchResult:
    """Return a result of ten seconds."""
    load = Load(cpu_cores=cores, nvdec_percent=nvdec, nvdec_peak=nvdec, measured_by="NVML")
    stages = {"workers reading": reading, "workers decoding": decoding}
    return BenchResult(cost=COST, seconds=[4.0, 6.0], first_seconds=None, batches=10, load=load, stages=stages)


ON_CPU = BenchOptions(workers=8, size=(224, 224))
ON_GPU = replace(ON_CPU, device="gpu", decode="gpu")
CASES: list[tuple[BenchResult, BenchOptions, str, str]] = [
    (measured(cores=3.0, nvdec=93.0), ON_GPU, "NVDEC", "--decode auto"),
    (measured(cores=3.0, nvdec=93.0), replace(ON_GPU, decode="auto"), "NVDEC", "--workers 16"),
    (measured(cores=1.0), replace(ON_CPU, workers=0), "this process", "--workers 16"),
    (measured(cores=4.0, reading=60.0, decoding=10.0), ON_CPU, "reading", "--pack needed"),
    (measured(cores=15.0, reading=5.0, decoding=74.0), ON_CPU, "cores", "--device cuda"),
    (measured(cores=8.0, reading=5.0, decoding=74.0), ON_CPU, "workers", "--workers 16"),
    (measured(cores=5.0, reading=5.0, decoding=20.0), replace(ON_CPU, size=None), "making batches", "--size"),
]


@pytest.mark.parametrize(("result", "options", "bound", "helps"), CASES)
def test_what_is_busy_bounds_the_speed(result: BenchResult, options: BenchOptions, bound: str, helps: str) -> None:
    said = advice(result, options, CORES)
    assert said.bound == bound
    assert helps in said.changes[0]
    assert said.reason


def test_images_are_worth_a_thought_where_much_more_is_decoded_than_wanted() -> None:
    result = measured(cores=15.0, decoding=79.0)
    assert any("10.0 frames are decoded for each wanted one" in change for change in advice(result, ON_CPU, 16).changes)
    dense = replace(result, cost=replace(COST, decoded_frames=2000))
    assert not any("--pack images" in change for change in advice(dense, ON_CPU, 16).changes)


def test_the_command_says_it(index: Index, tmp_path: Path) -> None:
    stored = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [0, 9]}])
    text = run("bench", stored, "--workers", 0).output
    assert "bound by" in text
    assert f"workers (--workers {os.cpu_count()})" in text
    facts: dict[str, Any] = json.loads(run("bench", stored, "--workers", 0, "--json").output)
    assert facts["advice"]["bound"] == "this process"
