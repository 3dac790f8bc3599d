"""examples/train.py: a run that is killed in mid-epoch and resumed ends like an undisturbed run."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import framedex
from tests.support.depth import rounds
from tests.support.running import ROOT, environment

EPOCHS = 3


def start(out: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        ROOT / "examples/train.py",
        "--out",
        out,
        "--epochs",
        EPOCHS,
        *arguments,
    ]
    return subprocess.Popen(
        [str(part) for part in command],
        env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def seen(out: Path) -> list[dict[str, Any]]:
    record = out / "seen.jsonl"
    lines = record.read_text().splitlines(keepends=True) if record.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.slow
def test_a_killed_run_sees_every_clip_once_an_epoch_and_ends_the_same(tmp_path: Path) -> None:
    undisturbed, resumed = check_killed_run(tmp_path, "cpu")
    # Convolutions round differently from run to run, and Adam enlarges that: weights that begin 1e-6 apart end 0.009 of
    # their norm apart. An optimizer that begins anew after a kill ends 0.56 apart.
    weights, again = (torch.cat([tensor.flatten() for tensor in model.values()]) for model in (undisturbed, resumed))
    assert len(weights) > 1000
    assert torch.linalg.vector_norm(weights - again) < 0.1 * torch.linalg.vector_norm(weights)


def check_killed_run(tmp_path: Path, device: str) -> tuple[dict[str, torch.Tensor], ...]:
    """Train once undisturbed and once killed twice, compare the clips seen, and return both models' weights."""
    undisturbed = start(tmp_path / "undisturbed", "--device", device)
    undisturbed.communicate()
    assert undisturbed.returncode == 0
    truth = seen(tmp_path / "undisturbed")
    steps = len(truth) // EPOCHS

    out = tmp_path / "killed"
    kills = [(steps // 2, 1), (steps + steps // 3, 4)]
    for kill_at, save_every in kills[-rounds("kills of a training run") :]:
        process = start(out, "--device", device, "--save-every", save_every)
        end = time.monotonic() + 120
        while len(seen(out)) < kill_at:
            assert time.monotonic() < end
            assert process.poll() is None, "it was to be killed before it is done"
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert len(seen(out)) % steps, "it was killed in mid-epoch"
    resumed = start(out, "--device", device)
    again, _ = resumed.communicate()
    assert resumed.returncode == 0
    assert "going on behind step" in again

    found = seen(out)
    for epoch in range(EPOCHS):
        counts = collections.Counter(name for line in found if line["epoch"] == epoch for name, _ in line["clips"])
        assert len(counts) > 50
        assert set(counts.values()) == {1}
    assert found == truth, "the same clips, with the same frames, in the same order"
    frames = [
        {name: frames for line in truth if line["epoch"] == epoch for name, frames in line["clips"]} for epoch in (0, 1)
    ]
    assert frames[0].keys() == frames[1].keys()
    assert frames[0] != frames[1], "each epoch draws other frames"
    states = [torch.load(folder / "checkpoint.pt", map_location="cpu") for folder in (tmp_path / "undisturbed", out)]
    assert states[0]["step"] == states[1]["step"] == len(truth)
    return tuple(state["model"] for state in states)


def test_classes_may_be_texts(medium: Callable[[str], Path], tmp_path: Path) -> None:
    names = ["h264_default.mp4", "hevc_closed.mp4"]
    rows = [f"{medium(name)},{label}" for name, label in zip(names, ("walk", "run"), strict=True)]
    (tmp_path / "list.csv").write_text("\n".join(["uri,label", *rows]) + "\n")
    framedex.index(tmp_path / "list.csv", tmp_path / "INDEX", workers=0, progress=False)
    policy = {"policy": "stride", "stride": 4, "frames": 4, "last": "drop"}
    framedex.shard(tmp_path / "INDEX", tmp_path / "CLIPS", policy=policy, workers=0, progress=False)
    out = tmp_path / "out"
    run = start(out, "--dataset", tmp_path / "CLIPS", "--size", 32, 48, "--device", "cpu", "--workers", 0)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0
    assert said.count("6 clips") == EPOCHS
    assert {name for line in seen(out) for name, _ in line["clips"]} == set(
        framedex.ClipDataset(tmp_path / "CLIPS").column("clip_id")
    )
