"""Checks of an index by `framedex audit`: each check reports its own fault and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from framedex import Index
from framedex.auditor.findings import SEVERITIES, checks_of, questions
from tests.support.audited import found, sound_row, write_rows
from tests.support.datasets import run
from tests.support.media import Medium, remux

# For each check of an index, the values that make it report an otherwise sound row.
FAULTS: dict[str, dict[str, Any]] = {
    "failed": {"status": "failed", "error_kind": "not_media", "error_message": "not a video"},
    "internal_error": {"status": "failed", "error_kind": "internal_error", "error_message": "TypeError: mine"},
    "refused": {"status": "refused", "error_kind": "output_order", "error_message": "contradict"},
    "truncated": {"error_kind": "truncated", "error_message": "the file is truncated"},
    "damaged": {"damaged_gop_count": 1, "error_kind": "damaged"},
    "variable_rate": {"is_vfr": True},
    "long_gaps": {"max_gap_seconds": 1.5},
    "turned_back": {"pts_source": "joined"},
    "made_up_times": {"pts_source": "dealt"},
    "same_times": {"min_gap_seconds": 0.0},
    "stated_frames": {"stated_frames": 7_000_000},
    "stated_duration": {"stated_duration_seconds": 9999.0},
    "stated_rate": {"stated_rate": 12.0},
    "slow_access": {"seek_packets": 250.0},
    "open_gops": {"open_gop_count": 3},
    "no_nvdec": {"pixel_format": "yuv422p10le", "chroma_format": 2},
    "not_addressable": {"byte_addressable": False},
    "odd_colour": {"color_matrix": 5, "width": 1280, "height": 720},
    "untagged_colour": {"color_matrix": 2, "width": 1280, "height": 720},
    "hdr": {"color_transfer": 16, "color_primaries": 9, "pixel_format": "yuv420p10le", "codec": "hevc"},
    "more_than_8_bits": {"pixel_format": "yuv420p10le", "codec": "hevc"},
    "copies": {"fingerprint": f"{1:032x}"},
    "same_stream": {"first_packets": f"{1:016x}", "duration_pts": None, "width": None, "height": None},
    "audio_apart": {"audio_codec": "aac", "audio_start_seconds": 0.5, "audio_duration_seconds": 20.0},
    "audio_unusable": {"audio_codec": "wmav2", "audio_problem": "its decoder is not covered"},
    "interlaced": {"field_order": "tt"},
    "rotated": {"rotation_degrees": 90},
    "oblong_pixels": {"sample_aspect_ratio": 1.333},
    "varying_shape": {"varying_shape": True},
    "single_frame": {"frame_count": 1, "packet_count": 1, "stated_frames": 1, "min_gap_seconds": None},
    "not_recorded": {"seek_packets": None},
}


def test_every_check_of_an_index_is_tried() -> None:
    needing = {check.name for check in checks_of("index") if check.needs}
    assert {check.name for check in checks_of("index")} == FAULTS.keys() | needing
    views = {"views_absent", "views_drift", "views_gaps"}  # tests/auditor/test_audit_scenes.py tries them
    assert needing == {"changed", "vanished", "too_short"} | views


def test_nothing_is_found_in_sound_videos(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(number) for number in range(1, 6)])
    assert not found(index)
    assert run("audit", index).output.count("nothing found by") == 1


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_finds_what_it_is_about_and_no_other_does(name: str, tmp_path: Path) -> None:
    rows = [sound_row(number) for number in range(1, 4)]
    faults = {
        key: rows[0][key] if value is None and name == "same_stream" else value for key, value in FAULTS[name].items()
    }
    rows[2] |= faults
    if "duration_pts" in faults:
        rows[2] |= {
            key: rows[0][key]
            for key in (
                "codec",
                "stated_duration_seconds",
                "frame_count",
                "packet_count",
                "stated_frames",
                "stated_rate",
                "median_gap_seconds",
            )
        }
    if name == "audio_apart":
        rows[2]["audio_duration_seconds"] = rows[2]["duration_pts"] / rows[2]["time_base_den"]
    findings = found(write_rows(tmp_path / "INDEX", rows))
    deep = {"more_than_8_bits"} if str(faults.get("pixel_format")).endswith("10le") else set()
    assert findings.keys() == {name} | deep
    finding = findings[name]
    assert finding["count"] == 1
    assert finding["examples"][0]["uri"] in {rows[0]["uri"], rows[2]["uri"]}
    assert finding["severity"] in SEVERITIES
    again = run("audit", tmp_path / "INDEX", "--sql", finding["sql"], "--format", "json")
    assert json.loads(again.stdout) == finding["examples"]


def test_real_media_are_found_out(medium: Medium, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_default.mp4", "h264_vfr.mkv", "h264_open_gop.mkv", "hevc_closed.mp4"):
        shutil.copy(medium(name), videos / name)
    shutil.copy(medium("h264_default.mp4"), videos / "copy.mp4")
    remux(medium("hevc_closed.mp4"), videos / "other.mkv")
    (videos / "broken.mp4").write_text("no video")
    whole = medium("h264_vfr.mkv").read_bytes()
    (videos / "cut.mkv").write_bytes(whole[: len(whole) * 2 // 3])
    run("index", videos, "--out", tmp_path / "INDEX", code=3)
    findings = found(tmp_path / "INDEX")
    named = {check: {example["uri"] for example in finding["examples"]} for check, finding in findings.items()}
    assert named["failed"] == {"broken.mp4"}
    assert named["variable_rate"] >= {"h264_vfr.mkv"}
    assert named["open_gops"] == {"h264_open_gop.mkv"}
    assert named["copies"] == {"copy.mp4"}
    assert named["truncated"] == {"cut.mkv"}
    assert "hevc_closed.mp4" in named["same_stream"] or "other.mkv" in named["same_stream"]


@pytest.mark.slow
def test_the_corpus_hazards_are_found(corpus_index: Index) -> None:
    def uris(check: str) -> set[str]:
        (query,) = (one.sql for one in checks_of("index") if one.name == check)
        return {
            row["uri"] for row in json.loads(run("audit", corpus_index.path, "--sql", query, "--format", "json").stdout)
        }

    assert uris("same_times") >= {"dup_pts.mp4"}
    assert uris("stated_rate") >= {"vfr_concat_24_60.mp4"}
    assert uris("stated_frames") >= {"trunc60_faststart.mp4", "mp4_zero_sample.mp4"}
    assert uris("stated_duration") >= {"trunc60_faststart.mp4", "trunc60.webm"}
    assert uris("truncated") >= {"trunc60.avi", "trunc60.ts", "trunc60_faststart.mp4"}
    assert uris("audio_apart") == {"audio_offset.mp4", "audio_offset.mkv"}
    assert uris("slow_access") == {"h264_gop600.mp4"}
    assert uris("rotated") == {"rotate90.mp4", "rotate180.mov"}
    assert uris("turned_back") >= {"ts_discontinuity.ts"}
    assert uris("variable_rate") >= {"vfr_random.mp4", "vfr_concat_24_60.mp4"}
    assert uris("no_nvdec") >= {"dnxhr.mov", "h264_high10.mp4", "h264_yuv444.mp4"}
    assert uris("interlaced") >= {"h264_mbaff.mp4", "h264_paff.mp4"}
    assert not uris("stated_duration") & {"start_10s.mp4", "start_10s.mkv", "edit_trim_copy.mp4"}


def test_media_too_short_for_a_policy(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), medium("h264_one_gop.mp4"), "--out", tmp_path / "INDEX")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 60\nstride: 1\nlast: drop\nshort: skip\n")
    finding = found(tmp_path / "INDEX", "--policy", policy)["too_short"]
    assert [Path(example["uri"]).name for example in finding["examples"]] == ["h264_default.mp4"]
    assert "too_short" not in found(tmp_path / "INDEX")
    with pytest.raises(AssertionError, match="cannot be run\n  found:   too_short\n  remedy:  it needs --policy"):
        run("audit", tmp_path / "INDEX", "--check", "too_short", "--fail-on", "note")


# Sound media: no check may report them, except the checks that a row names as keys (stated_frames is a plain value).
SOUND = [
    {
        "median_gap_seconds": 2.0,
        "min_gap_seconds": 2.0,
        "max_gap_seconds": 2.0,
        "stated_rate": 0.5,
        "duration_pts": None,
    },
    {
        "codec": "mjpeg",
        "proof": "every_frame",
        "pixel_format": "yuvj420p",
        "color_range": "full",
        "color_matrix": 5,
        "width": 1920,
        "height": 1080,
        "no_nvdec": True,
    },
    {"pixel_format": "yuvj420p", "color_range": "full", "color_matrix": 5, "width": 1920, "height": 1080},
    {
        "color_matrix": 9,
        "color_transfer": 16,
        "color_primaries": 12,
        "pixel_format": "yuv420p10le",
        "codec": "hevc",
        "hdr": True,
        "more_than_8_bits": True,
    },
    {"pixel_format": "gray", "color_matrix": 2, "width": 1920, "height": 1080, "no_nvdec": True},
    {"stated_frames": 30},  # the samples in moov; all others are in fragments
    {"fingerprint": "modified 2026-01-01T00:00:00"},
]


@pytest.mark.parametrize("facts", SOUND)
def test_a_check_does_not_cry_wolf(facts: dict[str, Any], tmp_path: Path) -> None:
    expected = {name for name in facts if name in FAULTS}
    rows = [sound_row(number) for number in (1, 2)]
    for row in rows:
        row |= {name: value for name, value in facts.items() if name not in FAULTS or name == "stated_frames"}
        row["duration_pts"] = row["duration_pts"] or 2 * row["frame_count"] * row["time_base_den"]
        row["stated_duration_seconds"] = row["duration_pts"] / row["time_base_den"]
    assert found(write_rows(tmp_path / "INDEX", rows)).keys() == expected - {"stated_frames"}


def test_a_text_that_only_a_later_version_knows_is_no_damage(tmp_path: Path) -> None:
    later = sound_row(1) | {"pts_source": "estimated", "rotation_degrees": 90}
    assert found(write_rows(tmp_path / "INDEX", [later])).keys() == {"rotated"}


def test_media_of_one_file_are_told_apart(tmp_path: Path) -> None:
    one = sound_row(1) | {"rotation_degrees": 90, "uri": "two.tar", "member": "a/"}
    other = sound_row(2) | {"rotation_degrees": 90, "uri": "two.tar", "member": "b/"}
    index = write_rows(tmp_path / "INDEX", [one, other, sound_row(3) | {"rotation_degrees": 90}])
    examples = found(index)["rotated"]["examples"]
    assert [*examples[0]][:3] == ["media_id", "uri", "member"]
    assert {row["member"] for row in examples} == {"a/", "b/", None}
    assert "two.tar" in run("audit", index, "--check", "rotated").output


@pytest.mark.parametrize("kind", ["index", "dataset"])
def test_every_question_has_its_parts(kind: Any) -> None:
    for check in checks_of(kind):
        assert check.title, check.name
        assert check.means, check.name
        assert check.remedy, check.name
    titles = [question.title for folder in ("summary", "questions") for question in questions(folder, kind)]  # type: ignore[arg-type]
    assert all(titles)
    assert len({*titles}) == len(titles)
