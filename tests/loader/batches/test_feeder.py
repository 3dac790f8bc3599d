"""Batches that a process of the loader's own makes, and the memory in which they arrive."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from framedex import ClipDataset, ClipLoader, ClipSampler, FramedexError, Index
from framedex.loader import batches as parts
from tests.support.counted import some
from tests.support.datasets import shard_clips
from tests.support.media import read_barcode

CLIPS = 24
NAMES = ("h264_default.mp4", "hevc_closed.mp4")


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of two media, all of one size."""
    clips = [
        {"uri": NAMES[number % 2], "clip_id": str(number), "frames": [number % 11, number % 7, -1]}
        for number in range(CLIPS)
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("fed") / "D", clips)


def mapped(loader: ClipLoader) -> int:
    """Return how many slots this process maps."""
    return len(loader._batches._feeder._slots._slots)  # type: ignore[attr-defined]


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_fifty_batches_that_are_kept_stay_as_they_were(stored: Path, output: Any) -> None:
    dataset = ClipDataset(stored, layout="FCHW")
    loader = ClipLoader(dataset, batch_size=6, num_workers=2, output=output, sampler=ClipSampler(dataset, shuffle=True))
    kept, copies = [], []
    while len(kept) < 50:
        for batch in loader:
            view = batch["frames"][2:4, :, 1] if len(kept) % 2 else batch["frames"]  # a view keeps the memory, too
            kept.append((batch["clip_id"], view, batch["mask"]))
            copies.append(np.array(view))
    loader.close()
    del batch, view
    gc.collect()
    items = {item["clip_id"]: item["frames"] for item in (dataset[number] for number in range(CLIPS))}
    for place, ((names, view, mask), copy) in enumerate(some(zip(kept, copies, strict=True))):
        assert np.array_equal(view, copy)
        assert np.asarray(mask).tolist() == [[True, True, False]] * 6
        whole = np.stack([items[name] for name in names])
        assert np.array_equal(view, whole[2:4, :, 1] if place % 2 else whole)


def test_memory_of_batches_that_are_dropped_is_used_again(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=2)
    for _ in range(4):
        for batch in loader:
            assert [read_barcode(np.asarray(clip[0])) for clip in batch["frames"]] == batch["frame_index"][
                :, 0
            ].tolist()
    assert mapped(loader) <= loader._options.ahead + 3
    loader.close()


def test_an_interrupted_iteration_does_not_deliver_batches_of_the_last_one(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=2, prefetch=4, sampler=list(range(CLIPS)))
    for _ in range(5):
        assert next(iter(loader))["clip_id"] == ["0", "1"]
    assert [name for batch in loader for name in batch["clip_id"]] == list(map(str, range(CLIPS)))
    loader.close()


def test_the_sampler_stays_in_the_trainers_process_and_is_read_a_bounded_number_of_batches_ahead(stored: Path) -> None:
    loss = [0]
    asked = []

    class Hardest:
        def __iter__(self) -> Any:
            for number in range(CLIPS):
                asked.append((number, loss[0]))
                yield (number + loss[0]) % CLIPS

    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=1, sampler=Hardest())
    for done, batch in enumerate(loader):
        ahead = len(asked) // 2 - done - 1
        assert ahead <= loader._options.ahead
        assert batch["clip_id"] == [str((number + seen) % CLIPS) for number, seen in asked[2 * done : 2 * done + 2]]
        loss[0] += 5
    assert asked[-1][1] > 0
    loader.close()


def test_the_death_of_the_feeder_is_an_error_that_names_its_cause(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=2)
    iterator = iter(loader)
    seen = next(iterator)["clip_id"]
    workers = loader._batches.process_ids
    os.kill(loader._batches.process_id, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(FramedexError, match=r"(?s)the process that makes the batches has died.*SIGKILL"):
        seen.extend(name for batch in iterator for name in batch["clip_id"])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.02)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    seen += [name for batch in loader for name in batch["clip_id"]]  # a new feeder makes the rest of the epoch
    assert seen == list(map(str, range(CLIPS)))
    loader.close()


def test_the_death_of_the_feeder_between_two_messages_names_its_cause_too(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=1)

    def die(_: object) -> int:
        os.kill(loader._batches.process_id, signal.SIGKILL)  # type: ignore[attr-defined]
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr("multiprocessing.reduction.recv_handle", die)  # which receives the memory of a batch
    with pytest.raises(FramedexError, match=r"(?s)the process that makes the batches has died.*SIGKILL"):
        list(loader)
    loader.close()


