"""Videos in tars are media of their own, and what is wrong with one of them costs no other."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset

from framedex import index as framedex_index
from framedex.errors import MediaError, SourceError
from framedex.indexer.runs import build
from framedex.indexer.sources import members, named_medium
from tests.support.datasets import run
from tests.support.images import encoded, indexed, listing, rows, tar_of
from tests.support.media import Medium


@pytest.fixture
def video(medium: Medium) -> bytes:
    return medium("h264_single.mp4").read_bytes()


@pytest.fixture
def other(medium: Medium) -> bytes:
    return medium("h264_b_pyramid.mkv").read_bytes()


def test_members_that_webdataset_wrote_are_media_with_columns(tmp_path: Path, video: bytes) -> None:
    with webdataset.TarWriter(str(tmp_path / "w.tar")) as writer:
        for n in range(3):
            writer.write({"__key__": f"a/{n}", "mp4": video, "json": {"fps": n}, "txt": f"t{n}", "cls": n})
    report, index = indexed(tmp_path / "INDEX", tmp_path / "w.tar")
    assert (report.ok, report.problems) == (3, [])
    found = listing(tmp_path / "INDEX")
    assert list(found) == [f"w.tar/a/{n}.mp4" for n in range(3)]
    columns = ("fps", "txt", "cls", "__key__")
    assert [tuple(row[name] for name in columns) for row in found.values()] == [
        (n, f"t{n}", n, f"a/{n}") for n in range(3)
    ]
    raw = (tmp_path / "w.tar").read_bytes()
    for row in rows(index).values():
        assert raw[row["member_offset"] :][: row["member_bytes"]] == video


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read(tmp_path: Path, video: bytes, form: int) -> None:
    name = f"{'d' * 90}/{'n' * 90}.mp4" if form == tarfile.USTAR_FORMAT else f"{'däß/' * 60}視頻.mp4"
    tar = tar_of(tmp_path / "t.tar", [(name, video), (f"{name[:-4]}.txt", b"long")], form)
    indexed(tmp_path / "INDEX", tar)
    (row,) = listing(tmp_path / "INDEX").items()
    assert (row[0], row[1]["txt"], row[1]["__key__"]) == (f"t.tar/{name}", "long", name[:-4])


def test_a_tar_of_images_and_videos_gives_both(tmp_path: Path, video: bytes) -> None:
    files = [("s/0.png", encoded(0)), ("v.mp4", video), ("s/1.png", encoded(1)), ("notes.pdf", b"x")]
    tar = tar_of(tmp_path / "t.tar", files)
    report, index = indexed(tmp_path / "INDEX", tar)
    assert {name: row["kind"] for name, row in rows(index).items()} == {"t.tar/s": "images", "t.tar/v.mp4": "video"}
    assert report.problems == []
    again, _ = indexed(tmp_path / "INDEX", tar)
    assert (again.unchanged, again.ok) == (1, 0)


def test_images_of_a_found_tar_are_left_out_if_images_are_ignored(tmp_path: Path, video: bytes) -> None:
    (tmp_path / "data").mkdir()
    tar_of(tmp_path / "data/t.tar", [("v.mp4", video), ("v.jpg", encoded(0, "JPEG"))])
    tar_of(tmp_path / "data/u.tar", [("v.jpg", encoded(0, "JPEG"))])
    report, index = indexed(tmp_path / "INDEX", tmp_path / "data", images="ignore")
    assert {name: row["status"] for name, row in rows(index).items()} == {
        "t.tar": "refused",
        "t.tar/v.mp4": "ok",
        "u.tar": "refused",
    }
    assert (report.without_video, report.refused) == (2, 0)
    assert indexed(tmp_path / "INDEX", tmp_path / "data", images="ignore")[0].unchanged == 2
    report, index = indexed(tmp_path / "INDEX", tmp_path / "data")
    assert [row["member"] for row in rows(index).values() if row["kind"] == "images" and row["status"] == "ok"] == [
        ".",
        ".",
    ]


@pytest.mark.parametrize("compress", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("ending", [".tar", ".tar.{}"])
def test_a_compressed_tar_is_refused_with_its_remedy(tmp_path: Path, video: bytes, compress: str, ending: str) -> None:
    path = tmp_path / f"t{ending.format(compress)}"
    with tarfile.open(path, f"w:{compress}") as tar:
        member = tarfile.TarInfo("v.mp4")
        member.size = len(video)
        tar.addfile(member, io.BytesIO(video))
    _, index = indexed(tmp_path / "INDEX", path)
    ((name, row),) = rows(index).items()
    assert (name, row["status"], row["error_kind"]) == (path.name, "refused", "compressed_tar")
    assert {"gz": "gunzip", "bz2": "bunzip2", "xz": "unxz"}[compress] in row["error_message"]


def test_each_defect_of_a_tar_has_its_row_and_costs_no_other_medium(tmp_path: Path, video: bytes, other: bytes) -> None:
    files = [
        ("good.mp4", video),
        ("good.json", b"{no"),
        ("twice.mp4", video),
        ("twice.mp4", video),
        ("garbage.mp4", b"garbage" * 100),
        ("empty.mp4", b""),
        ("sound.txt", b"x"),
        ("last.mkv", other),
    ]
    tar = tar_of(tmp_path / "t.tar", files)
    link = tarfile.TarInfo("link.mp4")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tar, "a") as opened:
        opened.addfile(link)
    report, index = indexed(tmp_path / "INDEX", tar)
    found = rows(index)
    assert {name.removeprefix("t.tar/"): (row["status"], row["error_kind"]) for name, row in found.items()} == {
        "good.mp4": ("ok", "member"),
        "twice.mp4": ("refused", "tar"),
        "garbage.mp4": ("failed", "not_media"),
        "empty.mp4": ("failed", "empty"),
        "last.mkv": ("ok", None),
        "link.mp4": ("refused", "tar"),
    }
    assert "good.json is not JSON" in found["t.tar/good.mp4"]["error_message"]
    assert "2 members with this name" in found["t.tar/twice.mp4"]["error_message"]
    again, _ = indexed(tmp_path / "INDEX", tar)
    assert (again.unchanged, again.failed, again.refused) == (1, report.failed, report.refused)


def test_a_tar_cut_short_keeps_what_is_whole(tmp_path: Path, video: bytes, other: bytes) -> None:
    whole = tar_of(tmp_path / "whole.tar", [("a.mp4", video), ("b.mkv", other), ("c.mp4", video)])
    with tarfile.open(whole) as tar:
        middle = tar.getmember("b.mkv")
    cut = tmp_path / "t.tar"
    cut.write_bytes(whole.read_bytes()[: middle.offset_data + middle.size * 2 // 3])
    _, index = indexed(tmp_path / "INDEX", cut)
    found = rows(index)
    assert {name: row["status"] for name, row in found.items()} == {
        "t.tar": "failed",
        "t.tar/a.mp4": "ok",
        "t.tar/b.mkv": "ok",
    }
    assert f"of its {middle.size} bytes" in found["t.tar/b.mkv"]["error_message"]
    assert found["t.tar/b.mkv"]["damaged_gop_count"]
    assert "truncated" in found["t.tar"]["error_message"]


def test_a_member_that_lies_about_its_size_reads_no_other_member(tmp_path: Path, video: bytes) -> None:
    """A header that states too few bytes cuts the video off; the sample tables then point behind it."""
    tar = tar_of(tmp_path / "t.tar", [("a.mp4", video), ("b.mp4", video)])
    raw = bytearray(tar.read_bytes())
    raw[124:136] = f"{len(video) // 2:011o}\0".encode()
    raw[148:156] = b" " * 8
    raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
    tar.write_bytes(raw)
    _, index = indexed(tmp_path / "INDEX", tar)
    found = rows(index)
    assert found["t.tar/a.mp4"]["status"] == "failed"
    assert found["t.tar"]["error_kind"] == "truncated"


def test_sidecars_that_are_asked_for_later_are_read_later(tmp_path: Path, video: bytes) -> None:
    tar = tar_of(tmp_path / "t.tar", [("a.mp4", video), ("a.json", b'{"x": 1}'), ("a.cls", b"5")])
    run("index", tar, "--out", tmp_path / "INDEX", "--sidecars", "cls")
    row = listing(tmp_path / "INDEX")["t.tar/a.mp4"]
    assert row["cls"] == 5
    assert "x" not in row
    run("index", tar, "--out", tmp_path / "INDEX", "--sidecars", "json,cls")
    row = listing(tmp_path / "INDEX")["t.tar/a.mp4"]
    assert (row["x"], row["cls"]) == (1, 5)
    run("index", tar, "--out", tmp_path / "INDEX", "--sidecars", "none")
    assert set(listing(tmp_path / "INDEX")["t.tar/a.mp4"]) >= {"media_id", "listed_uri"}


def test_a_column_that_changes_its_type_becomes_text(tmp_path: Path, video: bytes) -> None:
    for name, value in (("a", b'{"x": 1}'), ("b", b'{"x": "one"}')):
        tar = tar_of(tmp_path / f"{name}.tar", [("v.mp4", video), ("v.json", value)])
        indexed(tmp_path / "INDEX", tar, root=str(tmp_path))
    found = listing(tmp_path / "INDEX")
    assert [found[f"{name}.tar/v.mp4"]["x"] for name in "ab"] == ["1", "one"]


def test_unknown_sidecars_are_refused(tmp_path: Path) -> None:
    assert "allowed are json, txt, cls, __key__" in run("index", "x", "--sidecars", "npy", "--out", "o", code=2).output
    with pytest.raises(SourceError, match="unknown kind"):
        framedex_index("x", str(tmp_path / "o"), sidecars=["npy"])  # type: ignore[list-item]


def test_a_changed_tar_is_read_again(tmp_path: Path, video: bytes) -> None:
    tar_of(tmp_path / "t.tar", [("a.mp4", video)])
    indexed(tmp_path / "INDEX", tmp_path / "t.tar")
    tar_of(tmp_path / "t.tar", [("b.mp4", video), ("a.mp4", video)])
    report, index = indexed(tmp_path / "INDEX", tmp_path / "t.tar")
    assert (report.changed, report.ok) == (1, 2)
    found = rows(index)
    assert found["t.tar/a.mp4"]["member_offset"] > found["t.tar/b.mp4"]["member_offset"]


def test_a_tar_that_changes_between_its_headers_and_its_videos_is_noticed(
    tmp_path: Path, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar_of(tmp_path / "t.tar", [("a.mp4", video)])
    given = build.opened_files

    def changing(*arguments: Any) -> Any:
        for batch in given(*arguments):
            tar_of(path, [("b.txt", b"x" * 600), ("a.mp4", video)])
            yield batch

    monkeypatch.setattr(build, "opened_files", changing)
    _, index = indexed(tmp_path / "INDEX", path)
    (row,) = rows(index).values()
    assert (row["status"], row["error_kind"]) == ("failed", "changing")


def test_slices_write_what_one_run_writes(tmp_path: Path, video: bytes) -> None:
    for n in range(7):
        tar_of(tmp_path / f"data{n}.tar", [(f"{n}-{k}.mp4", video) for k in range(3)])
    source = str(tmp_path / "data*.tar")
    whole = tmp_path / "WHOLE"
    run("index", source, "--out", whole)
    sliced = "index", source, "--out", tmp_path / "SLICED"
    for number in (1, 0):
        run(*sliced, "--task", f"{number}/2")
    assert json.loads(run(*sliced, "--finish", "--json").output)["ok"] == 21
    names = sorted(path.relative_to(whole) for path in whole.rglob("*.parquet"))
    assert len(names) == 1 + 2 * 2, "the listing, and two parts of videos and of frames"
    assert [path for path in names if (tmp_path / "SLICED" / path).read_bytes() != (whole / path).read_bytes()] == []


def test_the_media_of_a_tar_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, video: bytes) -> None:
    monkeypatch.setattr(members, "MAX_MEDIA", 2)
    raw = tar_of(tmp_path / "t.tar", [(f"{n}.mp4", video) for n in range(3)]).read_bytes()
    with pytest.raises(MediaError, match="more than 2 images and videos"):
        members.read_tar(lambda at, length: raw[at : at + length], len(raw))


def test_a_large_sidecar_is_not_read(tmp_path: Path, video: bytes) -> None:
    large = json.dumps({"x": "y" * named_medium.MAX_SIDECAR_BYTES}).encode()
    _, index = indexed(tmp_path / "INDEX", tar_of(tmp_path / "t.tar", [("a.json", large), ("a.mp4", video)]))
    (row,) = rows(index).values()
    assert f"a.json has {len(large)} bytes" in row["error_message"]
