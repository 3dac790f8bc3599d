"""LeRobot datasets in a bucket and on the Hub: the same rows and samples as in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framedex import ClipDataset, MultiViewDataset
from tests.support.datasets import run
from tests.support.hub import Hub
from tests.support.s3 import Bucket

DATA = Path(__file__).parents[1] / "data/lerobot"
CAMERAS = ("observation.images.top", "observation.images.wrist")
POLICY = {
    "policy": "around",
    "seconds": [-0.2, 0, 0.1],
    "pad": "ends",
    "tolerance_seconds": 0.0001,
    "range": {"start": "start_seconds", "end": "end_seconds", "tolerance_seconds": 0.0001, "frames": "length"},
    "views": {"group": "episode_index", "view": "camera", "clock": CAMERAS[0], "missing": "error"},
}


def opened(source: str, out: Path) -> MultiViewDataset:
    run("index", f"lerobot:{source}", "--out", out)
    return MultiViewDataset(ClipDataset.from_index(out, POLICY, frame_columns={"action": [0, 0.1]}))


def check_same(theirs: MultiViewDataset, tmp_path: Path, version: str) -> None:
    """Check that samples of a dataset in a store are those of the folder."""
    ours = opened(str(DATA / version), tmp_path / "FOLDER")
    assert len(theirs) == len(ours) == 49
    for number in np.random.default_rng(0).permutation(49)[:12].tolist():
        one, other = theirs[number], ours[number]
        for camera in CAMERAS:
            assert np.array_equal(one["frames"][camera], other["frames"][camera])
        assert np.array_equal(one["action"], other["action"])
        assert one["task"] == other["task"]


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_in_a_bucket(bucket: Bucket, tmp_path: Path, version: str) -> None:
    folder = bucket.put_folder(DATA / version, f"robots/{version}")
    check_same(opened(folder, tmp_path / "INDEX"), tmp_path, version)


def test_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    files = {
        str(path.relative_to(DATA / "v3")): path.read_bytes() for path in (DATA / "v3").rglob("*") if path.is_file()
    }
    hub.commit(files)
    check_same(opened("hf://datasets/some/one", tmp_path / "INDEX"), tmp_path, "v3")
