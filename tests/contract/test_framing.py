"""Framing on both decoders: the same windows, mirrored alike, in one batch of NVDEC, nvJPEG and the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from framedex import ClipDataset, ClipLoader, Framing, SmartResize
from tests.contract.test_decoders import DEVICES
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.media import picture
from tests.support.turned import MATRICES, turned_video, widened_video

TURNED = [f"{turn.split()[0]}-{aspect}.mp4" for aspect in ("square", "wide") for turn in MATRICES]
VIDEOS = ("h264_default.mp4", "h264_bt709.mp4", "h264_high10.mkv", "h264_cropped.mp4", "hevc_closed.mp4")
FRAMINGS = {
    "stretch": Framing(size=(96, 128), flip=0.5),
    "sizes": Framing(sizes=[(96, 128), (128, 96), (96, 96)], resize="crop", flip=0.5),
    "fit": Framing(size=(96, 96), resize="fit"),
    "crop": Framing(size=(96, 96), resize="crop", flip=0.5),
    "short": Framing(short_side=120, crop=(96, 96), position="random", flip=0.5),
    "own size": Framing(crop=(80, 64), position="random", flip=0.5),
    "three": Framing(short_side=96, crop=(96, 96), position="three"),
    "ten": Framing(crop=(64, 80), position="ten"),
    "random resized": Framing(size=(64, 64), scale=(0.2, 1.0), flip=0.5),
    "squares": Framing(short_side=120, crop=(96, 96), position="random", aspect="stored"),
    "smart": Framing(smart_resize=SmartResize(factor=28, min_pixels=784, max_pixels=20_000)),
}


@pytest.fixture(scope="module")
def dataset(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Padded clips of videos for NVDEC and for the CPU, JPEGs, and a video in all turns and two shapes of pixels."""
    home = tmp_path_factory.mktemp("framed")
    (home / "media" / "shots").mkdir(parents=True)
    for name in VIDEOS:
        shutil.copy(medium(name), home / "media" / name)
    for number, aspect in enumerate(("1/1", "4/3")):
        source = widened_video(medium("h264_default.mp4"), home / f"{number}.mp4", aspect)
        for turn, name in zip(MATRICES, TURNED[4 * number : 4 * number + 4], strict=True):
            turned_video(source, home / "media" / name, turn)
    for number in range(12):
        Image.fromarray(picture(number, 192, 144)).save(home / "media" / "shots" / f"{number:02}.jpg", quality=95)
    run("index", home / "media", "--out", home / "INDEX", "--image-fps", 5)
    clips = [
        {"uri": uri, "clip_id": f"{uri}-{number}", "frames": [number, 9, -1, number]}
        for number in range(3)
        for uri in (*VIDEOS, *TURNED, "shots")
    ]
    return shard_clips(home / "INDEX", home / "D", clips)


def delivered(loader: ClipLoader) -> dict[str, NDArray[np.uint8]]:
    """Return the frames of every clip by its name."""
    found = {}
    for batch in some(loader):
        for name, frames in zip(batch["clip_id"], batch["frames"], strict=True):
            found[name] = frames.cpu().numpy()
    loader.close()
    return found


@pytest.mark.parametrize("rotation", ["stored", "apply"])
@pytest.mark.parametrize("name", FRAMINGS)
@pytest.mark.parametrize("device", DEVICES)
def test_both_decoders_show_the_same_windows(dataset: Path, device: str, name: str, rotation: str) -> None:
    clips = ClipDataset(dataset, framing=FRAMINGS[name], seed=4)
    loader = ClipLoader(clips, batch_size=4, device=device, decode="auto" if device == "cpu" else "gpu",
                        rotation=rotation, collate="list")  # type: ignore[arg-type]  # fmt: skip
    found = delivered(loader)
    expected = delivered(ClipLoader(clips, batch_size=4, rotation=rotation, collate="list"))  # type: ignore[arg-type]
    assert len(found) == len(clips) == 42
    for clip, frames in found.items():
        assert frames.shape == expected[clip].shape, clip
        away = np.abs(frames.astype(np.int16) - expected[clip]).mean()
        limit = 0 if device == "cpu" else 3 if "bt709" in clip or "shots" in clip else 9
        assert away <= limit, (clip, away)
        mirrored = np.abs(frames[..., ::-1, :].astype(np.int16) - expected[clip]).mean()
        assert mirrored > limit, (clip, "could be mirrored", mirrored)
        assert not frames[..., 2, :, :, :].any(), "padding is zeros"
    if device == "gpu":
        assert loader.report.decoded["nvdec"] >= 33
        assert loader.report.decoded["nvjpeg"] == 3
        assert loader.report.decoded["cpu"] >= 3  # of 10 bits


