"""Framing of real clips: ClipDataset, ClipLoader, ClipStream and MultiViewDataset deliver the same pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, ClipStream, Framing, Index, MultiViewDataset, SmartResize
from framedex.errors import DecodeError, FramedexError
from framedex.loader.pixels.framing import Draw, cutout_of
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.fetched import fetched_clip
from tests.support.media import picture
from tests.support.scenes import write_scenes
from tests.support.turned import MATRICES, cut, turned_video, widened_video

NAMES = ("h264_default.mp4", "hevc_main10.mov", "h264_yuv444.mp4", "h264_cropped.mp4", "hevc_open_gop.mkv")
FRAMINGS = {
    "fit": Framing(size=(96, 96), resize="fit"),
    "crop": Framing(size=(96, 96), resize="crop", flip=0.5),
    "short": Framing(short_side=120, crop=(96, 96), position="random", flip=0.5),
    "own size": Framing(crop=(48, 64), position="random", flip=0.5),
    "three": Framing(short_side=96, crop=(96, 96), position="three"),
    "random resized": Framing(size=(64, 64), scale=(0.2, 1.0), flip=0.5),
    "drawn side": Framing(short_side=(100, 140), crop=(96, 96), position="random"),
}


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of videos of several sizes and pixel formats; some are padded, some repeat frames."""
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number, 5, -1, number] if number else [-1, 0, 3, 4]}
        for number in range(3)
        for name in NAMES
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("framed") / "D", clips)


def expected_frames(dataset: ClipDataset, number: int, epoch: int = 0) -> NDArray[np.uint8]:
    """Return a clip's frames, scaled as a whole by `size`, or in part by Pillow, and cut with numpy."""
    clip, pixels = dataset.clip(number), dataset.pixels
    cutout = pixels.cutout(clip.medium, len(clip.frames), pixels.draw(clip, epoch))
    if cutout.part is not None:
        return cut(resized_part(dataset.resized(None)[number]["frames"], *cutout.part, cutout.scaled), cutout)
    scaled = dataset.resized(cutout.scaled if pixels.framing.scales else None)[number]["frames"]
    return cut(scaled, cutout)


def resized_part(
    frames: NDArray[np.uint8], corner: tuple[int, int], part: tuple[int, int], size: tuple[int, int]
) -> NDArray[np.uint8]:
    """Return a part of frames, [F, H, W, 3], scaled to (height, width) with a triangle filter."""
    (top, left), (height, width) = corner, part
    shown = [Image.fromarray(frame[top : top + height, left : left + width]) for frame in frames]
    return np.stack([np.asarray(frame.resize(size[::-1], Image.Resampling.BILINEAR)) for frame in shown])


@pytest.mark.parametrize("name", FRAMINGS)
def test_items_are_scaled_and_then_cut(stored: Path, name: str) -> None:
    dataset = ClipDataset(stored, framing=FRAMINGS[name])
    shapes = set()
    for number in range(len(dataset)):
        item = dataset[number]
        away = np.abs(item["frames"].astype(np.int16) - expected_frames(dataset, number))
        # Of a part, libswscale scales chroma and luma, and Pillow scales RGB.
        assert away.mean() < 2.5 if name == "random resized" else not away.any(), item["clip_id"]
        padded = item["frames"][..., ~item["mask"], :, :, :]
        assert padded.size
        assert not padded.any()
        shapes.add(item["frames"].shape)
    height, width = FRAMINGS[name].fixed_size or (0, 0)
    assert shapes == {((3,) if name == "three" else ()) + (4, height, width, 3)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["short", "three"])
def test_batches_have_the_pixels_of_items_in_every_epoch(stored: Path, name: str, workers: int) -> None:
    dataset = ClipDataset(stored, framing=FRAMINGS[name], seed=5)
    sampler = ClipSampler(dataset, shuffle=True, seed=1)
    loader = ClipLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers, output="numpy")
    own = ClipDataset(stored, framing=FRAMINGS[name], seed=5)
    number_of = {own.clip(number).clip_id: number for number in range(len(own))}
    by_epoch = []
    for epoch in range(2):
        own.set_epoch(epoch)
        frames: dict[str, NDArray[np.uint8]] = {}
        for batch in some(loader):
            frames |= dict(zip(batch["clip_id"], batch["frames"], strict=True))
        assert len(frames) == len(own)
        assert all(np.array_equal(frames[name], own[number]["frames"]) for name, number in number_of.items())
        by_epoch.append(frames)
    loader.close()
    same = [np.array_equal(by_epoch[0][name], by_epoch[1][name]) for name in number_of]
    assert all(same) if name == "three" else sum(same) < 3  # two draws may be the same by chance


