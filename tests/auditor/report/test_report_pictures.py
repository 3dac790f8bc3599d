"""Pictures and the timeline of a report show the frames that they name. A missing picture has a stated reason."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.audit_data import write_index
from framedex.execution.engine import Outcome
from tests.loader.contact_sheets.test_inspect import Node
from tests.support.audit_reports import Report, written
from tests.support.datasets import run, shard_clips
from tests.support.media import damage, read_barcode
from tests.support.s3 import Bucket


def _pixels(image: Node, size: tuple[int, int]) -> Any:
    source = image.attributes["href"] or ""
    assert source.startswith("data:image/jpeg;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).resize(size))


def test_pictures_are_the_frames_that_they_are_called(report: Report) -> None:
    _, page, facts = report
    symbols = {f"#{node.attributes['id']}": node.all("image")[0] for node in page.all("symbol")}
    assert symbols
    shown = 0
    for item in page.all("li"):
        for use in item.all("use"):
            number = int(item.all("span")[0].text.removeprefix("#"))
            assert read_barcode(_pixels(symbols[use.attributes["href"] or ""], (176, 144))) == number
            shown += 1
    assert shown > len(symbols), "findings share pictures"
    assert any(len(strip["frames"]) == 4 for strip in facts["pictures"].values())
    assert len(page.all("figure")) > len(facts["histograms"])


def test_a_report_without_pictures_has_none(index: Path, tmp_path: Path) -> None:
    page, facts = written(index, tmp_path / "r.html", "--no-pictures")
    assert not page.all("image")
    assert facts["pictures"] == {}
    assert (tmp_path / "r.html").stat().st_size < 200_000


def test_what_vanished_or_changed_is_told_in_place_of_a_picture(medium: Callable[[str], Path], tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_vfr.mkv", "h264_vfr.mp4", "h264_24_to_60.mp4"):
        shutil.copy(medium(name), videos / name)
    run("index", videos, "--out", tmp_path / "INDEX")
    (videos / "h264_vfr.mkv").unlink()
    (videos / "h264_vfr.mp4").write_bytes(b"other")
    page, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--check", "variable_rate")
    reasons = {strip["name"]: strip["reason"] for strip in facts["pictures"].values()}
    assert reasons["h264_24_to_60.mp4"] is None
    assert "not the file that was indexed" in reasons["h264_vfr.mkv"]
    assert "not the file that was indexed" in reasons["h264_vfr.mp4"]
    assert page.text.count("No picture: ") == 2, "a picture stands beside them"
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in reasons:
        shutil.copy(medium(name), moved / name)
    _, facts = written(tmp_path / "INDEX", tmp_path / "m.html", "--check", "variable_rate", "--root", moved)
    assert {strip["reason"] for strip in facts["pictures"].values()} == {None}


def test_media_whose_packets_are_scattered_have_pictures(corpus: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(corpus / "cont_h264.ts", videos)
    run("index", videos, "--out", tmp_path / "INDEX")
    _, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--check", "not_addressable")
    (strip,) = facts["pictures"].values()
    assert (len(strip["frames"]), strip["reason"]) == (4, None)


def test_media_in_a_bucket_have_pictures(bucket: Bucket, medium: Callable[[str], Path], tmp_path: Path) -> None:
    bucket.put("videos/phone.mkv", medium("h264_vfr.mkv"))
    bucket.put("videos/grown.mp4", medium("h264_vfr.mp4"))
    run("index", f"{bucket.uri}/videos", "--out", f"{bucket.uri}/INDEX")
    bucket.put("videos/grown.mp4", medium("h264_default.mp4"))
    _, facts = written(f"{bucket.uri}/INDEX", tmp_path / "r.html")
    shown = {strip["name"]: (len(strip["frames"]), strip["reason"]) for strip in facts["pictures"].values()}
    assert shown["phone.mkv"] == (4, None)
    assert shown["grown.mp4"] == (0, "the source is not the file that was indexed")


def test_costly_pictures_are_of_start_points_and_few_media_have_any(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framedex.auditor.report.pictures.MAX_PIXELS", 0)
    _, facts = written(index, tmp_path / "r.html", "--check", "open_gops")
    (strip,) = facts["pictures"].values()
    assert {frame["frame"] % 12 for frame in strip["frames"]} == {0}, "a GOP has 12 frames"
    monkeypatch.setattr("framedex.auditor.report.pictures.MAX_MEDIA", 2)
    _, facts = written(index, tmp_path / "few.html")
    assert len(facts["pictures"]) == 2


def test_a_medium_that_ends_its_decoder_has_no_pictures(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashing(calls: Any, **options: object) -> Iterator[Any]:
        yield from (Outcome(item=task, kind="crash", message="the process died") for task in calls.items)

    monkeypatch.setattr("framedex.auditor.report.pictures.run_local", crashing)
    page, facts = written(index, tmp_path / "r.html", "--check", "open_gops")
    (strip,) = facts["pictures"].values()
    assert (strip["frames"], strip["reason"]) == ([], "crash: the process died")
    assert strip["name"].endswith(".mp4")
    assert not page.all("image")


def test_clips_that_do_not_decode_are_told_in_place_of_a_picture(dataset: Path, tmp_path: Path) -> None:
    page, facts = written(dataset, tmp_path / "r.html", "--root", tmp_path / "nowhere")
    assert not page.all("image")
    assert "not the file that was indexed" in facts["pictures"]["padded"]["reason"]


def hurt(content: bytearray) -> bytearray:
    """Change bytes of slices in the middle of a video."""
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(byte ^ 0x5A for byte in content[middle : middle + 400])
    return content


def test_damage_that_is_met_while_drawing_is_a_finding(medium: Callable[[str], Path], tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    damage(medium("h264_open_gop.mp4"), videos / "hurt.mp4", hurt)
    shutil.copy(medium("h264_open_gop.mp4"), videos / "whole.mp4")
    index = tmp_path / "INDEX"
    run("index", videos, "--out", index)
    clips = [
        {"uri": name, "frames": [*range(20, 40), *[-1] * 30], "clip_id": name} for name in ("hurt.mp4", "whole.mp4")
    ]
    for place, key in ((index, "media_id"), (shard_clips(index, tmp_path / "DS", clips), "clip_id")):
        assert "damage_met" not in run("audit", place, "--json").output, "it needs pictures"
        page, facts = written(place, tmp_path / f"{place.name}.html", "--fail-on", "error", code=3)
        (met,) = [finding for finding in facts["findings"] if finding["check"] == "damage_met"]
        (example,) = met["examples"]
        assert (met["severity"], met["count"], example["uri"]) == ("error", 1, "hurt.mp4")
        assert example["error_message"] == facts["pictures"][example[key]]["reason"]
        (article,) = [node for node in page.all("article") if node.attributes["id"] == "check-damage_met"]
        assert "hurt.mp4" in article.text
        rows = run("audit", place, "--sql", met["sql"], "--format", "json").output
        assert [row["uri"] for row in json.loads(rows)] == ["hurt.mp4"]


def test_the_timeline_is_of_the_video_that_most_findings_name(report: Report) -> None:
    _, page, facts = report
    timeline = facts["timeline"]
    assert timeline["frames"] == timeline["shown"] == 50
    assert timeline["start_points"] >= 3
    (section,) = [node for node in page.all("section") if node.attributes["id"] == "timeline"]
    label = section.all("svg")[0].attributes["aria-label"] or ""
    assert label.startswith("50 frames of ")


def test_a_long_video_is_shown_around_its_longest_gap(tmp_path: Path) -> None:
    write_index(tmp_path / "INDEX", 40, seconds=200.0)
    page, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--check", "long_gaps", "--no-pictures")
    timeline = facts["timeline"]
    assert timeline["shown"] == 2000 < timeline["frames"]
    assert timeline["longest_gap_seconds"] > 3
    (section,) = [node for node in page.all("section") if node.attributes["id"] == "timeline"]
    assert f"of {timeline['frames']:,}, around the longest gap" in section.text
    assert any("s without a frame" in node.text for node in section.all("rect", "gap"))
