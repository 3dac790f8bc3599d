"""dtype="uint16" and "raw": more than 8 bits per sample, compared with conversions by others."""

from __future__ import annotations

import json
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import framedex
from framedex import ClipDataset, ClipLoader, ClipStream, Framing, MultiViewDataset
from framedex.errors import DecodeError, FramedexError
from framedex.sharder.decoding import video
from framedex.sharder.decoding.video import decode_pictures
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.media import Recipe, full_decode, make
from tests.support.planes import native_planes
from tests.support.scenes import write_scenes
from tests.support.turned import cut

FRAMES = [0, -1, 3, 4]
FORMATS = (
    "gray16le", "gray10le", "gray12le", "gbrp10le", "gbrp12le", "yuv444p10le", "yuv420p10le", "yuv444p", "gray",
)  # fmt: skip
DEEP = {name: Recipe(name=f"{name}.mkv", codec="ffv1", pix_fmt=name, frames=5, size=(178, 146)) for name in FORMATS}
LUMA = (0.299, 0.587, 0.114)  # of BT.601, which pictures have that state no matrix


def png(path: Path, samples: NDArray[np.uint16]) -> Path:
    """Write a PNG of 16 bits per sample (ISO/IEC 15948), of grey or of RGB."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width = samples.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, 0 if samples.ndim == 2 else 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    return path


def noise(*shape: int) -> NDArray[np.uint16]:
    return np.random.default_rng(len(shape)).integers(0, 1 << 16, shape, dtype=np.uint16)


@pytest.fixture(scope="module")
def home(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with media of many formats, an index of them, and a dataset with a clip of each."""
    folder = tmp_path_factory.mktemp("deep")
    media = folder / "media"
    (media / "grey").mkdir(parents=True)
    (media / "colour").mkdir()
    for recipe in DEEP.values():
        make(recipe, media)
    (media / "main10.mov").symlink_to(medium("hevc_main10.mov"))
    for number in range(5):
        png(media / "grey" / f"{number}.png", noise(40, 60) + np.uint16(number))
        png(media / "colour" / f"{number}.png", noise(40, 60, 3) + np.uint16(number))
    run("index", media, "--out", folder / "INDEX", "--image-fps", 5, "--follow-symlinks")
    found = json.loads(run("audit", folder / "INDEX", "--sql", "SELECT uri FROM videos", "--format", "json").stdout)
    uris = [row["uri"] for row in found] + ["grey", "colour"]
    shard_clips(
        folder / "INDEX", folder / "D", [{"uri": uri, "clip_id": uri, "frames": FRAMES} for uri in sorted(set(uris))]
    )
    return folder


def clip_of(dataset: ClipDataset, name: str) -> int:
    return next(number for number in range(len(dataset)) if dataset.clip(number).clip_id == name)


def decoded(home: Path, name: str) -> list[av.VideoFrame]:
    return list(full_decode(home / "media" / name))


def sixteen(picture: av.VideoFrame) -> list[NDArray[np.uint16]]:
    return [plane.view("<u2").astype(np.uint16) for plane in native_planes(picture)]


def shown(frames: NDArray[Any], pictures: list[Any]) -> list[tuple[NDArray[Any], Any]]:
    """Return the frames that are not padded, each with its picture."""
    assert not frames[1].any()
    return [(frames[place], pictures[number]) for place, number in enumerate(FRAMES) if number >= 0]


@pytest.mark.parametrize("name", ["gray16le", "gray12le", "gray10le"])
def test_depth_maps_keep_all_of_their_bits(home: Path, name: str) -> None:
    deep, raw = (ClipDataset(home / "D", dtype=dtype) for dtype in ("uint16", "raw"))  # type: ignore[arg-type]
    number, pictures = clip_of(deep, f"{name}.mkv"), decoded(home, f"{name}.mkv")
    most = (1 << int(name[4:6])) - 1
    assert deep[number]["frames"].dtype == raw[number]["frames"].dtype == np.uint16
    assert deep[number]["frames"].shape == (4, 146, 178, 3)
    assert raw[number]["frames"].shape == (4, 146, 178, 1)
    for frame, picture in some(shown(raw[number]["frames"], pictures)):
        assert np.array_equal(frame[..., 0], sixteen(picture)[0])
    for frame, picture in some(shown(deep[number]["frames"], pictures)):
        exact = np.rint(sixteen(picture)[0].astype(np.float64) * 65535 / most)
        assert np.abs(frame.astype(np.float64) - exact[..., None]).max() <= 0.5


