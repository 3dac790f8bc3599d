"""ClipDataset, ClipSampler and ClipLoader, as a training script uses them."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from framedex import ClipDataset, ClipLoader, ClipSampler, Index
from framedex.errors import DecodeError, FormatError, FramedexError, StaleError
from framedex.loader.batches.frames import collate_clips
from tests.support.counted import some
from tests.support.datasets import run, shard_clips, write_clips
from tests.support.media import read_barcode
from tests.support.reading import encoded_clip, pictures_of


@pytest.fixture(scope="module")
def dataset_path(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ["h264_default.mp4", "hevc_closed.mp4", "h264_vfr.mkv"]
    clips = [
        {"uri": names[number % 3], "frames": [number % 40, number % 40 + 3, 0], "label": number, "split": "train"}
        for number in range(30)
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("dataset") / "D", clips)


def test_an_item_is_as_documented(dataset_path: Path) -> None:
    item = ClipDataset(dataset_path)[4]
    assert item["frames"].shape == (3, 144, 176, 3)
    assert [item[name].dtype.name for name in ("frames", "pts", "seconds", "frame_index", "mask")] == [
        "uint8", "int64", "float64", "int64", "bool",
    ]  # fmt: skip
    assert [read_barcode(frame) for frame in item["frames"]] == item["frame_index"].tolist() == [4, 7, 0]
    assert (item["label"], item["split"], item["uri"]) == (4, "train", "hevc_closed.mp4")
    assert item["seconds"].round(3).tolist() == [0.16, 0.28, 0.0]


def test_numbers_count_from_both_ends_and_stop_there(dataset_path: Path) -> None:
    dataset = ClipDataset(dataset_path)
    assert dataset[-1]["label"] == 29
    for number in (30, -31):
        with pytest.raises(IndexError):
            dataset[number]


def test_a_pickled_copy_reads_the_same(dataset_path: Path) -> None:
    dataset = ClipDataset(dataset_path, size=(32, 48))
    before = dataset[3]["frames"]
    copy = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(copy[3]["frames"], before)
    assert before.shape == (3, 32, 48, 3)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_plain_dataloader_with_workers_delivers_every_clip(dataset_path: Path, context: str) -> None:
    loader = torch.utils.data.DataLoader(
        ClipDataset(dataset_path), batch_size=4, num_workers=2, multiprocessing_context=context, shuffle=True
    )
    batches = list(loader)
    labels = [label for batch in batches for label in batch["label"].tolist()]
    assert sorted(labels) == list(range(30))
    for batch in batches:
        for frames, index in zip(batch["frames"], batch["frame_index"], strict=True):
            assert [read_barcode(frame.numpy()) for frame in frames] == index.tolist()


def test_a_moved_dataset_is_found_by_root(index: Index, dataset_path: Path, tmp_path: Path) -> None:
    shutil.copytree(index.root, tmp_path / "moved")
    for root in (str(tmp_path / "moved"), tmp_path / "moved", {index.root: tmp_path / "moved"}):
        dataset = ClipDataset(dataset_path, root=root)
        assert dataset.clip(0).medium.path == str(tmp_path / "moved" / "h264_default.mp4")
        assert dataset[0]["frame_index"].tolist() == [0, 3, 0]


def test_a_source_that_is_gone_or_changed_is_stale(index: Index, dataset_path: Path, tmp_path: Path) -> None:
    shutil.copytree(index.root, tmp_path / "moved")
    (tmp_path / "moved/h264_default.mp4").unlink()
    dataset = ClipDataset(dataset_path, root=str(tmp_path / "moved"))
    with pytest.raises(StaleError, match="No such file"):
        dataset[0]
    content = bytearray((Path(index.root) / "h264_default.mp4").read_bytes())
    content[len(content) // 2] ^= 1  # the length stays the same
    (tmp_path / "moved/h264_default.mp4").write_bytes(content)
    with pytest.raises(StaleError, match="other content"):
        dataset[0]


def test_opening_what_is_not_a_dataset_is_an_error(index: Index, dataset_path: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no dataset\.json"):
        ClipDataset(index.path)
    shutil.copytree(dataset_path, tmp_path / "D")
    header = tmp_path / "D/dataset.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"schema_version": "4.0"}))
    with pytest.raises(FormatError, match="another major version"):
        ClipDataset(tmp_path / "D")


def test_unknown_choices_are_errors(dataset_path: Path) -> None:
    with pytest.raises(FramedexError, match="'cpu', 'movie'"):
        ClipDataset(dataset_path, decode="gpu")  # type: ignore[arg-type]
    for choice in ({"device": "tpu"}, {"layout": "HWC"}, {"collate": "crop"}):
        with pytest.raises(FramedexError, match="unknown"):
            ClipLoader(ClipDataset(dataset_path), **choice)  # type: ignore[arg-type]


def test_epochs_differ_and_seeds_repeat(dataset_path: Path) -> None:
    dataset = ClipDataset(dataset_path)
    one, other = ClipSampler(dataset, shuffle=True, seed=5), ClipSampler(dataset, shuffle=True, seed=5)
    first, second = list(one), list(one)
    assert first != second
    assert list(other) == first
    other.set_epoch(1)
    assert list(other) == second
    assert isinstance(one, torch.utils.data.Sampler)
    assert len(one) == 30


def test_a_loader_resumes_after_the_last_batch_delivered(dataset_path: Path) -> None:
    def loader() -> ClipLoader:
        dataset = ClipDataset(dataset_path, size=(16, 16))
        return ClipLoader(dataset, batch_size=4, sampler=ClipSampler(dataset, shuffle=True, seed=2), num_workers=1)

    whole = [label for batch in loader() for label in batch["label"].tolist()]
    interrupted = loader()
    seen = []
    for number, batch in enumerate(interrupted):
        seen += batch["label"].tolist()
        if number == 2:
            state = interrupted.state_dict()
            break
    resumed = loader()
    resumed.load_state_dict(state)
    assert seen + [label for batch in resumed for label in batch["label"].tolist()] == whole
    assert resumed.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_broken_off_goes_on_where_it_stopped(dataset_path: Path, workers: int) -> None:
    dataset = ClipDataset(dataset_path, size=(16, 16))
    loader = ClipLoader(dataset, batch_size=4, sampler=ClipSampler(dataset, shuffle=True), num_workers=workers)
    seen = []
    for batch in loader:
        seen += batch["label"].tolist()
        if len(seen) == 8:
            break
    seen += [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(seen) == list(range(30))
    assert len(list(loader)) == 8, "and the epoch after that is whole"
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    assert [label for batch in loader for label in batch["label"].tolist()] == seen


def test_threads_may_share_a_dataset(dataset_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr("framedex.sharder.reading.OPEN_FILES", 1)
    dataset = ClipDataset(dataset_path)
    with ThreadPoolExecutor(6) as pool:
        for item in some(pool.map(dataset.__getitem__, list(range(30)) * 3)):
            assert [read_barcode(frame) for frame in item["frames"]] == item["frame_index"].tolist()


def test_a_dataset_replaced_while_open_is_an_error(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_vfr.mkv", "frames": [0]}]
    dataset = ClipDataset(shard_clips(index.path, tmp_path / "D", clips))
    others = write_clips(tmp_path / "others.jsonl", [{"uri": "h264_vfr.mkv", "frames": [1]}])
    run("shard", index.path, "--clips", others, "--out", tmp_path / "D", "--overwrite")
    with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
        dataset[0]


@pytest.mark.parametrize("size", [112, (0, 5), (11.5, 5), (1, 2, 3)])
def test_a_size_that_is_none_is_an_error(dataset_path: Path, size: object) -> None:
    with pytest.raises(FramedexError, match="height, width"):
        ClipDataset(dataset_path, size=size)  # type: ignore[arg-type]


def test_a_state_of_another_dataset_is_refused(dataset_path: Path) -> None:
    sampler = ClipSampler(range(7))
    with pytest.raises(FramedexError, match="another count"):
        ClipSampler(range(8)).load_state_dict(sampler.state_dict())
    with pytest.raises(FramedexError, match="another shuffle"):
        ClipSampler(range(7), shuffle=True).load_state_dict(sampler.state_dict())


def test_padding_collate_marks_what_it_added() -> None:
    short = {
        "frames": np.ones((2, 4, 4, 3)),
        "mask": np.ones(2, np.bool_),
        "seconds": np.zeros(2),
        "label": 1,
    }
    long = {
        "frames": np.ones((3, 2, 6, 3)),
        "mask": np.ones(3, np.bool_),
        "seconds": np.zeros(3),
        "label": 2,
    }
    batch = collate_clips([short, long], "pad")
    assert batch["frames"].shape == (2, 3, 4, 6, 3)
    assert batch["frames"].sum() == short["frames"].sum() + long["frames"].sum()
    assert batch["mask"].tolist() == [[True, True, False], [True] * 3]
    assert np.isnan(batch["seconds"][0]).tolist() == [False, False, True]
    assert batch["label"].tolist() == [1, 2]
    with pytest.raises(FramedexError, match="collate='pad'"):
        collate_clips([short, long], "error")
    assert collate_clips([short, long], "list")["frames"][1] is long["frames"]


def test_an_undecodable_clip_is_an_error_that_names_it(index: Index, dataset_path: Path, tmp_path: Path) -> None:
    dataset = ClipDataset(dataset_path)
    clip = dataset.clip(0)
    encoded = encoded_clip(dataset, clip)
    encoded.payload[:] = 0
    with pytest.raises(DecodeError, match=clip.clip_id):
        pictures_of(clip, encoded)


WITHOUT = """
import sys
sys.modules[{module!r}] = None
from framedex import ClipDataset
dataset = ClipDataset({path!r}, size=(8, 8))
assert dataset[0]["frames"].shape == (3, 8, 8, 3)
{then}
"""


def test_without_dali_size_works_and_transform_names_the_extra(dataset_path: Path) -> None:
    then = """
from framedex import ClipLoader
from framedex.errors import MissingExtraError
(batch, *_) = ClipLoader(dataset, batch_size=2, size=(16, 16))
assert batch["frames"].shape == (2, 3, 16, 16, 3)
try:
    ClipLoader(dataset, transform=lambda frames: frames)
except MissingExtraError as error:
    assert "pip install 'framedex[dali]'" in str(error)
else:
    raise SystemExit("no error")
"""
    script = WITHOUT.format(module="nvidia.dali", path=str(dataset_path), then=then)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_verify_finds_every_clip_exact(dataset_path: Path) -> None:
    assert "30 exact (90 frames)" in run("verify", dataset_path).output