def test_ranks_and_seeds_decide_nothing_and_everything(stored: Path) -> None:
    def crops(seed: int, rank: int) -> dict[str, NDArray[np.uint8]]:
        dataset = ClipDataset(stored, framing=FRAMINGS["short"], seed=seed)
        sampler = ClipSampler(dataset, shuffle=True, rank=rank, world_size=2, uneven="allow")
        loader = ClipLoader(dataset, batch_size=4, sampler=sampler, output="numpy")
        return {name: clip for batch in loader for name, clip in zip(batch["clip_id"], batch["frames"], strict=True)}

    halves = [crops(0, rank) for rank in range(2)]
    alone = ClipDataset(stored, framing=FRAMINGS["short"])
    items = {item["clip_id"]: item["frames"] for item in (alone[number] for number in range(len(alone)))}
    found = halves[0] | halves[1]
    assert found.keys() == items.keys()
    assert all(np.array_equal(found[name], items[name]) for name in items)
    others = crops(1, 0)
    assert not any(np.array_equal(others[name], items[name]) for name in others)


def test_a_loader_reframes_a_dataset(stored: Path) -> None:
    dataset = ClipDataset(stored, size=(32, 48))
    framing = Framing(size=(40, 40), resize="fit")
    batch = next(iter(ClipLoader(dataset, batch_size=2, framing=framing, layout="CFHW", output="numpy")))
    expected = np.stack([ClipDataset(stored, framing=framing, layout="CFHW")[number]["frames"] for number in range(2)])
    assert batch["frames"].shape == (2, 3, 4, 40, 40)
    assert np.array_equal(batch["frames"], expected)
    again = next(iter(ClipLoader(ClipDataset(stored, framing=framing), batch_size=2, size=(8, 16), output="numpy")))
    assert again["frames"].shape == (2, 4, 8, 16, 3)
    with pytest.raises(FramedexError, match="size and framing"):
        ClipLoader(dataset, size=(8, 8), framing=framing)
    with pytest.raises(FramedexError, match="size and framing"):
        ClipDataset(stored, size=(8, 8), framing=framing)


@pytest.mark.parametrize("layout", ["FHWC", "FCHW", "CFHW"])
def test_layouts_move_the_channels(stored: Path, layout: Any) -> None:
    plain = ClipDataset(stored)[0]["frames"]
    axes = {"FHWC": (0, 1, 2, 3), "FCHW": (0, 3, 1, 2), "CFHW": (3, 0, 1, 2)}[layout]
    dataset = ClipDataset(stored, layout=layout)
    assert np.array_equal(dataset[0]["frames"], plain.transpose(axes))
    assert dataset[0]["frames"].flags.c_contiguous
    (batch,) = ClipLoader(dataset, batch_size=1, sampler=[0], output="numpy")
    assert np.array_equal(batch["frames"][0], plain.transpose(axes))
    three = ClipDataset(stored, framing=FRAMINGS["three"])[0]["frames"]
    moved = ClipDataset(stored, framing=FRAMINGS["three"], layout=layout)[0]["frames"]
    assert np.array_equal(moved, three.transpose(0, *(1 + axis for axis in axes)))


def test_clips_on_the_fly_and_streams_are_framed_alike(index: Index, tmp_path: Path) -> None:
    policy = {"policy": "uniform", "frames": 3, "filter": "codec == 'h264'"}
    framing = FRAMINGS["short"]
    framedex.shard(index.path, tmp_path / "D", policy=policy, pack="clips", workers=0, progress=False)
    packed = ClipDataset(tmp_path / "D", framing=framing, seed=3)
    stream = ClipStream(tmp_path / "D", framing=framing, seed=3, layout="FCHW")
    planned = ClipDataset.from_index(index.path, policy, framing=framing, seed=3)
    for epoch in (0, 2):
        packed.set_epoch(epoch)
        stream.set_epoch(epoch)
        planned.set_epoch(epoch)
        items = {item["clip_id"]: item["frames"] for item in (packed[number] for number in range(len(packed)))}
        streamed = {item["clip_id"]: item["frames"] for item in stream}
        assert streamed.keys() == items.keys()
        assert all(np.array_equal(streamed[name], frames.transpose(0, 3, 1, 2)) for name, frames in items.items())
        assert all(np.array_equal(planned[n]["frames"], packed[n]["frames"]) for n in range(len(planned)))


