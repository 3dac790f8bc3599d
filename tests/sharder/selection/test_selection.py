"""A policy's filters and splits use the columns of a listing, and a dataset can be opened for one split alone."""

from __future__ import annotations

import csv
import json
import pickle
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from framedex import ClipDataset
from framedex.core.words import few, tally
from framedex.errors import FramedexError, PolicyError
from tests.support.datasets import run

NAMES = ("h264_default.mp4", "h264_vfr.mp4", "hevc_open_gop.mp4", "h264_vfr.mkv")


@pytest.fixture
def listed(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """An index of a listing with labels, folds and ranges."""
    with open(tmp_path / "list.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["uri", "label", "fold", "start", "end"])
        for number, name in enumerate(NAMES):
            shutil.copy(medium(name), tmp_path / name)  # below the root, so that ids are the same in every run
            rows.writerow([name, "cat" if number % 2 else "dog", number, 0.2, 0.8])
            rows.writerow([name, "bird", number, 1.0, 1.6])
    run("index", tmp_path / "list.csv", "--out", tmp_path / "INDEX")
    return tmp_path / "INDEX"


def shard(index: Path, policy: dict[str, Any], code: int = 0) -> Path:
    path, out = index.parent / "policy.yaml", index.parent / "D"
    of_ranges = (
        {} if policy["policy"] == "per_row" or "range" in policy else {"range": None}
    )  # ignore the listing's ranges
    path.write_text(yaml.safe_dump(policy | of_ranges))
    run("shard", index, "--policy", path, "--out", out, "--overwrite", code=code)
    return out


def run_shard(index: Path, policy: dict[str, Any]) -> str:
    """Shard by a policy that is refused; return the printed output."""
    path = index.parent / "refused.yaml"
    path.write_text(yaml.safe_dump(policy | {"range": None}))
    return run("shard", index, "--policy", path, "--out", index.parent / "D", code=1).output


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


def test_media_that_a_filter_leaves_out_are_counted_and_named(listed: Path) -> None:
    policy = listed.parent / "policy.yaml"
    words = ("shard", listed, "--policy", policy, "--out", listed.parent / "D", "--overwrite")
    policy.write_text("policy: uniform\nrange:\nframes: 3\nfilter: fold == 1 and label == 'cat'\n")
    others = [name for name in NAMES if name != NAMES[1]]
    assert f"3 media left out by the filter ({', '.join(others)})" in run(*words).output
    assert json.loads(run(*words, "--json").output)["filtered"] == {"count": 3, "examples": others}
    policy.write_text("policy: uniform\nrange:\nframes: 3\nfilter: label == 'bird'\n")
    assert "left out by the filter" not in run(*words).output, "one row of each video is taken"
    assert json.loads(run(*words, "--json").output)["filtered"] == {"count": 0, "examples": []}


def test_a_filter_that_matches_nothing_is_an_error_that_names_the_values_there_are(listed: Path) -> None:
    policy = {"policy": "uniform", "frames": 3, "filter": 'label == "Cat" and fold < 9 and column("codec") != "x"'}
    said = run_shard(listed, policy)
    assert "the filter leaves out all 4 usable media" in said
    assert 'found:   label == "Cat"' in said
    assert (
        "allowed: label: 'bird' (4), 'dog' (2), 'cat' (2); fold: 0 (2), 1 (2), 2 (2), 3 (2); codec: 'h264' (6)" in said
    )
    assert not (listed.parent / "D").exists()
    said = run_shard(listed, {"policy": "uniform", "frames": 3, "filter": "duration_seconds > 1000"})
    assert re.search(r"allowed: duration_seconds: [\d.]+ \(\d\)", said)
    with pytest.raises(PolicyError, match="leaves out all 4 usable media"):
        ClipDataset.from_index(listed, policy | {"range": None})


def test_where_that_no_clip_meets_is_an_error_that_names_the_values_there_are(listed: Path) -> None:
    policy = {"policy": "uniform", "frames": 3, "range": None}
    path = shard(listed, policy)
    for opened in (
        lambda where: ClipDataset(path, where=where),
        lambda where: ClipDataset.from_index(listed, policy, where=where),
    ):
        with pytest.raises(FramedexError) as error:
            opened({"label": "Cat"})
        assert "no clip has this value" in str(error.value)
        assert "found:   label='Cat'" in str(error.value)
        assert "allowed: label: 'bird' (4), 'dog' (2), 'cat' (2)" in str(error.value)
        with pytest.raises(FramedexError, match=r"no clip has all of these values\n.*'cat', fold=2"):
            opened({"label": "cat", "fold": 2})
        assert len(opened({"label": "cat", "fold": 1})) == 1


def test_of_many_values_a_few_are_named_and_the_others_counted() -> None:
    assert few({"a": 1, "b": 3, "c": 2}, most=2) == "b (3), c (2) and 1 other"
    assert few({str(value): 1 for value in range(1000)}).endswith("4 (1) and 995 others")
    assert few({"a": 1}) == "a (1)"
    assert tally([pa.array([1.5, None, 1.5]), pa.array([[1], [1]])]) == {"1.5": 2, "empty": 1, "[1]": 2}


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
    with pytest.raises(FramedexError, match="no clip has this value"):
        ClipDataset(out, where={"split": "nowhere"})
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
    with pytest.raises(FramedexError, match="cannot be compared with the values"):
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
    ranges = {"start": "start", "end": "end"}
    out = shard(listed, {"policy": "windows", "frames": 15, "last": "drop", "range": ranges})
    failures = pq.read_table(out / "failures.parquet").to_pydict()
    assert set(failures["kind"]) == {"short"}
    assert not any(failures["counts"])
    assert 0 < len(failures["uri"]) < 2 * len(NAMES)


def test_a_video_that_is_too_short_stops_the_run_if_asked_to(listed: Path) -> None:
    (listed.parent / "p.yaml").write_text("policy: windows\nrange:\nframes: 1000\nshort: error\n")
    output = run("shard", listed, "--policy", listed.parent / "p.yaml", "--out", listed.parent / "D", code=1).output
    assert NAMES[0] in output
    assert not (listed.parent / "D").exists()


@pytest.fixture
def labelled(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """An index of a listing with 10 rows of each of two labels, and one row of a third."""
    rows = ["uri,label,person"]
    rows += [f"{medium('h264_single.mp4')},{label},{label}{number}" for label in ("cat", "dog") for number in range(10)]
    (tmp_path / "l.csv").write_text("\n".join([*rows, f"{medium('h264_single.mp4')},rare,someone"]), encoding="utf-8")
    run("index", tmp_path / "l.csv", "--out", tmp_path / "INDEX")
    return tmp_path / "INDEX"


DEALT = {
    "policy": "uniform",
    "frames": 1,
    "split": {"shares": {"train": 8, "test": 2}, "by": "person", "stratify": "label"},
}


def test_shard_prints_the_clips_of_each_label_and_split(labelled: Path) -> None:
    (labelled.parent / "p.yaml").write_text(yaml.safe_dump(DEALT))
    command = ["shard", labelled, "--policy", labelled.parent / "p.yaml", "--out", labelled.parent / "D"]
    said = run(*command).output
    assert re.search(r"label\s+train\s+test\ncat\s+8\s+2\ndog\s+8\s+2\nrare\s+1\s+0\n", said), said
    assert "warning: split test has no clip of 1 label: rare" in said
    told = json.loads(run(*command, "--json").stdout)
    assert told["labels"] == {"train": {"cat": 8, "dog": 8, "rare": 1}, "test": {"cat": 2, "dog": 2, "rare": 0}}
    assert run(*command).output.endswith("warning: split test has no clip of 1 label: rare\n")
    counted = ClipDataset(labelled.parent / "D", where={"split": "test"}).column("label").tolist()
    assert sorted(counted) == ["cat", "cat", "dog", "dog"]


def test_a_grown_dataset_keeps_the_splits_of_its_clips(labelled: Path) -> None:
    folder = labelled.parent
    (folder / "p.yaml").write_text(yaml.safe_dump(DEALT))
    run("shard", labelled, "--policy", folder / "p.yaml", "--out", folder / "D")
    (folder / "p.yaml").write_text(yaml.safe_dump(DEALT | {"split": DEALT["split"] | {"keep": str(folder / "D")}}))  # type: ignore[operator]
    video = (folder / "l.csv").read_text().splitlines()[1].split(",")[0]
    more = [f"{video},{label},new{label}{number}" for label in ("cat", "bird") for number in range(20)]
    (folder / "more.csv").write_text("\n".join(["uri,label,person", *more]), encoding="utf-8")
    run("index", folder / "l.csv", folder / "more.csv", "--out", folder / "INDEX2")
    run("shard", folder / "INDEX2", "--policy", folder / "p.yaml", "--out", folder / "D2")
    before, after = (
        dict(zip(dataset.column("person").tolist(), dataset.column("split").tolist(), strict=True))
        for dataset in map(ClipDataset, (folder / "D", folder / "D2"))
    )
    assert len(after) == len(before) + 40
    assert {person: after[person] for person in before} == before
    grown = ClipDataset(folder / "D2", where={"split": "test"}).column("label").tolist()
    assert Counter(grown) == {"cat": 6, "dog": 2, "bird": 4}
    with pytest.warns(UserWarning, match="rare"):
        on_the_fly = ClipDataset.from_index(folder / "INDEX2", folder / "p.yaml")
    assert on_the_fly.column("split").tolist() == ClipDataset(folder / "D2").column("split").tolist()


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ({"shares": {"train": 8, "val": 2}}, "a split for which the policy has no share"),
        ({"by": "label"}, "a group has several splits"),
        ({"by": "uri"}, "a group has several splits"),
        ({"keep": "NOWHERE"}, "is not a framedex dataset"),
        ({"by": "nobody"}, "has no such column"),
    ],
)
def test_splits_that_cannot_be_kept_are_an_error(split: dict[str, Any], says: str, labelled: Path) -> None:
    (labelled.parent / "p.yaml").write_text(yaml.safe_dump(DEALT))
    run("shard", labelled, "--policy", labelled.parent / "p.yaml", "--out", labelled.parent / "D")
    keeping = DEALT["split"] | {"keep": str(labelled.parent / "D")} | split  # type: ignore[operator]
    with pytest.raises(FramedexError, match=says):
        ClipDataset.from_index(labelled, DEALT | {"split": keeping})


def test_from_index_warns_of_labels_that_a_split_lacks(labelled: Path) -> None:
    with pytest.warns(UserWarning, match="split test has no clip of 1 label: rare") as said:
        ClipDataset.from_index(labelled, DEALT, where={"split": "train"})
    [warning] = said
    assert warning.filename == __file__
    plain = {"policy": "uniform", "frames": 1}
    assert len(ClipDataset.from_index(labelled, plain)) == 21


def test_many_labels_are_counted_and_not_listed(medium: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [f"{medium('h264_single.mp4')},l{number:02}" for number in range(30)]
    (tmp_path / "l.csv").write_text("\n".join(["uri,label", *rows]), encoding="utf-8")
    run("index", tmp_path / "l.csv", "--out", tmp_path / "INDEX")
    said = run("shard", tmp_path / "INDEX", "--policy", "uniform", "--out", tmp_path / "D").output
    assert "clips: 30 labels, 1 to 1 clips of each" in said
