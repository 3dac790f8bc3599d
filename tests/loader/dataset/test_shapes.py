"""shapes() tells the shape of each clip's frames as they are delivered, without reading a clip."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framedex import ClipDataset
from tests.support.datasets import run
from tests.support.media import damage, picture


def quarter_turn(content: bytearray) -> bytearray:
    """Change the matrix of a version 0 track header (ISO/IEC 14496-12 8.3.2) to a quarter turn."""
    at, one = content.index(b"tkhd") + 44, 1 << 16
    content[at : at + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    return content


@pytest.fixture(scope="module")
def indexed(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of videos, one of which is turned, and images."""
    home = tmp_path_factory.mktemp("shapes")
    folder = home / "media"
    (folder / "shots").mkdir(parents=True)
    for name in ("h264_default.mp4", "h264_vfr.mkv"):
        shutil.copy(medium(name), folder / name)
    damage(medium("h264_default.mp4"), folder / "turned.mp4", quarter_turn)
    for number in range(16):
        Image.fromarray(picture(number, 192, 96)).save(folder / "shots" / f"{number:02}.png")
    run("index", folder, "--out", home / "INDEX", "--image-fps", 5)
    return home / "INDEX"


def delivered(dataset: ClipDataset) -> list[tuple[int, ...]]:
    """Return the shapes of all clips' frames, read one by one."""
    return [dataset[number]["frames"].shape[:3] for number in range(len(dataset))]


ROOT = Path(__file__).resolve().parents[3]
POLICIES: list[dict[str, Any]] = [
    {"policy": "fps", "fps": 5, "frames": 4, "last": "partial"},
    {"policy": "fps", "fps": 5, "frames": 4, "last": "drop"},
    {"policy": "fps", "fps": 5, "frames": 7, "last": "pad"},
    {"policy": "uniform", "frames": 3},
    {"policy": "stride", "stride": 9, "frames": 5, "last": "partial", "short": "pad"},
    {"policy": "random", "frames": 2, "clips": 3, "fps": 5},
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("how", ["manifest", "index"])
def test_shapes_are_those_of_the_delivered_frames(
    indexed: Path, tmp_path: Path, policy: dict[str, Any], how: str
) -> None:
    if how == "manifest":
        (tmp_path / "policy.yaml").write_text("".join(f"{name}: {value}\n" for name, value in policy.items()))
        run("shard", indexed, "--policy", tmp_path / "policy.yaml", "--out", tmp_path / "D", "--max-failures", 9)
        dataset = ClipDataset(tmp_path / "D")
    else:
        dataset = ClipDataset.from_index(indexed, policy)
    assert len(dataset) >= 3
    shapes = dataset.shapes()
    assert (shapes.dtype, shapes.shape) == (np.int64, (len(dataset), 3))
    assert [tuple(shape) for shape in shapes.tolist()] == delivered(dataset)


@pytest.mark.parametrize(
    "arguments", [["--pack", "images", "--short-side", "64"], ["--pack", "clips", "--encode", "h264", "--box", "64"]]
)
def test_shapes_of_packed_clips_are_those_in_which_they_are_stored(
    indexed: Path, tmp_path: Path, arguments: list[str]
) -> None:
    run("shard", indexed, "--policy", "uniform", "--out", tmp_path / "D", *arguments)
    dataset = ClipDataset(tmp_path / "D")
    found = [tuple(shape) for shape in dataset.shapes().tolist()]
    assert found == delivered(dataset)
    assert len(set(found)) > 1


def test_a_size_a_choice_of_clips_and_turned_pictures_count(indexed: Path, tmp_path: Path) -> None:
    policy = {"policy": "uniform", "frames": 3, "split": {"shares": {"train": 1, "val": 1}, "seed": 1}}
    whole = ClipDataset.from_index(indexed, policy, rotation="stored")
    assert ClipDataset.from_index(indexed, policy, size=(20, 30)).shapes().tolist() == [[3, 20, 30]] * len(whole)
    chosen = ClipDataset.from_index(indexed, policy, where={"split": "train"}, rotation="stored")
    is_chosen = whole.column("split") == "train"
    assert 0 < len(chosen) < len(whole)
    assert chosen.shapes().tolist() == whole.shapes()[is_chosen].tolist()
    upright = ClipDataset.from_index(indexed, policy).shapes()
    quarter = whole.column("rotation_degrees") % 180 != 0
    assert quarter.any()
    assert upright[quarter].tolist() == whole.shapes()[quarter][:, [0, 2, 1]].tolist()
    assert upright[~quarter].tolist() == whole.shapes()[~quarter].tolist()