@pytest.mark.parametrize("device", DEVICES)
def test_windows_of_unscaled_frames_are_cut_out_of_the_same_pixels(dataset: Path, device: str) -> None:
    options = {"batch_size": 4, "device": device, "collate": "list"}
    whole = delivered(ClipLoader(ClipDataset(dataset), **options))  # type: ignore[arg-type]
    clips = ClipDataset(dataset, framing=FRAMINGS["own size"], seed=9)
    found = delivered(ClipLoader(clips, **options))  # type: ignore[arg-type]
    assert len(found) == len(clips)
    for number in range(len(clips)):
        clip = clips.clip(number)
        cutout = clips.pixels.cutout(clip.medium, 4, clips.pixels.draw(clip, 0))
        window = cutout.windows[0]
        shown = whole[clip.clip_id][:, window.top : window.top + 80, window.left : window.left + 64]
        assert np.array_equal(found[clip.clip_id], shown[:, :, ::-1] if window.is_flipped else shown), clip.clip_id


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["FCHW", "CFHW"])
def test_crops_are_normalised_and_laid_out(dataset: Path, device: str, layout: str) -> None:
    clips = ClipDataset(dataset, framing=FRAMINGS["three"], layout=layout)  # type: ignore[arg-type]
    loader = ClipLoader(clips, batch_size=3, device=device, normalize=((0.5,) * 3, (0.25,) * 3))
    shapes = {tuple(batch["frames"].shape) for batch in some(loader)}
    loader.close()
    assert shapes == {(3, 3, *((4, 3) if layout == "FCHW" else (3, 4)), 96, 96)}


@pytest.mark.parametrize("collate", ["error", "pad", "list"])
@pytest.mark.parametrize("device", DEVICES)
def test_frames_of_sixteen_bits_are_those_of_items_on_every_device(dataset: Path, device: str, collate: str) -> None:
    options = {"batch_size": 4, "device": device, "collate": collate}
    framing = FRAMINGS["own size" if collate == "error" else "smart"]
    clips = ClipDataset(dataset, dtype="uint16", framing=framing, layout="FCHW")
    own = {item["clip_id"]: item["frames"] for item in (clips[number] for number in range(len(clips)))}
    mean, std = 0.4, 0.2
    plain, normalised = (
        [(name, frames) for batch in loader for name, frames in zip(batch["clip_id"], batch["frames"], strict=True)]
        for loader in (
            ClipLoader(clips, **options),  # type: ignore[arg-type]
            ClipLoader(clips, normalize=((mean,) * 3, (std,) * 3), **options),  # type: ignore[arg-type]
        )
    )
    assert len(plain) == len(normalised) == len(own)
    for name, frames in plain:
        assert (frames.dtype, frames.is_cuda) == (torch.uint16, device == "gpu")
        height, width = own[name].shape[-2:]
        assert np.array_equal(frames.cpu().numpy()[..., :height, :width], own[name]), name
    for name, frames in normalised:
        height, width = own[name].shape[-2:]
        away = frames.cpu().numpy()[..., :height, :width] - (own[name] / 65535 - mean) / std
        assert np.abs(away).max() < 1e-5, name
