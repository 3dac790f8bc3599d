"""Clips of several views beside the numbers that are drawn into the frames of each camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
import yaml
from torch.utils.data import DataLoader

import framedex
from framedex import ClipDataset, ClipLoader, MultiViewDataset
from framedex.sharder import slices
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.media import read_barcode
from tests.support.scenes import CAMERAS, VIEWS, write_scenes

SCENES = {scene: {camera.view: camera for camera in CAMERAS if camera.scene == scene} for scene in "abc"}
VIEWS_KEY = {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}
POLICY = {"policy": "fps", "fps": 5, "frames": 4, "views": VIEWS_KEY}
PACKS = ([], ["--pack", "clips"], ["--pack", "images", "--image-format", "png"])


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three scenes."""
    folder = tmp_path_factory.mktemp("scenes")
    run("index", write_scenes(folder / "MEDIA"), "--out", folder / "INDEX")
    return folder / "INDEX"


def sharded(indexed: Path, out: Path, policy: dict[str, Any], *options: object) -> Path:
    written = out.with_suffix(".yaml")
    written.write_text(yaml.safe_dump(policy))
    run("shard", indexed, "--policy", written, "--out", out, *options)
    return out


def wanted(scene: str, view: str, number: int) -> list[int]:
    """Return the frames of a view for clip `number` of POLICY, -1 where it has none, by trying every frame."""
    front, own = SCENES[scene]["front"].seconds, SCENES[scene].get(view)
    if own is None:
        return [-1] * 4
    ends = own.seconds[-1] + own.last_seconds
    frame_seconds = ends / len(own.seconds)
    found = []
    for place in range(4):
        time = (4 * number + place) * 5  # frames of the camera in front, which has 25 a second
        if time >= len(front):
            found.append(-1)
            continue
        nearest = min(range(len(own.seconds)), key=lambda frame: abs(own.seconds[frame] - front[time]))
        found.append(nearest if abs(own.seconds[nearest] - front[time]) < frame_seconds else -1)
    return found


def test_every_view_shows_the_frames_of_the_same_times(indexed: Path, tmp_path: Path) -> None:
    datasets = [ClipDataset.from_index(indexed, POLICY)]
    datasets += [ClipDataset(sharded(indexed, tmp_path / f"D{n}", POLICY, *pack)) for n, pack in enumerate(PACKS)]
    checked = 0
    for clips in datasets:
        views = MultiViewDataset(clips)
        assert len(views) == 9
        for number in np.random.default_rng(0).permutation(len(views)).tolist():
            item = views[number]
            scene, _, of_scene = item["multiview_id"].partition("-")
            assert list(item["frames"]) == list(VIEWS)
            for view in VIEWS:
                expected = wanted(scene, view, int(of_scene))
                assert item["frame_index"][view].tolist() == expected
                assert item["mask"][view].tolist() == [frame >= 0 for frame in expected]
                drawn = [read_barcode(frame) for frame in item["frames"][view]]
                assert drawn == [max(frame, 0) for frame in expected]
                checked += sum(frame >= 0 for frame in expected)
    assert checked == 4 * 87


def test_verify_finds_every_view_exact(indexed: Path, tmp_path: Path) -> None:
    for number, pack in enumerate(PACKS):
        dataset = sharded(indexed, tmp_path / f"D{number}", POLICY, *pack)
        assert "24 exact (96 frames)" in run("verify", dataset).output


