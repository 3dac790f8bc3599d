"""The browser shows the very pixels that ClipDataset gives, their numbers and times, and the sound beside them."""

from __future__ import annotations

import io
import os
import shutil
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from framedex import ClipDataset, Index
from framedex.auditor.browser import shown
from tests.indexer.runs.test_without_video import write_sound
from tests.loader.contact_sheets.test_inspect import clips_of_two_videos
from tests.support.datasets import run, shard_clips
from tests.support.media import read_barcode
from tests.support.served import Client, served
from tests.support.sounding_media import MEDIA, make
from tests.support.turned import turned_video, widened_video


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    clips = [*clips_of_two_videos(), {"uri": "h264_default.mp4", "frames": [3, 3, 3], "clip_id": "repeated"}]
    return shard_clips(index.path, tmp_path_factory.mktemp("browsed") / "D", clips)


@pytest.fixture(scope="module")
def client(dataset: Path) -> Iterator[Client]:
    with served(dataset) as found:
        yield found


@pytest.fixture(scope="module")
def index_client(index: Index) -> Iterator[Client]:
    assert isinstance(index.path, Path)
    with served(index.path) as found:
        yield found


def picture(client: Client, **query: object) -> NDArray[np.uint8]:
    answer = client.get("picture", **query)
    assert answer.status == 200, answer.content
    assert answer.headers["Content-Type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(answer.content)))


def test_pictures_are_the_pixels_of_the_dataset(client: Client, dataset: Path) -> None:
    clips = ClipDataset(dataset)
    pairs = [
        (picture(client, key=number, place=place), pixels)
        for number in range(len(clips))
        for place, pixels in enumerate(clips[number]["frames"])
    ]
    assert len(pairs) == 11
    assert all(np.array_equal(*pair) for pair in pairs)


def test_places_have_their_numbers_times_and_padding(client: Client, dataset: Path) -> None:
    clip = ClipDataset(dataset).clip(0)
    told = client.get("item", key=0).json()
    frames = told["frames"]
    assert [frame["frame"] for frame in frames] == [9, 2, None, 30]
    assert [frame["padding"] for frame in frames] == [False, False, True, False]
    assert frames[2]["seconds"] is None
    assert [frames[place]["seconds"] for place in (0, 1, 3)] == clip.seconds[[0, 1, 3]].tolist()
    assert (told["width"], told["height"], told["scaled"], told["sound"]) == (176, 144, None, None)
    assert ["label", "7"] in told["columns"]
    assert dict(told["facts"])["clip"].startswith("4 frames, 1 of them padding")


def test_a_poster_is_a_small_picture_of_the_first_frame(client: Client) -> None:
    answer = client.get("poster", key=0)
    assert answer.headers["Content-Type"] == "image/jpeg"
    assert read_barcode(np.asarray(Image.open(io.BytesIO(answer.content)))) == 9
    assert client.get("poster", key=3).status == 422


def test_large_clips_are_scaled_and_say_so(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(dataset, longest_side=88) as client:
        told = client.get("item", key=0).json()
        assert (told["width"], told["height"], told["scaled"]) == (88, 72, "176 × 144")
        assert np.array_equal(picture(client, key=0, place=3), ClipDataset(dataset, size=(72, 88))[0]["frames"][3])
    monkeypatch.setattr(shown, "MAX_CLIP_BYTES", 4 * 3 * 144 * 176 // 4)
    with served(dataset) as client:
        assert client.get("item", key=0).json()["scaled"] == "176 × 144"


def test_a_clip_that_does_not_decode_says_why(index: Index, all_media: Path, tmp_path: Path) -> None:
    shown = tmp_path / "media"
    shown.mkdir()
    for name in ("h264_default.mp4", "h264_vfr.mkv"):
        shutil.copy(all_media / name, shown)
    run("index", shown, "--out", tmp_path / "I")
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", clips_of_two_videos())
    (shown / "h264_vfr.mkv").unlink()
    with served(dataset) as client:
        cards = client.post("items", {"wanted": {}, "page": 0}).json()["items"]
        assert [card["error"] for card in cards] == [None, None]
        assert "not the file that was indexed" in client.get("item", key=1).json()["error"]
        assert client.get("poster", key=1).status == 422
        assert client.get("item", key=0).json()["error"] is None


def key_of(client: Client, uri: str) -> str:
    (key,) = client.keys(filters=[{"column": "uri", "operation": "=", "value": uri}])
    return key


def test_a_medium_of_an_index_shows_frames_spread_over_it(index_client: Client) -> None:
    key = key_of(index_client, "h264_default.mp4")
    told = index_client.get("item", key=key).json()
    numbers = [frame["frame"] for frame in told["frames"]]
    assert len(numbers) == shown.SPREAD
    assert [read_barcode(picture(index_client, key=key, place=place)) for place in range(shown.SPREAD)] == numbers
    assert told["count"] == 50


def test_the_panel_of_a_medium_has_its_rate_rotation_and_pixel_shape(
    medium: Callable[[str], Path], tmp_path: Path
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(medium("h264_default.mp4"), videos / "café.mp4")
    turned_video(medium("h264_default.mp4"), videos / "turned.mp4", "quarter")
    widened_video(medium("h264_vfr.mkv"), videos / "wide.mkv", "2/1")
    write_sound(videos / "sound.mp4")
    run("index", videos, "--out", tmp_path / "I")
    names = ("rate", "rotation", "pixel shape")
    with served(tmp_path / "I") as client:
        told = {uri: client.get("item", key=key_of(client, uri)).json() for uri in os.listdir(videos)}
        assert "4 media · 1 without video" in client.get("").content.decode()
    facts = {uri: [dict(item["facts"]).get(name) for name in names] for uri, item in told.items()}
    assert facts == {
        "café.mp4": ["25 fps", "none", "square"],
        "sound.mp4": [None, None, None],
        "turned.mp4": ["25 fps", "90° clockwise", "square"],
        "wide.mkv": ["16.53 fps on average, 10.1–50 fps", "none", "2 times as wide as high"],
    }
    assert told["sound.mp4"]["error"].startswith("without video: ")


def test_a_medium_of_an_index_shows_consecutive_frames(index_client: Client) -> None:
    key = key_of(index_client, "h264_vfr.mkv")
    told = index_client.get("item", key=key, first=40).json()
    numbers = [frame["frame"] for frame in told["frames"]]
    assert numbers == list(range(40, min(40 + shown.CONSECUTIVE, told["count"])))
    assert read_barcode(picture(index_client, key=key, first=40, place=4)) == 44
    assert "no such frame" in index_client.get("item", key=key, first=told["count"]).json()["error"]


def test_a_medium_whose_packets_are_no_byte_ranges_is_shown(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    make(MEDIA["mp2.ts"], tmp_path / "media" / "mp2.ts")
    run("index", tmp_path / "media", "--out", tmp_path / "I")
    clip = {"uri": "mp2.ts", "frames": list(range(20, 30))}
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", [clip], "--pack", "needed")
    with served(tmp_path / "I") as client:
        [key] = client.keys()
        found = np.stack([picture(client, key=key, first=20, place=place) for place in range(10)])
    assert np.array_equal(found, ClipDataset(dataset)[0]["frames"])
    assert len(np.unique(found.reshape(10, -1), axis=0)) == 10


def test_a_large_medium_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "media").mkdir()
    make(MEDIA["mp2.ts"], tmp_path / "media" / "mp2.ts")
    run("index", tmp_path / "media", "--out", tmp_path / "I")
    monkeypatch.setattr(shown, "MAX_COPIED_BYTES", 1000)
    with served(tmp_path / "I") as client:
        assert "too large to copy" in client.get("item", key=client.keys()[0]).json()["error"]


def test_sound_comes_as_a_wav_file(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    make(MEDIA["aac.mkv"], tmp_path / "media" / "aac.mkv")
    run("index", tmp_path / "media", "--out", tmp_path / "I")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 8\nstride: 1\n")
    run("shard", tmp_path / "I", "--policy", policy, "--audio", "--audio-rate", "16000", "--out", tmp_path / "D")
    item = ClipDataset(tmp_path / "D")[0]
    with served(tmp_path / "D") as client:
        told = client.get("item", key=0).json()
        answer = client.get("sound", key=0)
    assert answer.headers["Content-Type"] == "audio/wav"
    with wave.open(io.BytesIO(answer.content)) as reader:
        assert (reader.getnchannels(), reader.getframerate()) == (len(item["audio"]), 16000)
        samples = np.frombuffer(reader.readframes(reader.getnframes()), "<i2").reshape(-1, len(item["audio"])).T
    assert told["sound"] == samples.shape[1] / 16000
    assert np.abs(samples / 32767 - item["audio"].clip(-1, 1)).max() < 1 / 32767
    assert np.abs(samples).max() > 100
