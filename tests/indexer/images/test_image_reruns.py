"""A rerun detects changed images, a dry run counts images, and the table shows a sequence like a video."""

from __future__ import annotations

import json
import os
from pathlib import Path

from framedex import Index
from tests.support.datasets import run
from tests.support.images import encoded, indexed, medium_id, planned, sequence, tar_of, write

# Reruns


def changes(tmp_path: Path) -> list[str]:
    """Index `data` again, check the report against the plan of a dry run, and return the planned uris."""
    plan = planned(tmp_path / "INDEX", tmp_path / "data")
    report, _ = indexed(tmp_path / "INDEX", tmp_path / "data")
    assert report.unchanged == plan["unchanged"]
    assert (report.ok > 0) == bool(plan["probe"])
    return list(plan["probe"])


def test_a_rerun_sees_what_was_added_removed_or_changed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sequence(tmp_path / "data" / name)
    assert changes(tmp_path) == ["a", "b"]
    assert changes(tmp_path) == []
    write(tmp_path / "data/a", {"frame10.png": encoded(10)})
    assert changes(tmp_path) == ["a"]
    index = Index(tmp_path / "INDEX")
    assert index.packets(medium_id("a")).path == ["frame0.png", "frame1.png", "frame2.png", "frame10.png"]
    (tmp_path / "data/b/frame0.png").unlink()
    assert changes(tmp_path) == ["b"]
    write(tmp_path / "data/b", {"frame1.png": encoded(11)})
    assert changes(tmp_path) == ["b"]
    (tmp_path / "data/b/timestamps.txt").write_text("3\n4\n")
    assert changes(tmp_path) == ["b"]
    assert Index(tmp_path / "INDEX").packets(medium_id("b")).pts.tolist() == [3_000_000, 4_000_000]
    assert changes(tmp_path) == []


def test_a_rerun_leaves_a_tar_alone_until_it_changes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tar_of(tmp_path / "data/t.tar", [("a/0.png", encoded(0)), ("b/0.png", encoded(1))])
    assert changes(tmp_path) == ["t.tar"]
    os.utime(path, ns=(1, 1))  # the same content
    assert changes(tmp_path) == []
    tar_of(path, [("b/0.png", encoded(2)), ("c/0.png", encoded(3))])
    assert indexed(tmp_path / "INDEX", path)[0].ok == 2
    assert changes(tmp_path) == []


def test_another_rate_is_a_reason_to_look_again(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s")
    tar_of(tmp_path / "data/t.tar", [("a.png", encoded())])
    out, data = tmp_path / "INDEX", tmp_path / "data"
    indexed(out, data)
    assert indexed(out, data, image_fps="25")[0].ok == 2
    assert indexed(out, data, image_fps="25")[0].unchanged == 2
    assert indexed(out, data, image_fps="25", verify=True)[0].ok == 2


# The command


def test_a_dry_run_counts_the_images(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s")
    assert "s (3 images)" in run("index", tmp_path / "data", "--out", tmp_path / "INDEX", "--dry-run").output
    plan = json.loads(run("index", tmp_path / "data", "--out", tmp_path / "INDEX", "--dry-run", "--json").output)
    assert plan["images"] == {"s": 3}
    assert plan["probe"] == ["s"]


def test_the_table_shows_a_sequence_like_a_video(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s", 5, "JPEG")
    output = run("index", tmp_path / "data", "--out", tmp_path / "INDEX", "--image-fps", "30000/1001").output
    line = next(line for line in output.splitlines() if line.startswith("s "))
    assert line.split() == ["s", "mjpeg", "32x24", "5", "29.97", "no", "1", "0.17"]