def test_workers_plan_what_one_process_plans(indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TASKS_AT_FIRST", 0)
    monkeypatch.setattr(slices, "MAX_FRAMES_A_GROUP", 1)  # each scene is a group
    one = sharded(indexed, tmp_path / "ONE", POLICY, "--workers", 1)
    more = sharded(indexed, tmp_path / "MORE", POLICY, "--workers", 2)
    for folder in ("clips", "recipes", "media"):
        assert (one / folder / "part-000000.parquet").read_bytes() == (
            more / folder / "part-000000.parquet"
        ).read_bytes()
    for task in ("0/2", "1/2"):
        sharded(indexed, tmp_path / "SLICED", POLICY, "--task", task)
    assert len(list((tmp_path / "SLICED.slices/rows").iterdir())) == 3
    sharded(indexed, tmp_path / "SLICED", POLICY, "--finish")
    assert (one / "clips/part-000000.parquet").read_bytes() == (
        tmp_path / "SLICED/clips/part-000000.parquet"
    ).read_bytes()


@pytest.mark.parametrize(("missing", "clips"), [("skip", ["a-0", "a-1", "a-2", "a-3", "b-0"]), ("mask", None)])
def test_what_a_view_lacks_is_left_out_or_masked(
    indexed: Path, tmp_path: Path, missing: str, clips: list[str] | None
) -> None:
    policy = POLICY | {"views": VIEWS_KEY | {"missing": missing}}
    report = framedex.shard(indexed, tmp_path / "D", policy=policy, workers=0, progress=False)
    views = MultiViewDataset(ClipDataset(tmp_path / "D"))
    names = [views[number]["multiview_id"] for number in range(len(views))]
    assert clips is None or names == [f"{name[:2]}00000{name[2:]}" for name in clips]
    planned = MultiViewDataset(ClipDataset.from_index(indexed, policy))
    assert [planned[number]["multiview_id"] for number in range(len(planned))] == names
    messages = [failure["message"] for failure in report.failures]
    assert "view 'wrist' is missing: no usable row of the listing belongs to this view" in messages
    assert [failure.message for failure in planned.clips.failures()] == messages
    assert {failure["kind"] for failure in report.failures} == {"view"}


def test_a_missing_view_can_end_the_run(indexed: Path, tmp_path: Path) -> None:
    policy = POLICY | {"views": VIEWS_KEY | {"missing": "error"}}
    with pytest.raises(framedex.FramedexError, match="scene b: clip 1: view 'wrist' has no frame within"):
        framedex.shard(indexed, tmp_path / "D", policy=policy, workers=0, progress=False)


def test_batches_hold_what_items_hold(indexed: Path, tmp_path: Path) -> None:
    views = MultiViewDataset(ClipDataset(sharded(indexed, tmp_path / "D", POLICY)))
    loaded = 0
    for workers in (0, 2):
        loader = ClipLoader(views, batch_size=4, num_workers=workers, output="numpy")
        for batch in some(loader):
            for place, name in enumerate(batch["multiview_id"]):
                item = views[loaded % len(views)]
                assert item["multiview_id"] == name
                for view in VIEWS:
                    assert np.array_equal(batch["frames"][view][place], item["frames"][view])
                    assert np.array_equal(batch["mask"][view][place], item["mask"][view])
                    assert batch["clip_id"][view][place] == item["clip_id"][view]
                assert batch["task"][place] == item["task"]
                loaded += 1
        loader.close()
    assert loaded == 2 * len(views)


def test_views_of_one_size_are_one_array(indexed: Path) -> None:
    clips = ClipDataset.from_index(indexed, POLICY, size=(96, 128))
    stacked, apart = MultiViewDataset(clips, stack=True), MultiViewDataset(clips)
    item, same = stacked[5], apart[5]
    assert item["frames"].shape == (3, 4, 96, 128, 3)
    assert np.array_equal(item["frames"][2], same["frames"]["wrist"])
    assert item["clip_id"] == list(same["clip_id"].values())
    batch = next(iter(ClipLoader(stacked, batch_size=2)))
    assert tuple(batch["frames"].shape) == (2, 3, 4, 96, 128, 3)
    assert tuple(batch["seconds"].shape) == (2, 3, 4)
    with pytest.raises(
        framedex.FramedexError, match=r"views differ in the shape of 'frames'\n  found:   front: \(4, 144"
    ):
        MultiViewDataset(ClipDataset.from_index(indexed, POLICY), stack=True)[0]


@pytest.mark.parametrize(
    "pack",
    [["--pack", "clips"], ["--pack", "images"], ["--pack", "clips", "--encode", "h264", "--short-side", "96"]],
    ids=["clips", "images", "encoded"],
)
def test_streams_and_samples_have_the_items_of_each_view(indexed: Path, tmp_path: Path, pack: list[str]) -> None:
    dataset = sharded(indexed, tmp_path / "D", POLICY, *pack)
    clips = ClipDataset(dataset)
    stream = {item["clip_id"]: item for item in framedex.ClipStream(dataset, uneven="allow")}
    tars = sorted(map(str, (dataset / "shards").glob("*.tar")))
    read = webdataset.WebDataset(tars, shardshuffle=False).map(framedex.decode_sample)
    samples = {item["clip_id"]: item for item in read}
    assert len(clips) == len(stream) == len(samples) == 24
    for number in range(len(clips)):
        item = clips[number]
        for other in (stream[item["clip_id"]], samples[item["clip_id"]]):
            assert other.keys() - {"__key__"} == item.keys()
            assert np.array_equal(other["frames"], item["frames"])
            assert other["multiview_id"] == item["multiview_id"]
            assert np.array_equal(other["view_away_seconds"], item["view_away_seconds"], equal_nan=True)


def test_a_torch_dataloader_collates_views(indexed: Path) -> None:
    views = MultiViewDataset(ClipDataset.from_index(indexed, POLICY, size=(96, 128)))
    batches = list(DataLoader(views, batch_size=3, num_workers=2))
    assert [tuple(batch["frames"]["wrist"].shape) for batch in batches] == [(3, 4, 96, 128, 3)] * 3


def test_random_draws_keep_the_views_in_step(indexed: Path) -> None:
    policy = {"policy": "random", "clips": 3, "frames": 2, "stride": 3, "views": VIEWS_KEY | {"missing": "skip"}}
    views = MultiViewDataset(ClipDataset.from_index(indexed, policy))
    drawn = []
    for epoch in range(3):
        views.set_epoch(epoch)
        for item in some(views[number] for number in range(len(views))):
            drawn.append(item["frame_index"]["front"].tolist())
            assert all(np.abs(item["view_away_seconds"][view]).max() < 0.06 for view in VIEWS)
            apart = [item["seconds"][view] - SCENES_START[item["episode"], view] for view in VIEWS]
            assert np.ptp(apart, axis=0).max() < 0.06
    assert len(set(map(tuple, drawn))) > len(views)


SCENES_START = {(camera.scene, camera.view): camera.times[0] / 90_000 for camera in CAMERAS}
