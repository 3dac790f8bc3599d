"""Supported image files; any problem with a file is recorded as a row's status or a packet's flag."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framedex.errors import MediaError
from framedex.indexer.probing.image_facts import BrokenImageError, facts_of, jpeg_problem, png_problem, webp_problem
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.flags import CLOSED, DAMAGED
from tests.support.images import bomb, chunk, encoded, grey16, indexed, only, rows, sequence, write


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


def test_images_of_other_orientations_are_not_turned(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    turned, plain = encoded(kind="JPEG", exif=exif), encoded(kind="JPEG")
    row, _ = only(
        tmp_path / "mixed", write(tmp_path / "mixed" / "s", {"0.jpg": turned, "1.jpg": plain, "2.jpg": turned})
    )
    assert row["rotation_degrees"] == 0
    assert row["error_message"] == "EXIF orientations differ (-90, 0 degrees), so images are not turned"
    row, _ = only(tmp_path / "other", write(tmp_path / "other" / "t", {"0.jpg": turned, "1.jpg": turned}))
    assert (row["rotation_degrees"], row["error_message"]) == (-90, None)


ORIENTATIONS = {1: 0, 2: 0, 3: 180, 4: 0, 5: 0, 6: -90, 7: 0, 8: 90, 99: 0}  # those that mirror are 2, 4, 5 and 7


@pytest.mark.parametrize("orientation, degrees", ORIENTATIONS.items())
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
    assert row["error_message"] == "images have 2 different sizes: 16x8, 24x8"
    output = run("index", tmp_path / "s", "--out", tmp_path / "INDEX").output
    assert "16x8+" in output
    assert "note: .: images have 2 different sizes" in output


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
