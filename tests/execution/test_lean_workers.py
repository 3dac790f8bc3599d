"""Workers import neither pandas, as pyarrow would for nothing, nor pydantic. The user's own code may use pandas."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from framedex import ClipDataset, ClipLoader, Index
from framedex.loader.batches.supply import WorkerPool
from tests.support.datasets import shard_clips
from tests.support.running import outcomes
from tests.support.sent import blas_threads, convert, imported_pydantic

pytestmark = pytest.mark.usefixtures("cold_workers")


def through_pandas(frames: Any) -> np.ndarray[Any, Any]:
    """Return the mean of each frame, which a pandas table carries from Arrow to numpy."""
    means = np.asarray(frames, np.float32).reshape(len(frames), -1).mean(axis=1)
    return pa.table({"mean": means}).to_pandas()["mean"].to_numpy()


def test_workers_of_commands_and_of_loaders_convert_without_pandas() -> None:
    assert importlib.util.find_spec("pandas") is not None, "it is installed, so that not importing it means something"
    (outcome,) = outcomes(convert, [7])
    assert outcome.result == ([7], False)
    for own_code in (True, False):
        pool: WorkerPool[int, tuple[list[int], bool]] = WorkerPool(
            convert, workers=1, timeout_seconds=60, own_code=own_code
        )
        try:
            assert pool.submit(7).result() == ([7], not own_code)
        finally:
            pool.close()


@pytest.mark.parametrize("chosen", [None, "3"])
def test_workers_begin_with_one_thread_of_openblas_unless_the_user_chose(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", chosen)
    assert [outcome.result for outcome in outcomes(blas_threads, [0])] == [chosen or "1"]
    pool: WorkerPool[int, str | None] = WorkerPool(blas_threads, workers=1, timeout_seconds=60)
    try:
        assert pool.submit(0).result() == (chosen or "1")
    finally:
        pool.close()
    assert os.environ.get("OPENBLAS_NUM_THREADS") == chosen


def test_a_transform_may_use_pandas_in_a_worker(index: Index, tmp_path: Path) -> None:
    path = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [0, 9]}])
    dataset = ClipDataset(path, transform=through_pandas, layout="FHWC")
    (batch,) = ClipLoader(dataset, batch_size=1, num_workers=1, output="numpy")
    assert np.allclose(batch["frames"], [through_pandas(ClipDataset(path)[0]["frames"])])


def test_workers_of_loaders_start_without_what_reads_policies(index: Index, tmp_path: Path) -> None:
    path = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [0]}])
    loader = ClipLoader(ClipDataset(path, transform=imported_pydantic), batch_size=1, num_workers=1, output="numpy")
    assert [batch["frames"].tolist() for batch in loader] == [[[False]]]
