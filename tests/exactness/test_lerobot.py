"""LeRobot datasets beside the lerobot package: a dataset that it wrote, and what it returned (see make.py there)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import ClipDataset, ClipLoader, MultiViewDataset
from tests.support.datasets import run

DATA = Path(__file__).parents[1] / "data/lerobot"
TIMES = {"observation.images.top": [-0.2, 0, 0.1], "observation.images.wrist": [-0.3, -0.1, 0, 0.2]}
CAMERAS = tuple(TIMES)
TERMS = {
    "policy": "around",
    "pad": "ends",
    "tolerance_seconds": 0.0001,
    "range": {"start": "start_seconds", "end": "end_seconds", "tolerance_seconds": 0.0001, "frames": "length"},
}
POLICY = TERMS | {"seconds": TIMES[CAMERAS[0]]}
BOTH = POLICY | {
    "views": {
        "group": "episode_index",
        "view": "camera",
        "clock": CAMERAS[0],
        "missing": "error",
        "each": {CAMERAS[1]: {"seconds": TIMES[CAMERAS[1]]}},
    }
}
COLUMNS = {"action": [0, 0.1, 0.2, 0.3], "observation.state": [-0.1, 0], "timestamp": [0.0]}


@pytest.fixture(scope="module", params=["v3", "v21"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def indexed(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a dataset."""
    out = tmp_path_factory.mktemp("lerobot") / "INDEX"
    run("index", f"lerobot:{DATA / version}", "--out", out)
    return out


@pytest.fixture(scope="module")
def theirs(version: str) -> dict[str, NDArray[Any]]:
    """What the lerobot package returned, by key: [samples, …]."""
    return dict(np.load(DATA / f"{version}.npz"))


def test_every_sample_is_that_of_the_package(indexed: Path, theirs: dict[str, NDArray[Any]]) -> None:
    both = MultiViewDataset(ClipDataset.from_index(indexed, BOTH, frame_columns=COLUMNS))
    assert len(both) == len(theirs["index"]) == 49
    for number in np.random.default_rng(0).permutation(len(both)).tolist():
        clip = both[number]
        assert list(clip["mask"]) == list(CAMERAS)
        for camera in CAMERAS:
            assert np.array_equal(clip["mask"][camera], ~theirs[f"{camera}_is_pad"][number])
        assert np.array_equal(clip["action"], theirs["action"][number])
        assert np.array_equal(clip["action_mask"], ~theirs["action_is_pad"][number])
        assert np.array_equal(clip["observation.state"], theirs["observation.state"][number])
        assert np.array_equal(clip["observation.state_mask"], ~theirs["observation.state_is_pad"][number])
        assert clip["timestamp"] == theirs["timestamp"][number]
        assert clip["task"] == theirs["task"][number]
        assert clip["episode_index"] == theirs["episode_index"][number]


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_camera_alone_has_the_frames_that_it_has_beside_the_other(indexed: Path, camera: str) -> None:
    both = MultiViewDataset(ClipDataset.from_index(indexed, BOTH))
    alone = ClipDataset.from_index(indexed, TERMS | {"seconds": TIMES[camera]}, where={"camera": camera})
    assert len(both) == len(alone)
    for number in np.random.default_rng(0).permutation(len(both)).tolist():
        assert np.array_equal(both[number]["frame_index"][camera], alone[number]["frame_index"])
        assert np.array_equal(both[number]["frames"][camera], alone[number]["frames"])


def test_every_frame_is_that_of_the_package(indexed: Path, theirs: dict[str, NDArray[Any]]) -> None:
    """Their colours differ a little from ours, so a frame is the one of all frames that is nearest to theirs."""
    both = MultiViewDataset(ClipDataset.from_index(indexed, BOTH))
    for camera in CAMERAS:
        now = TIMES[camera].index(0)
        items = [both[number] for number in range(len(both))]
        shown = np.stack([item["frames"][camera][now] for item in items]).astype(np.int16)
        own = np.array([item["frame_index"][camera] for item in items])
        first = np.array([both.clips.clip(both.numbers(number)[camera]).stretch[0] for number in range(len(both))])
        in_file = own[:, now]
        for number, pictures in enumerate(theirs[camera].transpose(0, 1, 3, 4, 2)):
            of_file = np.flatnonzero(theirs["episode_index"] == theirs["episode_index"][number])
            apart = np.abs(shown[None, of_file] - pictures[:, None]).mean(axis=(2, 3, 4))
            assert apart.min(axis=1).max() < 4
            assert np.array_equal(in_file[of_file[apart.argmin(axis=1)]], own[number])
        assert np.array_equal(in_file - first, theirs["frame_index"])


def test_a_dataset_on_disk_has_the_same_clips(indexed: Path, theirs: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{policy: around, seconds: [-0.2, 0, 0.1], pad: ends, tolerance_seconds: 0.0001, "
        "range: {start: start_seconds, end: end_seconds, tolerance_seconds: 0.0001, frames: length}}"
    )
    run("shard", indexed, "--policy", policy, "--out", tmp_path / "D", "--pack", "clips")
    clips = ClipDataset(tmp_path / "D", frame_columns=["action"])
    planned = ClipDataset.from_index(indexed, POLICY, frame_columns=["action"])
    assert len(clips) == len(planned) == 2 * len(theirs["index"])
    for number in np.random.default_rng(1).permutation(len(clips)).tolist():
        one, other = clips[number], planned[number]
        assert one.keys() == other.keys()
        assert np.array_equal(one["frames"], other["frames"])
        assert np.array_equal(one["action"], other["action"])


def test_a_loader_gives_states_and_actions_in_batches(indexed: Path, theirs: dict[str, NDArray[Any]]) -> None:
    clips = ClipDataset.from_index(indexed, POLICY, where={"camera": CAMERAS[0]}, frame_columns=COLUMNS, size=(32, 48))
    loader = ClipLoader(clips, batch_size=7, num_workers=2)
    batches = list(loader)
    loader.close()
    assert np.array_equal(np.concatenate([np.asarray(batch["action"]) for batch in batches]), theirs["action"])
    assert np.array_equal(
        np.concatenate([np.asarray(batch["action_mask"]) for batch in batches]), ~theirs["action_is_pad"]
    )


def test_a_dataset_that_moved_finds_its_tables(indexed: Path, version: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / version, tmp_path / "moved")
    clips = ClipDataset.from_index(indexed, POLICY, frame_columns=["action"], root=tmp_path / "moved")
    assert str(tmp_path) in clips.clip(0).medium.path
    assert (
        clips[1]["action"].tolist()
        == ClipDataset.from_index(indexed, POLICY, frame_columns=["action"])[1]["action"].tolist()
    )
