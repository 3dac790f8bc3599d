"""ClipLoader with a sampler of batches: real clips in batches of like shape, resumed exactly, and its errors."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader

from framedex import BucketSampler, ClipDataset, ClipLoader, ClipSampler, visual_tokens
from framedex.errors import DecodeError, FramedexError
from tests.support.datasets import run, shard_clips
from tests.support.media import picture, read_barcode

CLIPS = 24


@pytest.fixture
def mixed(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """Clips of a video and of images of another size, with two or three frames each."""
    folder = tmp_path / "media"
    (folder / "shots").mkdir(parents=True)
    shutil.copy(medium("h264_default.mp4"), folder / "video.mp4")
    for number in range(16):
        Image.fromarray(picture(number, 192, 96)).save(folder / "shots" / f"{number:02}.png")
    run("index", folder, "--out", tmp_path / "INDEX", "--image-fps", 5)
    clips = [
        {"uri": uri, "clip_id": f"{uri}-{number}", "frames": list(range(number, number + 2 + number % 2))}
        for number in range(CLIPS // 2)
        for uri in ("video.mp4", "shots")
    ]
    return shard_clips(tmp_path / "INDEX", tmp_path / "D", clips)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_like_shape_stack_without_padding_and_are_the_items_of_the_dataset(
    mixed: Path, workers: int
) -> None:
    dataset = ClipDataset(mixed)
    sampler = BucketSampler(dataset, by="shape", max_batch=4, shuffle=True, seed=3)
    assert sorted(bucket.clips for bucket in sampler.buckets) == [6, 6, 6, 6]
    loader = ClipLoader(dataset, batch_sampler=sampler, num_workers=workers, output="numpy")
    assert len(loader) == 8
    for epoch in range(2):
        order = BucketSampler(dataset, by="shape", max_batch=4, shuffle=True, seed=3)
        order.set_epoch(epoch)
        seen = []
        for batch, numbers in zip(loader, order, strict=True):
            items = [dataset[number] for number in numbers]
            assert batch["clip_id"] == [item["clip_id"] for item in items]
            assert np.array_equal(batch["frames"], np.stack([item["frames"] for item in items]))
            assert [read_barcode(frame) for frame in batch["frames"][0]] == items[0]["frame_index"].tolist()
            seen += numbers
        assert sorted(seen) == list(range(CLIPS))
    assert loader.report.decoded == {"cpu": 2 * CLIPS}
    loader.close()


def test_the_same_batches_come_from_torchs_dataloader(mixed: Path) -> None:
    dataset = ClipDataset(mixed)
    how: dict[str, Any] = {"by": ("aspect", "frames"), "max_batch": 4, "shuffle": True}
    loader = DataLoader(dataset, batch_sampler=BucketSampler(dataset, **how), num_workers=2)
    ours = ClipLoader(dataset, batch_sampler=BucketSampler(dataset, **how))
    assert len(loader) == len(ours) == 8
    shapes = []
    for batch, own in zip(loader, ours, strict=True):
        assert batch["frames"].equal(own["frames"])
        shapes.append(tuple(batch["frames"].shape[1:4]))
    assert set(shapes) == {(frames, *size) for frames in (2, 3) for size in ((144, 176), (96, 192))}


def test_batches_bound_by_tokens_hold_no_more_of_them(mixed: Path) -> None:
    dataset = ClipDataset(mixed, size=(56, 56))
    tokens = visual_tokens(dataset.shapes(), patch=14, merge=2, temporal_patch=2)
    assert sorted(set(tokens.tolist())) == [4, 8]
    sampler = BucketSampler(dataset, by="tokens", tokens=tokens, max_tokens=24, shuffle=True)
    loader = ClipLoader(dataset, batch_sampler=sampler, collate="pad", output="numpy")
    sizes = [batch["frames"].shape[:2] for batch in loader]
    assert sorted(sizes) == [(3, 3)] * 4 + [(6, 2)] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_with_the_very_next_batch_with_other_ranks(mixed: Path, workers: int) -> None:
    dataset = ClipDataset(mixed, size=(16, 16))

    def loader(**how: Any) -> ClipLoader:
        sampler = BucketSampler(dataset, max_batch=2, by="frames", shuffle=True, **how)
        return ClipLoader(dataset, batch_sampler=sampler, num_workers=workers, output="numpy")

    def names(batches: Iterator[dict[str, Any]], count: int | None = None) -> list[list[str]]:
        return [batch["clip_id"] for batch in itertools.islice(batches, count)]

    whole = loader()
    order = names(iter(whole))
    next_epoch = names(iter(whole))
    first = loader()
    seen = names(iter(first), 3)
    assert first.state_dict()["delivered"] == 3
    assert names(iter(first), 1) == order[3:4], "an iteration that is interrupted goes on"
    state = json.loads(json.dumps(first.state_dict()))
    two = [loader(rank=rank, world_size=2) for rank in range(2)]
    for rank in two:
        rank.load_state_dict(state)
    parts = [names(iter(rank), 2) for rank in two]
    assert [batch for turn in zip(*parts, strict=True) for batch in turn] == order[4:8]
    last = loader()
    last.load_state_dict(two[1].state_dict())
    assert seen + order[3:8] + names(iter(last)) == order
    assert names(iter(last)) == next_epoch != order
    for opened in (whole, first, *two, last):
        opened.close()


def test_what_replaces_a_clip_has_its_shape(mixed: Path) -> None:
    dataset = ClipDataset(mixed)
    (mixed.parent / "media" / "shots" / "00.png").unlink()  # of the first clip of images alone
    sampler = BucketSampler(dataset, by="shape", max_batch=4)
    loader = ClipLoader(dataset, batch_sampler=sampler, on_error="replace", output="numpy")
    batches = list(loader)
    assert loader.report.replaced == 1
    assert sorted(len(batch["frames"]) for batch in batches) == [2, 2, 2, 2, 4, 4, 4, 4]
    skipping = ClipLoader(dataset, batch_sampler=[[1], [4, 0]], on_error="skip", output="numpy")
    with pytest.raises(FramedexError, match="differ in the shape"):
        list(ClipLoader(dataset, batch_sampler=[[0, 3]], output="numpy"))
    assert [len(batch["frames"]) for batch in skipping] == [1, 2], "a batch of bad clips alone holds another clip"


def test_lists_and_torchs_batch_sampler_are_samplers_of_batches(mixed: Path) -> None:
    dataset = ClipDataset(mixed, size=(16, 16))
    loader = ClipLoader(dataset, batch_sampler=[[0, 5, 2], [7]], num_workers=1, collate="pad")
    assert (len(loader), [len(batch["frames"]) for batch in loader]) == (2, [3, 1])
    loader.close()
    torchs = BatchSampler(ClipSampler(dataset, shuffle=True), 5, drop_last=True)
    assert [len(batch["frames"]) for batch in ClipLoader(dataset, batch_sampler=torchs, collate="pad")] == [5] * 4
    generated = ClipLoader(dataset, batch_sampler=([number, number] for number in range(3)), output="numpy")
    with pytest.raises(TypeError, match="no len"):
        len(generated)
    assert [len(batch["frames"]) for batch in generated] == [2] * 3
    with pytest.raises(FramedexError, match="resuming needs"):
        generated.state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 4}, "batch_sampler and batch_size"),
        ({"sampler": [1]}, "batch_sampler and sampler"),
        ({"last": "drop", "batch_size": 2}, "batch_sampler and batch_size, last"),
        ({"batch_sampler": ClipSampler(range(CLIPS))}, "(?s)yields clips, not batches.*pass it as sampler="),
    ],
)
def test_arguments_beside_a_sampler_of_batches_are_an_error(mixed: Path, arguments: Any, message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        ClipLoader(ClipDataset(mixed), **{"batch_sampler": [[1]]} | arguments)


def test_a_sampler_of_batches_in_place_of_one_of_clips_is_an_error(mixed: Path) -> None:
    dataset = ClipDataset(mixed)
    with pytest.raises(FramedexError, match=r"(?s)yields batches, not clips.*pass it as batch_sampler="):
        ClipLoader(dataset, sampler=BucketSampler(dataset, max_batch=4))  # type: ignore[arg-type]


def test_epochs_of_a_sampler_inside_torchs_batch_sampler_reach_the_dataset(mixed: Path) -> None:
    policy = {"policy": "random", "frames": 2, "clips": 2, "fps": 5}
    dataset = ClipDataset.from_index(mixed.parent / "INDEX", policy, size=(16, 16))
    loader = ClipLoader(dataset, batch_sampler=BatchSampler(ClipSampler(dataset), 8, drop_last=False), output="numpy")
    epochs = []
    for epoch in range(2):
        (batch,) = loader
        assert dataset.epoch == epoch
        epochs.append(batch["frame_index"].tolist())
    assert epochs[0] != epochs[1]


class Lying(list[list[int]]):
    """Batches that are larger than they say."""

    batch_size = 1


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([[0, CLIPS]], IndexError, f"clip {CLIPS}, but the dataset has {CLIPS} clips"),
        ([[]], FramedexError, "lists of clip numbers"),
        ([3], FramedexError, "lists of clip numbers"),
        (["01"], FramedexError, "(?s)lists of clip numbers.*'01'"),
        ([["01"]], FramedexError, "(?s)must yield clip numbers.*'01'.*whole numbers, 0 to"),
        ([[1.5]], FramedexError, "(?s)must yield clip numbers.*1.5"),
        (Lying([[1, 2]]), FramedexError, "more clips than the sampler's maximum"),
    ],
)
def test_batches_that_are_none_are_an_error(mixed: Path, batches: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        list(ClipLoader(ClipDataset(mixed, size=(16, 16)), batch_sampler=batches, output="numpy"))


def test_a_transform_needs_to_know_the_largest_batch(mixed: Path) -> None:
    batches = ([number] for number in range(3))
    with pytest.raises(FramedexError, match="needs to know the size of the largest batch"):
        ClipLoader(ClipDataset(mixed), batch_sampler=batches, transform=lambda frames: frames)


def test_a_bucket_of_bad_clips_alone_is_an_error(mixed: Path) -> None:
    dataset = ClipDataset(mixed)
    shutil.rmtree(mixed.parent / "media" / "shots")
    sampler = BucketSampler(dataset, by="aspect", max_batch=4)
    with pytest.raises(DecodeError, match="none of 8 drawn as replacements"):
        list(ClipLoader(dataset, batch_sampler=sampler, on_error="replace", collate="pad"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_consumer_that_stops_at_the_last_batch_gets_the_next_epoch_then(mixed: Path, workers: int) -> None:
    dataset = ClipDataset(mixed)
    for loader in (
        ClipLoader(
            dataset, batch_sampler=BucketSampler(dataset, max_batch=5, shuffle=True), num_workers=workers, size=(8, 8)
        ),
        ClipLoader(
            dataset,
            batch_size=7,
            last="drop",
            sampler=ClipSampler(dataset, shuffle=True),
            num_workers=workers,
            size=(8, 8),
            collate="list",
        ),
    ):
        epochs = [
            [batch["clip_id"] for batch in itertools.islice(loader, length)]
            for length in (len(loader), len(loader), len(loader) - 1, 9)
        ]
        assert [len(batches) for batches in epochs] == [len(loader), len(loader), len(loader) - 1, 1]
        assert epochs[0] != epochs[1]
        assert loader.state_dict()["epoch"] == 3
        loader.close()
