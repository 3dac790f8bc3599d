"""A sample of a tar is decoded by itself, as ClipDataset decodes its clip, in a pipeline of webdataset."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from torch.utils.data import DataLoader

import framedex
from framedex import ClipDataset, Framing, decode_sample
from framedex.errors import DecodeError, FormatError, FramedexError
from framedex.loader.streams import reading
from tests.support import media
from tests.support.counted import some
from tests.support.datasets import run, write_clips
from tests.support.packed import tars
from tests.support.streams import same_item


def pipeline_of(dataset: Path, function: Any = decode_sample) -> Any:
    """Return webdataset's pipeline over a dataset's tars."""
    urls = [str(path) for path in tars(dataset)]
    return webdataset.WebDataset(urls, shardshuffle=False).map(function)


def first_sample(dataset: Path) -> dict[str, Any]:
    """Return the first sample of a dataset, as webdataset gives it."""
    return dict(next(iter(webdataset.WebDataset([str(tars(dataset)[0])], shardshuffle=False))))


def without_key(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "__key__"}  # webdataset adds it


def with_noise(frames: Any) -> Any:
    """Return frames with noise of numpy's global generator, which is seeded for each clip."""
    return np.asarray(frames) + np.random.randint(0, 100, frames.shape)


@pytest.mark.parametrize("size", [None, (48, 64)])
@pytest.mark.parametrize("name", ["packed", "packed_images"])
def test_samples_are_the_items_of_clip_dataset(
    name: str, size: tuple[int, int] | None, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    pipeline = pipeline_of(path, functools.partial(decode_sample, size=size))
    found = {item["clip_id"]: without_key(item) for item in pipeline}
    dataset = ClipDataset(path, size=size)
    assert len(found) == len(dataset)
    for number in some(np.random.default_rng(3).permutation(len(dataset)).tolist(), 50):
        expected = dataset[number]
        assert same_item(found[expected["clip_id"]], expected), expected["clip_id"]


@pytest.mark.parametrize(
    "options",
    [
        {"framing": Framing(short_side=(40, 60), crop=(32, 40), position="random", flip=0.5), "layout": "FCHW"},
        {"framing": Framing(short_side=40), "dtype": "uint16", "layout": "CFHW"},
        {"transform": with_noise, "size": (24, 32)},
    ],
    ids=["crops", "uint16", "transform"],
)
def test_samples_are_framed_and_transformed_as_the_items_of_clip_dataset(packed: Path, options: dict[str, Any]) -> None:
    dataset = ClipDataset(packed, seed=5, **options)
    dataset.set_epoch(3)
    pipeline = pipeline_of(packed, functools.partial(decode_sample, seed=5, epoch=3, **options))
    found = {item["clip_id"]: without_key(item) for item in pipeline}
    for number in some(np.random.default_rng(3).permutation(len(dataset)).tolist()[:20], 20):
        expected = dataset[number]
        assert same_item(found[expected["clip_id"]], expected), expected["clip_id"]


def test_options_of_samples_are_checked(packed: Path) -> None:
    with pytest.raises(FramedexError, match="layout"):
        decode_sample(first_sample(packed), layout="HWC")  # type: ignore[arg-type]


def test_frames_show_their_numbers(packed: Path) -> None:
    checked = 0
    for item in pipeline_of(packed):
        wanted = item["frame_index"][item["frame_index"] >= 0].tolist()
        assert [media.read_barcode(frame) for frame in item["frames"][: len(wanted)]] == wanted, item["clip_id"]
        checked += len(wanted)
    assert checked > 200


@pytest.mark.parametrize("form", ["flac", "wav"])
@pytest.mark.parametrize("pack", [["clips"], ["images"]], ids=str)
def test_samples_with_audio_and_columns_are_the_items_of_clip_dataset(
    small_index: Path, tmp_path: Path, pack: list[Any], form: str
) -> None:
    columns = {"label": 3, "share": 0.1, "caption": "é"}
    clips = [
        {"uri": name, "frames": frames} | columns
        for name in ("h264_audio.mp4", "h264_default.mp4", "hevc_open_gop.mp4")
        for frames in ([5, 3, 3, 20], [40])
    ]
    path = write_clips(tmp_path / "clips.jsonl", clips)
    options = ("--audio", "--audio-format", form, "--audio-seconds", "1")
    run("shard", small_index, "--clips", path, "--out", tmp_path / "D", "--pack", *pack, *options)
    found = {item["clip_id"]: without_key(item) for item in pipeline_of(tmp_path / "D")}
    dataset = ClipDataset(tmp_path / "D")
    assert len(found) == len(dataset) == 6
    for number in range(6):
        expected = dataset[number]
        assert same_item(found[expected["clip_id"]], expected), number
    assert {"audio", "audio_mask", "audio_rate", *columns} <= dataset[0].keys()


def test_padding_by_a_constant_is_that_of_clip_dataset(small_index: Path, tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("policy: stride\nstride: 7\nframes: 16\nlast: pad\npad: constant\n", encoding="utf-8")
    run("shard", small_index, "--policy", policy, "--out", tmp_path / "D", "--pack", "clips")
    dataset = ClipDataset(tmp_path / "D")
    found = {item["clip_id"]: without_key(item) for item in pipeline_of(tmp_path / "D")}
    padded = [number for number in range(len(dataset)) if (dataset[number]["frame_index"] < 0).any()]
    for number in some(padded):
        assert same_item(found[dataset[number]["clip_id"]], dataset[number])


def test_a_data_loader_of_webdataset_decodes_in_workers(packed: Path) -> None:
    pipeline = pipeline_of(packed, functools.partial(decode_sample, size=(32, 32)))
    loader = DataLoader(pipeline, batch_size=None, num_workers=2)
    names = sorted(item["clip_id"] for item in loader)
    assert len(set(names)) == len(names) == len(ClipDataset(packed))


def test_a_json_that_was_parsed_before_will_do(packed: Path) -> None:
    sample = first_sample(packed)
    parsed = decode_sample(sample | {"json": json.loads(sample["json"])})
    assert same_item(parsed, decode_sample(sample))


def edited(sample: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a sample whose text about decoding has other values."""
    content = json.loads(sample["json"])
    told = json.loads(content["framedex"])
    for path, value in changes.items():
        *parents, name = path.split("__")
        functools.reduce(lambda inner, key: inner[key], parents, told)[name] = value
    return sample | {"json": json.dumps(content | {"framedex": json.dumps(told)}).encode()}


def test_pixels_of_samples_without_their_shape_are_squares_with_a_warning(
    packed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reading._warn_of_unknown_aspect.cache_clear()
    sample = first_sample(packed)
    content = json.loads(sample["json"])
    told = json.loads(content["framedex"])
    del told["medium"]["sample_aspect_ratio"], content["sample_aspect_ratio"]
    old = sample | {"json": json.dumps(content | {"framedex": json.dumps(told)}).encode()}
    for options in ({}, {"size": (24, 24)}, {"framing": Framing(short_side=24, aspect="stored")}):
        decode_sample(old, **options)
    told["medium"]["sample_aspect_ratio"] = None  # of a stream that does not state it
    unstated = content | {"sample_aspect_ratio": 1.0, "framedex": json.dumps(told)}
    decode_sample(sample | {"json": json.dumps(unstated).encode()}, framing=Framing(short_side=24))
    assert not caplog.records
    for _ in range(2):
        item = decode_sample(old, framing=Framing(short_side=24))
    (record,) = caplog.records
    assert "samples lack `sample_aspect_ratio`" in record.getMessage()
    assert item["sample_aspect_ratio"] == 1
    assert np.array_equal(item["frames"], decode_sample(sample, framing=Framing(short_side=24))["frames"])


def test_a_sample_without_a_file_or_a_json_says_so(packed: Path) -> None:
    sample = first_sample(packed)
    with pytest.raises(FormatError, match="a file of the sample is missing") as caught:
        decode_sample({name: value for name, value in sample.items() if name != "mp4"})
    assert caught.value.where == f"{sample['__url__']}, {sample['__key__']}"
    assert caught.value.allowed == "mp4"
    with pytest.raises(FormatError, match="the sample has no JSON") as caught:
        decode_sample({name: value for name, value in sample.items() if name != "json"})
    assert caught.value.found == "mp4"
    with pytest.raises(FormatError, match="a file of the sample is missing"):
        decode_sample(sample | {"mp4": np.zeros(3)})  # decoded by another step
    with pytest.raises(FramedexError, match="a sample must be a dict"):
        decode_sample([sample])  # type: ignore[arg-type]


def test_a_sample_of_an_earlier_version_or_of_others_is_refused(packed: Path) -> None:
    sample = first_sample(packed)
    content = json.loads(sample["json"])
    del content["framedex"]
    with pytest.raises(FormatError, match="has no recipe for decoding its files") as caught:
        decode_sample(sample | {"json": json.dumps(content).encode()})
    assert caught.value.remedy is not None
    assert "ClipStream" in caught.value.remedy
    with pytest.raises(FormatError, match="an unsupported version") as caught:
        decode_sample(edited(sample, version=2))
    assert (caught.value.found, caught.value.allowed) == ("version 2", 1)


DAMAGED_JSON: list[Any] = [b"", b"{", b"[]", b"\xff", b"null", 7]


@pytest.mark.parametrize("content", DAMAGED_JSON, ids=repr)
def test_a_damaged_json_is_an_error_of_its_own(packed: Path, content: Any) -> None:
    with pytest.raises(FormatError, match="JSON is damaged"):
        decode_sample(first_sample(packed) | {"json": content})


HOSTILE: dict[str, Any] = {
    "files": [],
    "columns": ["nothing"],
    "medium": None,
    "medium__width": 1 << 40,
    "medium__codec": 7,
    "medium__extradata": "not base64!",
    "recipe__range_offset": [1 << 40],
    "recipe__range_length": [-1],
    "recipe__packet_size": ["a"],
    "recipe__packet_rank": [0, 0, 0],
    "recipe__run_first": [5],
    "recipe__position": [99, 99, 99],
    "recipe__position__0": 1 << 70,
    "audio": {},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_values_that_cannot_be_are_refused(packed: Path, name: str) -> None:
    with pytest.raises(FramedexError) as caught:
        decode_sample(
            edited(first_sample(packed), **{name.replace("__0", "") if name.endswith("__0") else name: HOSTILE[name]})
        )
    assert isinstance(caught.value, FormatError | DecodeError)
    assert first_sample(packed)["__key__"] in str(caught.value)


def test_damaged_bytes_are_an_error_and_no_picture(packed: Path, packed_images: Path) -> None:
    sample = first_sample(packed)
    with pytest.raises((FormatError, DecodeError)):
        decode_sample(sample | {"mp4": sample["mp4"][:-100]})
    with pytest.raises(DecodeError):
        decode_sample(sample | {"mp4": sample["mp4"][:800] + bytes(len(sample["mp4"]) - 800)})
    images = first_sample(packed_images)
    content = bytearray(images["001.jpg"])
    content[len(content) // 2] ^= 255
    with pytest.raises(DecodeError, match="changed after packing") as caught:
        decode_sample(images | {"001.jpg": bytes(content)})
    assert caught.value.where == f"{images['__url__']}, {images['__key__']}"


def test_webdataset_skips_what_its_handler_says(packed: Path, tmp_path: Path) -> None:
    """A tar that ends in the middle of a member loses that sample and those behind it."""
    tar = tmp_path / "cut.tar"
    tar.write_bytes(tars(packed)[0].read_bytes()[:-9000])
    whole = [
        item["clip_id"] for item in webdataset.WebDataset([str(tars(packed)[0])], shardshuffle=False).map(decode_sample)
    ]
    handler = webdataset.ignore_and_continue
    cut = webdataset.WebDataset([str(tar)], shardshuffle=False, handler=handler).map(decode_sample, handler=handler)
    delivered = [item["clip_id"] for item in cut]
    assert delivered == whole[: len(delivered)]
    assert 0 < len(delivered) < len(whole)


def test_a_user_column_cannot_have_the_name_of_the_text(small_index: Path, tmp_path: Path) -> None:
    path = write_clips(tmp_path / "c.jsonl", [{"uri": "h264_default.mp4", "frames": [1], "framedex": "mine"}])
    done = run("shard", small_index, "--clips", path, "--out", tmp_path / "D", "--pack", "clips", code=1)
    assert "the name of a user column is reserved in the JSON of packed clips" in done.output


def test_the_names_are_public() -> None:
    assert {"ClipStream", "decode_sample"} <= set(dir(framedex))
