"""audit: each check fires for what it is about and for nothing else; files, tars and policies are looked at when asked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.audit_data import write_index
from framedex.audit.findings.queries import SEVERITIES, checks, questions
from tests.support.audited import sound_row, write_rows
from tests.support.datasets import run, shard_clips
from tests.support.images import encoded, sequence, tar_of
from tests.support.media import remux

Medium = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]

# What makes each check of an index find a row that is sound otherwise.
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


def found(*arguments: object, code: int = 0) -> dict[str, dict[str, Any]]:
    """Run `framedex audit ARGUMENTS --json` and return its findings by check."""
    answer = json.loads(run("audit", *arguments, "--json", code=code).stdout)
    return {finding["check"]: finding for finding in answer["findings"]}


def test_every_check_of_an_index_is_tried() -> None:
    needing = {check.name for check in checks("index") if check.needs}
    assert {check.name for check in checks("index")} == FAULTS.keys() | needing
    assert needing == {"changed", "vanished", "too_short"}


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
def test_the_corpus_hazards_are_found(corpus: Path, tmp_path: Path) -> None:
    run("index", corpus, "--out", tmp_path / "INDEX", code=3)

    def uris(check: str) -> set[str]:
        (query,) = (one.sql for one in checks("index") if one.name == check)
        return {
            row["uri"]
            for row in json.loads(run("audit", tmp_path / "INDEX", "--sql", query, "--format", "json").stdout)
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


def test_files_that_changed_or_vanished(medium: Medium, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4"):
        shutil.copy(medium(name), videos / name)
    sequence(videos / "stills")
    sequence(videos / "more")
    index = tmp_path / "INDEX"
    run("index", videos, "--out", index)
    assert not found(index, "--check", "changed", "--check", "vanished")
    os.utime(videos / "hevc_closed.mp4")  # a new time alone changes nothing
    (videos / "h264_vfr.mkv").unlink()
    content = bytearray((videos / "h264_default.mp4").read_bytes())
    content[len(content) // 2] ^= 1
    (videos / "h264_default.mp4").write_bytes(content)
    next(iter(sorted((videos / "more").iterdir()))).unlink()
    shutil.rmtree(videos / "stills")
    unasked = json.loads(run("audit", index, "--json").stdout)["unasked"]
    assert {"changed": "--files", "vanished": "--files"}.items() <= unasked.items()
    findings = found(index, "--files")
    assert [example["uri"] for example in findings["vanished"]["examples"]] == ["h264_vfr.mkv", "stills"]
    changed = {example["uri"]: example["found"] for example in findings["changed"]["examples"]}
    assert changed.keys() == {"h264_default.mp4", "more"}
    assert changed["h264_default.mp4"] == "other content"
    moved = tmp_path / "moved"
    videos.rename(moved)
    assert found(index, "--check", "vanished")["vanished"]["count"] == 5
    assert found(index, "--check", "vanished", "--root", moved)["vanished"]["count"] == 2


def test_media_too_short_for_a_policy(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), medium("h264_one_gop.mp4"), "--out", tmp_path / "INDEX")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 60\nstride: 1\nlast: drop\nshort: skip\n")
    finding = found(tmp_path / "INDEX", "--policy", policy)["too_short"]
    assert [Path(example["uri"]).name for example in finding["examples"]] == ["h264_default.mp4"]
    assert "too_short" not in found(tmp_path / "INDEX")
    with pytest.raises(AssertionError, match="cannot be asked\n  found:   too_short\n  remedy:  it needs --policy"):
        run("audit", tmp_path / "INDEX", "--check", "too_short", "--fail-on", "note")


def test_tars_are_held_against_the_manifest(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    clips = [{"uri": "h264_default.mp4", "clip_id": f"c{n}", "frames": [n, n + 1]} for n in range(6)]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips, "--pack", "clips", "--shard-size", "20kB")
    first, second, *_ = sorted((dataset / "shards").glob("*.tar"))
    assert not found(dataset).keys() & {"missing_tars", "changed_tars", "orphaned_tars"}
    shutil.copy(first, dataset / "shards" / "zz-000099.tar")
    content = bytearray(first.read_bytes())
    content[600] ^= 1
    first.write_bytes(content)
    second.unlink()
    findings = found(dataset)
    assert [row["name"] for row in findings["missing_tars"]["examples"]] == [f"shards/{second.name}"]
    assert [row["name"] for row in findings["orphaned_tars"]["examples"]] == ["shards/zz-000099.tar"]
    assert "changed_tars" not in findings  # its size is right
    assert [row["name"] for row in found(dataset, "--files")["changed_tars"]["examples"]] == [f"shards/{first.name}"]
    first.write_bytes(content[:-512])
    assert found(dataset)["changed_tars"]["examples"][0]["found"] == f"{len(content) - 512} bytes"


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of made-up videos, INDEX, and a dataset of it with labels and splits, DS."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_index(folder / "INDEX", 250, seconds=12)
    (folder / "policy.yaml").write_text(
        "policy: windows\nframes: 8\nfps: 4\nstep_seconds: 2\nlast: drop\nshort: pad\n"
        "split: {shares: {train: 1, val: 1}, by: media_id}\n"
    )
    run("shard", folder / "INDEX", "--policy", folder / "policy.yaml", "--out", folder / "DS")
    return folder


def test_leaks_and_labels_of_a_dataset(synthetic: Path) -> None:
    findings = found(synthetic / "DS")
    rows = json.loads(
        run(
            "audit",
            synthetic / "DS",
            "--sql",
            "SELECT fingerprint, split, label, uri FROM clips JOIN videos USING (media_id, uri)",
            "--format",
            "json",
        ).stdout
    )
    splits: dict[str, set[str]] = {}
    labels: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        splits.setdefault(row["fingerprint"], set()).add(row["split"])
        labels.setdefault(row["fingerprint"], set()).add((row["label"], row["uri"]))
    leaks = sum(len(names) > 1 for names in splits.values())
    assert findings.get("leaked_videos", {"count": 0})["count"] == leaks
    twice = sum(len({label for label, _ in pairs}) > 1 for pairs in labels.values())
    assert findings.get("labels_of_copies", {"count": 0})["count"] == twice
    assert leaks + twice > 0
    assert findings["few_of_a_label"]["examples"][0]["label"] == "sew"


def test_costly_and_padded_clips(synthetic: Path, tmp_path: Path) -> None:
    query = "SELECT uri, frame_count FROM videos ORDER BY seek_packets DESC NULLS LAST LIMIT 1"
    ((video),) = json.loads(run("audit", synthetic / "INDEX", "--sql", query, "--format", "json").stdout)
    last = video["frame_count"] - 1
    clips = [{"uri": video["uri"], "clip_id": name, "frames": [frame]} for name, frame in (("a", last), ("b", 0))]
    findings = found(shard_clips(synthetic / "INDEX", tmp_path / "DS", clips))
    assert [row["clip_id"] for row in findings["costly"]["examples"]] == ["a"]
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 500\nfps: 1\nshort: pad\n")
    run("shard", synthetic / "INDEX", "--policy", policy, "--out", tmp_path / "PADDED")
    assert found(tmp_path / "PADDED")["mostly_padding"]["count"] > 200


@pytest.mark.parametrize(
    ("clips", "check", "count"),
    [
        ([("a", [0, 1]), ("b", [0, 1])], "same_clips", 1),
        ([("a", [0, 1]), ("b", [1, 2]), ("c", [0, 1, 2])], "unequal_clips", 1),
        ([("a", [0, 1]), ("b", [900, 901])], "failures", 1),
    ],
)
def test_checks_of_datasets(
    clips: list[tuple[str, list[int]]], check: str, count: int, medium: Medium, tmp_path: Path
) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    wanted = [{"uri": "h264_default.mp4", "clip_id": name, "frames": frames} for name, frames in clips]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", wanted, code=3 if check == "failures" else 0)
    assert {name: finding["count"] for name, finding in found(dataset).items()} == {check: count}


def test_clips_of_wrong_splits(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_one_gop.mp4"), medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    clips: list[dict[str, Any]] = [
        {"uri": "h264_one_gop.mp4", "clip_id": "a", "frames": [85], "split": "train", "label": "x"},
        {"uri": "h264_one_gop.mp4", "clip_id": "b", "frames": [86], "split": "val", "label": "x"},
        {"uri": "h264_default.mp4", "clip_id": "c", "frames": [1], "split": None, "label": "y"},
        {"uri": "h264_default.mp4", "clip_id": "d", "frames": [2], "split": "train", "label": "y"},
    ]
    findings = found(shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips))
    assert {name: finding["count"] for name, finding in findings.items()} == {
        "leaked_videos": 1,
        "without_split": 1,
        "label_not_in_split": 1,
    }


def test_the_index_that_counts_is_asked(tmp_path: Path) -> None:
    """A medium that was probed again, one that is gone, and parts of an older minor version."""
    first, second, third = (sound_row(number) for number in (1, 2, 3))
    again = second | {"rotation_degrees": 180}
    gone = third | {"status": "gone"}
    index = write_rows(tmp_path / "INDEX", [first, second | {"is_vfr": True}, third], [again], [gone])
    assert found(index).keys() == {"rotated"}
    totals = json.loads(run("audit", index, "--json").stdout)["summary"]["totals"][0]
    assert totals["media"] == 2


def test_an_empty_index_and_an_empty_dataset(tmp_path: Path, medium: Medium) -> None:
    index = write_rows(tmp_path / "EMPTY")
    assert not found(index)
    run("audit", index, "--sql", "SELECT * FROM frames JOIN gops USING (media_id) JOIN listing USING (media_id)")
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    shard_clips(tmp_path / "INDEX", tmp_path / "DS", [])
    assert found(tmp_path / "DS").keys() == {"empty"}


def test_what_fails_the_command(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1), sound_row(2) | {"rotation_degrees": 90}])
    run("audit", index, "--fail-on", "note", code=3)
    run("audit", index, "--fail-on", "warning")
    run("audit", index, "--check", "hdr", "--fail-on", "note")
    with pytest.raises(AssertionError, match="there is no such check"):
        run("audit", index, "--check", "rotatd")
    with pytest.raises(AssertionError, match="is neither an index nor a dataset"):
        run("audit", tmp_path)
    for both in (("--sql", "SELECT 1", "--ask", "rates"), ("--out", "x.csv")):
        run("audit", index, *both, code=2)
    assert "rotated" in run("audit", index, "--check", "list").output


def test_one_check_is_asked_without_the_summary(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1) | {"rotation_degrees": 90}])
    output = run("audit", index, "--check", "rotated").output
    assert output.startswith("note: Video that players rotate: 1   [rotated]")


def test_names_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    name = "a\x1b[2J\u202eb\nc.mp4"
    index = write_rows(tmp_path / "INDEX", [sound_row(1) | {"rotation_degrees": 90, "uri": name}])
    output = run("audit", index).output
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert r"a\x1b[2J\u202eb\nc.mp4" in output


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX", [sound_row(1)])
    part = index / "videos" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(AssertionError, match="a table is missing or damaged"):
        run("audit", index)


# What checks must not say of media that are as they should be.
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
    {"stated_frames": 30},  # of samples in moov, where all others are in fragments
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


@pytest.mark.parametrize("folder", ["part-3", "part-000000.parquet"])
def test_folders_named_like_parts_are_none(folder: str, tmp_path: Path) -> None:
    first, second = sound_row(1), sound_row(2)
    parts = [first, second], [first | {"rotation_degrees": 90}], [second | {"status": "gone"}]
    index = write_rows(tmp_path / folder / "INDEX", *map(list, parts))
    assert found(index).keys() == {"rotated"}
    assert json.loads(run("audit", index, "--json").stdout)["summary"]["totals"][0]["media"] == 1
    run("audit", index, "--duckdb", tmp_path / "x.duckdb")
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT uri, rotation_degrees FROM videos").fetchall() == [(first["uri"], 90)]


def test_sequences_of_one_tar_are_no_copies_of_each_other(tmp_path: Path) -> None:
    files = [(f"{name}/{n:03d}.png", encoded(seed)) for seed, name in enumerate("abcdef") for n in range(3)]
    tar_of(tmp_path / "many.tar", files)
    run("index", tmp_path / "many.tar", "--out", tmp_path / "INDEX")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: uniform\nframes: 2\nsplit: {shares: {train: 1, val: 1}, by: media_id}\n")
    run("shard", tmp_path / "INDEX", "--policy", policy, "--out", tmp_path / "DS")
    assert "leaked_videos" not in found(tmp_path / "DS")
    summary = json.loads(run("audit", tmp_path / "INDEX", "--json").stdout)["summary"]
    assert summary["totals"][0]["gigabytes"] == pytest.approx((tmp_path / "many.tar").stat().st_size / 1e9, abs=1e-6)
    assert run("audit", tmp_path / "INDEX", "--ask", "room_of_copies").output.split()[2] == "0"


def test_sources_of_packed_clips_are_not_missed(medium: Medium, tmp_path: Path) -> None:
    video = tmp_path / "video.mp4"
    shutil.copy(medium("h264_default.mp4"), video)
    run("index", video, "--out", tmp_path / "INDEX")
    clips = [{"uri": "video.mp4", "clip_id": "c", "frames": [1, 2]}]
    packed = shard_clips(tmp_path / "INDEX", tmp_path / "PACKED", clips, "--pack", "clips")
    paper = shard_clips(tmp_path / "INDEX", tmp_path / "PAPER", clips)
    video.unlink()
    assert "vanished" not in found(packed, "--files")
    assert found(paper, "--files")["vanished"]["count"] == 1


def test_loose_images_are_told_by_their_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sequence(tmp_path / "images" / name)
    run("index", tmp_path / "images", "--out", tmp_path / "INDEX")
    first, second, *_ = sorted((tmp_path / "images" / "a").iterdir())
    os.utime(first)  # a new time alone
    (tmp_path / "images" / "a" / "zz.png").symlink_to("nowhere")
    assert not found(tmp_path / "INDEX", "--check", "changed", "--check", "vanished")
    status = first.stat()
    first.write_bytes(second.read_bytes().ljust(status.st_size, b"\0")[: status.st_size])
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = found(tmp_path / "INDEX", "--check", "changed")["changed"]["examples"]
    assert [(row["uri"], row["found"]) for row in changed] == [("a", f"{first.name} has other content")]


def test_sequences_that_could_not_be_read_are_not_called_gone(tmp_path: Path) -> None:
    folder = sequence(tmp_path / "images" / "broken")
    for image in folder.iterdir():
        image.write_bytes(b"no image at all")
    sequence(tmp_path / "images" / "whole")
    run("index", tmp_path / "images", "--out", tmp_path / "INDEX", code=3)
    assert not found(tmp_path / "INDEX", "--check", "changed", "--check", "vanished")


def test_what_was_an_object_is_told_by_its_size(medium: Medium, tmp_path: Path) -> None:
    row = sound_row(1) | {"uri": "video.mp4", "fingerprint": 'etag "abc"', "size_bytes": 5}
    index = write_rows(tmp_path / "INDEX", [row])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "video.mp4").write_bytes(b"12345")
    assert not found(index, "--check", "changed", "--check", "vanished", "--root", tmp_path / "here")
    (tmp_path / "here" / "video.mp4").write_bytes(b"1234")
    assert found(index, "--check", "changed", "--root", tmp_path / "here")["changed"]["count"] == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--sql", "SELECT 1", "--fail-on", "note"),
        ("--ask", "rates", "--json"),
        ("--format", "csv"),
        ("--sql", "SELECT 1", "--files"),
    ],
)
def test_no_option_is_ignored(options: tuple[str, ...], tmp_path: Path) -> None:
    run("audit", write_rows(tmp_path / "INDEX", [sound_row(1)]), *options, code=2)


@pytest.mark.parametrize("kind", ["index", "dataset"])
def test_every_question_has_its_parts(kind: Any) -> None:
    for check in checks(kind):
        assert check.title, check.name
        assert check.means, check.name
        assert check.remedy, check.name
    titles = [question.title for folder in ("summary", "questions") for question in questions(folder, kind)]  # type: ignore[arg-type]
    assert all(titles)
    assert len({*titles}) == len(titles)


def test_a_bucket_is_audited_like_a_folder(bucket: Any, medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_vfr.mkv"), "--out", tmp_path / "INDEX")
    run("index", medium("h264_vfr.mkv"), "--out", f"{bucket.uri}/INDEX")
    here, there = found(tmp_path / "INDEX"), found(f"{bucket.uri}/INDEX")
    assert here == there
    query = ("--sql", "SELECT count(*) AS frames, sum(size_bytes) AS bytes FROM frames")
    assert run("audit", tmp_path / "INDEX", *query).output == run("audit", f"{bucket.uri}/INDEX", *query).output
    with pytest.raises(AssertionError, match="views cannot name a folder of object storage"):
        run("audit", f"{bucket.uri}/INDEX", "--duckdb", tmp_path / "x.duckdb")


def test_folders_of_the_path_are_no_columns(medium: Medium, tmp_path: Path) -> None:
    folder = tmp_path / "split=train" / "status=failed" / "label=x"
    run("index", medium("h264_default.mp4"), "--out", folder / "INDEX")
    assert json.loads(run("audit", folder / "INDEX", "--json").stdout)["summary"]["totals"][0]["usable"] == 1
    dataset = shard_clips(folder / "INDEX", folder / "DS", [{"uri": "h264_default.mp4", "frames": [1]}])
    assert found(dataset) == {}
    path = tmp_path / "views.duckdb"
    run("audit", dataset, "--duckdb", path)
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM clips").fetchall() == [(1,)]
        assert "split" not in {row[0] for row in connection.execute("DESCRIBE clips").fetchall()}


def test_user_columns_may_be_called_like_columns_of_views(medium: Medium, tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    names = ("content", "duration_seconds", "start_seconds", "frame", "place", "codec", "runs", "Split", "LABEL")
    clips = [{"uri": "h264_default.mp4", "frames": [n]} | dict.fromkeys(names, f"{n}") for n in (1, 2)]
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "DS", clips)
    assert {"leaked_videos", "label_not_in_split"} == found(dataset).keys()
    for question in questions("questions", "dataset"):
        run("audit", dataset, "--ask", question.name)
    run("audit", dataset, "--report", tmp_path / "r.html", "--no-pictures")


def test_copies_whose_parts_have_the_same_labels_are_labelled_alike(medium: Medium, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("a.mp4", "b.mp4"):
        shutil.copy(medium("h264_default.mp4"), videos / name)
    run("index", videos, "--out", tmp_path / "INDEX")
    clips = [
        {"uri": uri, "frames": [frame], "label": label}
        for uri in ("a.mp4", "b.mp4")
        for frame, label in ((1, "run"), (40, "jump"))
    ]
    assert "labels_of_copies" not in found(shard_clips(tmp_path / "INDEX", tmp_path / "ALIKE", clips))
    finding = found(shard_clips(tmp_path / "INDEX", tmp_path / "UNLIKE", clips[:3]))["labels_of_copies"]
    assert (finding["count"], finding["examples"][0]["labels"]) == (1, "jump, run")


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