def test_a_loader_that_is_not_closed_does_not_keep_the_program(stored: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
from framedex import ClipDataset, ClipLoader

class Own(ClipDataset):
    pass

if __name__ == "__main__":
    loader = ClipLoader(Own({str(stored)!r}), batch_size=2, num_workers=1)
    kept = [batch["frames"] for batch in loader]
    print(type(loader._batches).__name__, len(kept))
    iterator = iter(loader)
    next(iterator)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["FedBatches", str(CLIPS // 2)]
    assert done.stderr == ""


def test_a_loader_that_a_script_makes_before_its_guard_starts_no_process_in_a_process(
    stored: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
from framedex import ClipDataset, ClipLoader

class Own(ClipDataset):
    pass

loader = ClipLoader(Own({str(stored)!r}), batch_size=2, num_workers=1)
unused = ClipLoader(ClipDataset({str(stored)!r}), batch_size=2, num_workers=1)
if __name__ == "__main__":
    print(type(loader._batches).__name__, len(list(loader)))
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["FedBatches", str(CLIPS // 2)]
    assert done.stderr == ""


def test_warnings_and_counts_of_the_feeder_arrive(
    index: Index, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = shard_clips(index.path, tmp_path / "D", [{"uri": name, "frames": [1]} for name in NAMES * 2])
    moved = tmp_path / "media"
    moved.mkdir()
    loader = ClipLoader(ClipDataset(stored, root=moved), num_workers=1, on_error="skip")
    with caplog.at_level(logging.WARNING, "framedex"), pytest.raises(FramedexError):
        list(loader)
    assert "cannot be loaded (stale)" in caplog.text
    assert loader.report.failures["stale"] >= 1
    assert {fault.kind for fault in loader.report.faults} == {"stale"}
    loader.close()


def test_what_cannot_be_sent_is_loaded_in_this_process(stored: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Local(ClipDataset):
        def __getstate__(self) -> Any:
            raise pickle.PicklingError("a lock")

    with caplog.at_level(logging.WARNING, "framedex"):
        loader = ClipLoader(Local(stored), num_workers=1)
    assert type(loader._batches).__name__ == "BatchQueue"
    assert "PicklingError: a lock" in caplog.text


def test_small_arrays_and_batches_without_frames_need_no_slot(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored, size=(8, 8)), batch_size=2, num_workers=1)
    assert sum(len(batch["clip_id"]) for batch in loader) == CLIPS
    assert mapped(loader) == 0
    loader.close()


class _Pipe:
    """Joins a SlotMaker and a SlotReader in one process."""

    def __init__(self, most: int) -> None:
        self.maker = parts.slots.SlotMaker(self._send, self._drop, device_id=None, most=most)
        self.reader = parts.slots.SlotReader(lambda number: self.maker.release(number), device_id=None)

    def _send(self, number: int, descriptor: int) -> None:
        self.reader.add(number, os.dup(descriptor))

    def _drop(self, number: int) -> None:
        self.reader.drop(number)


def test_slots_that_are_all_in_use_are_an_error_with_a_remedy_and_a_free_one_ends_the_wait() -> None:
    pipe = _Pipe(most=3 * parts.slots.STEP)
    kept = [pipe.reader.content(pipe.maker.take(parts.slots.STEP // 2).number) for _ in range(3)]
    pipe.maker.starve(True)
    with pytest.raises(FramedexError, match=r"(?s)leave no memory for another one.*3 batches in use.*clone\(\)"):
        pipe.maker.take(parts.slots.STEP // 2)
    pipe.maker.starve(False)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(pipe.maker.take(10).number))
    thread.start()
    time.sleep(0.05)
    assert not found
    half = torch.from_numpy(kept[1][: parts.slots.STEP // 4])
    del kept[1]
    time.sleep(0.05)
    assert not found  # a tensor uses it
    del half
    thread.join(10)
    assert found == [2]


@pytest.mark.parametrize(("ranks", "expected"), [(None, 1), ("4", 4), ("0", 1), ("many", 1)])
def test_ranks_of_a_machine_share_the_memory(ranks: str | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    maker = parts.slots.SlotMaker(lambda *_: None, lambda _: None, device_id=None)
    assert maker._most == parts.slots.machine_bytes() // 4 // expected


def test_slots_that_are_too_small_are_replaced() -> None:
    pipe = _Pipe(most=100 * parts.slots.STEP)
    small = [pipe.maker.take(100) for _ in range(2)]
    assert [slot.number for slot in small] == [1, 2]
    contents = [pipe.reader.content(slot.number) for slot in small]
    small[0].array()[:4] = 7
    assert contents[0][:5].tolist() == [7, 7, 7, 7, 0]
    del contents[0]
    large = pipe.maker.take(3 * parts.slots.STEP)
    assert large.number == 3
    assert large.size >= 3 * parts.slots.STEP
    assert set(pipe.reader._slots) == {2, 3}
    assert contents[0][0] == 0  # slot 2 is in use, and stays


def test_clips_of_a_batch_lie_in_its_room_unless_one_is_missing_or_of_another_shape(
    index: Index, tmp_path: Path
) -> None:
    names = ("h264_default.mp4", "h264_cropped.mp4")
    clips = [{"uri": names[number % 4 == 3], "clip_id": str(number), "frames": [number, 1]} for number in range(8)]
    stored = shard_clips(index.path, tmp_path / "D", clips)
    dataset = ClipDataset(stored, layout="FCHW")
    items = [dataset[number]["frames"] for number in range(8)]
    loader = ClipLoader(dataset, batch_size=4, num_workers=2, collate="pad", normalize=((0.5,) * 3, (0.25,) * 3))
    for _ in range(3):
        for place, batch in enumerate(loader):
            for own, item in zip(batch["frames"], items[4 * place : 4 * place + 4], strict=True):
                height, width = item.shape[-2:]
                assert np.abs(np.asarray(own)[..., :height, :width] - (item / 255 - 0.5) / 0.25).max() < 1e-5
                assert not own[..., height:, :].any()
                assert not own[..., width:].any()
    assert mapped(loader) <= loader._options.ahead + 3
    loader.close()
    loader = ClipLoader(dataset, batch_size=3, num_workers=2, collate="list")
    batches = list(loader)
    assert all(
        np.array_equal(own, item) for own, item in zip((f for b in batches for f in b["frames"]), items, strict=True)
    )
    loader.close()


class _FakeGpu(parts.frames.Frames):
    """Decodes clips whose number is not in `broken`, on the CPU, where a GPU would."""

    at_once = parts.frames.AtOnce(fewest=1, most=4, most_bytes=1 << 30)

    def __init__(self, finish: Any, dataset: ClipDataset, broken: set[int]) -> None:
        super().__init__(finish)
        self._dataset, self._broken, self.decoded = dataset, broken, 0
        self.decoders = [self.decode] * 2

    def host_copies(self) -> Any:
        return _HostCopies()

    def decode(self, clips: Any, report: object, keep: Any) -> list[Any]:
        if any(clip.number in self._broken for clip in clips):
            raise RuntimeError("broken")
        self.decoded += len(clips)
        distinct = []
        for clip in clips:
            frames = self._dataset[clip.number]["frames"]
            distinct.append(
                torch.stack([torch.from_numpy(frames[clip.order == n][0]) for n in range(clip.order.max() + 1)])
            )
        return keep(distinct, list(range(len(clips))))  # type: ignore[no-any-return]


class _HostCopies:
    def copy(self, pairs: list[tuple[Any, Any]]) -> None:
        for tensor, array in pairs:
            array[...] = tensor.numpy()


@pytest.mark.parametrize(("share", "broken"), [(None, set()), (0.5, set()), (0.0, {5})])
def test_frames_of_a_gpu_and_of_workers_lie_in_one_room(
    stored: Path, share: float | None, broken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, made = ClipDataset(stored), []

    def keep(setup: Any) -> Any:
        made.append(setup)
        return parts.batch_queue.BatchQueue(setup)

    def fake(setup: Any) -> _FakeGpu:
        made.append(_FakeGpu(setup.finish, dataset, broken))
        return made[-1]

    monkeypatch.setattr(sys.modules[ClipLoader.__module__], "FedBatches", keep)
    ClipLoader(dataset, batch_size=4, num_workers=2).close()
    monkeypatch.setattr(parts.batch_queue.BatchSetup, "frames", fake)
    setup = replace(made[0], options=replace(made[0].options, device="gpu"), share=share)
    assert setup.workers_finish
    pipe = _Pipe(most=100 * parts.slots.STEP)
    rooms = parts.rooms.Rooms(pipe.maker)
    batches = parts.batch_queue.BatchQueue(setup, rooms)
    keys = [batches.begin(list(range(at, at + 4)), 0, is_first=not at) for at in range(0, CLIPS, 4)]
    for at, key in enumerate(keys):
        content, slot = batches.take(key), rooms.slot(key)
        assert slot is not None
        items = [dataset[4 * at + place]["frames"] for place in range(4)]
        assert np.array_equal(content["frames"], items)
        is_whole = all(number // 4 != at for number in broken)
        assert np.shares_memory(content["frames"], slot.array()) == is_whole
        rooms.end(key, is_used=False)
    assert made[-1].decoded > 0
    assert batches.report.retried["clip"] == len(broken)
    batches.close()
    assert pipe.maker.take_spare(1) is not None  # all slots are free again


@pytest.mark.parametrize(
    "order", [[0, 1, 2, 3], [-1, 0, 1, -1, -1], [2, 1, 0], [0, 0, 1, 1, 2], [-1, -1], [3], [0, 2, 3, 4, 1, -1, 0]]
)
def test_frames_are_copied_in_runs(order: list[int]) -> None:
    made = np.full(len(order), -1)
    runs = parts.rooms.runs_of(np.array(order))
    for into, first in runs:
        made[into] = np.arange(first, first + into.stop - into.start)
    assert made.tolist() == order
    assert order != [0, 1, 2, 3] or len(runs) == 1


def test_iterations_that_are_broken_off_give_their_rooms_back(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=3, num_workers=2, prefetch=5, sampler=list(range(CLIPS)))
    for _ in range(25):
        batch = next(iter(loader))
        shown = [read_barcode(np.asarray(clip[0])) for clip in batch["frames"]]
        assert shown == batch["frame_index"][:, 0].tolist()
    assert mapped(loader) <= 2 * (loader._options.ahead + 3)
    del batch
    seen = [name for batch in loader for name in batch["clip_id"]]
    assert seen == list(map(str, range(CLIPS)))
    loader.close()


def test_a_slow_worker_of_a_cancelled_batch_does_not_write_into_the_next_one() -> None:
    pipe = _Pipe(most=100 * parts.slots.STEP)
    rooms = parts.rooms.Rooms(pipe.maker)
    request = parts.rooms.RoomRequest((4, 100_000), "uint8")
    rooms.begin(1, 2)
    placed, room = rooms.grant(1, 0, request) or pytest.fail("no room")
    rooms.end(1, is_used=False)  # cancelled while a worker writes
    assert rooms.grant(1, 1, request) is None
    rooms.begin(2, 2)
    other, _ = rooms.grant(2, 0, request) or pytest.fail("no room")
    assert other.slot != placed.slot
    rooms.wrote([room])
    rooms.begin(3, 2)
    again, _ = rooms.grant(3, 1, request) or pytest.fail("no room")
    assert (again.slot, again.begin) == (placed.slot, 400_000)
    assert rooms.grant(3, 0, parts.rooms.RoomRequest((4, 50_000), "uint8")) is None
    frames = np.arange(400_000, dtype=np.uint8).reshape(4, 100_000)
    assert not parts.rooms.write(frames, again._replace(path="/proc/1/nothing"))
    assert parts.rooms.write(frames, again)
    assert np.array_equal(rooms.array(again), frames)


def test_killed_workers_and_rooms(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=4, num_workers=2, sampler=list(range(CLIPS)) * 4)
    seen = []
    for number, batch in enumerate(loader):
        shown = [read_barcode(np.asarray(clip[0])) for clip in batch["frames"]]
        assert shown == batch["frame_index"][:, 0].tolist()
        seen += batch["clip_id"]
        if number % 4 == 1 and loader._batches.process_ids:
            os.kill(loader._batches.process_ids[0], signal.SIGKILL)
    assert seen == list(map(str, range(CLIPS))) * 4
    assert not loader.report.failures
    loader.close()


def test_two_iterations_at_a_time_do_not_mix_their_batches(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=2, sampler=list(range(CLIPS)))
    first, second = iter(loader), iter(loader)
    names = [(next(first)["clip_id"], next(second)["clip_id"]) for _ in range(3)]
    first.close()
    assert names == [(pair, pair) for pair in (["0", "1"], ["2", "3"], ["4", "5"])]
    assert [name for batch in second for name in batch["clip_id"]] == list(map(str, range(6, CLIPS)))
    third = iter(loader)
    next(third)
    loader.close()
    with pytest.raises(FramedexError, match="the loader was closed during an iteration"):
        list(third)
    assert sum(len(batch["clip_id"]) for batch in loader) == CLIPS
    loader.close()


class _Unloadable(ClipDataset):
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise ValueError("not in this process")


def test_an_error_with_which_the_feeder_ends_is_raised_and_not_its_death(stored: Path) -> None:
    loader = ClipLoader(_Unloadable(stored), batch_size=2, num_workers=1, sampler=list(range(CLIPS)))
    for _ in range(2):
        with pytest.raises(ValueError, match="not in this process"):
            list(loader)
    loader.close()


def test_a_batch_in_a_forked_process_stays_although_the_parent_goes_on(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=2, sampler=list(range(CLIPS)) * 4)
    iterator = iter(loader)
    batch = next(iterator)
    before = batch["frames"].numpy().copy()
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        os.close(ask)
        os.read(asked, 1)  # until the parent closes the pipe
        os._exit(0 if np.array_equal(batch["frames"].numpy(), before) else 1)
    os.close(asked)
    del batch
    assert sum(len(other["clip_id"]) for other in iterator) == 4 * CLIPS - 2
    os.close(ask)
    assert os.waitpid(child, 0)[1] == 0
    begun = time.monotonic()
    loader.close()
    assert time.monotonic() - begun < 10


def test_counts_go_on_after_a_feeder_has_ended(stored: Path) -> None:
    loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=1, sampler=list(range(CLIPS)))
    for epoch in (1, 2):
        assert len(list(loader)) == CLIPS // 2
        loader.close()
        assert loader.report.decoded == {"cpu": epoch * CLIPS}
        assert loader.report.seconds["waiting"] > 0


def test_arrays_in_another_order_of_bytes_are_sent_as_they_are(stored: Path) -> None:
    def check(transform: Any, expected: Any) -> None:
        loader = ClipLoader(ClipDataset(stored, transform=transform), batch_size=2, num_workers=1, output="numpy")
        plain = ClipDataset(stored, layout="FCHW")
        batch = next(iter(loader))
        assert np.array_equal(batch["frames"], np.stack([expected(plain[number]["frames"]) for number in range(2)]))
        loader.close()

    check(swapped, lambda frames: frames.astype(np.float32))
    check(halved, lambda frames: frames.astype(np.float16) / 2)


def swapped(frames: torch.Tensor) -> Any:
    return frames.numpy().astype(">f4")


def halved(frames: torch.Tensor) -> Any:
    return frames.half() / 2


def test_slots_of_later_batches_do_not_starve_the_oldest_one() -> None:
    pipe = _Pipe(most=10 * parts.slots.STEP)
    early = [pipe.maker.take_spare(parts.slots.STEP // 2) for _ in range(12)]
    given = [slot for slot in early if slot is not None]
    assert 3 < len(given) < 10
    pipe.maker.starve(True)
    assert pipe.maker.take(4 * parts.slots.STEP).size >= 4 * parts.slots.STEP  # over the limit, but the loop goes on
    for slot in given:
        pipe.maker.sent(slot.number)
    with pytest.raises(FramedexError, match="leave no memory"):
        pipe.maker.take(4 * parts.slots.STEP)
    assert _Pipe(most=2 * parts.slots.STEP).maker.take_spare(8 * parts.slots.STEP) is None


def test_a_loader_can_be_closed_while_its_workers_start(stored: Path) -> None:
    for seconds in (0, 0.3, 0.8):
        loader = ClipLoader(ClipDataset(stored), batch_size=2, num_workers=3, sampler=list(range(CLIPS)))
        iterator = iter(loader)
        if not seconds:
            next(iterator)
        time.sleep(seconds)
        loader.close()
    pool: Any = parts.supply.WorkerPool(len, workers=3, timeout_seconds=20)
    pool.start()
    pool.close()
    assert not pool.process_ids or not any(Path(f"/proc/{process}/task").exists() for process in pool.process_ids)
