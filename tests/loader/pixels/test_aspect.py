"""Framings that keep proportions keep those that players show, for samples that are not squares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framedex
from framedex import BucketSampler, ClipDataset, ClipLoader, ClipStream, Framing, SmartResize
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.packed import samples
from tests.support.turned import cut, turned_video, widened_video

# Of 176 × 144 (width × height), shown as 352 × 144 with a ratio of 2/1: (height, width) of scaled pictures.
SCALED = {
    "short": (Framing(short_side=72), (72, 176), (72, 88)),
    "long": (Framing(long_side=88), (36, 88), (72, 88)),
    "fit": (Framing(size=(96, 96), resize="fit"), (39, 96), (79, 96)),
    "cover": (Framing(size=(96, 96), resize="crop"), (96, 235), (96, 117)),
    "smart": (
        Framing(smart_resize=SmartResize(factor=8, min_pixels=64, max_pixels=8192)),
        (56, 136),
        (80, 96),
    ),
}


@pytest.fixture(scope="module")
def home(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video whose samples are twice as wide as high, the same one turned by 90°, and one of squares."""
    home = tmp_path_factory.mktemp("aspect")
    (home / "media").mkdir()
    wide = widened_video(medium("h264_default.mp4"), home / "media" / "wide.mp4", "2/1")
    turned_video(wide, home / "media" / "turned.mp4", "quarter")
    (home / "media" / "plain.mp4").write_bytes(medium("h264_default.mp4").read_bytes())
    run("index", home / "media", "--out", home / "INDEX")
    run("shard", home / "INDEX", "--policy", "uniform", "--out", home / "D")
    return home


def of(dataset: ClipDataset, name: str) -> int:
    """Return the number of the first clip of a video."""
    return dataset.column("uri").tolist().index(name)


@pytest.mark.parametrize("name", SCALED)
def test_pictures_are_scaled_to_the_proportions_that_players_show(home: Path, name: str) -> None:
    framing, shown, squares = SCALED[name]
    dataset = ClipDataset(home / "D", framing=framing)
    for uri, expected in (("wide.mp4", shown), ("plain.mp4", squares), ("turned.mp4", None)):
        number = of(dataset, uri)
        item, clip = dataset[number], dataset.clip(number)
        cutout = dataset.pixels.cutout(clip.medium, len(clip.frames), dataset.pixels.draw(clip, 0))
        assert item["sample_aspect_ratio"] == (1 if uri == "plain.mp4" else 2)
        assert list(item["frames"].shape[:3]) == dataset.shapes()[number].tolist()
        if expected is not None:
            assert cutout.scaled == expected
        elif name in ("short", "long"):
            assert cutout.scaled == shown[::-1]
        stretched = ClipDataset(home / "D", size=cutout.scaled)[number]["frames"]
        assert np.array_equal(item["frames"], cut(stretched, cutout))


def test_stored_proportions_and_framings_that_do_not_scale(home: Path) -> None:
    stored = ClipDataset(home / "D", framing=Framing(short_side=72, aspect="stored"))
    number = of(stored, "wide.mp4")
    assert stored[number]["frames"].shape[1:3] == (72, 88)
    assert stored.shapes()[number, 1:].tolist() == [72, 88]
    for framing, size in (
        (Framing(), (144, 176)),
        (Framing(crop=(40, 60)), (40, 60)),
        (Framing(size=(30, 20)), (30, 20)),
    ):
        dataset = ClipDataset(home / "D", framing=framing)
        assert dataset[number]["frames"].shape[1:3] == size
        assert dataset.shapes()[number, 1:].tolist() == list(size)
    with pytest.raises(framedex.FramedexError, match="aspect"):
        Framing(short_side=72, aspect="player")  # type: ignore[arg-type]


def test_portrait_and_landscape_pictures_in_a_batch_say_what_to_do(home: Path) -> None:
    upright = ClipDataset(home / "D")
    with pytest.raises(framedex.FramedexError, match="portrait and landscape pictures"):
        list(ClipLoader(upright, batch_size=99, output="numpy"))
    framing = Framing(sizes=[(96, 64), (64, 96)], resize="crop")
    several = ClipDataset(home / "D", framing=framing)
    sampler = BucketSampler(several, max_batch=99)
    batches = list(ClipLoader(several, batch_sampler=sampler, output="numpy"))
    assert sorted({batch["frames"].shape[2:4] for batch in batches}) == [(64, 96), (96, 64)]
    assert sum(len(batch["clip_id"]) for batch in batches) == len(several)
    (batch,) = ClipLoader(ClipDataset(home / "D", rotation="stored"), batch_size=99, output="numpy")
    assert batch["frames"].shape[2:4] == (144, 176)


def test_columns_and_where_know_the_shape_of_samples(home: Path) -> None:
    for dataset in (ClipDataset(home / "D"), ClipDataset.from_index(home / "INDEX", "uniform")):
        by_uri = {
            uri: sizes
            for uri, *sizes in zip(
                *(
                    dataset.column(name).tolist()
                    for name in ("uri", "sample_aspect_ratio", "upright_width", "upright_height")
                ),
                strict=True,
            )
        }
        assert by_uri["wide.mp4"] == [2, 176, 144]
        assert by_uri["turned.mp4"] == [2, 144, 176]
        assert by_uri["plain.mp4"][1:] == [176, 144]
    chosen = ClipDataset(home / "D", where="upright_height > upright_width")
    assert set(chosen.column("uri")) == {"turned.mp4"}


@pytest.mark.parametrize(
    "packing", [["--pack", "clips"], ["--pack", "images"], ["--pack", "clips", "--encode", "h264", "--size", "72x96"]]
)
def test_sources_tars_and_streams_give_frames_of_one_shape(home: Path, tmp_path: Path, packing: list[Any]) -> None:
    run("shard", home / "INDEX", "--policy", "uniform", "--out", tmp_path / "D", *packing)
    framing = Framing(short_side=72, crop=(64, 60), position="random", flip=0.5)
    several: list[dict[str, Any]] = [
        {"framing": Framing(short_side=72)},
        {"framing": framing},
        {"framing": framing, "rotation": "apply"},
    ]
    for pixels in some(several):
        source, packed = ClipDataset(home / "D", **pixels), ClipDataset(tmp_path / "D", **pixels)
        expected = {source.clip(number).clip_id: source[number]["frames"] for number in range(len(source))}
        (batch,) = ClipLoader(packed, batch_size=99, collate="list", output="numpy")
        ways = {
            "tar": {item["clip_id"]: item["frames"] for item in (packed[number] for number in range(len(packed)))},
            "stream": {item["clip_id"]: item["frames"] for item in ClipStream(tmp_path / "D", **pixels)},
            "loader": dict(zip(batch["clip_id"], batch["frames"], strict=True)),
            "sample": {},
        }
        for _, files in samples(tmp_path / "D"):
            item = framedex.decode_sample(files, **pixels)
            ways["sample"][item["clip_id"]] = item["frames"]
        for way, frames in some(ways.items()):
            assert frames.keys() == expected.keys(), way
            for clip_id, found in some(frames.items()):
                assert found.shape == expected[clip_id].shape, (way, clip_id)
                away = np.abs(found.astype(np.int16) - expected[clip_id]).mean()
                assert away <= (0 if packing == ["--pack", "clips"] else 12), (way, clip_id, away)
