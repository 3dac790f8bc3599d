"""ClipLoader with ClipSampler(share=…): clips that are decoded together are those that are decoded alone."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, ConcatClips, Framing, MultiViewDataset
from framedex.errors import DecodeError, FramedexError
from framedex.loader.batches import faults, fetch, rooms, shared, supply
from tests.support.counted import some
from tests.support.depth import EXAMPLES
from tests.support.media import decodes, index_with_broken_gop, read_barcode

NAMES = ("h264_default.mp4", "h264_b_pyramid.mkv", "hevc_open_gop.mp4")
POLICY = {"policy": "windows", "frames": 6, "stride": 1, "step": 2}
SIZE = (64, 96)


@pytest.fixture(scope="module")
def videos(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of three videos."""
    place = tmp_path_factory.mktemp("shared") / "INDEX"
    framedex.index([medium(name) for name in NAMES], place, workers=0, progress=False)
    return place


def sampler_of(dataset: Any, **how: Any) -> ClipSampler:
    return ClipSampler(dataset, **({"shuffle": True, "share": 6, "window": 12, "seed": 5} | how))


def check(dataset: ClipDataset | ConcatClips, batches: Sequence[Any], *, size: bool = True) -> list[str]:
    """Check that each clip of batches is the clip of the dataset. Return their names."""
    alone = {item["clip_id"]: item for item in (dataset[number] for number in range(len(dataset)))}
    names = []
    for batch in some(batches):
        for place, name in enumerate(batch["clip_id"]):
            names.append(name)
            for key in ("frames", "frame_index", "mask", "seconds"):
                np.testing.assert_array_equal(batch[key][place], alone[name][key], key)
    return names


OPTIONS: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0, "batch_size": 5},
    "workers": {"num_workers": 1, "batch_size": 5},
    "large batches": {"num_workers": 2, "batch_size": 20, "last": "drop"},
}
FRAMINGS: dict[str, dict[str, Any]] = {
    "size": {"size": SIZE},
    "random crops": {"framing": Framing(size=(40, 40), scale=(0.3, 1.0), flip=0.5), "layout": "FCHW"},
    "windows": {"framing": Framing(crop=(32, 48), position="five"), "dtype": "uint16"},
}


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_frames_are_those_of_single_clips(videos: Path, framing: str, how: str) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, **FRAMINGS[framing])
    loader = ClipLoader(dataset, sampler=sampler_of(dataset), output="numpy", **OPTIONS[how])
    for epoch in range(2):
        batches = [{key: np.array(value) for key, value in batch.items()} for batch in loader]
        dataset.set_epoch(epoch)
        names = check(dataset, batches)
        assert len(set(names)) == len(names)
        assert len(names) > len(dataset) - (20 if how == "large batches" else 1)
    report, clips = loader.report, map(dataset.clip, range(len(dataset)))
    unshared = sum(len(clip.recipe.packet_size) for clip in clips)
    loader.close()
    assert report.packets < 0.45 * 2 * unshared
    if how != "large batches":
        assert report.waiting_bytes > 0


@pytest.mark.parametrize("workers", [0, 1])
def test_less_memory_for_later_batches_means_more_packets(videos: Path, workers: int) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    packets = []
    for memory in (2 << 30, 1_500_000, 0):
        sampler = sampler_of(dataset, window=20)
        loader = ClipLoader(
            dataset, sampler=sampler, batch_size=3, num_workers=workers, share_memory=memory, output="numpy"
        )
        batches = [{key: np.array(value) for key, value in batch.items()} for batch in loader]
        assert sorted(check(dataset, batches)) == sorted(dataset.column("clip_id").tolist())
        packets.append(loader.report.packets)
        assert loader.report.waiting_bytes <= memory
        assert (loader.report.waiting_bytes > 0) == (memory > 0)
        loader.close()
    assert packets[0] < packets[1] < packets[2]


def test_each_picture_is_decoded_about_once(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, {**POLICY, "step": 6}, size=SIZE)
    alone, together = (
        ClipLoader(dataset, sampler=ClipSampler(dataset, shuffle=True, share=share), batch_size=4)
        for share in (None, 100)
    )
    for batch in some(together):
        assert batch["frames"].shape[1:] == (6, *SIZE, 3)
    assert len(list(alone)) > 5
    assert together.report.frames == alone.report.frames
    assert together.report.packets <= 1.05 * together.report.frames < alone.report.packets


