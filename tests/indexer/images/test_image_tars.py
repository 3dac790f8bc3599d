"""Tars of images: each sequence is a medium; every defect of a tar becomes a row, and nothing outside a tar is read."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.probing.probe_images import ImageTask
from tests.support.counted import some
from tests.support.flags import CLOSED, DAMAGED
from tests.support.images import encoded, indexed, medium_id, only, planned, rows, tar_of, write
from tests.support.probed import facts_of, rows_found


def test_sequences_of_a_tar_are_media_whose_offsets_point_into_it(tmp_path: Path) -> None:
    files = [(f"{take}/frame{n}.png", encoded(n + 10 * len(take))) for take in ("a", "bb") for n in (10, 9)]
    path = tar_of(tmp_path / "t.tar", [*files, ("top.png", encoded(1)), ("notes.txt", b"x"), ("a/._frame9.png", b"x")])
    _, index = indexed(tmp_path / "INDEX", path, image_fps="25")
    found = rows(index)
    assert {name: row["frame_count"] for name, row in found.items()} == {"t.tar/.": 1, "t.tar/a": 2, "t.tar/bb": 2}
    raw, expected = path.read_bytes(), dict(files)
    for member in ("a", "bb"):
        row = found[f"t.tar/{member}"]
        packets = index.packets(row["media_id"])
        assert (packets.path, row["container"], row["time_base_den"]) == (None, "tar", 25)
        assert packets.offset is not None
        assert packets.crc32 is not None
        for n, offset, size, crc in zip((9, 10), packets.offset, packets.size, packets.crc32, strict=True):
            data = raw[offset : offset + size]
            assert data == expected[f"{member}/frame{n}.png"]
            assert zlib.crc32(data) == crc


def test_a_tar_that_webdataset_wrote_groups_by_key(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "w.tar")) as writer:
        for key in ("walk", "run"):
            parts = {f"{n:03}.jpg": encoded(n, "JPEG") for n in range(3)}
            writer.write({"__key__": key, **parts, "json": {"label": 1}})
    _, index = indexed(tmp_path / "INDEX", tmp_path / "w.tar")
    assert {name: row["frame_count"] for name, row in rows(index).items()} == {"w.tar/run": 3, "w.tar/walk": 3}


def test_every_image_of_a_tar_can_be_a_medium(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", [(f"a/{n}.png", encoded(n)) for n in range(3)])
    _, index = indexed(tmp_path / "INDEX", path, images="single")
    assert list(rows(index)) == [f"t.tar/a/{n}.png" for n in range(3)]
    assert planned(tmp_path / "INDEX", path, "--images", "single")["unchanged"] == 1
    assert planned(tmp_path / "INDEX", path)["unchanged"] == 0


def test_every_sequence_of_a_tar_has_the_tars_columns(tmp_path: Path) -> None:
    tar_of(tmp_path / "t.tar", [(f"{take}/0.png", encoded()) for take in "abc"])
    (tmp_path / "l.csv").write_text("uri,label\nt.tar,5\n")
    for _ in range(2):  # the second time is a rerun
        _, index = indexed(tmp_path / "INDEX", tmp_path / "l.csv")
        labels = {row["media_id"]: row["label"] for row in index.listing.to_pylist()}
        assert labels == {medium_id("t.tar", take): 5 for take in "abc"}


def test_tars_are_found_in_folders(tmp_path: Path) -> None:
    write(tmp_path / "data", {"x/a.png": encoded()})
    tar_of(tmp_path / "data/t.tar", [("s/0.png", encoded())])
    assert list(rows(indexed(tmp_path / "INDEX", tmp_path / "data")[1])) == ["t.tar/s", "x"]


def hostile(path: Path, build: Callable[[tarfile.TarFile], None], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        build(tar)
    return path


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(data) if data else None)


@pytest.mark.parametrize("name", ["../../etc/a.png", "/etc/a.png", "a/../../b.png", "./a.png", "a//b.png", "é/ü.png"])
def test_names_that_lead_out_of_a_tar_are_names_alone(tmp_path: Path, name: str) -> None:
    row, packets = only(tmp_path, hostile(tmp_path / "t.tar", lambda tar: add(tar, name, encoded())))
    assert row["status"] == "ok"
    assert packets.crc32.tolist() == [zlib.crc32(encoded())]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_refuse_their_sequence_alone(tmp_path: Path, kind: bytes) -> None:
    def build(tar: tarfile.TarFile) -> None:
        add(tar, "bad/0.png", encoded())
        add(tar, "bad/1.png", type=kind, linkname="/etc/passwd")
        add(tar, "good/0.png", encoded())

    found = rows(indexed(tmp_path / "INDEX", hostile(tmp_path / "t.tar", build))[1])
    assert {name: row["status"] for name, row in found.items()} == {"t.tar/bad": "refused", "t.tar/good": "ok"}
    assert "bad/1.png is" in found["t.tar/bad"]["error_message"]


def test_a_name_that_a_tar_holds_twice_refuses_its_sequence(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", [("a.png", encoded(1)), ("a.png", encoded(2))])
    row, _ = only(tmp_path, path)
    assert (row["status"], row["error_message"]) == ("refused", "the tar holds a.png 2 times")


def test_sparse_members_refuse_their_sequence(tmp_path: Path) -> None:
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s.png", "GNU.sparse.realsize": "9"}
    data = b"1\n0\n9\n".ljust(512, b"\0") + b"123456789"
    path = hostile(tmp_path / "t.tar", lambda tar: add(tar, "x.png", data, pax_headers=headers), tarfile.PAX_FORMAT)
    row, _ = only(tmp_path, path)
    assert (row["status"], row["error_message"]) == (
        "refused",
        "s.png is a sparse file, so it is not one byte range of the tar",
    )


def test_long_and_pax_names_are_read(tmp_path: Path) -> None:
    name = "/".join(["folder" * 20] * 3) + "/ä 0.png"
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tar_of(tmp_path / f"{format}.tar", [(name, encoded())], format)
        row, _ = only(tmp_path / str(format), path)
        assert row["member"] == os.path.dirname(name)


def test_a_size_below_zero_never_leads_backwards(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", [("a.png", encoded(1)), ("b.png", encoded(2))], tarfile.USTAR_FORMAT)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"b.png")
    raw[at + 124 : at + 136] = b"\xff" * 10 + b"\xf0\x00"  # base-256: -4096
    raw[at + 148 : at + 156] = b" " * 8
    raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    path.write_bytes(raw)
    row, packets = only(tmp_path, path)
    assert (row["error_kind"], len(packets.size)) == ("truncated", 1)


@given(data=st.data())
def test_no_cut_and_no_change_of_a_tar_is_more_than_a_row(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tar")
    path = tar_of(folder / "t.tar", [(f"s/{n}" + "x" * 120 * n + ".png", encoded(n)) for n in range(2)])
    raw = bytearray(path.read_bytes())
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=5)):
        raw[place] = byte
    del raw[data.draw(st.integers(0, len(raw))) :]
    path.write_bytes(raw)
    for video, frames in some(rows_found(facts_of(path, images=ImageTask(form="tar"), verify=True))):
        assert video["status"] in ("ok", "refused", "failed")
        if video["status"] == "ok":
            assert (frames["offset"] + frames["size"] <= len(raw)).all()


def test_a_truncated_tar_keeps_what_is_whole(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", [(f"{n}.png", encoded(n)) for n in range(3)])
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.index(b"2.png") + 600])
    row, packets = only(tmp_path, path)
    assert (row["status"], row["error_kind"], len(packets.size)) == ("ok", "truncated", 3)
    assert packets.flags.tolist() == [CLOSED, CLOSED, CLOSED | DAMAGED]
    assert "truncated" in row["error_message"]


@pytest.mark.parametrize("data, kind", [(b"no tar" * 300, "not_media"), (b"", "empty"), (b"\0" * 10240, "empty")])
def test_what_is_no_tar_of_images_says_so(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "t.tar").write_bytes(data)
    row, _ = only(tmp_path, tmp_path / "t.tar")
    assert row["status"] in ("failed", "refused")
    assert row["error_kind"] == kind
