"""Runs with a ClipSampler that stop or are killed resume with the very next clip, with other workers and ranks."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from framedex import ClipSampler
from tests.support.depth import drawn
from tests.support.sampler_run import Numbers


def stateful(sampler: ClipSampler, workers: int, **options: Any) -> StatefulDataLoader:
    if workers:
        options |= {"prefetch_factor": 4, "multiprocessing_context": "fork"}
    return StatefulDataLoader(Numbers(23), batch_size=4, sampler=sampler, num_workers=workers, **options)


def epochs(loader: StatefulDataLoader, count: int) -> list[list[int]]:
    return [[number for batch in loader for number in batch.tolist()] for _ in range(count)]


def plain(epoch: int) -> list[int]:
    """Return the order of an epoch as a sampler that nothing wraps gives it."""
    sampler = ClipSampler(Numbers(23), shuffle=True)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's call of torch
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than some machines have cores
@pytest.mark.parametrize(
    "workers, options",
    drawn(
        "cases of many seconds",
        [(0, {}), (4, {}), (4, {"snapshot_every_n_steps": 3}), (4, {"persistent_workers": True})],
        seed=1,
    ),
    ids=str,
)
def test_a_stateful_dataloader_goes_on_with_the_very_next_clip(workers: int, options: dict[str, Any]) -> None:
    whole = epochs(stateful(ClipSampler(Numbers(23), shuffle=True), 0), 3)
    assert whole == [plain(epoch) for epoch in range(3)]
    for stop in (0, 1, 4, 5, 6, 7):  # batches; an epoch has 6; with 7, the end of the epoch has been noticed
        loader = stateful(ClipSampler(Numbers(23), shuffle=True), workers, **options)
        batches = iter(loader)
        seen = [number for batch in itertools.islice(batches, stop) for number in batch.tolist()]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        resumed = stateful(ClipSampler(Numbers(23), shuffle=True), workers, **options)
        resumed.load_state_dict(state)
        rest = epochs(resumed, 2)
        assert (rest if stop == 7 else [seen + rest[0], rest[1]]) == (whole[1:] if stop == 7 else whole[:2]), stop


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_stops_again_and_again_and_changes_ranks(workers: int) -> None:
    order = list(ClipSampler(Numbers(23), shuffle=True))
    state: dict[str, Any] = {}
    delivered: list[int] = []
    for world, stop in ((1, 1), (2, 1), (3, 0), (3, 1)):  # 4, 8, no clips; then the rest, in which one is repeated
        loaders = []
        for rank in range(world):
            loaders.append(stateful(ClipSampler(Numbers(23), shuffle=True, rank=rank, world_size=world), workers))
            loaders[-1].load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for batches in itertools.islice(zip(*iterators, strict=True), stop):
            delivered += [number for batch in batches for number in batch.tolist()]
        state = loaders[world - 1].state_dict()
        assert sorted(set(delivered)) == sorted(order[: len(delivered)])
    assert delivered_twice(delivered, order) == order[:1]
    last = stateful(ClipSampler(Numbers(23), shuffle=True), workers)
    last.load_state_dict(state)
    assert [len(epoch) for epoch in epochs(last, 2)] == [0, 23]


def kill_when(path: Path, clips: int, **how: Any) -> int:
    """Start a run, kill it with all its workers after it has delivered `clips` clips; return how many it delivered."""
    command = [sys.executable, "-m", "tests.support.sampler_run", json.dumps({"path": str(path), "pause": 0.02, **how})]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3], start_new_session=True)
    end = time.monotonic() + 120
    try:
        while not path.exists() or len(pickle.loads(path.read_bytes())["delivered"]) < clips:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return len(pickle.loads(path.read_bytes())["delivered"])


def finish(path: Path, **how: Any) -> list[int]:
    """Run to the end of the epoch; return all clips that were delivered."""
    command = [sys.executable, "-m", "tests.support.sampler_run", json.dumps({"path": str(path), "pause": 0, **how})]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True)
    delivered: list[int] = pickle.loads(path.read_bytes())["delivered"]
    return delivered


@pytest.mark.slow
def test_a_killed_run_goes_on_with_other_workers_and_ranks(tmp_path: Path) -> None:
    path, same = tmp_path / "checkpoint", {"count": 500, "batch": 7, "kind": "plain", "blocks": 20}
    order = list(ClipSampler(range(500), shuffle=True, seed=7, blocks=20))
    assert 70 <= kill_when(path, 70, world=1, workers=4, **same) < 400
    halfway = kill_when(path, 200, world=2, workers=1, **same)
    assert 200 <= halfway < 450
    assert sorted(pickle.loads(path.read_bytes())["delivered"]) == sorted(order[:halfway])
    delivered = finish(path, world=3, workers=0, **same)
    padding = delivered_twice(delivered, order)
    assert padding == order[: (halfway - 500) % 3]


@pytest.mark.slow
@pytest.mark.parametrize("workers", drawn("cases of many seconds", [0, 4], seed=1))
def test_a_killed_stateful_dataloader_goes_on_exactly(tmp_path: Path, workers: int) -> None:
    path, same = tmp_path / "checkpoint", {"count": 300, "world": 1, "workers": workers, "batch": 7, "kind": "stateful"}
    order = list(ClipSampler(range(300), shuffle=True, seed=7))
    killed = kill_when(path, 70, **same)
    assert 70 <= killed < 300
    assert pickle.loads(path.read_bytes())["delivered"] == order[:killed]
    assert finish(path, **same) == order


def delivered_twice(delivered: list[int], order: list[int]) -> list[int]:
    """Return the clips that were delivered more than once, in the order of the epoch; check that none is missing."""
    counts = Counter(delivered)
    assert set(counts) == set(order)
    return [number for number in order for _ in range(counts[number] - 1)]
