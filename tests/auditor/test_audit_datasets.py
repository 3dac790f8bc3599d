"""Audits of a dataset: leaks between splits, contradictory labels, and costly, padded and repeated clips."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.audit_data import write_index
from framedex import Index
from tests.support.audited import cookbook, found, write_rows
from tests.support.counted import some
from tests.support.datasets import empty_dataset, run, shard_clips
from tests.support.images import encoded, tar_of
from tests.support.media import Medium


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of synthetic videos, INDEX, and a dataset with labels and splits made from it, DS."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_index(folder / "INDEX", 250, seconds=12)
    (folder / "policy.yaml").write_text(
        "policy: windows\nframes: 8\nfps: 4\nstep_seconds: 2\nlast: drop\nshort: pad\n"
        "split: {shares: {train: 1, val: 1}, by: media_id}\n"
    )
    run("shard", folder / "INDEX", "--policy", folder / "policy.yaml", "--out", folder / "DS")
    return folder


def test_leaks_and_labels_of_a_dataset(synthetic: Path) -> None:
    findings = found(synthetic / "DS")
    rows = json.loads(
        run(
            "audit",
            synthetic / "DS",
            "--sql",
            "SELECT fingerprint, split, label, uri FROM clips JOIN videos USING (media_id, uri)",
            "--format",
            "json",
        ).stdout
    )
    splits: dict[str, set[str]] = {}
    labels: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        splits.setdefault(row["fingerprint"], set()).add(row["split"])
        labels.setdefault(row["fingerprint"], set()).add((row["label"], row["uri"]))
    leaks = sum(len(names) > 1 for names in splits.values())
    assert findings.get("leaked_videos", {"count": 0})["count"] == leaks
    twice = sum(len({label for label, _ in pairs}) > 1 for pairs in labels.values())
    assert findings.get("labels_of_copies", {"count": 0})["count"] == twice
    assert leaks + twice > 0
    assert findings["few_of_a_label"]["examples"][0]["label"] == "sew"


def test_costly_and_padded_clips(synthetic: Path, tmp_path: Path) -> None:
    query = "SELECT uri, frame_count FROM videos ORDER BY seek_packets DESC NULLS LAST LIMIT 1"
    ((video),) = json.loads(run("audit", synthetic / "INDEX", "--sql", query, "--format", "json").stdout)
    last = video["frame_count"] - 1
    clips = [{"uri": video["uri"], "clip_id": name, "frames": [frame]} for name, frame in (("a", last), ("b", 0))]
    findings = found(shard_clips(synthetic / "INDEX", tmp_path / "DS", clips))
    assert [row["clip_id"] for row in findings["costly"]["examples"]] == ["a"]
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 500\nfps: 1\nshort: pad\n")
    run("shard", synthetic / "INDEX", "--policy", policy, "--out", tmp_path / "PADDED")
    assert found(tmp_path / "PADDED")["mostly_padding"]["count"] > 200


@pytest.mark.parametrize(
    ("clips", "check", "count"),
    [
        ([("a", [0, 1]), ("b", [0, 1])], "same_clips", 1),
        ([("a", [0, 1]), ("b", [1, 2]), ("c", [0, 1, 2])], "unequal_clips", 1),
        ([("a", [0, 1]), ("b", [900, 901])], "failures", 1),
    ],
)
def test_checks_of_datasets(
    clips: list[tuple[str, list[int]]], check: str, count: int, medium: Medium, tmp_path: Path
) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    wanted = [{"uri": "h264_default.mp4", "clip_id": name, "frames": frames} for name, frames in clips]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", wanted, code=3 if check == "failures" else 0)
    assert {name: finding["count"] for name, finding in found(dataset).items()} == {check: count}


def test_clips_of_wrong_splits(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_one_gop.mp4"), medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    clips: list[dict[str, Any]] = [
        {"uri": "h264_one_gop.mp4", "clip_id": "a", "frames": [85], "split": "train", "label": "x"},
        {"uri": "h264_one_gop.mp4", "clip_id": "b", "frames": [86], "split": "val", "label": "x"},
        {"uri": "h264_default.mp4", "clip_id": "c", "frames": [1], "split": None, "label": "y"},
        {"uri": "h264_default.mp4", "clip_id": "d", "frames": [2], "split": "train", "label": "y"},
    ]
    findings = found(shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips))
    assert {name: finding["count"] for name, finding in findings.items()} == {
        "leaked_videos": 1,
        "without_split": 1,
        "label_not_in_split": 1,
    }


def test_copies_whose_parts_have_the_same_labels_are_labelled_alike(medium: Medium, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("a.mp4", "b.mp4"):
        shutil.copy(medium("h264_default.mp4"), videos / name)
    run("index", videos, "--out", tmp_path / "INDEX")
    clips = [
        {"uri": uri, "frames": [frame], "label": label}
        for uri in ("a.mp4", "b.mp4")
        for frame, label in ((1, "run"), (40, "jump"))
    ]
    assert "labels_of_copies" not in found(shard_clips(tmp_path / "INDEX", tmp_path / "ALIKE", clips))
    finding = found(shard_clips(tmp_path / "INDEX", tmp_path / "UNLIKE", clips[:3]))["labels_of_copies"]
    assert (finding["count"], finding["examples"][0]["labels"]) == (1, "jump, run")
    assert (finding["examples"][0]["uri"], finding["examples"][0]["others"]) == ("a.mp4", "b.mp4")


def test_both_files_of_a_leak_are_named(medium: Medium, tmp_path: Path) -> None:
    """A table names long files by their ends, which differ."""
    (tmp_path / "videos").mkdir()
    names = [f"{'a long name of a recording ' * 4}{number}.mp4" for number in range(2)]
    for name in names:
        shutil.copy(medium("h264_default.mp4"), tmp_path / "videos" / name)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    clips = [{"uri": name, "frames": [1], "split": split} for name, split in zip(names, ("train", "val"), strict=True)]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips)
    (example,) = found(dataset)["leaked_videos"]["examples"]
    assert [example["uri"], example["others"]] == names
    for place, check in ((dataset, "leaked_videos"), (tmp_path / "INDEX", "copies")):
        text = run("audit", place, "--check", check).output
        assert "recording 0.mp4" in text
        assert "recording 1.mp4" in text


def test_sequences_of_one_tar_are_no_copies_of_each_other(tmp_path: Path) -> None:
    files = [(f"{name}/{n:03d}.png", encoded(seed)) for seed, name in enumerate("abcdef") for n in range(3)]
    tar_of(tmp_path / "many.tar", files)
    run("index", tmp_path / "many.tar", "--out", tmp_path / "INDEX")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: uniform\nframes: 2\nsplit: {shares: {train: 1, val: 1}, by: media_id}\n")
    run("shard", tmp_path / "INDEX", "--policy", policy, "--out", tmp_path / "DS")
    assert "leaked_videos" not in found(tmp_path / "DS")
    summary = json.loads(run("audit", tmp_path / "INDEX", "--json").stdout)["summary"]
    assert summary["totals"][0]["gigabytes"] == pytest.approx((tmp_path / "many.tar").stat().st_size / 1e9, abs=1e-6)
    assert run("audit", tmp_path / "INDEX", "--ask", "room_of_copies").output.split()[2] == "0"


def test_user_columns_may_be_called_like_columns_of_views(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    names = ("content", "duration_seconds", "start_seconds", "frame", "place", "codec", "runs", "Split", "LABEL")
    clips = [{"uri": "h264_default.mp4", "frames": [n]} | dict.fromkeys(names, f"{n}") for n in (1, 2)]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips)
    assert {"leaked_videos", "label_not_in_split"} == found(dataset).keys()
    for question in some(cookbook(dataset), 8):
        run("audit", dataset, "--ask", question)
    run("audit", dataset, "--report", tmp_path / "r.html", "--no-pictures")


def test_an_empty_index_and_an_empty_dataset(tmp_path: Path, medium: Medium) -> None:
    index = write_rows(tmp_path / "EMPTY")
    assert not found(index)
    run("audit", index, "--sql", "SELECT * FROM frames JOIN gops USING (media_id) JOIN listing USING (media_id)")
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    empty_dataset(Index(tmp_path / "INDEX"), tmp_path / "DS")
    assert found(tmp_path / "DS").keys() == {"empty"}