@pytest.mark.parametrize("name", ["gbrp10le", "gbrp12le"])
def test_rgb_of_more_than_8_bits_is_that_of_ffmpeg(home: Path, name: str) -> None:
    deep, raw = (ClipDataset(home / "D", dtype=dtype) for dtype in ("uint16", "raw"))  # type: ignore[arg-type]
    number, pictures = clip_of(deep, f"{name}.mkv"), decoded(home, f"{name}.mkv")
    for frame, picture in some(shown(deep[number]["frames"], pictures)):
        assert np.array_equal(frame, picture.reformat(format="rgb48le").to_ndarray())
    for frame, picture in some(shown(raw[number]["frames"], pictures)):
        green, blue, red = sixteen(picture)
        assert np.array_equal(frame, np.stack([red, green, blue], -1))


@pytest.mark.parametrize("name", ["yuv444p10le", "yuv444p"])
def test_colours_are_within_a_few_of_65535_levels_of_the_formula(home: Path, name: str) -> None:
    dataset = ClipDataset(home / "D", dtype="uint16")
    for frame, picture in some(shown(dataset[clip_of(dataset, f"{name}.mkv")]["frames"], decoded(home, f"{name}.mkv"))):
        planes = sixteen(picture) if name.endswith("le") else native_planes(picture)
        unit = 4 if name.endswith("le") else 1
        luma = (planes[0].astype(np.float64) / unit - 16) / 219
        blue, red = ((plane.astype(np.float64) / unit - 128) / 224 for plane in planes[1:])
        exact = np.stack(
            [
                luma + 2 * (1 - LUMA[0]) * red,
                luma - 2 * LUMA[2] * (1 - LUMA[2]) / LUMA[1] * blue - 2 * LUMA[0] * (1 - LUMA[0]) / LUMA[1] * red,
                luma + 2 * (1 - LUMA[2]) * blue,
            ],
            axis=-1,
        )
        assert np.abs(frame - np.clip(exact, 0, 1) * 65535).max() < 8


