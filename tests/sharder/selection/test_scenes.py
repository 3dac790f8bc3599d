"""Rows of a listing as scenes: what belongs together, and what is wrong with it."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import framedex
from framedex import ClipDataset, Index
from framedex.errors import PolicyError
from framedex.sharder.configuration.listing_rows import Views
from framedex.sharder.planning.units import scenes_of
from tests.support.policies import policy_of

VIEWS = {"group": "scene", "view": "camera", "clock": "a"}


def views_of(**more: Any) -> Views:
    document = {"policy": "stride", "stride": 1, "frames": 1, "views": VIEWS | more}
    views = policy_of(document).policy.views
    assert views is not None
    return views


def table(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


def test_equal_values_are_one_scene_in_the_order_of_first_rows() -> None:
    columns = table(scene=[7, 3, 7, 3, 9], camera=["b", "a", "a", "b", "a"])
    found = scenes_of(columns, views_of())
    assert found.names == ["a", "b"]
    assert [(scene.name, scene.rows) for scene in found.scenes] == [
        ("7", {"a": 2, "b": 0}),
        ("3", {"a": 1, "b": 3}),
        ("9", {"a": 4}),
    ]
    assert not found.strays


def test_several_columns_name_a_scene_together() -> None:
    columns = table(set=["x", "x", "y", None], scene=[1, 1, 1, 1], camera=["a", "b", "a", "b"])
    found = scenes_of(columns, views_of(group=["set", "scene"]))
    assert [(scene.name, scene.rows) for scene in found.scenes] == [
        ('["x","1"]', {"a": 0, "b": 1}),
        ('["y","1"]', {"a": 2}),
    ]
    assert found.strays == [(3, "the column 'set' is empty")]


def test_views_may_be_chosen_and_numbered() -> None:
    columns = table(scene=["x"] * 3, camera=[0, 1, 2])
    found = scenes_of(columns, views_of(names=[2, 0], clock=0))
    assert found.names == ["2", "0"]
    assert found.scenes[0].rows == {"2": 2, "0": 0}


def test_rows_without_a_scene_or_a_view_are_strays() -> None:
    columns = table(scene=["x", None, "x", "x"], camera=["a", "b", None, "b"])
    found = scenes_of(columns, views_of())
    assert found.strays == [(1, "the column 'scene' is empty"), (2, "the column 'camera' is empty")]
    assert found.scenes[0].rows == {"a": 0, "b": 3}


def test_two_rows_of_one_view_are_neither() -> None:
    columns = table(scene=["x"] * 3, camera=["a", "b", "b"])
    [scene] = scenes_of(columns, views_of()).scenes
    assert scene.rows == {"a": 0, "b": "several rows of the listing have this view of the scene"}


def test_times_name_scenes_and_lists_do_not() -> None:
    days = [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), datetime.date(2026, 1, 1)]
    found = scenes_of(table(scene=days, camera=["a", "a", "b"]), views_of())
    assert [(scene.name, scene.rows) for scene in found.scenes] == [
        ("2026-01-01", {"a": 0, "b": 2}),
        ("2026-01-02", {"a": 1}),
    ]
    with pytest.raises(PolicyError, match="a column of this type cannot name scenes or views"):
        scenes_of(table(scene=[["x"], ["y"]], camera=["a", "b"]), views_of())


@pytest.mark.parametrize(
    ("more", "found"),
    [({"clock": "aa"}, "'aa'"), ({"names": ["a", "c"]}, "'c'"), ({"each": {"d": {"rate": 2}}}, "'d'")],
)
def test_a_view_that_no_row_has_is_an_error(more: dict[str, Any], found: str) -> None:
    with pytest.raises(PolicyError) as error:
        scenes_of(table(scene=["x", "x"], camera=["a", "b"]), views_of(**more))
    assert (error.value.found, error.value.allowed) == (found, "a, b")


def test_views_of_a_scene_are_in_one_split() -> None:
    columns = table(scene=["x", "x"], camera=["a", "b"], split=["train", "val"])
    with pytest.raises(PolicyError, match="belong to different splits") as error:
        scenes_of(columns, views_of())
    assert error.value.remedy == "let the policy split by scene: `by: scene`"


def test_a_listing_without_the_columns_is_an_error(index: Index) -> None:
    document = {"policy": "stride", "stride": 1, "frames": 1, "views": VIEWS}
    with pytest.raises(PolicyError, match=r"the listing has no such column(.|\n)*a listing with columns for scenes"):
        ClipDataset.from_index(index.path, document)


def test_rows_outside_of_scenes_are_failures_whose_media_stay_closed(
    medium: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["uri,scene,camera", "h264_default.mp4,x,a", "h264_vfr.mp4,,a", "hevc_closed.mp4,x,"]
    for row in rows[1:]:
        shutil.copy(medium(row.split(",")[0]), tmp_path)
    (tmp_path / "list.csv").write_text("\n".join(rows))
    framedex.index(tmp_path / "list.csv", tmp_path / "I", workers=0, progress=False)
    opened, real = set(), Index.packets

    def packets(index: Index, media_id: str) -> Any:
        opened.add(media_id)
        return real(index, media_id)

    monkeypatch.setattr(Index, "packets", packets)
    policy = {"policy": "stride", "stride": 9, "frames": 2, "views": VIEWS}
    report = framedex.shard(tmp_path / "I", tmp_path / "D", policy=policy, workers=0, progress=False)
    assert {failure["uri"] for failure in report.failures} == {"h264_vfr.mp4", "hevc_closed.mp4"}
    assert len(opened) == 1
