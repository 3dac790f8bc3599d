"""From a listing's columns to splits and subsets: filters and splits of a policy, and the clips of one split."""

from __future__ import annotations

import csv
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from framedex import ClipDataset
from framedex.errors import FramedexError
from tests.datasets import run

NAMES = ("h264_default.mp4", "h264_vfr.mp4", "hevc_open_gop.mp4", "h264_vfr.mkv")


@pytest.fixture
def listed(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """An index over a listing with labels, folds and ranges."""
    with open(tmp_path / "list.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["uri", "label", "fold", "start", "end"])
        for number, name in enumerate(NAMES):
            shutil.copy(medium(name), tmp_path / name)  # under the root, so that ids are the same in every run
            rows.writerow([name, "cat" if number % 2 else "dog", number, 0.2, 0.8])
            rows.writerow([name, "bird", number, 1.0, 1.6])
    run("index", tmp_path / "list.csv", "--out", tmp_path / "INDEX")
    return tmp_path / "INDEX"


def shard(index: Path, policy: dict[str, Any], code: int = 0) -> Path:
    path, out = index.parent / "policy.yaml", index.parent / "D"
    of_ranges = {} if policy["policy"] == "per_row" else {"range": None}  # which the listing has
    path.write_text(yaml.safe_dump(policy | of_ranges))
    run("shard", index, "--policy", path, "--out", out, "--overwrite", code=code)
    return out


def columns(dataset: Path) -> dict[str, list[Any]]:
    return pq.read_table(dataset / "clips").to_pydict()


def test_each_row_of_a_listing_gives_the_clips_of_its_own_range(listed: Path) -> None:
    dataset = ClipDataset(shard(listed, {"policy": "per_row", "uniform": 4}))
    assert len(dataset) == 2 * len(NAMES)
    for number in range(len(dataset)):
        clip = dataset.clip(number)
        first = clip.medium.start_pts * clip.medium.time_base_num / clip.medium.time_base_den
        assert (clip.seconds - first >= clip.columns["start"] - 1e-6).all()
        assert (clip.seconds - first <= clip.columns["end"] + 1e-6).all()


def test_a_filter_sees_the_index_and_the_listing(listed: Path) -> None:
    found = columns(shard(listed, {"policy": "uniform", "frames": 3, "filter": 'label == "cat" and codec == "h264"'}))
    assert found["label"] == ["cat", "cat"]
    found = columns(shard(listed, {"policy": "uniform", "frames": 3, "filter": "duration_seconds > 1000"}))
    assert found["clip_id"] == []


def test_an_unknown_column_in_a_filter_stops_the_run_and_names_a_close_one(listed: Path) -> None:
    (listed.parent / "p.yaml").write_text('policy: uniform\nrange:\nframes: 3\nfilter: lable == "cat"\n')
    output = run("shard", listed, "--policy", listed.parent / "p.yaml", "--out", listed.parent / "D", code=1).output
    assert "lable" in output
    assert "label" in output
    assert not (listed.parent / "D").exists()


def test_a_split_by_column_becomes_a_column_of_clips_and_a_subset(listed: Path) -> None:
    split = {"column": "fold", "names": {0: "train", 1: "train", 2: "val", 3: "test"}}
    out = shard(listed, {"policy": "uniform", "frames": 3, "split": split})
    train = ClipDataset(out, where={"split": "train"})
    assert len(train) == 4
    assert {train.clip(number).columns["fold"] for number in range(4)} == {0, 1}
    assert train.clip(-1).clip_id == train.clip(3).clip_id
    assert len(ClipDataset(out, where={"split": "val", "label": "bird"})) == 1
    assert len(ClipDataset(out, where={"split": "nowhere"})) == 0
    again = pickle.loads(pickle.dumps(train))
    assert [again.clip(n).clip_id for n in range(4)] == [train.clip(n).clip_id for n in range(4)]
    with pytest.raises(IndexError):
        train[4]


def test_a_split_by_hash_keeps_all_clips_of_a_medium_together(listed: Path) -> None:
    split = {"shares": {"train": 1, "val": 1}, "seed": 3}
    found = columns(shard(listed, {"policy": "windows", "frames": 8, "split": split}))
    of_medium: dict[int, set[str]] = {}
    for row, name in zip(found["media_row"], found["split"], strict=True):
        of_medium.setdefault(row, set()).add(name)
    assert all(len(names) == 1 for names in of_medium.values())
    assert set(found["split"]) == {"train", "val"}


def test_asking_for_what_clips_do_not_have_is_an_error(listed: Path) -> None:
    out = shard(listed, {"policy": "uniform", "frames": 3})
    with pytest.raises(FramedexError, match="no such column"):
        ClipDataset(out, where={"splitt": "train"})
    with pytest.raises(FramedexError, match="never has such a value"):
        ClipDataset(out, where={"fold": "many"})


def test_padding_by_repeating_frames_is_masked(listed: Path) -> None:
    policy = {"policy": "windows", "frames": 40, "pad": "edge", "filter": 'label == "bird"'}
    dataset = ClipDataset(shard(listed, policy))
    item = dataset[1]
    assert item["mask"].tolist() == [True] * 10 + [False] * 30
    assert item["frame_index"].tolist() == list(range(40, 50)) + [49] * 30
    assert (item["frames"][10:] == item["frames"][9]).all()
    assert not np.isnan(item["seconds"]).any()


def test_what_a_policy_leaves_out_has_a_row_that_does_not_count(listed: Path) -> None:
    out = shard(listed, {"policy": "windows", "frames": 1000, "last": "drop"})
    failures = pq.read_table(out / "failures.parquet").to_pydict()
    assert set(failures["kind"]) == {"short"}
    assert not any(failures["counts"])
    assert len(failures["uri"]) == 2 * len(NAMES)


def test_a_video_that_is_too_short_stops_the_run_if_asked_to(listed: Path) -> None:
    (listed.parent / "p.yaml").write_text("policy: windows\nrange:\nframes: 1000\nshort: error\n")
    output = run("shard", listed, "--policy", listed.parent / "p.yaml", "--out", listed.parent / "D", code=1).output
    assert NAMES[0] in output
    assert not (listed.parent / "D").exists()
