"""Sharding: what a dataset contains, which requests fail, and what is never overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from framedex import ClipDataset, Index
from framedex.sharder.schema import CLIPS, FAILURES, MEDIA, RECIPES
from tests.support.datasets import empty_dataset, run, shard_clips, write_clips
from tests.support.policies import CONFIGS, policy_of


def failures(dataset: Path) -> list[dict[str, Any]]:
    return pq.read_table(dataset / "failures.parquet").to_pylist()


def test_tables_follow_their_schemas(index: Index, tmp_path: Path) -> None:
    dataset = shard_clips(
        index.path, tmp_path / "D", [{"uri": "h264_vfr.mp4", "frames": [0, 7, 3, 3], "caption": "walk"}]
    )
    for name, schema in (("clips", CLIPS), ("recipes", RECIPES), ("media", MEDIA)):
        found = pq.read_schema(dataset / name / "part-000000.parquet").remove_metadata()
        left_out = set(schema.names) - set(found.names)
        assert all(schema.field(column).nullable for column in left_out)
        assert name == "recipes" or not left_out, "recipes alone leave out columns without values"
        assert [field for field in found if field.name in schema.names] == [
            field for field in schema.remove_metadata() if field.name not in left_out
        ]
    assert pq.read_schema(dataset / "failures.parquet").remove_metadata().equals(FAILURES.remove_metadata())
    assert pq.read_table(dataset / "clips/part-000000.parquet")["caption"].to_pylist() == ["walk"]


def test_frames_stay_in_the_order_asked_for(index: Index, tmp_path: Path) -> None:
    dataset = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_vfr.mp4", "frames": [0, 7, 3, 3, -1]}])
    item = ClipDataset(dataset)[0]
    assert item["frame_index"].tolist() == [0, 7, 3, 3, -1]
    assert item["mask"].tolist() == [True] * 4 + [False]


def test_seconds_are_read_on_the_clock_that_items_show(index: Index, tmp_path: Path) -> None:
    """Request seconds of a video whose own clock starts at 10 s: requests use the same clock."""
    dataset = shard_clips(
        index.path, tmp_path / "D", [{"uri": "h264_late_start.mkv", "seconds": [10.0, 10.5, 11.2, 0]}]
    )
    item = ClipDataset(dataset)[0]
    assert item["frame_index"].tolist() == [0, 12, 30, 0]
    assert item["seconds"].round(2).tolist() == [10.0, 10.48, 11.2, 10.0]


def test_a_uri_may_be_absolute_relative_or_as_listed(index: Index, tmp_path: Path) -> None:
    listing = tmp_path / "listing.csv"
    spelled = f"{index.root}/../{Path(index.root).name}/h264_vfr.mp4"
    listing.write_text(f"uri\n{spelled}\n")
    run("index", listing, "--root", index.root, "--follow-symlinks", "--out", tmp_path / "INDEX")
    clips = [
        {"uri": uri, "frames": [1]}
        for uri in ("h264_vfr.mp4", f"{index.root}/h264_vfr.mp4", spelled, f"file://{index.root}/h264_vfr.mp4")
    ]
    assert len(ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", clips))) == 4


def test_requests_that_cannot_be_met_become_rows_and_the_rest_is_written(index: Index, tmp_path: Path) -> None:
    clips = [
        {"uri": "h264_single.mp4", "frames": [1], "clip_id": "past the end"},
        {"uri": "nowhere.mp4", "frames": [0], "clip_id": "unknown"},
        {"uri": "h264_vfr.mp4", "seconds": [1e6], "clip_id": "too late"},
        {"uri": "h264_vfr.mp4", "frames": [-1, -1], "clip_id": "only padding"},
        {"uri": "h264_vfr.mp4", "frames": [4], "clip_id": "good"},
    ]
    dataset = shard_clips(index.path, tmp_path / "D", clips, code=3)
    rows = {row["clip_id"]: row["message"] for row in failures(dataset)}
    assert "allowed: 0 to 0" in rows["past the end"]
    assert "found:   1" in rows["past the end"]
    assert "no such medium" in rows["unknown"]
    assert "outside of the video" in rows["too late"]
    assert "only of padding" in rows["only padding"]
    assert [clip["clip_id"] for clip in ClipDataset(dataset)] == ["good"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "an object with a uri"),
        ('{"uri": "a"}', "either frames or seconds"),
        ('{"uri": "a", "frames": [0], "seconds": [0]}', "either frames or seconds"),
        ('{"uri": "a", "frames": []}', "non-empty list"),
        ('{"uri": "a", "frames": [0.5]}', "whole numbers"),
        ('{"uri": "a", "frames": [true]}', "whole numbers"),
        ('{"uri": "a", "frames": [-2]}', "start at 0"),
        ('{"uri": "a", "seconds": ["x"]}', "list of numbers"),
        ('{"uri": "a", "seconds": [NaN]}', "finite"),
        ('{"uri": "a", "frames": [0], "pts": 1}', "reserved name"),
        ('{"uri": "a", "frames": [0], "clip_id": 7}', "non-empty string"),
        (
            '{"uri": "a", "frames": [0], "clip_id": "x"}\n{"uri": "a", "frames": [0], "clip_id": "x"}',
            "the same clip_id",
        ),
    ],
)
def test_a_malformed_line_stops_before_anything_is_written(index: Index, tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "clips.jsonl"
    path.write_text(line + "\n")
    result = run("shard", index.path, "--clips", path, "--out", tmp_path / "D", code=1)
    assert says in result.output
    assert not (tmp_path / "D").exists()


def needs_listing(policy: Any) -> bool:
    """Return whether a policy has ranges or views, which are columns of a listing."""
    return policy.names_ranges or policy.views is not None


@pytest.mark.parametrize(
    "config",
    # Policies with ranges or views are left out: they need the columns of a listing.
    [path for path in sorted(CONFIGS.glob("*.yaml")) if not needs_listing(policy_of(path).policy)],
    ids=lambda path: path.name,
)
def test_every_config_shards_and_its_resolved_form_lies_beside(index: Index, tmp_path: Path, config: Path) -> None:
    run("shard", index.path, "--policy", config, "--out", tmp_path / "D")
    resolved = yaml.safe_load((tmp_path / "D/policy.yaml").read_text())
    assert resolved["policy"] == yaml.safe_load(config.read_text())["policy"]
    run("shard", index.path, "--policy", tmp_path / "D/policy.yaml", "--out", tmp_path / "E")
    one, other = (pq.read_table(tmp_path / name / "clips/part-000000.parquet") for name in "DE")
    assert one.equals(other)


def test_user_columns_of_the_listing_reach_the_clips(index: Index, tmp_path: Path) -> None:
    listing = tmp_path / "listing.jsonl"
    listing.write_text(
        "\n".join(
            json.dumps({"uri": f"{index.root}/{name}", "label": number, "caption": name})
            for number, name in enumerate(["h264_default.mp4", "hevc_closed.mp4"])
        )
    )
    run("index", listing, "--out", tmp_path / "INDEX")
    (tmp_path / "policy.yaml").write_text("policy: stride\nstride: 25\nframes: 2\n")
    run("shard", tmp_path / "INDEX", "--policy", tmp_path / "policy.yaml", "--out", tmp_path / "D")
    items = {(item["label"], item["caption"]) for item in ClipDataset(tmp_path / "D")}  # type: ignore[attr-defined]
    assert items == {(0, "h264_default.mp4"), (1, "hevc_closed.mp4")}


def test_a_video_listed_twice_gives_clips_for_each_row(index: Index, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{index.root}/h264_default.mp4 1 0 1\n{index.root}/h264_default.mp4 2 1 2\n")
    run("index", f"@{tmp_path}/list.txt", "--out", tmp_path / "INDEX")
    (tmp_path / "policy.yaml").write_text("policy: fps\nfps: 1\nrange: {start: start, end: end}\n")
    run("shard", tmp_path / "INDEX", "--policy", tmp_path / "policy.yaml", "--out", tmp_path / "D")
    clips = pq.read_table(tmp_path / "D/clips/part-000000.parquet")
    assert clips["label"].to_pylist() == [1, 2]
    assert [clip["frame_index"].tolist() for clip in ClipDataset(tmp_path / "D")] == [[0], [25]]
    assert len(set(clips["clip_id"].to_pylist())) == 2


def test_an_output_folder_is_never_overwritten_by_accident(index: Index, tmp_path: Path) -> None:
    clips = write_clips(tmp_path / "clips.jsonl", [{"uri": "h264_vfr.mp4", "frames": [0]}])
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years")
    result = run("shard", index.path, "--clips", clips, "--out", other, "--overwrite", code=1)
    assert "do not belong to a dataset" in result.output
    assert (other / "thesis.tex").read_text() == "years"
    run("shard", index.path, "--clips", clips, "--out", tmp_path / "D")
    other_clips = write_clips(tmp_path / "other.jsonl", [{"uri": "h264_vfr.mp4", "frames": [1]}])
    assert "--overwrite" in run("shard", index.path, "--clips", other_clips, "--out", tmp_path / "D", code=1).output
    run("shard", index.path, "--clips", clips, "--out", tmp_path / "D", "--overwrite")
    assert [path.name for path in tmp_path.glob(".writing-*")] == []


def test_overwrite_spares_folders_that_are_no_dataset_or_hold_more(index: Index, tmp_path: Path) -> None:
    clips = write_clips(tmp_path / "clips.jsonl", [{"uri": "h264_vfr.mp4", "frames": [0]}])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "dataset.json").write_text('{"name": "mine"}')
    run("shard", index.path, "--clips", clips, "--out", foreign, "--overwrite", code=1)
    run("shard", index.path, "--clips", clips, "--out", tmp_path / "D")
    (tmp_path / "D/weights.bin").write_text("days")
    assert (
        "weights.bin"
        in run("shard", index.path, "--clips", clips, "--out", tmp_path / "D", "--overwrite", code=1).output
    )
    assert (tmp_path / "D/weights.bin").read_text() == "days"
    assert (foreign / "dataset.json").read_text() == '{"name": "mine"}'


def test_a_line_may_hold_any_character_that_json_allows(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "clips.jsonl"
    path.write_text('\ufeff{"uri": "h264_vfr.mp4", "frames": [0], "caption": "a\u2028b\u0085c"}\n', encoding="utf-8")
    run("shard", index.path, "--clips", path, "--out", tmp_path / "D")
    assert ClipDataset(tmp_path / "D")[0]["caption"] == "a\u2028b\u0085c"


def test_parts_and_row_groups_do_not_show(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framedex.sharder.writing.writer.CLIPS_PER_PART", 70)
    clips = [{"uri": "h264_vfr.mp4", "frames": [number % 50]} for number in range(200)]
    dataset = ClipDataset(shard_clips(index.path, tmp_path / "D", clips))
    assert len(dataset) == 200
    assert [dataset.clip(number).frames[0] for number in range(200)] == [number % 50 for number in range(200)]


def test_a_dataset_without_clips_is_empty_and_valid(index: Index, tmp_path: Path) -> None:
    empty_dataset(index, tmp_path / "D")
    assert len(ClipDataset(tmp_path / "D")) == 0
    run("verify", tmp_path / "D")
