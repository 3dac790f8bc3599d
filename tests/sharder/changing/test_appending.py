"""Clips of further media are appended to a dataset. Clips that are there do not change."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import ClipDataset, ClipSampler, FramedexError, MultiViewDataset
from tests.sharder.changing.test_removing import (
    KINDS,
    check_same,
    check_tables,
    check_verified,
    ids,
    items,
    number_of,
    remove,
)
from tests.support.datasets import content, run
from tests.support.depth import drawn
from tests.support.living import COUNT, NAME, Forks, copy_videos, files_with

Medium = Callable[[str], Path]
POLICY = "{policy: fps, fps: 4, frames: 2, split: {shares: {train: 3, val: 1}}}"


@pytest.fixture
def place(tmp_path: Path, medium: Medium) -> Path:
    """Return a folder with videos of several kinds."""
    copy_videos(tmp_path, medium)
    return tmp_path


def index_of(place: Path, numbers: Sequence[int], out: str = "INDEX", more: str = "") -> Path:
    """Index some of the videos, with labels."""
    rows = [f"videos/{NAME.format(number)}.mp4,caption of {number:02d},{'abc'[number // 10]}" for number in numbers]
    text = "\n".join([f"uri,caption,label{more}", *(row + more for row in rows)])
    (place / f"{out}.csv").write_text(text + "\n")
    run("index", place / f"{out}.csv", "--out", place / out)
    return place / out


def shard(place: Path, out: Path, *options: str, policy: str = POLICY, code: int = 0) -> dict[str, Any]:
    said = run("shard", place, "--policy", policy, "--out", out, "--json", *options, code=code)
    return dict(json.loads(said.output)) if code == 0 else {"output": said.output}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_grows_and_is_like_one_made_at_once(place: Path, kind: str) -> None:
    dataset, labels = place / "D", ["--labels", "label"]
    shard(index_of(place, range(8)), dataset, *KINDS[kind], *labels)
    before = items(dataset)
    files = {name: mark for name, mark in content(dataset).items() if name.startswith(("clips/", "shards/", "media/"))}
    grown = index_of(place, range(16))
    report = shard(grown, dataset, *KINDS[kind], "--append")
    assert report["media"] == 8
    assert files.items() <= content(dataset).items(), "clips, media and tars that were there did not change"
    assert ClipDataset(dataset).manifest.labels.numbers == {"a": 0, "b": 1}
    check_same(dict(list(items(dataset).items())[: len(before)]), before)
    after = content(dataset)
    assert shard(grown, dataset, *KINDS[kind], "--append")["finished"]
    assert content(dataset) == after
    check_verified(dataset)
    check_tables(dataset)
    index_of(place, range(COUNT))
    shard(grown, dataset, *KINDS[kind], "--append")
    assert ClipDataset(dataset).manifest.labels.numbers == {"a": 0, "b": 1, "c": 2}
    at_once = place / "AT_ONCE"
    shard(grown, at_once, *KINDS[kind], *labels)
    check_same(items(dataset), items(at_once))
    check_verified(dataset)
    check_tables(dataset)
    assert not list(place.glob("D.*"))
    lines = [json.loads(line) for line in run("log", dataset, "--json").output.splitlines()]
    assert [(line["generation"], line["counts"]["media"]) for line in lines] == [(1, 8), (2, 8), (3, 8)]


def test_removed_media_are_not_added_again(place: Path) -> None:
    dataset = place / "D"
    grown = index_of(place, range(8))
    shard(grown, dataset, *KINDS["clips"])
    remove(dataset, 2, 7)
    index_of(place, range(16))
    shard(grown, dataset, *KINDS["clips"], "--append")
    found = items(dataset)
    assert {number_of(item) for item in found.values()} == {*range(16)} - {2, 7}
    at_once = place / "AT_ONCE"
    shard(grown, at_once, *KINDS["clips"])
    check_same(found, {name: item for name, item in items(at_once).items() if number_of(item) not in (2, 7)})
    remove(dataset, 0, 1, 12)
    check_verified(dataset)
    check_tables(dataset)
    index_of(place, range(COUNT))
    shard(grown, dataset, *KINDS["clips"], "--append")
    expected = {name: item for name, item in items(dataset).items() if number_of(item) < 16}
    check_same({name: item for name, item in found.items() if number_of(item) not in (0, 1, 12)}, expected)
    check_verified(dataset)
    check_tables(dataset)


def test_another_plan_is_refused_with_the_first_difference(place: Path) -> None:
    dataset, grown = place / "D", index_of(place, range(8))
    shard(grown, dataset, *KINDS["clips"])
    before = content(dataset)
    index_of(place, range(16))
    other = POLICY.replace("frames: 2", "frames: 3")
    said = shard(grown, dataset, *KINDS["clips"], "--append", policy=other, code=1)["output"]
    assert "policy, frames" in said
    assert "found:   3" in said
    assert "option pack" in shard(grown, dataset, "--append", code=1)["output"]
    assert "option damaged" in shard(grown, dataset, *KINDS["clips"], "--damaged=keep", "--append", code=1)["output"]
    more = index_of(place, range(16), "MORE", ",weather")
    assert "column weather" in shard(more, dataset, *KINDS["clips"], "--append", code=1)["output"]
    assert "has no effect with --append" in shard(grown, dataset, "--append", "--overwrite", code=2)["output"]
    assert "is not a framedex dataset" in shard(grown, place / "NEW", "--append", code=1)["output"]
    assert content(dataset) == before
    assert not list(place.glob("D.*"))


@pytest.mark.parametrize("taken", [(), (1, 9)])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "share": 2}])
def test_an_epoch_goes_on_over_the_old_clips_and_then_the_new(
    place: Path, options: dict[str, Any], taken: tuple[int, ...]
) -> None:
    dataset, grown = place / "D", index_of(place, range(8))
    shard(grown, dataset)
    clips = ClipDataset(dataset)
    old = [clips.clip(number).clip_id for number in ClipSampler(clips, seed=3, **options)]
    state = ClipSampler(clips, seed=3, **options).state_dict(delivered=5)
    index_of(place, range(16))
    shard(grown, dataset, "--append")
    if taken:
        remove(dataset, *taken)
    now = ClipDataset(dataset)
    sampler = ClipSampler(now, seed=3, **options)
    sampler.load_state_dict(state)
    found = [now.clip(number).clip_id for number in sampler]
    there = items(dataset)
    rest = [name for name in old[5:] if name in there]
    assert found[: len(rest)] == rest
    assert sorted(found[len(rest) :]) == sorted({*there} - {*old})
    assert sorted(sampler) == list(range(len(now)))
    with pytest.raises(FramedexError, match="weights must have a value"):
        ClipSampler(now, weights=np.ones(len(clips)))


@pytest.mark.parametrize("kind", KINDS)
def test_readers_that_are_open_keep_the_clips_that_they_know(place: Path, kind: str) -> None:
    dataset, grown = place / "D", index_of(place, range(8))
    shard(grown, dataset, *KINDS[kind])
    before = items(dataset)
    unread, read = ClipDataset(dataset), ClipDataset(dataset)
    assert all(read[number] for number in range(len(read)))
    state = ClipSampler(read, shuffle=True, seed=2).state_dict(delivered=3)
    index_of(place, range(16))
    shard(grown, dataset, *KINDS[kind], "--append")
    for reader in (unread, read, pickle.loads(pickle.dumps(read))):
        found = [reader[number] for number in range(len(reader))]
        check_same({item["clip_id"]: item for item in found}, before)
        assert reader.column("caption").tolist() == [item["caption"] for item in found]
    later = ClipSampler(read, shuffle=True, seed=2)
    later.load_state_dict(state)
    fresh = ClipSampler(ClipDataset(dataset), shuffle=True, seed=2)
    fresh.load_state_dict(later.state_dict(delivered=0))
    assert list(fresh)[: len(before) - 3] == list(later)
    remove(dataset, 1)
    for reader in (unread, read):
        with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
            reader[0]


def test_media_with_failures_alone_are_tried_again(place: Path) -> None:
    dataset, grown = place / "D", index_of(place, range(8))
    shard(grown, dataset, *KINDS["clips"])
    index_of(place, range(12))
    lost = place / "videos" / f"{NAME.format(9)}.mp4"
    lost.rename(place / "aside.mp4")
    said = run("shard", grown, "--policy", POLICY, "--out", dataset, *KINDS["clips"], "--append", code=3).output
    assert "11 media" not in said
    assert {number_of(item) for item in items(dataset).values()} == {*range(12)} - {9}
    assert files_with(dataset, NAME.format(9)) != []
    (place / "aside.mp4").rename(lost)
    shard(grown, dataset, *KINDS["clips"], "--append")
    assert {number_of(item) for item in items(dataset).values()} == {*range(12)}
    assert json.loads(run("audit", dataset, "--sql", "SELECT * FROM failures", "--format", "json").output) == []
    check_verified(dataset)


def test_new_rows_need_labels_and_the_report_counts_them(place: Path) -> None:
    dataset, grown = place / "D", index_of(place, range(8))
    shard(grown, dataset, "--labels", "label")
    index_of(place, range(16))
    path = place / "INDEX.csv"
    text = path.read_text()
    path.write_text(text.replace(",caption of 13,b", ",caption of 13,"))
    run("index", path, "--out", grown)
    before = content(dataset)
    said = shard(grown, dataset, "--append", code=1)["output"]
    assert "column 'label' has a value without a label" in said
    assert content(dataset) == before
    path.write_text(text)
    run("index", path, "--out", grown)
    report = shard(grown, dataset, "--append")
    counts = [sum(part.get(name, 0) for part in report["labels"].values()) for name in "ab"]
    assert sum(counts) == report["clips"]
    assert min(counts) > 0


def test_groups_keep_their_splits_if_another_dataset_is_kept_too(place: Path) -> None:
    def listing(numbers: Sequence[int]) -> Path:
        rows = [f"videos/{NAME.format(number)}.mp4,p{number % 12},{'ab'[number % 2]}" for number in numbers]
        (place / "people.csv").write_text("\n".join(["uri,person,label", *rows]) + "\n")
        run("index", place / "people.csv", "--out", place / "PEOPLE")
        return place / "PEOPLE"

    def split(more: str = "") -> str:
        rule = f"{{shares: {{train: 2, val: 1}}, by: person, stratify: label{more}}}"
        return f"{{policy: fps, fps: 4, frames: 2, split: {rule}}}"

    dataset, other = place / "D", place / "O"
    shard(listing([1, 2]), other, policy=split())
    policy = split(f", keep: {other}")
    people = listing(range(6))
    shard(people, dataset, policy=policy)
    before = {item["person"]: item["split"] for item in items(dataset).values()}
    listing(range(COUNT))
    shard(people, dataset, "--append", policy=policy)
    splits: dict[str, set[str]] = {}
    for item in items(dataset).values():
        splits.setdefault(item["person"], set()).add(item["split"])
    assert all(len(found) == 1 for found in splits.values())
    assert all(splits[person] == {name} for person, name in before.items())


def test_a_view_without_clips_does_not_keep_others_away(place: Path) -> None:
    dataset = place / "D"
    policy = scene_policy("mask").replace("clock_fps: 4", "clock: a")
    policy = policy.replace("tolerance_seconds: 1", "start_seconds: 0.9")
    cameras = {"0": "ab", "1": "ab", "2": "ab"}
    grown = scenes_of(place, cameras)
    shard(grown, dataset, policy=policy)
    before = content(dataset)
    assert files_with(dataset, NAME.format(1)) == []
    assert shard(grown, dataset, "--append", policy=policy)["finished"]
    assert content(dataset) == before
    scenes_of(place, cameras | {"3": "ab"})
    assert shard(grown, dataset, "--append", policy=policy)["media"] > 0
    check_verified(dataset)


def test_a_removal_after_a_killed_append_leaves_no_trace(place: Path, forks: Forks) -> None:
    dataset, grown = place / "D", index_of(place, range(8))
    shard(grown, dataset, *KINDS["clips"])
    index_of(place, range(16))
    asked = ["shard", grown.name, "--policy", POLICY, "--out", "D", "--append", "--workers", "0", *KINDS["clips"]]
    moment = 0
    while not files_with(dataset / ".appended", NAME.format(12)):
        assert forks.run(*asked, kill_before=moment) == -signal.SIGKILL
        moment += 3
    remove(dataset, 1)
    assert files_with(dataset, NAME.format(12)) == []
    assert not list(dataset.glob(".appended*"))
    assert forks.run(*asked) == 0
    assert {number_of(item) for item in items(dataset).values()} == {*range(16)} - {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reference", "scenes"])
def test_a_kill_at_any_moment_leaves_the_old_or_the_grown_dataset(place: Path, forks: Forks, kind: str) -> None:
    dataset, policy, options = place / "D", POLICY, KINDS.get(kind, KINDS["clips"])
    if kind == "scenes":
        policy, more = scene_policy("mask"), ["--replan-scenes"]
        grown = scenes_of(place, {"0": "ab", "1": "a", "2": "ab"})
    else:
        more, grown = [], index_of(place, range(6))
    shard(grown, dataset, *options, policy=policy)
    remove(dataset, 4)
    if kind == "scenes":
        scenes_of(place, {"0": "ab", "1": "ab", "3": "ab"})
    else:
        index_of(place, range(12))
    (place / "policy.yaml").write_text(policy)
    old = ids(dataset)
    shutil.copytree(dataset, place / "OLD")

    def call(moment: int | None = None) -> int:
        asked = ["shard", grown.name, "--policy", "policy.yaml", "--out", "D", "--append", "--workers", "0"]
        return forks.run(*asked, *options, *more, kill_before=moment)

    def restore() -> None:
        for folder in place.glob("D*"):
            shutil.rmtree(folder)
        shutil.copytree(place / "OLD", dataset)

    assert call() == 0
    new, files = ids(dataset), content(dataset)
    assert new[: len(old)] == old or kind == "scenes"
    assert len(new) > len(old)
    assert forks.moments >= 8
    for moment in drawn("moments at which such a change is killed", range(forks.moments), seed=1):
        restore()
        assert call(moment) == -signal.SIGKILL
        assert ids(dataset) in (old, new), moment
        assert call() == 0
        assert content(dataset) == files, moment
        assert [path.name for path in place.glob("D*")] == ["D"]
        lines = run("log", dataset, "--json").output.splitlines()
        assert [json.loads(line)["counts"] is not None for line in lines] == [True] * 3


def scenes_of(place: Path, cameras: dict[str, str]) -> Path:
    """Index the videos of scenes. `cameras`: for each scene, the letters of its cameras."""
    return scenes_of_rows(
        place,
        [
            (2 * int(scene) + "ab".index(camera), scene, camera)
            for scene, letters in cameras.items()
            for camera in letters
        ],
    )


def scenes_of_rows(place: Path, rows: Sequence[tuple[int, str, str]]) -> Path:
    """Index scenes. A row has the number of a video, the name of its scene, and the name of its view."""
    lines = [f"videos/{NAME.format(number)}.mp4,{scene},{camera}" for number, scene, camera in rows]
    (place / "SCENES.csv").write_text("\n".join(["uri,scene,camera", *lines]) + "\n")
    run("index", place / "SCENES.csv", "--out", place / "SCENES", "--prune", "--prune-at-most", "1")
    return place / "SCENES"


def scene_policy(missing: str) -> str:
    views = f"{{group: scene, view: camera, clock_fps: 4, missing: {missing}}}"
    return f"{{policy: fps, fps: 4, frames: 2, tolerance_seconds: 1, views: {views}}}"


def by_view(dataset: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = items(dataset).values()
    return {(item["multiview_id"], item["view_name"]): item for item in found}


@pytest.mark.parametrize("kind", ["reference", "clips"])
@pytest.mark.parametrize("missing", ["skip", "mask"])
def test_scenes_with_new_views_are_planned_again_on_request(place: Path, kind: str, missing: str) -> None:
    dataset, policy = place / "D", scene_policy(missing)
    grown = scenes_of(place, {"0": "ab", "1": "a", "2": "ab"})
    shard(grown, dataset, *KINDS[kind], policy=policy)
    before, clips = by_view(dataset), ClipDataset(dataset)
    order = [(item["multiview_id"], item["view_name"]) for item in items(dataset).values()]
    state = ClipSampler(clips, shuffle=False).state_dict(delivered=2)
    files = content(dataset)
    scenes_of(place, {"0": "ab", "1": "ab", "2": "ab", "3": "ab"})
    if missing == "mask":  # else the scene has no clips yet
        said = shard(grown, dataset, *KINDS[kind], "--append", policy=policy, code=1)["output"]
        assert re.search("scene 1: a scene of the dataset has a new view\n.*secret03.*\n.*--replan-scenes", said)
        assert content(dataset) == files
    shard(grown, dataset, *KINDS[kind], "--append", "--replan-scenes", policy=policy)
    after = content(dataset)
    shard(grown, dataset, *KINDS[kind], "--append", "--replan-scenes", policy=policy)
    assert content(dataset) == after
    at_once = place / "AT_ONCE"
    shard(grown, at_once, *KINDS[kind], policy=policy)
    expected, found = by_view(at_once), by_view(dataset)
    assert sorted(found) == sorted(expected)
    check_same(
        {str(name): found[name] for name in sorted(found)}, {str(name): expected[name] for name in sorted(found)}
    )
    check_same(
        *({str(name): some[name] for name in before if not name[0].startswith("1-")} for some in (found, before))
    )
    assert len(MultiViewDataset(ClipDataset(dataset))) == len(MultiViewDataset(ClipDataset(at_once)))
    check_verified(dataset)
    check_tables(dataset)
    # An epoch goes on over old clips, and then over all new ones, among which are those of the scene.
    now = ClipDataset(dataset)
    sampler = ClipSampler(now, shuffle=False)
    sampler.load_state_dict(state)
    seen = [(now[number]["multiview_id"], now[number]["view_name"]) for number in sampler]
    rest = [name for name in order[2:] if not name[0].startswith("1-")]
    assert seen[: len(rest)] == rest
    assert sorted(seen[len(rest) :]) == sorted(name for name in found if name[0][0] in "13")
    # A view that was removed does not come back with another one.
    remove(dataset, 0)
    scenes_of(place, {"0": "ab", "1": "ab", "2": "ab", "3": "ab"})
    assert (
        "nothing was written"
        in run("shard", grown, "--policy", policy, "--out", dataset, *KINDS[kind], "--append", "--replan-scenes").output
    )
    check_verified(dataset)


# Before and after: rows of a listing, as for `scenes_of_rows`.
RECASTS: dict[str, tuple[list[tuple[int, str, str]], list[tuple[int, str, str]]]] = {
    "all files of a scene are others": (
        [(0, "s", "a"), (2, "s", "b"), (5, "t", "a"), (6, "t", "b")],
        [(8, "s", "a"), (9, "s", "b"), (5, "t", "a"), (6, "t", "b")],
    ),
    "the only view of a scene is another": (
        [(0, "s", "a"), (5, "t", "a"), (6, "t", "b")],
        [(2, "s", "b"), (5, "t", "a"), (6, "t", "b")],
    ),
    "a new scene has media of another": (
        [(0, "s", "a"), (2, "s", "b")],
        [(0, "s", "a"), (2, "s", "b"), (2, "t", "a"), (5, "t", "b")],
    ),
    "a view moved to another scene": (
        [(0, "s", "a"), (2, "s", "b"), (5, "t", "a"), (6, "t", "b")],
        [(0, "s", "a"), (8, "s", "b"), (5, "t", "a"), (6, "t", "b"), (2, "u", "a"), (9, "u", "b")],
    ),
}


@pytest.mark.parametrize("kind", ["reference", "clips"])
@pytest.mark.parametrize("name", RECASTS)
def test_scenes_with_other_media_are_planned_again_on_request(place: Path, kind: str, name: str) -> None:
    dataset, policy = place / "D", scene_policy("mask")
    before, after = RECASTS[name]
    shard(scenes_of_rows(place, before), dataset, *KINDS[kind], policy=policy)
    files = content(dataset)
    grown = scenes_of_rows(place, after)
    said = shard(grown, dataset, *KINDS[kind], "--append", policy=policy, code=1)["output"]
    assert re.search("a scene of the dataset has a new view|a new scene has media of the dataset", said)
    assert content(dataset) == files
    shard(grown, dataset, *KINDS[kind], "--append", "--replan-scenes", policy=policy)
    at_once = place / "AT_ONCE"
    shard(grown, at_once, *KINDS[kind], policy=policy)
    expected, found = by_view(at_once), by_view(dataset)
    assert sorted(found) == sorted(expected)
    for view, item in found.items():
        np.testing.assert_array_equal(item["frames"], expected[view]["frames"])
        np.testing.assert_array_equal(item["seconds"], expected[view]["seconds"])
    assert len(MultiViewDataset(ClipDataset(dataset))) == len(MultiViewDataset(ClipDataset(at_once)))
    check_verified(dataset)
    check_tables(dataset)
    changed = content(dataset)
    assert shard(grown, dataset, *KINDS[kind], "--append", policy=policy)["finished"]
    assert content(dataset) == changed


def test_clips_of_a_scene_come_back_if_a_file_could_not_be_read(place: Path) -> None:
    dataset, policy = place / "D", scene_policy("mask")
    shard(scenes_of_rows(place, [(0, "s", "a"), (5, "t", "a")]), dataset, *KINDS["clips"], policy=policy)
    grown = scenes_of_rows(place, [(0, "s", "a"), (2, "s", "b"), (5, "t", "a")])
    lost = place / "videos" / f"{NAME.format(0)}.mp4"
    lost.rename(place / "aside.mp4")
    asked = ["shard", grown, "--policy", policy, "--out", dataset, *KINDS["clips"], "--append", "--replan-scenes"]
    run(*asked, code=3)
    (place / "aside.mp4").rename(lost)
    run(*asked)
    shard(grown, place / "AT_ONCE", *KINDS["clips"], policy=policy)
    assert sorted(by_view(dataset)) == sorted(by_view(place / "AT_ONCE"))
    check_verified(dataset)


def test_a_removed_view_and_new_names_of_views_are_refused(place: Path) -> None:
    dataset, policy = place / "D", scene_policy("mask")
    grown = scenes_of(place, {"0": "a", "1": "ab"})
    shard(grown, dataset, policy=policy)
    remove(dataset, 0)
    scenes_of(place, {"0": "ab", "1": "ab"})
    said = shard(grown, dataset, "--append", "--replan-scenes", policy=policy, code=1)["output"]
    assert re.search("has a view that was removed from the dataset\n.*secret00.*\n.*remove it from the index", said)
    scenes_of(place, {"1": "ab", "0": "b"})  # without the removed view, the other one is a new scene
    shard(grown, dataset, "--append", policy=policy)
    check_verified(dataset)
    other, policy = place / "OTHER", scene_policy("skip")
    shard(scenes_of(place, {"0": "a", "1": "a"}), other, policy=policy)
    scenes_of(place, {"0": "a", "1": "a", "2": "ab"})
    said = shard(grown, other, "--append", policy=policy, code=1)["output"]
    assert re.search("clips must have all views.*\n.*a, b\n.*a\n", said)
