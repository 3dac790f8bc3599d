"""ConcatClips: several datasets as one, for ClipLoader and for torch, with torch's ConcatDataset and without torch."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset

import framedex
from framedex import BucketSampler, ClipDataset, ClipLoader, ClipSampler, ConcatClips, Framing, MixtureSampler
from framedex.errors import FramedexError, StaleError
from tests.support.datasets import empty_dataset, run, shard_clips
from tests.support.media import read_barcode

FIRST, SECOND = 12, 5  # clips
TWO = ("h264_default.mp4", "hevc_closed.mp4")
ONE_FRAME = {"policy": "stride", "stride": 100, "frames": 1}
SIZE = (144, 176)


@pytest.fixture
def folder(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """Two datasets A and B, each of a video of its own, with different columns."""
    for name, uri in (("a", "h264_default.mp4"), ("b", "hevc_closed.mp4")):
        (tmp_path / name).mkdir()
        shutil.copy(medium(uri), tmp_path / name / f"{name}.mp4")
        run("index", tmp_path / name, "--out", tmp_path / f"INDEX-{name}")
    first = [{"uri": "a.mp4", "frames": [number, number + 3], "label": number, "kind": 1} for number in range(FIRST)]
    second = [{"uri": "b.mp4", "frames": [number, 9], "caption": f"b{number}", "kind": "b"} for number in range(SECOND)]
    shard_clips(tmp_path / "INDEX-a", tmp_path / "A", first)
    shard_clips(tmp_path / "INDEX-b", tmp_path / "B", second)
    return tmp_path


@pytest.fixture
def parts(folder: Path) -> list[ClipDataset]:
    return [ClipDataset(folder / "A"), ClipDataset(folder / "B")]


def test_items_are_those_of_the_datasets_with_their_number_and_all_columns(parts: list[ClipDataset]) -> None:
    joined = ConcatClips(parts)
    assert (len(joined), joined.cumulative_sizes, joined.columns) == (17, [12, 17], ["label", "kind", "caption"])
    expected = [(0, clip) for clip in parts[0]] + [(1, clip) for clip in parts[1]]  # type: ignore[attr-defined]
    compared = []
    for number, (part, item) in enumerate(expected):
        found = joined[number]
        assert (found["dataset_number"], found.keys()) == (part, joined[0].keys())
        assert np.array_equal(found["frames"], item["frames"])
        assert [read_barcode(frame) for frame in found["frames"]] == item["frame_index"].tolist()
        compared.append((found["label"], found["caption"], found["kind"], found["clip_id"] == item["clip_id"]))
    assert compared == [(number, None, 1, True) for number in range(12)] + [
        (None, f"b{number}", "b", True) for number in range(5)
    ]
    assert joined[-1]["caption"] == "b4"
    for number in (17, -18):
        with pytest.raises(IndexError):
            joined[number]
    assert np.array_equal(pickle.loads(pickle.dumps(joined))[13]["frames"], parts[1][1]["frames"])


def test_common_columns_can_be_collated_by_torch(parts: list[ClipDataset]) -> None:
    joined = ConcatClips(parts, columns="common")
    assert joined.columns == ["kind"]
    sampler = MixtureSampler(joined, rates=[1, 1], shuffle=True)
    batches = list(DataLoader(ConcatClips([parts[0], parts[0]], columns="common"), batch_size=6, num_workers=2))
    assert [batch["dataset_number"].tolist() for batch in batches] == [[0] * 6, [0] * 6, [1] * 6, [1] * 6]
    assert sorted(Counter(joined[number]["dataset_number"] for number in sampler).items()) == [(0, 5), (1, 5)]
    assert "label" not in joined[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by", ["torch", "nested", "framedex"])
def test_clip_loader_takes_joined_datasets(parts: list[ClipDataset], workers: int, by: str) -> None:
    dataset = {
        "torch": lambda: ConcatDataset(parts),
        "nested": lambda: ConcatDataset([ConcatDataset([parts[0]]), ConcatClips([parts[1]])]),
        "framedex": lambda: ConcatClips(parts),
    }[by]()
    sampler = MixtureSampler(dataset, rates=[3, 2], shuffle=True)
    loader = ClipLoader(dataset, batch_size=5, sampler=sampler, num_workers=workers, output="numpy")
    joined, seen = ConcatClips(parts), []
    for batch in loader:
        assert isinstance(batch["label"], list), "a column that B lacks is a list in each batch"
        assert isinstance(batch["kind"], list), "numbers in A, texts in B"
        for place, (part, name) in enumerate(zip(batch["dataset_number"].tolist(), batch["clip_id"], strict=True)):
            number = parts[part].manifest.find(name) + (FIRST if part else 0)
            item = joined[number]
            assert np.array_equal(batch["frames"][place], item["frames"])
            assert (batch["label"][place], batch["caption"][place]) == (item["label"], item["caption"])
            seen.append(number)
    loader.close()
    assert seen == list(MixtureSampler(dataset, rates=[3, 2], shuffle=True))
    assert Counter(number >= FIRST for number in seen) == {False: 8, True: 5}


def test_joined_datasets_need_no_torch(folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(f"""
import sys
sys.modules["torch"] = None
from framedex import ClipDataset, ClipLoader, ConcatClips, MixtureSampler
if __name__ == "__main__":
    joined = ConcatClips([ClipDataset(r"{folder / "A"}"), ClipDataset(r"{folder / "B"}")])
    sampler = MixtureSampler(joined, until="all_exhausted", shuffle=True)
    loader = ClipLoader(joined, batch_size=17, sampler=sampler, num_workers=1, output="numpy")
    (batch,) = loader
    assert sorted(batch["dataset_number"].tolist()) == [0] * 12 + [1] * 5