@pytest.mark.parametrize(
    "framing",
    [
        Framing(size=(64, 64), resize="fit"),
        Framing(size=(64, 64), scale=(0.2, 0.6)),
        Framing(size=(48, 48), scale=(0.1, 0.2)),
    ],
)
@pytest.mark.parametrize("name", [*(f"{name}.mkv" for name in DEEP), "main10.mov", "grey", "colour"])
def test_sixteen_bits_are_eight_bits_with_more_behind_them(home: Path, name: str, framing: Framing) -> None:
    deep, plain = (ClipDataset(home / "D", dtype=dtype) for dtype in ("uint16", "uint8"))  # type: ignore[arg-type]
    number = clip_of(deep, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        away = np.abs(deep[number]["frames"] / 257.0 - plain[number]["frames"])
        scaled = np.abs(
            ClipDataset(home / "D", dtype="uint16", framing=framing)[number]["frames"] / 257.0
            - ClipDataset(home / "D", framing=framing)[number]["frames"]
        )
    assert away.max() < 1.6
    assert scaled.max() < 2.6


def test_pngs_of_sixteen_bits_are_exact(home: Path) -> None:
    deep, raw = (ClipDataset(home / "D", dtype=dtype) for dtype in ("uint16", "raw"))  # type: ignore[arg-type]
    grey, colour = clip_of(deep, "grey"), clip_of(deep, "colour")
    for frame, number in some(shown(deep[grey]["frames"], list(range(5)))):
        assert np.array_equal(frame, np.repeat((noise(40, 60) + np.uint16(number))[..., None], 3, 2))
    for frame, number in some(shown(raw[grey]["frames"], list(range(5)))):
        assert np.array_equal(frame[..., 0], noise(40, 60) + np.uint16(number))
    for dataset in (deep, raw):
        for frame, number in some(shown(dataset[colour]["frames"], list(range(5)))):
            assert np.array_equal(frame, noise(40, 60, 3) + np.uint16(number))


@pytest.mark.parametrize("dtype", ["uint16", "raw"])
def test_deep_frames_are_cut_as_others(home: Path, dtype: Any) -> None:
    framing = Framing(crop=(40, 32), position="random", flip=0.5)
    whole, part = ClipDataset(home / "D", dtype=dtype), ClipDataset(home / "D", dtype=dtype, framing=framing)
    checked = 0
    for number in range(len(whole)):
        clip = whole.clip(number)
        if dtype == "raw" and "420" in str(clip.medium.pixel_format):
            continue
        cutout = part.pixels.cutout(clip.medium, 4, part.pixels.draw(clip, 0))
        assert np.array_equal(part[number]["frames"], cut(whole[number]["frames"], cutout)), clip.clip_id
        checked += 1
    assert checked >= 9


def test_batches_are_tensors_of_sixteen_bits(home: Path) -> None:
    dataset = ClipDataset(home / "D", dtype="uint16", framing=Framing(size=(32, 32)), layout="FCHW")
    items = np.stack([dataset[number]["frames"] for number in range(len(dataset))])
    for workers in (0, 2):
        loader = ClipLoader(dataset, batch_size=4, num_workers=workers)
        batches = list(loader)
        loader.close()
        assert batches[0]["frames"].dtype == torch.uint16
        assert np.array_equal(np.concatenate([batch["frames"].numpy() for batch in batches]), items)
    (batch,) = ClipLoader(dataset, batch_size=1, sampler=[0], normalize=((0.5,) * 3, (0.25,) * 3), output="numpy")
    assert np.abs(batch["frames"][0] - (items[0] / 65535 - 0.5) / 0.25).max() < 1e-5


def test_samples_of_several_types_are_padded_to_the_widest(home: Path) -> None:
    dataset = ClipDataset(home / "D", dtype="raw")
    numbers = [clip_of(dataset, name) for name in ("gray.mkv", "gray16le.mkv", "yuv444p.mkv")]
    (batch,) = ClipLoader(dataset, batch_size=3, sampler=numbers, collate="pad", output="numpy")
    assert batch["frames"].dtype == np.uint16
    for frames, number in zip(batch["frames"], numbers, strict=True):
        own = dataset[number]["frames"]
        assert np.array_equal(frames[..., : own.shape[-1]], own)


def test_no_warning_of_lost_bits_where_none_are_lost(home: Path) -> None:
    dataset = ClipDataset(home / "D", dtype="uint16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataset[clip_of(dataset, "gray16le.mkv")]["frames"].dtype == np.uint16


def test_streams_and_blank_views_have_the_same_type(home: Path, tmp_path: Path) -> None:
    framedex.shard(
        home / "INDEX", tmp_path / "D", policy={"policy": "uniform", "frames": 2}, pack="clips", progress=False
    )
    packed = ClipDataset(tmp_path / "D", dtype="uint16")
    own = {item["clip_id"]: item["frames"] for item in (packed[number] for number in range(len(packed)))}
    found = {item["clip_id"]: item["frames"] for item in ClipStream(tmp_path / "D", dtype="uint16")}
    assert found.keys() == own.keys()
    assert all(np.array_equal(found[name], frames) for name, frames in own.items())
    run("index", write_scenes(tmp_path / "MEDIA"), "--out", tmp_path / "INDEX")
    views = {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"}
    policy = {"policy": "fps", "fps": 5, "frames": 3, "views": views}
    clips = ClipDataset.from_index(tmp_path / "INDEX", policy, dtype="uint16", size=(32, 32))
    dataset = MultiViewDataset(clips, stack=True)
    items = np.stack([dataset[number]["frames"] for number in range(len(dataset))])
    (batch,) = ClipLoader(dataset, batch_size=len(dataset), output="numpy")
    assert items.dtype == np.uint16
    assert np.array_equal(batch["frames"], items)


def test_what_cannot_be_delivered_so_is_refused(home: Path) -> None:
    with pytest.raises(FramedexError, match="cannot be scaled"):
        ClipDataset(home / "D", dtype="raw", size=(32, 32))
    with pytest.raises(FramedexError, match="unknown dtype"):
        ClipDataset(home / "D", dtype="float32")  # type: ignore[arg-type]
    raw = ClipDataset(home / "D", dtype="raw")
    with pytest.raises(FramedexError, match="one array cannot contain the planes") as raised:
        raw[clip_of(raw, "main10.mov")]
    assert raised.value.found == "yuv420p10le"
    with pytest.raises(FramedexError, match="normalize needs RGB"):
        ClipLoader(raw, normalize=((0.5,) * 3, (0.25,) * 3))
    with pytest.raises(FramedexError, match="accepts 8-bit frames"):
        ClipLoader(ClipDataset(home / "D", dtype="uint16"), transform=lambda frames: frames)


def test_pictures_that_change_to_a_format_without_raw_form_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*arguments: Any, **named: Any) -> Iterator[tuple[int, av.VideoFrame]]:
        for rank, picture in decode_pictures(*arguments, **named):
            yield rank, picture if rank == 0 else picture.reformat(format="yuv420p")

    monkeypatch.setattr(video, "decode_pictures", changing)
    raw = ClipDataset(home / "D", dtype="raw")
    with pytest.raises(DecodeError, match="dtype='raw' does not convert them") as raised:
        raw[clip_of(raw, "yuv444p.mkv")]
    assert raised.value.found == "a picture of yuv420p in a medium of yuv444p"
    assert raised.value.where == str(home / "media" / "yuv444p.mkv")
