"""ClipLoader: guarantees for training runs, even when clips, files or worker processes fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex import ClipDataset, ClipLoader, ClipSampler, Index
from framedex.errors import FramedexError, InternalError, StaleError
from framedex.loader.batches.supply import WorkerDiedError, WorkerPool
from framedex.loader.routing.routes import is_on_cpu
from tests.support.datasets import run, shard_clips
from tests.support.media import read_barcode
from tests.support.running import environment
from tests.support.sent import Echo

CLIPS = 30
MEDIA = ("h264_default.mp4", "hevc_closed.mp4", "h264_vfr.mkv")


@pytest.fixture
def movable(index: Index, medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """A dataset with ten clips of each of three media, in its own folder, so that tests may remove files."""
    folder = tmp_path / "media"
    folder.mkdir()
    for name in MEDIA:
        shutil.copy(medium(name), folder / name)
    run("index", folder, "--out", tmp_path / "INDEX")
    clips = [
        {
            "uri": name,
            "frames": [number, number + 7, number + 2],
            "clip_id": f"{name}-{number}",
            "label": 3 * number + at,
        }
        for number in range(10)
        for at, name in enumerate(MEDIA)
    ]
    return shard_clips(tmp_path / "INDEX", tmp_path / "D", clips)


def labels(batch: dict[str, Any]) -> list[int]:
    """Return the labels of a batch's clips."""
    return [int(label) for label in batch["label"]]


def assert_right(batch: dict[str, Any]) -> None:
    """Check every frame of a batch by its barcode."""
    for frames, numbers in zip(batch["frames"], batch["frame_index"], strict=True):
        assert [read_barcode(np.asarray(frame)) for frame in frames] == numbers.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_items_of_the_dataset_in_order(movable: Path, workers: int) -> None:
    dataset = ClipDataset(movable)
    loader = ClipLoader(dataset, batch_size=7, num_workers=workers, collate="list")
    seen = []
    for batch in loader:
        assert_right(batch)
        seen += labels(batch)
        for place, label in enumerate(labels(batch)):
            item = dataset[label]
            for name in ("frames", "pts", "seconds", "mask", "frame_index"):
                assert np.array_equal(batch[name][place], item[name], equal_nan=name == "seconds"), name
            assert (batch["clip_id"][place], batch["uri"][place]) == (item["clip_id"], item["uri"])
    assert seen == list(range(CLIPS))
    assert loader.report.decoded == {"cpu": CLIPS}
    assert loader.report.frames == 3 * CLIPS
    assert loader.report.packets >= loader.report.frames
    loader.close()


@pytest.mark.parametrize(("last", "sizes"), [("partial", [8, 8, 8, 6]), ("drop", [8, 8, 8]), ("pad", [8, 8, 8, 8])])
def test_the_last_batch_is_partial_dropped_or_padded(movable: Path, last: Any, sizes: list[int]) -> None:
    loader = ClipLoader(ClipDataset(movable, size=(16, 16)), batch_size=8, last=last)
    batches = list(loader)
    assert [len(batch["frames"]) for batch in batches] == sizes
    assert len(loader) == len(sizes)
    if last == "pad":
        padding = [batch["is_padding"].tolist() for batch in batches]
        assert padding == [[False] * 8] * 3 + [[False] * 6 + [True] * 2]
        assert labels(batches[-1])[6:] == labels(batches[-1])[:2], "clips of the batch itself"


def test_numpy_batches_need_no_torch(movable: Path) -> None:
    script = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from framedex import ClipDataset, ClipLoader
if __name__ == "__main__":
    how = dict(size=(16, 24), layout="FCHW", normalize=((0.5,) * 3, (0.25,) * 3), output="numpy")
    (first, *_) = ClipLoader(ClipDataset({str(movable)!r}), batch_size=4, num_workers=1, **how)
    assert isinstance(first["frames"], np.ndarray) and first["frames"].dtype == np.float32
    assert first["frames"].shape == (4, 3, 3, 16, 24)
    assert -2.001 <= first["frames"].min() < 0 < first["frames"].max() <= 2.001
    from framedex.errors import MissingExtraError
    try:
        ClipLoader(ClipDataset({str(movable)!r}))
    except MissingExtraError as error:
        assert "framedex[torch]" in str(error)
    else:
        raise SystemExit("no error")
