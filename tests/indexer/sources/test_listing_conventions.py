"""Listings whose column of paths has another name, and those of well-known datasets, on small real media."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import framedex
from framedex import ClipDataset, Index
from framedex.errors import FramedexError, SourceError
from tests.support.datasets import run

Place = Callable[[str], None]


@pytest.fixture
def put(medium: Callable[[str], Path], tmp_path: Path) -> Place:
    """A function that puts a real video at a path of the folder of the test."""

    def copy(name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(medium("h264_default.mp4"), tmp_path / name)

    return copy


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def uris(index: Path) -> list[str]:
    return sorted(Index(index).columns(["uri"])["uri"].to_pylist())


KINETICS = [
    {"label": "playing guitar", "youtube_id": "-0_a", "time_start": 12, "time_end": 22, "split": "train"},
    {"label": "yoga", "youtube_id": "0012", "time_start": 0, "time_end": 10, "split": "train"},
]


@pytest.mark.parametrize("folder", ["", "playing guitar/", "playing_guitar/", "train/", "train/playing guitar/"])
@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
def test_kinetics_is_found_however_downloaders_lay_it_out(put: Place, tmp_path: Path, folder: str, ending: str) -> None:
    put(f"{folder}-0_a_000012_000022{ending}")
    write_csv(tmp_path / "train.csv", KINETICS[:1])
    run("index", tmp_path / "train.csv", "--out", tmp_path / "INDEX")
    assert uris(tmp_path / "INDEX") == [f"{folder}-0_a_000012_000022{ending}"]


def test_cut_files_of_kinetics_are_not_cut_again_and_ids_keep_their_zeros(put: Place, tmp_path: Path) -> None:
    names = ["K/playing guitar/-0_a_000012_000022.mp4", "K/yoga/0012_000000_000010.mp4"]
    put(names[0])
    put(names[1])
    write_csv(tmp_path / "train.csv", KINETICS)
    framedex.index(tmp_path / "train.csv", tmp_path / "INDEX", root=tmp_path / "K", workers=0, progress=False)
    policy = {"policy": "uniform", "frames": 2}
    clips = ClipDataset.from_index(tmp_path / "INDEX", policy, labels="label")
    assert clips.classes == ["playing guitar", "yoga"]
    assert sorted(clips.column("youtube_time_end").tolist()) == [10, 22]
    found = {item["uri"]: (item["youtube_id"], item["label"], item["frame_index"].tolist()) for item in clips}
    assert found == {
        "playing guitar/-0_a_000012_000022.mp4": ("-0_a", 0, [12, 37]),
        "yoga/0012_000000_000010.mp4": ("0012", 1, [12, 37]),
    }


def test_a_video_that_is_missing_fails_alone(put: Place, tmp_path: Path) -> None:
    put("yoga/0012_000000_000010.mp4")
    write_csv(tmp_path / "train.csv", KINETICS)
    output = run("index", tmp_path / "train.csv", "--out", tmp_path / "INDEX", code=3).output
    assert "1 indexed, 0 refused, 1 failed" in output
    assert "-0_a_000012_000022.mp4: cannot be opened" in output


def test_without_any_video_the_error_names_the_dataset_the_paths_and_the_remedy(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", KINETICS)
    message = r"columns of Kinetics(.|\n)*playing_guitar/-0_a_000012_000022\.mp4(.|\n)*--root(.|\n)*--uri-column"
    with pytest.raises(SourceError, match=message):
        framedex.index(tmp_path / "train.csv", tmp_path / "INDEX", workers=0, progress=False)
    with pytest.raises(SourceError, match="requires that its videos are on this machine"):
        framedex.index(tmp_path / "train.csv", tmp_path / "INDEX", root="s3://bucket/videos", workers=0, progress=False)
    write_csv(tmp_path / "train.csv", [KINETICS[0] | {"youtube_id": ""}])
    with pytest.raises(
        SourceError,
        match=r"no row of the listing has the path of a medium(.|\n)*row 0 of the listing: it does not identify",
    ):
        framedex.index(tmp_path / "train.csv", tmp_path / "INDEX", workers=0, progress=False)


def test_something_something_is_recognised_by_its_json(put: Place, tmp_path: Path) -> None:
    put("20bn-something-something-v2/78687.webm")
    row = {
        "id": "78687",
        "label": "holding potato next to vicks",
        "template": "Holding [something] next to [something]",
        "placeholders": ["potato", "vicks"],
    }
    (tmp_path / "train.json").write_text(json.dumps([row]))
    run("index", tmp_path / "train.json", "--out", tmp_path / "INDEX")
    clips = ClipDataset.from_index(tmp_path / "INDEX", {"policy": "uniform", "frames": 1}, labels="template")
    assert clips.classes == [row["template"]]
    assert (clips[0]["template"], clips[0]["label"], clips[0]["placeholders"]) == (0, row["label"], ["potato", "vicks"])


@pytest.mark.parametrize("form", ["json", "csv"])
def test_captions_of_howto100m_are_rows_of_their_stretches(put: Place, tmp_path: Path, form: str) -> None:
    put("videos/0abc.mp4")
    captions = {"start": [0.2, 1.0], "end": [0.8, 1.6], "text": ["first", "then"]}
    if form == "json":
        (tmp_path / "caption.json").write_text(json.dumps({"0abc": captions}))
    else:
        rows = [{"video_id": "0abc", "start": 0.2, "end": 0.8, "text": "first"}]
        write_csv(tmp_path / "caption.csv", [*rows, {"video_id": "0abc", "start": 1.0, "end": 1.6, "text": "then"}])
    run("index", tmp_path / f"caption.{form}", "--out", tmp_path / "INDEX")
    clips = ClipDataset.from_index(tmp_path / "INDEX", {"policy": "per_row", "uniform": 2})
    found = {item["text"]: item["seconds"].tolist() for item in clips}
    assert set(found) == {"first", "then"}
    assert 0.2 <= found["first"][0] < found["first"][1] <= 0.8
    assert 1.0 <= found["then"][0] < found["then"][1] <= 1.6


@pytest.mark.parametrize("folder", ["006001_006050/", "videos/006001_006050/", ""])
def test_webvid_is_found_by_page_and_id(put: Place, tmp_path: Path, folder: str) -> None:
    put(f"{folder}0123.mp4")
    columns = {
        "name": "a cat",
        "page_dir": "006001_006050",
        "duration": "PT00H00M02S",
        "contentUrl": "https://x.invalid/a",
    }
    write_csv(tmp_path / "webvid.csv", [{"videoid": "0123"} | columns])
    run("index", tmp_path / "webvid.csv", "--out", tmp_path / "INDEX")
    assert uris(tmp_path / "INDEX") == [f"{folder}0123.mp4"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_another_column_may_name_the_videos(put: Place, tmp_path: Path, form: str) -> None:
    put("V/a.mp4")
    rows = [{"video_path": "a.mp4", "youtube_id": "x", "time_start": 1, "time_end": 2}]
    if form == "csv":
        write_csv(tmp_path / "list.csv", rows)
    else:
        (tmp_path / "list.json").write_text(json.dumps(rows))
    options = ["--root", tmp_path / "V", "--uri-column", "video_path"]
    run("index", tmp_path / f"list.{form}", *options, "--out", tmp_path / "INDEX")
    assert uris(tmp_path / "INDEX") == ["a.mp4"]
    assert "video_path" not in Index(tmp_path / "INDEX").listing.column_names


def test_a_column_that_does_not_name_videos_is_refused(put: Place, tmp_path: Path) -> None:
    put("a.mp4")
    (tmp_path / "list.json").write_text(json.dumps([{"file": "a.mp4", "size": 3}]))

    def message(*options: object) -> str:
        return run("index", *options, "--out", tmp_path / "INDEX", code=1).output

    assert "the column with the paths of the media by --uri-column" in message(tmp_path / "list.json")
    assert "no path column" in message(tmp_path / "list.json", "--uri-column", "path")
    assert "a size must be a non-empty string" in message(tmp_path / "list.json", "--uri-column", "size")
    assert "no source is a listing" in message(tmp_path / "a.mp4", "--uri-column", "file")


def test_keys_of_later_rows_of_json_are_columns_too(put: Place, tmp_path: Path) -> None:
    put("a.mp4")
    put("b.mp4")
    rows: list[dict[str, Any]] = [{"uri": "a.mp4"}, {"uri": "b.mp4", "label": "run", "take": 2}]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    run("index", tmp_path / "list.json", "--out", tmp_path / "INDEX")
    listing = Index(tmp_path / "INDEX").listing
    assert listing["label"].to_pylist() == [None, "run"]
    assert listing["take"].to_pylist() == [None, 2]
    (tmp_path / "list.json").write_text(json.dumps([{"uri": "a.mp4", "n": 1}, {"uri": "b.mp4", "n": "x"}]))
    assert "column 'n' cannot be read" in run("index", tmp_path / "list.json", "--out", tmp_path / "I", code=1).output


def test_digits_of_names_and_labels_of_csv_stay_and_empty_cells_are_null(put: Place, tmp_path: Path) -> None:
    put("007")
    put("8")
    put("9")
    (tmp_path / "list.csv").write_text(
        'file,label,name,take,tweet\n007,01,,1,5\n8,10,"",2,12345678901234567890\n9,,a,,\n'
    )
    run("index", tmp_path / "list.csv", "--uri-column", "file", "--out", tmp_path / "INDEX")
    assert uris(tmp_path / "INDEX") == ["007", "8", "9"]
    listing = Index(tmp_path / "INDEX").listing
    assert listing["label"].to_pylist() == ["01", "10", None]
    assert listing["name"].to_pylist() == [None, None, "a"]
    assert listing["take"].to_pylist() == [1, 2, None]
    assert listing["tweet"].to_pylist() == ["5", "12345678901234567890", None]
    policy = {"policy": "uniform", "frames": 1}
    with pytest.raises(FramedexError, match=r"a value without a label(.|\n)*found: +empty(.|\n)*'01', '10'"):
        ClipDataset.from_index(tmp_path / "INDEX", policy, labels="label")
    clips = ClipDataset.from_index(tmp_path / "INDEX", policy | {"filter": "label is not None"}, labels="label")
    assert clips.classes == ["01", "10"]


def test_cells_that_lead_out_of_the_root_refuse_their_row_alone(put: Place, tmp_path: Path) -> None:
    put("V/yoga/0012_000000_000010.mp4")
    put("secret/-0_a_000012_000022.mp4")
    wrong = [
        KINETICS[0] | {"label": label} for label in ("../secret", f"{tmp_path}/secret", f"file://{tmp_path}/secret")
    ]
    ids = [KINETICS[0] | {"youtube_id": name} for name in ("../secret/-0_a", f"{tmp_path}/secret/-0_a", "s3://b/-0_a")]
    write_csv(tmp_path / "train.csv", [*wrong, *ids, KINETICS[1]])
    output = run("index", tmp_path / "train.csv", "--root", tmp_path / "V", "--out", tmp_path / "INDEX", code=3).output
    assert "1 indexed, 6 refused, 0 failed" in output
    assert "row 0 of the listing: its path leads out of the folder of the videos: '../secret/" in output
    found = Index(tmp_path / "INDEX").columns(["uri", "error_kind"]).to_pylist()
    assert {row["error_kind"] for row in found if row["uri"] != "yoga/0012_000000_000010.mp4"} == {"listing_row"}


def test_each_row_means_the_first_of_its_files_that_exists(put: Place, tmp_path: Path) -> None:
    put("yoga/0012_000000_000010.mkv")
    put("train/-0_a_000012_000022.mp4")
    put("playing guitar/-0_a_000012_000022.webm")
    put("train/0012_000000_000010.mp4")
    (tmp_path / "0012_000000_000010.mp4").symlink_to(tmp_path / "gone.mp4")
    write_csv(tmp_path / "train.csv", [KINETICS[1], KINETICS[0], KINETICS[1]])
    run("index", tmp_path / "train.csv", "--out", tmp_path / "INDEX")
    assert uris(tmp_path / "INDEX") == ["playing guitar/-0_a_000012_000022.webm", "yoga/0012_000000_000010.mkv"]


WRONG_ROWS = {
    "csv": ("list.csv", b"uri,n\na.mp4,1\n,2\nb.mp4\nb.mp4,3\n\xff.mp4,4\n", (1, 2, 4)),
    "json": ("list.json", b'[{"uri": "a.mp4"}, {"n": 1}, 7, {"uri": "b.mp4", "n": 2}, {"uri": 3}]', (1, 2, 4)),
    "jsonl": (
        "list.jsonl",
        b'{"uri": "a.mp4"}\n{"n": 1}\n\n{"uri": \n{"uri": "b.mp4"}\n[]\n{"uri": "\xff"}',
        (1, 2, 4, 5),
    ),
    "store": ("list.csv", b"uri\na.mp4\ns3:///x.mp4\nb.mp4\nhttps://me:secret@x.invalid/a.mp4\n", (1, 3)),
    "kinetics": (
        "list.csv",
        b"youtube_id,time_start,time_end\na,1,2\n,1,2\nb,1,2\na,x,2\n",
        (1, 3),
    ),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_a_wrong_row_fails_alone_and_is_named_by_its_number(put: Place, tmp_path: Path, case: str) -> None:
    name, content, wrong = WRONG_ROWS[case]
    cut = "_000001_000002" if case == "kinetics" else ""
    put(f"a{cut}.mp4")
    put(f"b{cut}.mp4")
    (tmp_path / name).write_bytes(content)
    output = run("index", tmp_path / name, "--out", tmp_path / "INDEX", code=3).output
    assert f"2 indexed, 0 refused, {len(wrong)} failed" in output
    assert f"row {wrong[0]} of the listing: " in output
    assert "secret" not in output
    assert uris(tmp_path / "INDEX") == sorted([f"a{cut}.mp4", f"b{cut}.mp4", *(f"{name}/row {at}" for at in wrong)])
    (tmp_path / name).write_bytes(b"uri\na.mp4\n" if name.endswith("csv") else b'[{"uri": "a.mp4"}]')
    if case != "kinetics" and name != "list.jsonl":  # a row that was mended is gone
        run("index", tmp_path / name, "--out", tmp_path / "INDEX")
        assert set(Index(tmp_path / "INDEX").videos["status"].to_pylist()) <= {"ok", "gone"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.json", "[]", "the listing has no rows"),
        ("list.json", "[3]", "the listing is a JSON list without any object"),
        ("list.jsonl", "", "the listing has no rows"),
        ("list.jsonl", "\n\n", "the listing has no rows"),
        ("list.csv", "uri,label\n", r"the listing has no rows(.|\n)*columns uri, label"),
        ("list.csv", "uri,label", "the listing has no rows"),
        ("list.csv", "", "the listing has no rows"),
        (
            "list.csv",
            "uri,label\n,3\n,4\n",
            r"no row of the listing has the path of a medium(.|\n)*row 0 of the listing",
        ),
    ],
)
def test_a_listing_without_media_says_so(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=message):
        framedex.index(tmp_path / name, tmp_path / "INDEX", workers=0, progress=False)


def test_a_wrong_line_among_objects_of_several_lines_refuses_the_listing(all_media: Path, tmp_path: Path) -> None:
    name = all_media / "h264_default.mp4"
    good = f'{{\n "uri": "{name}",\n "x": 1\n}}\n'
    (tmp_path / "list.jsonl").write_text(good)
    assert "1 indexed" in run("index", tmp_path / "list.jsonl", "--out", tmp_path / "INDEX").output
    (tmp_path / "list.jsonl").write_text(good + "{bad\n")
    assert "cannot be read" in run("index", tmp_path / "list.jsonl", "--out", tmp_path / "OTHER", code=1).output


def test_csv_with_carriage_returns_alone(all_media: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"uri,label\r{all_media / 'h264_default.mp4'},x\r")
    assert "1 indexed" in run("index", tmp_path / "list.csv", "--out", tmp_path / "INDEX").output