def test_views_of_a_clip_are_cut_alike_and_blank_ones_have_the_same_shape(tmp_path: Path) -> None:
    run("index", write_scenes(tmp_path / "MEDIA"), "--out", tmp_path / "INDEX")
    views = {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}
    policy = {"policy": "fps", "fps": 5, "frames": 3, "views": views}
    framing = Framing(size=(64, 64), scale=(0.3, 0.9), flip=0.5)
    clips = ClipDataset.from_index(tmp_path / "INDEX", policy, framing=framing, layout="FCHW")
    dataset = MultiViewDataset(clips, stack=True)
    whole = ClipDataset.from_index(tmp_path / "INDEX", policy)
    (batch,) = ClipLoader(dataset, batch_size=len(dataset), output="numpy")
    for number in range(len(dataset)):
        item = dataset[number]
        assert item["frames"].shape == (len(dataset.views), 3, 3, 64, 64)
        assert np.array_equal(batch["frames"][number], item["frames"])
        draws = {clips.pixels.draw(whole.clip(clip), 0) for clip in dataset.numbers(number).values()}
        assert len(draws) == 1


@pytest.mark.parametrize("turn", ["quarter", "three quarters"])
def test_turned_frames_are_framed_upright(turn: str, medium: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    turned_video(medium("h264_default.mp4"), tmp_path / "videos" / "turned.mp4", turn)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    stored = shard_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": "turned.mp4", "frames": [3, -1, 7]}])
    plain = ClipDataset(stored, rotation="stored")
    degrees = plain[0]["rotation_degrees"]
    framing = Framing(crop=(100, 60), position="random", flip=1.0)
    (batch,) = ClipLoader(plain, framing=framing, rotation="apply", output="numpy")
    turned = np.rot90(plain[0]["frames"], degrees // 90, (1, 2))
    assert turned.shape[1:3] == (176, 144)
    pixels = ClipDataset(stored, framing=framing, rotation="apply").pixels
    cutout = pixels.cutout(plain.clip(0).medium, 3, pixels.draw(plain.clip(0), 0))
    assert np.array_equal(batch["frames"][0], cut(turned, cutout))
    assert np.array_equal(ClipDataset(stored, framing=framing, rotation="apply")[0]["frames"], batch["frames"][0])
    (fitted,) = ClipLoader(plain, framing=Framing(size=(64, 64), resize="fit"), rotation="apply", output="numpy")
    assert fitted["frames"][0, 0, :, [0, 5, 58, 63]].any(axis=(1, 2)).tolist() == [False, False, False, False]
    assert fitted["frames"][0, 0, [0, 63]].any(axis=(1, 2)).all()


@pytest.mark.parametrize("aspect", ["1/1", "4/3"])
@pytest.mark.parametrize("turn", MATRICES)
def test_random_resized_crops_show_a_part_of_the_picture_that_players_show(
    turn: str, aspect: str, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "videos").mkdir()
    wide = widened_video(medium("h264_default.mp4"), tmp_path / "wide.mp4", aspect)
    turned_video(wide, tmp_path / "videos" / "turned.mp4", turn)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    stored = shard_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": "turned.mp4", "frames": [3, -1, 7]}])
    size = (144, 235 if aspect == "4/3" else 176)[:: -1 if "quarter" in turn else 1]
    shown = ClipDataset(stored, size=size)[0]["frames"]
    framing = Framing(size=(80, 64), scale=(0.2, 0.6))
    cropped = ClipDataset(stored, framing=framing)
    for epoch in range(8):
        cropped.set_epoch(epoch)
        cutout = cutout_of(framing, size, 3, cropped.pixels.draw(cropped.clip(0), epoch))
        assert cutout.part is not None
        away = np.abs(cropped[0]["frames"].astype(np.int16) - resized_part(shown, *cutout.part, (80, 64)))
        assert away.mean() < 6, epoch


def test_images_are_framed_too(tmp_path: Path) -> None:
    (tmp_path / "media" / "shots").mkdir(parents=True)
    for number in range(4):
        Image.fromarray(picture(number, 192, 96)).save(tmp_path / "media" / "shots" / f"{number}.png")
    run("index", tmp_path / "media", "--out", tmp_path / "INDEX", "--image-fps", 5)
    stored = shard_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": "shots", "frames": [0, 3, 2, -1]}])
    for framing in FRAMINGS.values():
        dataset = ClipDataset(stored, framing=framing)
        assert np.array_equal(dataset[0]["frames"], expected_frames(dataset, 0))
    smart = ClipDataset(stored, framing=Framing(smart_resize=SmartResize(factor=28, min_pixels=784, max_pixels=20_000)))
    assert smart[0]["frames"].shape == (4, 84, 196, 3)


def test_a_frame_that_is_too_small_is_an_error_that_names_the_clip(stored: Path) -> None:
    framing = Framing(crop=(150, 200))
    with pytest.raises(FramedexError, match=r"clip h264_default\.mp4-0: the crop is larger than the frame"):
        ClipDataset(stored, framing=framing)[0]
    with pytest.raises(DecodeError, match="the crop is larger than the frame"):
        list(ClipLoader(ClipDataset(stored, framing=framing), batch_size=2, num_workers=1))


def test_what_cannot_be_framed_is_refused(stored: Path) -> None:
    with pytest.raises(FramedexError, match="decode='movie' does not decode frames"):
        ClipDataset(stored, decode="movie", framing=FRAMINGS["fit"])
    with pytest.raises(FramedexError, match="layout"):
        ClipDataset(stored, layout="HWC")  # type: ignore[arg-type]
    with pytest.raises(FramedexError, match="seed"):
        ClipDataset(stored, seed=-1)
    with pytest.raises(FramedexError, match="framing must be a Framing"):
        ClipDataset(stored, framing={"short_side": 256})  # type: ignore[arg-type]
    with pytest.raises(FramedexError, match="single crop"):
        ClipLoader(ClipDataset(stored, framing=FRAMINGS["three"]), transform=lambda frames: frames)
    dataset = ClipDataset(stored, framing=FRAMINGS["fit"])
    with pytest.raises(FramedexError, match="DALI Proxy"):
        dataset.with_proxy(print)
    assert dataset.size is None
    assert ClipDataset(stored, size=(8, 8)).size == (8, 8)


def test_the_gpu_cuts_as_the_cpu_does() -> None:
    from framedex.loader.dali.gpu import arranged

    unique = np.random.default_rng(0).integers(0, 255, (3, 30, 40, 3)).astype(np.uint8)
    order = np.array([2, 0, -1, 0])
    checked = 0
    for turns in range(4):
        turned = np.rot90(unique, turns, (1, 2))
        frames = turned[np.maximum(order, 0)]
        frames[order < 0] = 0
        for framing in (
            Framing(crop=(20, 12), position="random", flip=1.0),
            Framing(crop=(20, 12), position="ten"),
            Framing(flip=1.0),
        ):
            cutout = cutout_of(framing, turned.shape[1:3], 4, Draw(seed=turns, epoch=0, name="clip"))
            clip = fetched_clip(order=order, cutout=replace(cutout, turns=turns))
            assert np.array_equal(arranged(torch.from_numpy(unique), clip).numpy(), cut(frames, cutout))
            checked += 1
    assert checked == 12


def test_a_loader_without_a_sampler_begins_at_the_epoch_of_its_dataset(stored: Path) -> None:
    dataset = ClipDataset(stored, framing=FRAMINGS["short"], seed=9)
    dataset.set_epoch(7)
    expected = dataset[0]["frames"]
    loader = ClipLoader(dataset, batch_size=2, output="numpy")
    assert np.array_equal(next(iter(loader))["frames"][0], expected)
    assert dataset.epoch == 7
    assert not np.array_equal(ClipDataset(stored, framing=FRAMINGS["short"], seed=9)[0]["frames"], expected)