"""
    path = movable.parent / "script.py"
    path.write_text(script)
    subprocess.run([sys.executable, path], check=True)


def test_padding_is_marked_where_a_clip_before_it_was_skipped(movable: Path) -> None:
    dataset = ClipDataset(movable, size=(16, 16))
    (movable.parent / "media" / MEDIA[1]).unlink()
    loader = ClipLoader(dataset, batch_size=4, sampler=[0, 2, 3, 5, 6, 1], last="pad", on_error="skip")
    full, padded = list(loader)
    assert full["is_padding"].tolist() == [False] * 4
    assert (labels(padded), padded["is_padding"].tolist()) == ([6, 6], [False, True])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_vanished_file_is_raised_skipped_or_replaced(movable: Path, workers: int) -> None:
    (movable.parent / "media" / MEDIA[1]).unlink()
    gone = {label for label in range(CLIPS) if label % 3 == 1}
    dataset = ClipDataset(movable, size=(16, 16))
    with pytest.raises(StaleError, match="clip 1"):
        list(ClipLoader(dataset, batch_size=4, num_workers=workers))
    skipping = ClipLoader(dataset, batch_size=4, num_workers=workers, on_error="skip")
    batches = list(skipping)
    assert len(batches) == len(skipping) == 8, "the number of batches does not change"
    assert sorted(label for batch in batches for label in labels(batch)) == sorted(set(range(CLIPS)) - gone)
    assert skipping.report.failures == {"stale": len(gone)}
    assert skipping.report.skipped == len(gone)
    replacing = ClipLoader(dataset, batch_size=4, num_workers=workers, on_error="replace")
    batches = list(replacing)
    assert [len(batch["frames"]) for batch in batches] == [4] * 7 + [2]
    delivered = [label for batch in batches for label in labels(batch)]
    assert not gone & set(delivered)
    assert set(range(CLIPS)) - gone <= set(delivered), "the others are unharmed"
    assert replacing.report.replaced == len(gone)
    again = [label for batch in ClipLoader(dataset, batch_size=4, on_error="replace") for label in labels(batch)]
    assert again == delivered, "what replaces a clip depends on the clip alone"


def test_a_batch_of_bad_clips_alone_is_filled_with_another(movable: Path) -> None:
    (movable.parent / "media" / MEDIA[0]).unlink()
    (movable.parent / "media" / MEDIA[1]).write_bytes(b"other content")
    loader = ClipLoader(ClipDataset(movable, size=(16, 16)), on_error="skip")
    batches = list(loader)
    assert len(batches) == CLIPS
    assert {label % 3 for batch in batches for label in labels(batch)} == {2}


def test_a_killed_worker_costs_nothing_but_time(movable: Path) -> None:
    loader = ClipLoader(ClipDataset(movable), batch_size=3, num_workers=2, collate="list")
    seen: list[int] = []
    for number, batch in enumerate(loader):
        assert_right(batch)
        seen += labels(batch)
        if number in (1, 4):
            os.kill(loader._batches.process_ids[0], signal.SIGKILL)
    assert seen == list(range(CLIPS))
    assert loader.report.retried["crash"] >= 1
    assert not loader.report.failures
    loader.close()
    assert not loader._batches.process_ids


def test_workers_end_with_the_loader_and_with_a_killed_parent(movable: Path, tmp_path: Path) -> None:
    script = f"""
from framedex import ClipDataset, ClipLoader
if __name__ == "__main__":
    loader = ClipLoader(ClipDataset({str(movable)!r}, size=(16, 16)), num_workers=2)
    for batch in loader:
        print(loader._batches.process_id, *loader._batches.process_ids, flush=True)
        input()
"""
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_epochs_leave_no_open_files_behind(movable: Path, tmp_path: Path) -> None:
    """In a process of its own: what other tests opened may change meanwhile."""
    script = f"""
import contextlib, gc, os, time
from collections import Counter
from framedex import ClipDataset, ClipLoader

def opened():
    gc.collect()
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since, by another thread
            names.append(os.readlink("/proc/self/fd/" + descriptor).split(":[")[0])
    return Counter(names)

if __name__ == "__main__":
    loader = ClipLoader(ClipDataset({str(movable)!r}, size=(16, 16)), batch_size=4, num_workers=2)
    batches = len(list(loader))
    before = opened()
    for _ in range(5):
        list(loader)
        next(iter(loader))  # abandoned after one batch
    deadline = time.monotonic() + 60  # abandoned tasks still return results
    while (left := opened() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    print(batches, dict(left))
    loader.close()
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "8 {}\n"), done.stderr


