"""Images are media: found, grouped, timed and probed; whatever is wrong with them is a row or a flag."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framedex.errors import MediaError, SourceError
from framedex.files.natural_order import natural_key
from framedex.indexer.images.image_endings import jpeg_problem, png_problem, webp_problem
from framedex.indexer.images.image_facts import BrokenImageError, facts_of
from framedex.indexer.parts.index import Index
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions, plan_work
from framedex.indexer.sources.discover import discover, media_id
from framedex.indexer.sources.image_times import rate_of
from framedex.indexer.sources.sequences import group_names
from framedex.indexer.timeline import CLOSED, DAMAGED
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.images import bomb, chunk, encoded, grey16, indexed, only, rows, sequence, tar_of, write

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
    assert "3 images that lie beside videos passed over" in output


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
    (item,) = discover([str(tmp_path / "data")], label_from_parent=True).listed
    assert item.columns == {"label": "walk"}


def test_images_can_be_ignored(tmp_path: Path, medium: Callable[[str], Path]) -> None:
    sequence(tmp_path / "data/frames")
    tar_of(tmp_path / "data/t.tar", [("a.png", encoded())])
    with pytest.raises(SourceError, match="holds no video"):
        discover([str(tmp_path / "data")], images="ignore")
    shutil.copy(medium("h264_single.mp4"), tmp_path / "data/a.mp4")
    assert len(discover([str(tmp_path / "data")], images="ignore").listed) == 1


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


def write_rows(path: Path, listed: list[dict[str, Any]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
    return path


def test_rows_of_one_sequence_are_a_medium_in_their_order(tmp_path: Path) -> None:
    sequence(tmp_path / "data", 4)
    order = [2, 0, 3]
    listed = [{"uri": f"data/frame{n}.png", "sequence": "walk", "label": 7, "shot": n, "fps": "25"} for n in order]
    listed += [{"uri": "data/frame1.png", "sequence": "", "label": 8, "shot": 1, "fps": "25"}]
    (tmp_path / "l.jsonl").write_text(
        "".join(json.dumps(row | {"sequence": row["sequence"] or None}) + "\n" for row in listed)
    )
    _, index = indexed(tmp_path / "INDEX", tmp_path / "l.jsonl")
    row = rows(index)["data#walk"]
    packets = index.packets(row["media_id"])
    assert packets.path == [f"frame{n}.png" for n in order]
    assert packets.crc32 is not None
    assert packets.crc32.tolist() == [zlib.crc32(encoded(n)) for n in order]
    assert row["media_id"] == media_id("data", member="walk") != media_id("data")
    listing = {row["media_id"]: row for row in index.listing.to_pylist()}
    assert (listing[row["media_id"]]["label"], listing[row["media_id"]]["shot"]) == (7, None)
    assert rows(index)["data/frame1.png"]["frame_count"] == 1
    assert plan_work(IndexOptions(sources=[str(tmp_path / "l.jsonl")], out=tmp_path / "INDEX")).unchanged == 2


def test_a_sequence_of_several_folders_is_an_error(tmp_path: Path) -> None:
    listed = [{"uri": f"{folder}/a.png", "sequence": "s"} for folder in ("one", "two")]
    with pytest.raises(SourceError, match="several folders"):
        discover([str(write_rows(tmp_path / "l.csv", listed))])
    with pytest.raises(SourceError, match="no image"):
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


# Times


def test_images_without_times_come_one_a_second(tmp_path: Path) -> None:
    row, packets = only(tmp_path, sequence(tmp_path / "s"))
    assert (row["pts_source"], row["time_base_num"], row["time_base_den"]) == ("counted", 1, 1)
    assert packets.pts.tolist() == [0, 1, 2]
    assert (row["duration_pts"], row["is_vfr"]) == (3, False)


@pytest.mark.parametrize(
    "rate, base", [("30000/1001", (1001, 30000)), ("25", (1, 25)), ("29.97", (100, 2997)), ("0.5", (2, 1))]
)
def test_a_rate_is_exact(tmp_path: Path, rate: str, base: tuple[int, int]) -> None:
    row, packets = only(tmp_path, sequence(tmp_path / "s"), image_fps=rate_of(rate))
    assert ((row["time_base_num"], row["time_base_den"]), row["pts_source"]) == (base, "listed")
    assert (packets.pts.tolist(), row["duration_pts"]) == ([0, 1, 2], 3)


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "1e999999999", "1/0", "", "x", "1/3/4", str(1 << 40), "0.0"])
def test_what_is_no_rate_is_an_error(rate: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frames a second"):
        rate_of(rate)
    assert "--image-fps" in run("index", tmp_path, "--out", tmp_path / "I", f"--image-fps={rate}", code=2).output


@pytest.mark.parametrize("text", ["0\n0.5\n\n# late\n2.25\n", "frame2.png 2.25\nframe0.png 0\nframe1.png 5e-1\n"])
def test_a_timestamps_file_times_its_folder(tmp_path: Path, text: str) -> None:
    (sequence(tmp_path / "s") / "timestamps.txt").write_text(text)
    row, packets = only(tmp_path, tmp_path / "s", image_fps=rate_of("25"))
    assert packets.pts.tolist() == [0, 500_000, 2_250_000]
    assert (row["time_base_den"], row["pts_source"], row["is_vfr"]) == (1_000_000, "listed", True)
    assert row["duration_pts"] == 2_250_000 + 1_125_000


@pytest.mark.parametrize(
    "text, said",
    [
        ("0\n1\n", "2 timestamps for 3 images"),
        ("0\n1\n2\n3\n", "4 timestamps for 3 images"),
        ("0\n1\n1\n", "do not ascend"),
        ("2\n1\n0\n", "do not ascend"),
        ("0\nnan\n2\n", "no number"),
        ("0\n1e999999999\n2\n", "no number"),
        ("0\n1\n1e80\n", "beyond"),
        ("frame0.png 0\nframe1.png 1\n", "image 2 has no timestamp"),
        ("frame0.png 0\nframe0.png 1\nframe2.png 3\n", "twice"),
        ("frame0.png 0\nframe7.png 1\nframe2.png 3\n", "not there"),
        ("frame0.png 0\n1\n2\n", "some do not"),
        ("", "0 timestamps"),
    ],
)  # fmt: skip
def test_times_that_do_not_fit_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (sequence(tmp_path / "s") / "timestamps.txt").write_text(text)
    row, _ = only(tmp_path, tmp_path / "s")
    assert (row["status"], row["error_kind"]) == ("refused", "timestamps")
    assert said in row["error_message"]


def test_a_listing_times_each_image(tmp_path: Path) -> None:
    sequence(tmp_path / "data", 3)
    listed = [{"uri": f"data/frame{n}.png", "sequence": "s", "seconds": time} for n, time in enumerate((-1, 0.1, 7.25))]
    _, packets = only(tmp_path, write_rows(tmp_path / "l.csv", listed))
    assert packets.pts.tolist() == [-1_000_000, 100_000, 7_250_000]
    listed[1]["seconds"] = ""
    row, _ = only(tmp_path / "second", write_rows(tmp_path / "l.csv", listed))
    assert (row["error_kind"], row["error_message"]) == ("timestamps", "image 1 has no timestamp")


# What an image may be


@pytest.mark.parametrize(
    "data, codec, pixel_format",
    [
        (encoded(kind="JPEG"), "mjpeg", "rgb24"),
        (encoded(kind="JPEG", mode="L", progressive=True), "mjpeg", "gray"),
        (encoded(kind="WEBP"), "webp", "rgb24"),
        (encoded(kind="WEBP", lossless=True, mode="LA"), "webp", "rgb24"),
        (encoded(), "png", "rgb24"),
        (encoded(mode="P"), "png", "pal8"),
        (encoded(mode="LA"), "png", "ya8"),
        (encoded(mode="1"), "png", "monob"),
        (grey16(np.arange(768, dtype=np.uint16).reshape(24, 32) * 80), "png", "gray16be"),
    ],
)
def test_formats_and_modes(tmp_path: Path, data: bytes, codec: str, pixel_format: str) -> None:
    path = write(tmp_path / "s", {"wrong_suffix.png": data}) / "wrong_suffix.png"
    row, packets = only(tmp_path, path, verify=True)
    assert (row["status"], row["codec"], row["pixel_format"]) == ("ok", codec, pixel_format)
    assert (row["width"], row["height"], row["depth"], row["hashed"]) == (32, 24, "packets", True)
    assert (packets.flags.tolist(), packets.size.tolist(), packets.read.tolist()) == ([CLOSED], [len(data)], [True])


def test_hashes_are_over_rgb(tmp_path: Path) -> None:
    values = (np.arange(768, dtype=np.uint16) * 85).reshape(24, 32)
    write(tmp_path / "s", {"0.png": encoded(4), "1.png": grey16(values), "2.png": encoded(4, mode="RGBA")})
    _, packets = only(tmp_path, tmp_path / "s", verify=True)
    pixels = np.random.default_rng(4).integers(0, 256, (24, 32, 3), np.uint8)
    high = np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    assert packets.md5 == [hashlib.md5(rgb.tobytes() + b"rgb2432x24").digest() for rgb in (pixels, high, pixels)]


@pytest.mark.parametrize("orientation, degrees", [(1, 0), (3, 180), (6, -90), (8, 90), (99, 0)])
def test_exif_orientation_is_recorded_and_not_applied(tmp_path: Path, orientation: int, degrees: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    row, _ = only(tmp_path, write(tmp_path / "s", {"a.jpg": encoded(kind="JPEG", exif=exif)}))
    assert (row["rotation_degrees"], row["width"], row["height"]) == (degrees, 32, 24)


def animation(kind: str) -> bytes:
    file = io.BytesIO()
    images = [Image.open(io.BytesIO(encoded(number))) for number in range(2)]
    images[0].save(file, kind, save_all=True, append_images=images[1:])
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [encoded(kind="JPEG", mode="CMYK"), animation("PNG"), animation("WEBP"), animation("GIF")],
    ids=["cmyk", "apng", "webp", "gif"],
)
def test_images_whose_rgb_is_not_defined_are_refused_with_the_file(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "s", {"0.png": encoded(), "1.png": data})
    row, _ = only(tmp_path, tmp_path / "s")
    assert (row["status"], row["error_kind"]) == ("refused", "image_format")
    assert row["error_message"].startswith("1.png ")


DAMAGE = {
    "empty": b"",
    "text": b"no image at all",
    "cut.jpg": encoded(3, "JPEG")[:-200],
    "cut.png": encoded(3)[:-200],
    "cut.webp": encoded(3, "WEBP")[:-200],
    "flipped.png": bytes(byte ^ (place == 900) for place, byte in enumerate(encoded(3))),
    "header.jpg": encoded(3, "JPEG")[:30],
    "bomb": bomb(),
    "large": bomb(10_000, 10_000),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_broken_image_is_a_damaged_packet_of_a_sequence_that_is_not(tmp_path: Path, name: str) -> None:
    write(tmp_path / "s", {"0.png": encoded(0), "1.png": DAMAGE[name], "2.png": encoded(2)})
    row, packets = only(tmp_path, tmp_path / "s")
    assert (row["status"], row["error_kind"], row["damaged_gop_count"], row["frame_count"]) == ("ok", "damaged", 1, 3)
    assert packets.flags.tolist() == [CLOSED, CLOSED | DAMAGED, CLOSED]
    assert packets.size.tolist()[1] == len(DAMAGE[name])
    assert "1 of 3 images are damaged, first 1.png: " in row["error_message"]


def test_a_header_that_ends_early_is_damage_and_no_rule(tmp_path: Path) -> None:
    folder = sequence(tmp_path / "f", 2)
    (folder / "frame2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0\0\0\1"))
    row, packets = only(tmp_path, folder)
    assert (row["status"], row["error_kind"]) == ("ok", "damaged")
    assert (packets.flags & DAMAGED).astype(bool).tolist() == [False, False, True]


@pytest.mark.parametrize("name", DAMAGE)
def test_a_broken_image_alone_fails(tmp_path: Path, name: str) -> None:
    row, _ = only(tmp_path, write(tmp_path / "s", {"0.png": DAMAGE[name]}) / "0.png")
    assert row["status"] == "failed"
    assert row["error_kind"] in ("damaged", "empty")
    assert row["error_message"]


def test_damage_that_only_decoding_shows_is_flagged_by_verify(tmp_path: Path) -> None:
    whole = encoded(3)
    at = whole.index(b"IDAT") - 4
    broken = whole[:at] + png_chunk_of_nonsense() + whole[whole.index(b"IEND") - 4 :]
    write(tmp_path / "s", {"0.png": encoded(0), "1.png": broken})
    row, packets = only(tmp_path, tmp_path / "s", verify=True)
    assert packets.flags.tolist() == [CLOSED, CLOSED | DAMAGED]
    assert packets.md5[1] is None
    assert "does not decode" in row["error_message"]


def png_chunk_of_nonsense() -> bytes:
    return chunk(b"IDAT", b"nonsense")


@given(st.integers(0, 2), st.data())
def test_every_cut_of_an_image_is_told_from_a_whole_one(kind: int, data: st.DataObject) -> None:
    name, problem = [("JPEG", jpeg_problem), ("PNG", png_problem), ("WEBP", webp_problem)][kind]
    whole = encoded(5, name)
    assert problem(whole) is None
    assert problem(whole + b"\0" * 7) is None
    length = data.draw(st.integers(12, len(whole) - 1))
    assert problem(whole[:length]) is not None


@given(
    st.sampled_from(["JPEG", "PNG", "WEBP"]), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6)
)
def test_no_bytes_make_the_header_reader_raise_what_nobody_expects(kind: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(6, kind))
    for place, byte in changes:
        data[place % len(data)] = byte
    kind_of_error = None
    with contextlib.suppress(BrokenImageError):
        try:
            facts_of(bytes(data))
        except MediaError as error:
            kind_of_error = error.kind
    assert kind_of_error in (None, "image_format")


def test_images_of_several_sizes_are_said_to_be(tmp_path: Path) -> None:
    write(tmp_path / "s", {f"{n}.png": encoded(n, size=(16 + 8 * (n // 2), 8)) for n in range(4)})
    row, _ = only(tmp_path, tmp_path / "s")
    assert (row["varying_shape"], row["width"], row["error_kind"]) == (True, 16, None)
    assert row["error_message"] == "images of 2 sizes: 16x8, 24x8"
    output = run("index", tmp_path / "s", "--out", tmp_path / "INDEX").output
    assert "16x8+" in output
    assert "note: .: images of 2 sizes" in output


def test_a_fifo_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(sequence(tmp_path / "s") / "frame9.png")
    row, _ = only(tmp_path, tmp_path / "s")
    assert (row["status"], row["error_kind"]) == ("failed", "unreadable")


def test_the_corpus_of_images(tmp_path: Path, corpus: Path) -> None:
    facts = json.loads((corpus / "manifest.json").read_text())["files"]["images"]["images"]
    _, index = indexed(tmp_path / "INDEX", corpus / "images", images="single", verify=True)
    for name, row in some(rows(index).items()):
        stream = facts[name].get("streams", {}).get("0")
        if stream is None or stream["decode_errors"] or "truncated" in name:
            assert (row["status"], row["error_kind"]) == ("failed", "damaged")
        else:
            expected = ("ok", stream["codec"], stream["w"], stream["h"], facts[name]["bytes"])
            assert (row["status"], row["codec"], row["width"], row["height"], row["size_bytes"]) == expected


# Reruns


def changes(tmp_path: Path) -> list[str]:
    """Index `data` anew; return what was probed, and that a dry run said so."""
    options = IndexOptions(sources=[str(tmp_path / "data")], out=tmp_path / "INDEX", workers=1)
    planned = [uri for uri, _ in plan_work(options).probe]
    before = plan_work(options).unchanged
    report = build_index(options)
    assert report.unchanged == before
    assert (report.ok > 0) == bool(planned)
    return planned


def test_a_rerun_sees_what_was_added_removed_or_changed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sequence(tmp_path / "data" / name)
    assert changes(tmp_path) == ["a", "b"]
    assert changes(tmp_path) == []
    write(tmp_path / "data/a", {"frame10.png": encoded(10)})
    assert changes(tmp_path) == ["a"]
    index = Index(tmp_path / "INDEX")
    assert index.packets(media_id("a")).path == ["frame0.png", "frame1.png", "frame2.png", "frame10.png"]
    (tmp_path / "data/b/frame0.png").unlink()
    assert changes(tmp_path) == ["b"]
    write(tmp_path / "data/b", {"frame1.png": encoded(11)})
    assert changes(tmp_path) == ["b"]
    (tmp_path / "data/b/timestamps.txt").write_text("3\n4\n")
    assert changes(tmp_path) == ["b"]
    assert Index(tmp_path / "INDEX").packets(media_id("b")).pts.tolist() == [3_000_000, 4_000_000]
    assert changes(tmp_path) == []


def test_a_rerun_leaves_a_tar_alone_until_it_changes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tar_of(tmp_path / "data/t.tar", [("a/0.png", encoded(0)), ("b/0.png", encoded(1))])
    assert changes(tmp_path) == ["t.tar"]
    os.utime(path, ns=(1, 1))  # the same content
    assert changes(tmp_path) == []
    tar_of(path, [("b/0.png", encoded(2)), ("c/0.png", encoded(3))])
    report = build_index(IndexOptions(sources=[str(path)], out=tmp_path / "INDEX", workers=1))
    assert report.ok == 2
    assert changes(tmp_path) == []


def test_another_rate_is_a_reason_to_look_again(tmp_path: Path) -> None:
    sequence(tmp_path / "data/s")
    tar_of(tmp_path / "data/t.tar", [("a.png", encoded())])
    options = {"sources": [str(tmp_path / "data")], "out": tmp_path / "INDEX", "workers": 1}
    build_index(IndexOptions(**options))  # type: ignore[arg-type]
    assert build_index(IndexOptions(**options, image_fps=rate_of("25"))).ok == 2  # type: ignore[arg-type]
    assert build_index(IndexOptions(**options, image_fps=rate_of("25"))).unchanged == 2  # type: ignore[arg-type]
    assert build_index(IndexOptions(**options, image_fps=rate_of("25"), verify=True)).ok == 2  # type: ignore[arg-type]


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