""")
    subprocess.run([sys.executable, script], check=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_replaces_a_clip_is_of_the_same_dataset(folder: Path, parts: list[ClipDataset], workers: int) -> None:
    bad = {"uri": "b.mp4", "frames": [1, 2], "clip_id": "bad"}
    shutil.copy(folder / "b" / "b.mp4", folder / "b" / "gone.mp4")
    run("index", folder / "b", "--out", folder / "INDEX-b")
    clips = [bad | {"uri": "gone.mp4", "clip_id": f"gone-{number}"} for number in range(4)]
    shard_clips(folder / "INDEX-b", folder / "C", [*clips, bad])
    joined = ConcatClips([parts[0], ClipDataset(folder / "C")])
    (folder / "b" / "gone.mp4").unlink()
    loader = ClipLoader(joined, batch_size=17, on_error="replace", num_workers=workers, output="numpy")
    (batch,) = loader
    assert batch["dataset_number"].tolist() == [0] * 12 + [1] * 5
    assert set(batch["clip_id"][12:]) == {"bad"}
    assert {fault.number for fault in loader.report.faults} == {12, 13, 14, 15}
    loader.close()
    with pytest.raises(StaleError, match="clip 12"):
        list(ClipLoader(joined, batch_size=17))


def test_set_epoch_reaches_all_datasets_and_their_workers(folder: Path) -> None:
    policy = {"policy": "random", "frames": 2, "clips": 3, "fps": 5}
    planned = [ClipDataset.from_index(folder / f"INDEX-{name}", policy) for name in ("a", "b")]
    joined = ConcatClips(planned)
    loader = ClipLoader(joined, batch_size=6, num_workers=1, sampler=ClipSampler(joined), output="numpy")
    epochs = []
    for epoch in range(2):
        (batch,) = loader
        assert [dataset.epoch for dataset in planned] == [epoch, epoch]
        epochs.append(batch["frame_index"].tolist())
        expected = [joined.clip(number, epoch=epoch).frames.tolist() for number in range(6)]
        assert epochs[-1] == expected
    loader.close()
    assert epochs[0][:3] != epochs[1][:3]
    assert epochs[0][3:] != epochs[1][3:]


def test_values_of_clips_are_those_of_all_datasets(folder: Path, parts: list[ClipDataset]) -> None:
    joined = ConcatClips(parts)
    assert joined.column("label", as_arrow=True).to_pylist() == [*range(12), *[None] * 5]
    assert joined.column("uri").tolist() == ["a.mp4"] * 12 + ["b.mp4"] * 5
    assert joined.column("dataset_number").tolist() == [0] * 12 + [1] * 5
    assert joined.places("medium").tolist() == [0] * 12 + [1] * 5
    assert joined.shapes().tolist() == [[2, *SIZE]] * 17
    assert list(joined.failures()) == []
    assert repr(joined) == "<ConcatClips: 17 clips of 2 datasets (12 clips, 5 clips)>"
    with pytest.raises(FramedexError, match="type of column 'kind'"):
        joined.column("kind")
    with pytest.raises(FramedexError, match="no such column"):
        joined.column("labels")
    balanced = list(ClipSampler(joined, balance="dataset_number", length=2000))
    assert abs(np.mean(np.array(balanced) < 12) - 0.5) < 0.05


def test_sizes_that_differ_are_an_error_of_a_batch_unless_the_loader_scales(
    folder: Path, parts: list[ClipDataset]
) -> None:
    joined = ConcatClips([parts[0], ClipDataset(folder / "B", size=(32, 48))])
    with pytest.raises(FramedexError, match="differ in the shape of 'frames'"):
        next(iter(ClipLoader(joined, batch_size=17)))
    (batch,) = ClipLoader(joined, batch_size=17, size=(24, 24), output="numpy")
    assert batch["frames"].shape == (17, 2, 24, 24, 3)
    assert joined.shapes()[[0, -1]].tolist() == [[2, *SIZE], [2, 32, 48]]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_dataset_keeps_its_framing_in_batches_of_one_size(folder: Path, workers: int) -> None:
    own = [
        ClipDataset(folder / "A", framing=Framing(short_side=40, crop=(32, 24), position="random", flip=0.5)),
        ClipDataset(folder / "B", framing=Framing(size=(24, 48), resize="fit")),
    ]
    joined = ConcatClips(own)
    order = BucketSampler(joined, by="shape", max_batch=4)
    seen = []
    loader = ClipLoader(joined, batch_sampler=order, num_workers=workers, output="numpy")
    for batch in loader:
        (dataset,) = set(batch["dataset_number"].tolist())
        assert batch["frames"].shape[2:] == [(32, 24, 3), (24, 48, 3)][dataset]
        seen += zip(batch["dataset_number"].tolist(), batch["clip_id"], batch["frames"], strict=True)
    loader.close()
    items = [joined[number] for number in range(len(joined))]
    expected = {(item["dataset_number"], item["clip_id"]): item["frames"] for item in items}
    assert len(seen) == len(joined) == len(expected)
    assert all(np.array_equal(frames, expected[number, name]) for number, name, frames in seen)


def test_numbers_of_crops_that_differ_need_lists(folder: Path, parts: list[ClipDataset]) -> None:
    joined = ConcatClips([ClipDataset(folder / "A", framing=Framing(crop=(32, 32), position="three")), parts[1]])
    for collate in ("error", "pad"):
        with pytest.raises(FramedexError, match=r"(?s)different numbers of crops.*collate='list'"):
            ClipLoader(joined, batch_size=17, collate=collate)  # type: ignore[arg-type]
    (batch,) = ClipLoader(joined, batch_size=17, collate="list", output="numpy")
    assert {frames.ndim for frames in batch["frames"]} == {4, 5}


class Staged(ClipDataset):
    """A user's class whose items have a value that the epoch sets."""

    stage = 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.stage = epoch

    def extra_values(self, clip: Any) -> dict[str, Any]:
        return super().extra_values(clip) | {"stage": self.stage}