def test_wrong_arguments_name_what_is_allowed(movable: Path) -> None:
    dataset = ClipDataset(movable)
    for wrong, message in (
        ({"decode": "gpu"}, "device='gpu'"),
        ({"last": "keep"}, "'partial', 'drop', 'pad'"),
        ({"on_error": "ignore"}, "'raise', 'skip', 'replace'"),
        ({"batch_size": 0}, "1 or more"),
        ({"num_workers": -1}, "0 or more"),
        ({"device": "gpu", "output": "numpy"}, "torch tensors"),
    ):
        with pytest.raises(FramedexError, match=message):
            ClipLoader(dataset, **wrong)  # type: ignore[arg-type]


def test_any_iterable_of_numbers_is_a_sampler(movable: Path) -> None:
    loader = ClipLoader(ClipDataset(movable, size=(16, 16)), batch_size=2, sampler=[5, 29, 5])
    assert [labels(batch) for batch in loader] == [[5, 29], [5]]
    with pytest.raises(FramedexError, match="ClipSampler"):
        loader.state_dict()
    assert len(ClipLoader(ClipDataset(movable), batch_size=4, sampler=ClipSampler(range(9)))) == 3


@pytest.fixture(scope="module")
def pool() -> Any:
    """A pool of two workers that run `Echo`."""
    pool: WorkerPool[Any, Any] = WorkerPool(Echo(), workers=2, timeout_seconds=8)
    yield pool
    pool.close()


def test_arrays_of_any_shape_come_back_from_workers(pool: WorkerPool[Any, Any]) -> None:
    rng = np.random.default_rng(1)
    arrays = [
        rng.integers(0, 255, (3, 50, 70, 3), dtype=np.uint8),
        np.zeros((0, 4)),
        np.float32(3.5) * np.ones(()),
        rng.normal(size=(60, 80))[::2, ::-1],
        np.array(["a", "bc"], object),
        rng.integers(0, 9, 65, dtype=np.int8),
    ]
    for task in (arrays, arrays[1], {"one": arrays[0], "two": arrays[:1]}, "text", None):
        result = pool.submit(task).result()
        given_, got = (value if isinstance(value, list) else [value] for value in (task, result))
        if isinstance(task, dict):
            given_, got = [task["one"], task["two"][0]], [result["one"], result["two"][0]]
        for one, other in zip(given_, got, strict=True):
            assert np.array_equal(np.asarray(one), np.asarray(other))
    mine = pool.submit(arrays).result()[0]
    mine[:] = 0
    assert mine.flags.writeable


def test_what_a_function_raises_costs_its_task_alone(pool: WorkerPool[Any, Any]) -> None:
    futures = [pool.submit(task) for task in (1, "raise", 2, "die", 3, "hang", 4, 5, 6)]
    outcomes: list[Any] = []
    for future in futures:
        try:
            outcomes.append(future.result())
        except (InternalError, WorkerDiedError) as error:
            outcomes.append(error)
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1, 2, 3, 4, 5, 6]
    assert "framedex itself failed: KeyError: 'no such thing'" in str(outcomes[1])
    assert "in __call__" in outcomes[1].traceback
    assert "exit code -9" in str(outcomes[3])
    assert "longer than 8 s" in str(outcomes[5])


def test_a_forked_process_leaves_the_workers_of_its_parent_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, multiprocessing\n"
        "from framedex.loader.batches.supply import WorkerPool\n"
        "def forget():\n"
        "    global pool\n"
        "    del pool\n"
        "    gc.collect()\n"
        "if __name__ == '__main__':\n"
        "    pool = WorkerPool(abs, workers=1, timeout_seconds=60)\n"
        "    print(pool.submit(-1).result(), flush=True)\n"
        "    child = multiprocessing.get_context('fork').Process(target=forget)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    print(child.exitcode, pool.submit(-2).result())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", script], env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n0 2\n", "")


def test_workers_keep_no_files_of_results(pool: WorkerPool[Any, Any]) -> None:
    large = np.zeros(1_000_000, np.uint8)
    counts = []
    for _ in range(4):
        for _ in range(10):
            pool.submit(large).result()
        counts.append({pool.submit("count files").result() for _ in range(4)})
    assert max(counts[-1]) <= max(counts[0])


@given(st.floats(0, 1), st.integers(0, 500), st.integers(1, 300))
def test_of_any_clips_in_a_row_the_share_goes_to_the_cpu(share: float, first: int, count: int) -> None:
    on_cpu = sum(is_on_cpu(place, share) for place in range(first, first + count))
    assert abs(on_cpu - count * share) < 1 + 1e-6
