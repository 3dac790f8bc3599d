"""Images of folders and tars are grouped into sequences in natural order, images of listings in the listed order."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import SourceError
from framedex.indexer.sources.discover import Search, discover
from framedex.indexer.sources.sequences import group_names, natural_key
from tests.support.datasets import run
from tests.support.images import encoded, indexed, medium_id, only, planned, rows, sequence, write, write_rows

# Order and grouping


def test_numbers_in_names_count_by_value() -> None:
    names = ["frame10.png", "frame2.png", "frame1.png", "a.png", "frame02.png", "frame2b.png"]
    assert sorted(names, key=natural_key) == [
        "a.png", "frame1.png", "frame02.png", "frame2.png", "frame2b.png", "frame10.png",
    ]  # fmt: skip


@given(st.lists(st.integers(0, 10**30)), st.text(alphabet="abc_ -", max_size=5))
def test_natural_order_is_the_order_of_numbers(numbers: list[int], prefix: str) -> None:
    names = [f"{prefix}{number}.png" for number in numbers]
    assert sorted(names, key=natural_key) == [f"{prefix}{number}.png" for number in sorted(numbers)]


@given(st.lists(st.text(), unique=True))
def test_natural_order_is_total(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)


def test_a_number_of_thousands_of_digits_has_its_place() -> None:
    assert natural_key("9" * 5000) < natural_key("1" + "0" * 5000)


PATHS = st.lists(st.from_regex(r"([ab]/){0,2}[abc](\.[0-9]{1,2})?\.(jpg|png)", fullmatch=True), unique=True)


@given(PATHS, st.booleans())
def test_each_image_of_a_tar_stands_in_one_sequence_in_natural_order(names: list[str], single: bool) -> None:
    groups = group_names(names, single=single)
    assert sorted(name for group in groups.values() for name in group) == sorted(names)
    assert all(group == sorted(group, key=natural_key) and group for group in groups.values())
    assert groups == group_names(reversed(names), single=single)


@given(PATHS)
def test_images_of_one_sequence_lie_in_one_folder(names: list[str]) -> None:
    for group in group_names(names).values():
        assert len({os.path.dirname(name) for name in group}) == 1


def test_keys_of_webdataset_make_sequences_where_several_images_share_one() -> None:
    names = ["x/a.000.jpg", "x/a.001.jpg", "x/b.000.jpg", "c.0.png", "c.1.png", "d.png"]
    assert group_names(names) == {
        ".": ["d.png"], "c": ["c.0.png", "c.1.png"], "x": ["x/b.000.jpg"], "x/a": ["x/a.000.jpg", "x/a.001.jpg"],
    }  # fmt: skip


# Discovery


def test_a_folder_of_images_is_one_medium_and_each_folder_its_own(tmp_path: Path) -> None:
    for name in ("cats/one", "cats/two", "."):
        sequence(tmp_path / "data" / name, 2)
    found = discover([str(tmp_path / "data")]).listed
    assert [(os.path.relpath(item.path, tmp_path), item.images) for item in found] == [
        (f"data{name}", ("frame0.png", "frame1.png")) for name in ("", "/cats/one", "/cats/two")
    ]


def test_images_may_have_any_suffix_in_any_case_and_hidden_files_are_none(tmp_path: Path) -> None:
    write(tmp_path / "s", dict.fromkeys(("b.JPG", "a.Jpeg", "c.png", "d.WebP", "._a.jpg", "e.tif", "note.txt"), b""))
    (item,) = discover([str(tmp_path)]).listed
    assert item.images == ("a.Jpeg", "b.JPG", "c.png", "d.WebP")


def test_images_beside_videos_are_passed_over_and_counted(tmp_path: Path, medium: Callable[[str], Path]) -> None:
    sequence(tmp_path / "data/mixed", 3)
    shutil.copy(medium("h264_single.mp4"), tmp_path / "data/mixed/a.mp4")
    sequence(tmp_path / "data/frames", 2)
    report, index = indexed(tmp_path / "INDEX", tmp_path / "data")
    assert report.thumbnails == 3
    assert {name: row["kind"] for name, row in rows(index).items()} == {"mixed/a.mp4": "video", "frames": "images"}
    output = run("index", tmp_path / "data", "--out", tmp_path / "INDEX").output
    assert "skipped 3 images in folders with videos" in output


def test_single_images_are_media_of_one_frame_with_their_folders_name(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        sequence(tmp_path / "data" / label, 2)
    report, index = indexed(tmp_path / "INDEX", tmp_path / "data", images="single", label_from_parent=True)
    assert report.ok == 4
    labels = dict(zip(index.listing["media_id"].to_pylist(), index.listing["label"].to_pylist(), strict=True))
    for row in index.videos.to_pylist():
        assert (row["frame_count"], row["container"], row["duration_pts"]) == (1, "files", 1)
        assert labels[row["media_id"]] == row["uri"].split("/")[0]
        packets = index.packets(row["media_id"])
        assert packets.path is None
        assert packets.offset is not None
        assert packets.offset.tolist() == [0]


def test_a_sequence_is_labelled_by_the_folder_that_holds_its_folder(tmp_path: Path) -> None:
    sequence(tmp_path / "data/walk/take1")
    (item,) = discover([str(tmp_path / "data")], Search(label_from_parent=True)).listed
    assert item.columns == {"label": "walk"}


def test_images_can_be_ignored(tmp_path: Path, medium: Callable[[str], Path]) -> None:
    sequence(tmp_path / "data/frames")
    with pytest.raises(SourceError, match="neither videos nor images"):
        discover([str(tmp_path / "data")], Search(images="ignore"))
    shutil.copy(medium("h264_single.mp4"), tmp_path / "data/a.mp4")
    assert len(discover([str(tmp_path / "data")], Search(images="ignore")).listed) == 1


@pytest.mark.parametrize("how", ["source", "list", "dali", "listing"])
def test_an_image_that_is_named_is_a_single_one(tmp_path: Path, how: str) -> None:
    sequence(tmp_path / "data", 2)
    (tmp_path / "list.txt").write_text("data/frame1.png\n" if how == "list" else "data/frame1.png 7\n")
    (tmp_path / "listing.csv").write_text("uri,label\ndata/frame1.png,7\n")
    source = {"source": "data/frame1.png", "listing": "listing.csv"}.get(how, "list.txt")
    row, packets = only(tmp_path, tmp_path / source)
    assert row["frame_count"] == 1
    assert row["uri"].endswith("frame1.png")
    assert packets.crc32.tolist() == [zlib.crc32(encoded(1))]


def test_a_folder_that_a_listing_names_is_a_sequence(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s", 3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "l.csv").write_text("uri,label,fps\ndata/s,4,30000/1001\nempty,5,\n")
    report, index = indexed(tmp_path / "INDEX", tmp_path / "l.csv")
    assert (report.ok, report.failed) == (1, 1)
    row = rows(index)["data/s"]
    assert (row["time_base_num"], row["time_base_den"], row["pts_source"]) == (1001, 30000, "listed")
    assert rows(index)["empty"]["error_kind"] == "empty"


def test_rows_of_one_sequence_are_a_medium_in_their_order(tmp_path: Path) -> None:
    sequence(tmp_path / "data", 4)
    order = [2, 0, 3]
    listed = [{"uri": f"data/frame{n}.png", "sequence": "walk", "label": 7, "shot": n, "fps": "25"} for n in order]
    listed += [{"uri": "data/frame1.png", "sequence": "", "label": 8, "shot": 1, "fps": "25"}]
    (tmp_path / "l.jsonl").write_text(
        "".join(json.dumps(row | {"sequence": row["sequence"] or None}) + "\n" for row in listed)
    )
    _, index = indexed(tmp_path / "INDEX", tmp_path / "l.jsonl")
    row = rows(index)["data/walk"]
    packets = index.packets(row["media_id"])
    assert packets.path == [f"frame{n}.png" for n in order]
    assert packets.crc32 is not None
    assert packets.crc32.tolist() == [zlib.crc32(encoded(n)) for n in order]
    assert row["media_id"] == medium_id("data", "walk") != medium_id("data")
    listing = {row["media_id"]: row for row in index.listing.to_pylist()}
    assert (listing[row["media_id"]]["label"], listing[row["media_id"]]["shot"]) == (7, None)
    assert rows(index)["data/frame1.png"]["frame_count"] == 1
    assert planned(tmp_path / "INDEX", tmp_path / "l.jsonl")["unchanged"] == 2


def test_a_sequence_of_several_folders_is_an_error(tmp_path: Path) -> None:
    listed = [{"uri": f"{folder}/a.png", "sequence": "s"} for folder in ("one", "two")]
    with pytest.raises(SourceError, match="several folders"):
        discover([str(write_rows(tmp_path / "l.csv", listed))])
    with pytest.raises(SourceError, match="not an image"):
        discover(
            [
                str(
                    write_rows(
                        tmp_path / "l.csv", [{"uri": "a.png", "sequence": "s"}, {"uri": "b.mp4", "sequence": "s"}]
                    )
                )
            ]
        )


def test_a_video_may_have_a_column_named_sequence_or_fps(tmp_path: Path) -> None:
    (item,) = discover([str(write_rows(tmp_path / "l.csv", [{"uri": "a.mp4", "sequence": "s", "fps": "what"}]))]).listed
    assert (item.fps, item.member, item.columns) == (None, None, {"sequence": "s", "fps": "what"})


def test_links_out_of_the_folder_refuse_the_sequence(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s", 2)
    write(tmp_path / "elsewhere", {"x.png": encoded(9)})
    (tmp_path / "data/s/frame9.png").symlink_to(tmp_path / "elsewhere/x.png")
    (row,) = indexed(tmp_path / "INDEX", tmp_path / "data")[1].videos.to_pylist()
    assert (row["status"], row["error_kind"]) == ("refused", "symlink")
    row, packets = only(tmp_path / "second", tmp_path / "data", follow_symlinks=True)
    assert (row["status"], len(packets.size)) == ("ok", 3)


def test_links_to_the_times_of_others_refuse_the_sequence(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s", 2)
    (tmp_path / "secret").write_text("password\n")
    (tmp_path / "data/s/timestamps.txt").symlink_to(tmp_path / "secret")
    row, _ = only(tmp_path, tmp_path / "data")
    assert (row["status"], row["error_kind"]) == ("refused", "symlink")


def test_a_name_of_stray_bytes_fails_the_sequence(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s", 1)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/data/s/caf\xe9.png")).write_bytes(encoded())
    row, _ = only(tmp_path, tmp_path / "data")
    assert (row["status"], row["error_kind"]) == ("failed", "file_name")
    assert "caf\\xe9.png" in row["error_message"]