def test_too_little_memory_is_said_once(videos: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    loader = ClipLoader(dataset, sampler=sampler_of(dataset), batch_size=4, share_memory="1MB")
    with caplog.at_level(logging.WARNING):
        assert len(list(loader)) == len(loader)
    (message,) = [record.getMessage() for record in caplog.records if "share_memory" in record.getMessage()]
    assert "share_memory=1000000 bytes suffices for 2 later batches of 442368 bytes" in message
    assert 0 < loader.report.waiting_bytes <= 1_000_000


def test_an_interrupted_iteration_has_its_own_clips(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    loader = ClipLoader(dataset, sampler=sampler_of(dataset), batch_size=3, num_workers=2, output="numpy")
    names: list[str] = []
    for _ in range(3):
        names += check(dataset, [{key: np.array(value) for key, value in next(iter(loader)).items()}])
    for batch in loader:
        names += check(dataset, [batch])
    assert sorted(names) == sorted(dataset.column("clip_id").tolist())
    loader.close()


@pytest.mark.parametrize(("share", "window"), [(6, 3), (2, 64), (3, 24)])
@pytest.mark.parametrize("spread", [True, False])
def test_two_iterations_in_turns_have_the_clips_that_their_samplers_yield(
    videos: Path, share: int, window: int, spread: bool
) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    sampler = sampler_of(dataset, share=share, window=window, spread=spread)
    loader = ClipLoader(dataset, sampler=sampler, batch_size=6, output="numpy")
    wanted: list[list[int]] = []
    begin = loader._batches.begin

    def begin_noted(items: list[int], padding: int, **how: Any) -> int:
        wanted.append(items)
        return begin(items, padding, **how)

    loader._batches.begin = begin_noted  # type: ignore[method-assign]
    names, seen = dataset.column("clip_id"), 0
    for batches in itertools.zip_longest(loader, loader):
        begun = [batch for batch in batches if batch is not None]
        # Without workers, a batch is delivered before the next one begins.
        for batch, items in zip(begun, wanted[-len(begun) :], strict=True):
            check(dataset, [batch])
            assert batch["clip_id"] == names[items].tolist()
            seen += len(items)
    assert seen > len(dataset)


def test_a_sampler_that_leaves_clips_out_is_obeyed(videos: Path) -> None:
    class Some(ClipSampler):
        def __iter__(self) -> Any:
            return (number for number in super().__iter__() if number % 3)

    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    sampler = Some(dataset, shuffle=True, share=6, window=4)
    loader = ClipLoader(dataset, sampler=sampler, batch_size=5, output="numpy")
    names = check(dataset, [{key: np.array(value) for key, value in batch.items()} for batch in loader])
    own = dataset.column("clip_id")
    assert sorted(names) == sorted(own[number] for number in range(len(own)) if number % 3)


def test_elastic_and_resumed_runs_have_each_clip_once(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    names: list[str] = []
    state: dict[str, Any] | None = None
    for world, steps in ((2, 2), (3, 1), (1, 3), (2, 100)):
        loaders = [
            ClipLoader(
                dataset,
                sampler=sampler_of(dataset, rank=rank, world_size=world, uneven="allow"),
                batch_size=4,
                num_workers=rank,
                output="numpy",
            )
            for rank in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            names += check(dataset, list(itertools.islice(loader, steps)))
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    assert sorted(names) == sorted(dataset.column("clip_id").tolist())


def test_a_killed_worker_does_not_lose_or_change_a_clip(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    loader = ClipLoader(dataset, sampler=sampler_of(dataset), batch_size=3, num_workers=2, output="numpy")
    batches: list[Any] = []
    for batch in loader:
        batches.append({key: np.array(value) for key, value in batch.items()})
        if len(batches) in (2, 5):
            os.kill(loader._batches.process_ids[0], signal.SIGKILL)
    assert sorted(check(dataset, batches)) == sorted(dataset.column("clip_id").tolist())
    loader.close()


def test_a_worker_that_cannot_ask_any_more_ends_at_once(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda _: 0)  # of this process
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    decoded: list[int] = []

    class Counted(fetch.Fetcher):
        def __call__(self, wanted: Any, ask: Any = None) -> Any:
            def asks(question: Any) -> Any:
                if isinstance(question, faults.OfMember):
                    decoded.append(question.member)
                    ours.close()
                return ask(question)

            return super().__call__(wanted, asks)

    ours.send((faults.GroupRequest(numbers=list(range(8)), on_gpu=False), True))
    answers = threading.Thread(target=lambda: (ours.recv(), ours.send(8)))
    answers.start()
    with pytest.raises(SystemExit):
        supply._serve(theirs, Counted(dataset, fetch.FetchOptions(pixels=[dataset.pixels])), False)
    answers.join()
    assert len(decoded) == 1


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_with_broken_gop(tmp_path_factory.mktemp("broken"))


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_clips_that_do_not_decode_are_left_out(broken: Path, workers: int) -> None:
    dataset = ClipDataset.from_index(broken, POLICY)
    right = [number for number in range(len(dataset)) if decodes(dataset, number)]
    assert 0 < len(right) < len(dataset) - 2
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "output": "numpy"}
    loader = ClipLoader(dataset, sampler=sampler_of(dataset, spread=False), on_error="skip", **options)
    shown = [frames for batch in loader for frames in zip(batch["clip_id"], batch["frames"].copy(), strict=True)]
    assert loader.report.failures == {"undecodable": len(dataset) - len(right)}
    loader.close()
    for number in right:
        item = dataset[number]
        assert any(name == item["clip_id"] and np.array_equal(frames, item["frames"]) for name, frames in shown)
    raising = ClipLoader(dataset, sampler=sampler_of(dataset), **options)
    with pytest.raises(DecodeError, match="clip"):
        list(raising)
    raising.close()


def test_draws_from_joined_datasets_show_the_frames_that_they_name(videos: Path) -> None:
    parts = [ClipDataset.from_index(videos, {**POLICY, "frames": 4}, where=f"uri == {name!r}") for name in NAMES[:2]]
    dataset = ConcatClips(parts)
    sampler = sampler_of(dataset, weights=np.arange(len(dataset)) % 3, length=60)
    loader = ClipLoader(dataset, sampler=sampler, batch_size=5, num_workers=1, output="numpy", collate="list")
    seen = 0
    for batch in loader:
        for frames, numbers in zip(batch["frames"], batch["frame_index"], strict=True):
            shown = numbers[numbers >= 0].tolist()
            assert [read_barcode(frame) for frame in frames[: len(shown)]] == shown
            seen += 1
    assert seen == 60
    assert loader.report.packets < 4 * 60
    loader.close()


def test_frames_are_freed_with_their_batches(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    freed = 0
    gc.collect()
    gc.disable()
    try:
        loader = ClipLoader(dataset, sampler=sampler_of(dataset), batch_size=3)
        taken: list[weakref.ref[Any]] = []
        supply = loader._batches.supply  # type: ignore[attr-defined]
        take = supply.take

        def take_noted(*arguments: Any, **how: Any) -> Any:
            fetched = take(*arguments, **how)
            taken.append(weakref.ref(fetched.frames))
            return fetched

        supply.take = take_noted
        for batch in loader:
            assert len(batch["clip_id"]) == 3
            del batch
            freed = sum(frames() is None for frames in taken[:-3])
        assert freed == len(dataset) - 3
    finally:
        gc.enable()


def test_a_large_group_of_draws_is_decoded_in_parts(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, POLICY, size=SIZE)
    weights = np.zeros(len(dataset))
    weights[:2] = 1
    sampler = ClipSampler(dataset, weights=weights, length=200, share=8)
    visit, grouped = list(sampler), sampler.grouped
    assert grouped is not None
    sizes = [1 + len(grouped.later(place, clip)) for place, clip in enumerate(visit)]
    assert max(sizes) == 8
    assert sizes.count(8) == 25


def test_a_sampler_of_batches_over_a_sharing_sampler_is_refused(videos: Path) -> None:
    dataset = ClipDataset.from_index(videos, POLICY)
    batches = BatchSampler(sampler_of(dataset), 4, drop_last=False)
    with pytest.raises(FramedexError, match="no effect within a sampler of batches"):
        ClipLoader(dataset, batch_sampler=batches)


def test_views_are_refused(tmp_path: Path) -> None:
    class Views(MultiViewDataset):
        def __init__(self) -> None:
            self.clips = SimpleNamespace(pixels=None)

        def __len__(self) -> int:
            return 8

        def places(self, kind: Any) -> Any:
            return np.zeros(8, np.int64)

    views = Views()
    with pytest.raises(FramedexError, match="several views"):
        ClipLoader(views, sampler=ClipSampler(views, share=4))


@pytest.mark.parametrize("wrong", ["a lot", -1, 1.5, True, None])
def test_wrong_memory_is_refused(videos: Path, wrong: Any) -> None:
    with pytest.raises(FramedexError, match="share_memory is not a number of bytes"):
        ClipLoader(ClipDataset.from_index(videos, POLICY), share_memory=wrong)


class Supply:
    """A supply whose tasks wait until the test answers them."""

    def __init__(self) -> None:
        self.report = faults.LoaderReport()
        self.tasks: list[tuple[list[int], Callable[[Any], Any], Future[Any]]] = []
        self.fetched: list[int] = []

    def submit_group(self, numbers: list[int], *, on_gpu: bool | None, answer: Callable[[Any], Any]) -> Future[Any]:
        task: Future[Any] = Future()
        self.tasks.append((numbers, answer, task))
        return task

    def finish(self, index: int, known: int) -> None:
        """Finish a task with its first clips, of which the budget may allow fewer."""
        numbers, answer, task = self.tasks.pop(index)
        if not task.set_running_or_notify_cancel():
            return
        done = min(max(1, known), answer(faults.GroupSizes([100] * len(numbers))))
        for member, number in enumerate(numbers[:done]):
            answer(faults.OfMember(member, rooms.RoomRequest((number,), "uint8")))
        self.fetched += numbers[:done]
        found: list[Any] = [faults.Fault(number=number, kind="error", message="") for number in numbers[:done]]
        task.set_result(found + [member % 2 for member in range(done, len(numbers))])


class OneClipRooms:
    """Rooms in which each place is granted to one clip only."""

    def __init__(self) -> None:
        self.clips: dict[tuple[int, int], int] = {}
        self.batches: set[int] = set()

    def begin(self, batch: int, clips: int) -> None:
        self.batches.add(batch)

    def grant(self, batch: int, place: int, request: rooms.RoomRequest) -> tuple[Any, Any] | None:
        assert self.clips.setdefault((batch, place), request.shape[0]) == request.shape[0]
        return (None, None) if batch in self.batches else None

    def wrote(self, rooms: list[Any]) -> None: ...

    def end(self, batch: int, *, is_used: bool) -> None:
        self.batches.remove(batch)


@settings(max_examples=3 * EXAMPLES)
@given(data=st.data(), size=st.integers(1, 4), share=st.integers(2, 6), most=st.integers(0, 8))
def test_each_place_of_each_batch_gets_its_clip_whatever_order_tasks_end_in(
    data: Any, size: int, share: int, most: int
) -> None:
    supply, places = Supply(), OneClipRooms()
    found = shared.SharedClips(
        supply,  # type: ignore[arg-type]
        places,  # type: ignore[arg-type]
        None,
        lambda clips: [],
        batch_size=size,
        most_bytes=most * size * 100,
    )
    media = type("Media", (), {"__len__": lambda self: 40, "places": lambda self, kind: np.arange(40) // 10})()
    visits = []  # one iteration, or two in turns
    for seed in range(data.draw(st.integers(1, 2))):
        sampler = ClipSampler(media, shuffle=True, share=share, seed=seed, window=data.draw(st.integers(1, 5)))
        visits.append((list(sampler), sampler.grouped))
    waiting: list[tuple[int, Future[Any]]] = []
    begun, key = [0] * len(visits), 0
    options: Any = SimpleNamespace(batch_size=size, last="drop")
    while any(count < 40 // size for count in begun):
        turn = data.draw(st.sampled_from([one for one, count in enumerate(begun) if count < 40 // size]))
        (numbers, grouped), batch = visits[turn], begun[turn]
        assert grouped is not None
        own = numbers[batch * size : (batch + 1) * size]
        key += 1
        if not batch or not found.fits(key, own):
            key = max(key, found.forget() + 1)
        places.begin(key, size)
        futures = found.begin(key)
        for place, others in shared.later_clips(grouped, options, batch, own).items():
            if place not in futures:
                free = [one for one in others if one.batches_later or one.place not in futures]
                futures |= found.submit(key, place, own[place], free, on_gpu=False)
        for place in range(size):
            if place not in futures:
                futures |= found.submit(key, place, own[place], [], on_gpu=False)
        waiting += [(number, futures[place]) for place, number in enumerate(own)]
        begun[turn] += 1
        while supply.tasks and data.draw(st.booleans()):
            supply.finish(data.draw(st.integers(0, len(supply.tasks) - 1)), data.draw(st.integers(1, share)))
    while supply.tasks:
        supply.finish(0, share)
    assert [future.result(timeout=0).number for _, future in waiting] == [number for number, _ in waiting]
    assert supply.report.waiting_bytes <= most * size * 100
    if len(visits) == 1:
        assert sorted(supply.fetched) == sorted(number for number, _ in waiting)  # each once
        assert found.forget() == 0


def test_clips_that_are_forgotten_get_no_memory_and_keys_are_not_used_again() -> None:
    class Slots:
        numbers = ()

        def take_spare(self, size: int) -> Any:
            raise AssertionError("no room may be granted")

    supply = Supply()
    places = rooms.Rooms(Slots())  # type: ignore[arg-type]
    found = shared.SharedClips(
        supply,
        places,
        None,
        lambda clips: [],
        batch_size=2,
        most_bytes=1 << 30,  # type: ignore[arg-type]
    )
    found.begin(1)
    futures = found.submit(1, 0, 10, [shared.Later(0, 1, 11), shared.Later(4, 0, 12)], on_gpu=False)
    assert sorted(futures) == [0, 1]
    assert found.fits(5, [12, 13])
    assert not found.fits(5, [13, 12])
    assert not found.fits(5, [])
    assert found.forget() == 5
    ((numbers, answer, task),) = supply.tasks
    assert numbers == [10, 11, 12]
    places.begin(5, 2)  # another iteration would not use this key, but if it did, the old task must not write there
    assert answer(faults.OfMember(2, rooms.RoomRequest((1,), "uint8"))) is None
    assert not task.cancelled()  # two clips are still needed
