"""Workers that are stopped in any state cost a time limit but never the run; they start in every way that torch has."""

from __future__ import annotations

import gc
import io
import itertools
import os
import signal
import threading
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import Index
from framedex.execution import engine
from framedex.loader.batches.supply import WorkerDiedError, WorkerPool
from tests.support.datasets import shard_clips
from tests.support.depth import drawn
from tests.support.running import outcomes
from tests.support.sent import large, process_id, stop_at, wait_long

SECONDS = 5.0  # in which a worker starts


def test_a_worker_that_is_stopped_at_an_item_costs_that_item() -> None:
    found = outcomes(stop_at, range(8), workers=2, timeout_seconds=SECONDS)
    assert [outcome.result for outcome in found] == [0, 1, 2, None, 4, 5, 6, 7]
    assert found[3].kind == "timeout"


@pytest.mark.parametrize("limit", [SECONDS, None])
def test_a_pool_whose_workers_are_stopped_between_two_items_ends(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOPPED_SECONDS", SECONDS)
    calls = engine.Calls(function=abs, items=range(4), timeout_seconds=limit)
    with engine.LocalPool(workers=2, memory_bytes=None) as pool:
        assert [outcome.result for outcome in pool.run(calls)] == [0, 1, 2, 3]
        for process in active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
        begun = time.monotonic()
        found = list(pool.run(calls))
    assert time.monotonic() - begun > SECONDS
    assert {outcome.kind for outcome in found} <= {None, "broken", "crash"}
    assert len(found) == 4


def test_a_pool_that_ends_while_it_sends_keeps_nothing_of_what_it_sent() -> None:
    calls = engine.Calls(function=wait_long, items=["", *("x" * (8 << 20) for _ in range(6))], timeout_seconds=None)
    sending = engine.run_local(calls, workers=1)
    assert next(sending).result == 0
    time.sleep(1.0)  # until the pipe to the worker is full
    del sending
    kept = [found for found in gc.get_objects() if type(found) is io.BytesIO and not found.closed]
    assert not [found for found in kept if len(found.getvalue()) > 8 << 20]


def test_a_loaders_worker_that_is_stopped_is_replaced() -> None:
    pool = WorkerPool(stop_at, workers=1, timeout_seconds=SECONDS)
    try:
        assert pool.submit(1).result() == 1
        with pytest.raises(WorkerDiedError, match="took longer than 5 s"):
            pool.submit(3).result()
        assert pool.submit(4).result() == 4
    finally:
        pool.close()


def test_a_loaders_worker_that_is_stopped_between_two_clips_is_replaced() -> None:
    pool = WorkerPool(process_id, workers=1, timeout_seconds=SECONDS)
    try:
        first = pool.submit(0).result()
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(WorkerDiedError):
            pool.submit(0).result()
        assert pool.submit(0).result() not in (first, os.getpid())
    finally:
        pool.close()


def test_a_loaders_worker_that_is_stopped_within_its_answer_is_replaced() -> None:
    pool = WorkerPool(large, workers=1, timeout_seconds=SECONDS)
    try:
        assert pool.submit(0).result() == ""
        (process,) = pool.process_ids
        stopped = 0
        while not stopped:  # the answer is on its way for some milliseconds
            future = pool.submit(1)
            timer = threading.Timer(0.004, os.kill, (process, signal.SIGSTOP))
            timer.start()
            try:
                assert len(future.result(10 * SECONDS)) == 8 << 20
                timer.join()
                os.kill(process, signal.SIGCONT)
            except WorkerDiedError:
                stopped += 1
        assert len(pool.submit(1).result(60)) == 8 << 20
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("method", "persistent"),
    drawn("start methods", itertools.product(["fork", "forkserver", "spawn"], [False, True]), seed=2),
)
def test_workers_of_every_start_method_give_the_same_clips(
    method: str, persistent: bool, index: Index, tmp_path: Path
) -> None:
    from torch.utils.data import DataLoader  # here, as workers of the other tests import this module

    from framedex import ClipDataset, ClipSampler

    clips = [{"uri": name, "frames": [9, 2, 30]} for name in ("h264_default.mp4", "hevc_open_gop.mp4", "h264_vfr.mkv")]
    dataset = ClipDataset(shard_clips(index.path, tmp_path / "D", clips))
    expected = [dataset[number]["frames"] for number in range(len(dataset))]
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": persistent}
    loader = DataLoader(dataset, batch_size=None, sampler=ClipSampler(dataset), timeout=120, **options)
    for _ in range(2):
        found = [np.asarray(item["frames"]) for item in loader]
        assert len(found) == len(expected) == 3
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
