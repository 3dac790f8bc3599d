"""`--pack images`: every wanted frame is stored once, in the right colours and size, and epochs decode no video."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from framedex import ClipDataset, ImageOptions, Index
from framedex.errors import PolicyError
from tests.support.counted import some
from tests.support.datasets import run, shard_clips, write_clips
from tests.support.gpu import gpu_obstacles
from tests.support.manifests import rewrite_part
from tests.support.media import RECIPES, Recipe, encode, garble_packet, read_barcode
from tests.support.packed import samples

Medium = Callable[[str], Path]


def pack(index: Path, out: Path, clips: list[dict[str, Any]], *arguments: object, code: int = 0) -> Path:
    """Store the frames of explicit clips."""
    path = write_clips(out.with_suffix(".jsonl"), clips)
    run("shard", index, "--clips", path, "--out", out, "--pack", "images", *arguments, code=code)
    return out


def picture(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(content)))


def test_png_holds_the_pixels_that_the_loader_gives_of_every_recipe(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": name, "frames": [0, 7, -1, 3, 7]} for name in RECIPES if RECIPES[name].frames > 7]
    stored = ClipDataset(pack(index.path, tmp_path / "D", clips, "--image-format", "png"))
    decoded = ClipDataset(shard_clips(index.path, tmp_path / "REFERENCE", clips))
    assert len(stored) == len(decoded) == len(clips)
    for number in range(len(clips)):
        assert np.array_equal(stored[number]["frames"], decoded[number]["frames"]), clips[number]["uri"]
        for name in ("pts", "seconds", "frame_index", "mask"):
            assert np.array_equal(stored[number][name], decoded[number][name], equal_nan=name == "seconds")
    assert f"{len(clips)} exact" in run("verify", tmp_path / "D").output


@pytest.mark.parametrize(("kind", "suffix", "close"), [("jpeg", "jpg", 38), ("webp", "webp", 34), ("png", "png", 99)])
def test_formats_keep_colours(medium: Medium, index: Index, tmp_path: Path, kind: str, suffix: str, close: int) -> None:
    """Use BT.709 pictures of soft colours, for which a wrong matrix would cost at least 10 dB."""
    clips = [{"uri": "h264_bt709.mp4", "frames": [4, 30]}]
    quality = () if kind == "png" else ("--quality", 95)
    dataset = pack(index.path, tmp_path / "D", clips, "--image-format", kind, *quality)
    ((_, sample),) = samples(dataset)
    assert list(sample) == [f"000.{suffix}", f"001.{suffix}", "json"]
    assert Image.open(io.BytesIO(sample[f"000.{suffix}"])).format == kind.upper()
    expected = ClipDataset(shard_clips(index.path, tmp_path / "R", clips))[0]["frames"]
    for number in range(2):
        away = picture(sample[f"{number:03d}.{suffix}"]).astype(float) - expected[number]
        assert 10 * np.log10(255**2 / max(1e-6, (away**2).mean())) > close
    assert "1 exact" in run("verify", dataset).output


def test_frames_that_repeat_are_stored_once_in_order_of_first_appearance(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [9, 2, -1, 9, 30, 2], "label": 3}]
    dataset = pack(index.path, tmp_path / "D", clips, "--image-format", "png")
    ((key, sample),) = samples(dataset)
    content = json.loads(sample["json"])
    assert (key, list(sample)) == ("000000000", ["000.png", "001.png", "002.png", "json"])
    assert [read_barcode(picture(sample[f"{number:03d}.png"])) for number in range(3)] == [9, 2, 30]
    assert content["images"] == ["000.png", "001.png", None, "000.png", "002.png", "001.png"]
    assert content["mask"] == [True, True, False, True, True, True]
    item = ClipDataset(dataset)[0]
    assert [read_barcode(frame) for frame in item["frames"][item["mask"]]] == [9, 2, 9, 30, 2]
    assert item["label"] == content["label"] == 3


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        (["--short-side", 64], (64, 78)),
        (["--short-side", 4000], (144, 176)),
        (["--box", 88], (72, 88)),
        (["--size", "50x60"], (50, 60)),
        ([], (144, 176)),
    ],
)
def test_sizes(index: Index, tmp_path: Path, arguments: list[object], size: tuple[int, int]) -> None:
    dataset = pack(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [4]}], *arguments)
    ((_, sample),) = samples(dataset)
    content = json.loads(sample["json"])
    assert picture(sample["000.jpg"]).shape == (*size, 3)
    assert (content["height"], content["width"]) == size
    assert ClipDataset(dataset)[0]["frames"].shape == (1, *size, 3)
    assert "1 exact" in run("verify", dataset).output


def test_making_frames_smaller_does_not_alias(tmp_path: Path) -> None:
    """Check that stripes of one pixel become grey and not other stripes."""
    from framedex.sharder.packing.pack_options import encode_image

    stripes = np.zeros((200, 200, 3), np.uint8)
    stripes[:, ::2] = 255
    small = picture(encode_image(stripes, ImageOptions(format="png", size=(63, 63)))).astype(int)
    assert abs(small[5:-5, 5:-5] - 127).max() <= 12


def test_options_that_contradict_each_other_are_errors(index: Index, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="one of short_side, size and box"):
        ImageOptions(short_side=5, box=5)
    path = write_clips(tmp_path / "c.jsonl", [{"uri": "h264_vfr.mp4", "frames": [1]}])
    words = ["shard", index.path, "--clips", path, "--out", tmp_path / "D", "--pack", "images"]
    assert "one of" in run(*words, "--short-side", 5, "--box", 5, code=1).output
    run(*words, "--size", "5", code=2)
    run(*words, "--quality", "0", code=2)
    assert not (tmp_path / "D").exists()


def test_sources_that_are_no_byte_ranges_and_codecs_that_no_file_holds_are_stored(tmp_path: Path) -> None:
    from tests.support import planned

    (tmp_path / "videos").mkdir()
    encode(Recipe(name="a.ts", options={"g": "10"}, frames=20), tmp_path / "videos/a.ts")
    planned.encode(tmp_path / "videos/b.apng", "apng", {}, pix_fmt="rgb24", size=(176, 144), frames=10)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    clips = [{"uri": name, "frames": [8, 3]} for name in ("a.ts", "b.apng")]
    dataset = pack(tmp_path / "INDEX", tmp_path / "D", clips)
    for path in (tmp_path / "videos").iterdir():
        path.unlink()
    for item in some(ClipDataset(dataset)):  # type: ignore[attr-defined]
        assert [read_barcode(frame) for frame in item["frames"]] == [8, 3]


def test_stored_clips_go_to_the_cpu(index: Index, tmp_path: Path) -> None:
    dataset = pack(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [1]}])
    assert None not in gpu_obstacles(ClipDataset(dataset))


def test_clips_that_do_not_decode_and_sources_that_are_gone_are_rows(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("bad.mp4", "gone.mp4", "good.mp4"):
        encode(Recipe(name=name, options={"preset": "veryfast", "g": "10"}, frames=20), tmp_path / "videos" / name)
    bad = tmp_path / "videos" / "bad.mp4"
    garble_packet(bad, bad, 0, tmp_path / "PACKETS")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX", "--depth", "packets")
    (tmp_path / "videos/gone.mp4").unlink()
    clips = [{"uri": name, "frames": [5]} for name in ("bad.mp4", "gone.mp4", "good.mp4")]
    dataset = pack(tmp_path / "INDEX", tmp_path / "D", clips, code=3)
    rows = pq.read_table(dataset / "failures.parquet").to_pylist()
    assert [(row["uri"], row["kind"]) for row in rows] == [("bad.mp4", "undecodable"), ("gone.mp4", "stale")]
    assert "1 exact" in run("verify", dataset).output


def test_verify_finds_an_image_that_is_not_the_frame(index: Index, tmp_path: Path) -> None:
    import pyarrow as pa

    dataset = pack(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": [5, 9]}], "--box", 60)
    path = dataset / "recipes/part-000000.parquet"
    table = pq.read_table(path)
    column = table.schema.get_field_index("position")
    field = table.schema.field(column)
    rewrite_part(path, table.set_column(column, field, pa.array([[1, 0]], field.type)))
    assert "1 differs" in run("verify", dataset, code=3).output