def test_a_loader_reads_the_users_dataset_itself(folder: Path) -> None:
    dataset = Staged(folder / "A")
    loader = ClipLoader(dataset, batch_size=12, size=(16, 16), sampler=ClipSampler(dataset), output="numpy")
    assert [batch["stage"].tolist()[0] for _ in range(3) for batch in loader] == [0, 1, 2]


def test_joined_datasets_share_all_other_options_of_frames(folder: Path, parts: list[ClipDataset]) -> None:
    with pytest.raises(FramedexError, match=r"(?s)differ in rotation.*same rotation"):
        ClipLoader(ConcatClips([parts[0], ClipDataset(folder / "B", rotation="stored")]))


def test_numbers_of_labels_are_arrays_in_each_batch(folder: Path) -> None:
    shard_clips(
        folder / "INDEX-b", folder / "E", [{"uri": "b.mp4", "frames": [1, 2], "label": number} for number in (3, 1)]
    )
    classes = {number: 11 - number for number in range(12)}
    joined = ConcatClips([ClipDataset(folder / name, labels={"label": classes}) for name in ("A", "E")])
    assert joined.columns == ["label", "kind", "label_name"]
    (batch,) = ClipLoader(joined, batch_size=14, output="numpy")
    assert batch["label"].tolist() == [*range(11, -1, -1), 8, 10]
    assert batch["label_name"].tolist() == [*range(12), 3, 1]
    assert batch["kind"] == [*[1] * 12, None, None]
    assert joined.column("label").tolist() == batch["label"].tolist()


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (lambda a, b: ConcatClips([]), "no dataset to join"),
        (lambda a, b: ConcatClips([a, [1, 2]]), "only ClipDatasets can be joined"),
        (lambda a, b: ConcatClips([a, Subset(b, [0])]), "only ClipDatasets can be joined"),
        (lambda a, b: ConcatClips([a, b], columns="some"), "unknown columns"),
        (lambda a, b: ConcatClips([a, ClipDataset(b.manifest.path, decode="movie")]), "differ in decode"),
        (lambda a, b: ConcatClips([a, ClipDataset(b.manifest.path, frame_columns=["x"])]), "differ in frame_columns"),
        (lambda a, b: ClipLoader(Subset(a, [0])), "(?s)cannot load.*sampler="),
    ],
)
def test_what_does_not_fit_together_is_an_error(parts: list[ClipDataset], join: Any, message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        join(*parts)


def test_a_column_of_the_name_that_is_added_is_an_error(folder: Path) -> None:
    shard_clips(folder / "INDEX-a", folder / "D", [{"uri": "a.mp4", "frames": [1], "dataset_number": 3}])
    with pytest.raises(FramedexError, match="column dataset_number"):
        ConcatClips([ClipDataset(folder / "D")])


def test_labels_that_mean_other_classes_are_not_joined(medium: Callable[[str], Path], tmp_path: Path) -> None:
    datasets = []
    for folder, labels in (("A", ["jump", "walk"]), ("B", ["run", "walk"])):
        rows = [f"{medium(name)},{label}" for name, label in zip(TWO, labels, strict=True)]
        (tmp_path / f"{folder}.csv").write_text("\n".join(["uri,label", *rows]) + "\n")
        framedex.index(tmp_path / f"{folder}.csv", tmp_path / folder, workers=0, progress=False)
        datasets.append(tmp_path / folder)
    own = [ClipDataset.from_index(path, ONE_FRAME, labels="label") for path in datasets]
    with pytest.raises(
        FramedexError, match=r"assign different numbers to the labels of column 'label'\n.*jump, walk of dataset 0"
    ):
        ConcatClips(own)
    numbers = {"jump": 0, "run": 1, "walk": 2}
    joined = ConcatClips([ClipDataset.from_index(path, ONE_FRAME, labels=numbers) for path in datasets])
    assert joined.classes == ["jump", "run", "walk"]
    assert joined.column("label").tolist() == [0, 2, 1, 2]


def test_an_empty_dataset_changes_no_columns_of_the_others(medium: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"uri,n\n{medium(TWO[0])},3\n")
    framedex.index(tmp_path / "list.csv", tmp_path / "I", workers=0, progress=False)
    filled = ClipDataset.from_index(tmp_path / "I", ONE_FRAME)
    empty = ClipDataset(empty_dataset(framedex.Index(tmp_path / "I"), tmp_path / "E"))
    assert len(empty) == 0
    joined = ConcatClips([filled, empty], columns="common")
    assert joined.columns == ["n"]
    assert not ConcatClips([filled, empty]).uneven_columns
