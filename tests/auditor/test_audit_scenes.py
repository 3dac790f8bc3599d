"""Audits of scenes: views that are missing, that end at another time, that show nothing new, and that lie apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.audited import found
from tests.support.datasets import run
from tests.support.scenes import Camera, regular, write_scenes

VIEWS = {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}
POLICY = {"policy": "fps", "fps": 5, "frames": 4, "tolerance_seconds": 0.5, "views": VIEWS}
PAUSED = (*regular(25, 20), *(time + 54_000 for time in regular(25, 30, first=72_000)))  # nothing for 0.6 s
CAMERAS = [
    Camera(scene="sound", view="front", times=regular(25, 50)),
    Camera(scene="sound", view="left", times=regular(30, 60)),
    Camera(scene="sound", view="wrist", times=regular(50, 100)),
    Camera(scene="apart", view="front", times=regular(25, 65)),
    Camera(scene="apart", view="left", times=regular(30, 60)),  # ends after 2 of 2.6 s
    Camera(scene="apart", view="wrist", times=PAUSED),
    Camera(scene="lacks", view="front", times=regular(25, 50)),
    Camera(scene="lacks", view="left", times=regular(30, 60)),
]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of scenes, INDEX, a policy of their views, and its dataset, DATASET."""
    folder = tmp_path_factory.mktemp("scenes")
    run("index", write_scenes(folder / "MEDIA", CAMERAS), "--out", folder / "INDEX")
    (folder / "policy.yaml").write_text(yaml.safe_dump(POLICY))
    run("shard", folder / "INDEX", "--policy", folder / "policy.yaml", "--out", folder / "DATASET")
    return folder


def test_a_view_that_is_missing_is_named(scenes: Path) -> None:
    finding = found(scenes / "INDEX", "--policy", scenes / "policy.yaml")["views_absent"]
    assert finding["count"] == 1
    assert finding["examples"][0]["scene"] == "lacks"
    assert finding["examples"][0]["view"] == "wrist"
    assert (
        finding["examples"][0]["problem"]
        == "view 'wrist' is missing: no usable row of the listing belongs to this view"
    )


def test_a_view_that_ends_early_has_the_rate_that_would_mend_it(scenes: Path) -> None:
    finding = found(scenes / "INDEX", "--policy", scenes / "policy.yaml")["views_drift"]
    assert [(row["scene"], row["view"], row["uri"]) for row in finding["examples"]] == [
        ("apart", "left", "apart-left.mp4")
    ]
    row = finding["examples"][0]
    assert row["rate"] == pytest.approx(row["ends"] / row["usual"], abs=1e-3)
    views = VIEWS | {"each": {"left": {"rate": row["rate"]}}}
    mended = yaml.safe_dump(POLICY | {"views": views})
    scenes_of = {row["scene"] for row in found(scenes / "INDEX", "--policy", mended)["views_drift"]["examples"]}
    assert "apart" not in scenes_of  # the others are apart now: the rate is that of all scenes


def test_a_pause_of_a_view_is_found(scenes: Path) -> None:
    finding = found(scenes / "INDEX", "--policy", scenes / "policy.yaml")["views_gaps"]
    assert [(row["view"], row["gap"], row["at"]) for row in finding["examples"]] == [("wrist", 0.64, 0.76)]


def test_clips_of_a_dataset_that_lack_a_view_or_lie_apart_are_found(scenes: Path) -> None:
    findings = found(scenes / "DATASET")
    assert {row["multiview_id"][:5] for row in findings["views_incomplete"]["examples"]} == {"lacks"}
    apart = findings["views_apart"]["examples"]
    assert {(row["multiview_id"][:5], row["view_name"]) for row in apart} <= {("apart", "wrist"), ("apart", "left")}
    assert max(row["away"] for row in apart) <= 0.5
    assert "views_incomplete" not in found(scenes / "DATASET", "--check", "views_apart")


def test_without_views_a_policy_says_nothing_of_scenes(scenes: Path) -> None:
    assert not {"views_absent", "views_drift", "views_gaps"} & found(scenes / "INDEX", "--policy", "fps").keys()
    with pytest.raises(AssertionError, match="it needs --policy with a policy that has views"):
        run("audit", scenes / "INDEX", "--check", "views_gaps", "--policy", "fps")


def test_media_that_give_no_clip_of_several_views_are_found(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(POLICY | {"views": VIEWS | {"missing": "skip"}}))
    finding = found(scenes / "INDEX", "--policy", tmp_path / "policy.yaml")["too_short"]
    assert [row["uri"] for row in finding["examples"]] == ["lacks-front.mp4", "lacks-left.mp4"]
    assert finding["examples"][0]["reason"].startswith("view 'wrist' is missing")


def test_inspect_shows_a_row_for_each_view(scenes: Path, tmp_path: Path) -> None:
    run("inspect", scenes / "DATASET", "--clip", "sound-000001", "--out", tmp_path / "one.html")
    page = (tmp_path / "one.html").read_text()
    shown = [page.find(f"{view} · of sound-000001") for view in ("front", "left", "wrist")]
    assert 0 < shown[0] < shown[1] < shown[2]
    output = run("inspect", scenes / "DATASET", "--sample", "1", "--seed", "2", "--out", tmp_path / "some.html").output
    assert output.startswith(("3 clips", "2 clips"))


def test_a_filter_that_leaves_out_all_media_ends_no_audit(scenes: Path) -> None:
    policy = yaml.safe_dump(POLICY | {"filter": "episode == 'nothing'"})
    assert "views_absent" not in found(scenes / "INDEX", "--policy", policy)
