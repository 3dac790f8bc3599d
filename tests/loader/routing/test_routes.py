"""Routing to NVDEC: each rule finds the obstacle that it is named for, and clips of proven streams pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import ClipDataset, Index
from framedex.indexer.bitstream.vpx import FrameHeaders, split_superframe
from framedex.loader.routing.movie import colour_obstacle, gpu_movie, joined_movie
from framedex.loader.routing.routes import PROVEN_PROFILES, RULES, gpu_obstacle, has_hidden_frames
from framedex.sharder.clips.clip import Clip
from tests.exactness.test_av_corpus import read_packets
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.gpu import driver
from tests.support.reading import encoded_clip, encoded_of

VP9 = {
    "vp9_noalt.webm": None,
    "vp9_p2_10bit.webm": None,
    "vp9_altref.webm": "hidden frames",
    "vp9_size_change.webm": "changing parameter sets",
}


@pytest.fixture(scope="module")
def proven(index: Index, tmp_path_factory: pytest.TempPathFactory) -> ClipDataset:
    names = ("h264_default.mp4", "hevc_open_gop.mp4", "hevc_main10.mov", "h264_bt709.mp4")
    clips = [{"uri": name, "clip_id": name, "frames": [25]} for name in names]
    return ClipDataset(shard_clips(index.path, tmp_path_factory.mktemp("routes") / "D", clips))


@pytest.fixture(scope="module")
def vp9(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> ClipDataset:
    """One clip per stream in `VP9` (160×120, from the corpus), with the file's name as clip_id."""
    folder = tmp_path_factory.mktemp("vp9")
    (folder / "videos").mkdir()
    for name in VP9:
        (folder / "videos" / name).write_bytes((corpus / name).read_bytes())
    run("index", folder / "videos", "--out", folder / "INDEX")
    clips = [{"uri": name, "clip_id": name, "frames": [30, 3]} for name in VP9]
    return ClipDataset(shard_clips(folder / "INDEX", folder / "D", clips))


def _clips(dataset: ClipDataset) -> dict[str, Clip]:
    return {clip.clip_id: clip for clip in map(dataset.clip, range(len(dataset)))}


def _medium(clip: Clip, **facts: Any) -> Clip:
    return replace(clip, medium=replace(clip.medium, **facts))


def _recipe(clip: Clip, **facts: Any) -> Clip:
    return replace(clip, recipe=replace(clip.recipe, **facts))


def test_what_was_proven_passes_and_becomes_a_movie(proven: ClipDataset) -> None:
    for clip in some(_clips(proven).values()):
        assert gpu_obstacle(clip) is None, clip.clip_id
        movie = gpu_movie(clip, encoded_clip(proven, clip))
        assert movie is not None
        assert joined_movie([movie]).dtype == np.uint8
        assert (movie.correction.shape, movie.correction.dtype) == ((3, 4), np.float32)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("images", lambda clip: _medium(clip, kind="images")),
        ("codec: av1", lambda clip: _medium(clip, codec="av1")),
        ("container: mpegts", lambda clip: _medium(clip, container="mpegts")),
        ("profile: High 10, yuv420p", lambda clip: _medium(clip, profile="High 10")),
        ("profile: High, yuv422p", lambda clip: _medium(clip, pixel_format="yuv422p")),
        ("monochrome or not 4:2:0", lambda clip: _medium(clip, chroma_format=0)),
        ("size: 32x144", lambda clip: _medium(clip, width=32)),
        ("no reference frames", lambda clip: _medium(clip, max_ref_frames=0)),
        ("hidden pictures out of order", lambda clip: _medium(clip, hidden_unordered=True)),
        ("field-coded pictures", lambda clip: _medium(clip, field_coded=True)),
        ("changing parameter sets", lambda clip: _medium(clip, inband_parameter_sets=True)),
        ("changing parameter sets", lambda clip: _medium(clip, varying_shape=True)),
        ("changing parameter sets", lambda clip: _medium(clip, states=[*clip.medium.states, b"\0"])),
        ("a damaged GOP", lambda clip: _recipe(clip, damaged=True)),
        ("start codes inside length-prefixed units", lambda clip: _medium(clip, inner_start_codes=True)),
        ("an open start point", lambda clip: _recipe(clip, run_open=~clip.recipe.run_open)),
        ("header: a configuration record that no filter can rewrite", lambda clip: _medium(clip, extradata=b"\1\2")),
        ("colour: colour matrix 10", lambda clip: _medium(clip, color_matrix=10)),
        (
            "colour: saturated colours that DALI clips",
            lambda clip: _medium(clip, color_matrix=1, color_range="full", pixel_format="yuvj420p"),
        ),
    ],
)
def test_each_rule_finds_what_it_is_named_for(proven: ClipDataset, rule: str, change: Callable[[Clip], Clip]) -> None:
    assert gpu_obstacle(change(_clips(proven)["h264_default.mp4"])) == rule


def test_every_rule_is_tried(proven: ClipDataset) -> None:
    (mark,) = test_each_rule_finds_what_it_is_named_for.pytestmark  # type: ignore[attr-defined]
    tried = {rule.split(":")[0] for rule, _ in mark.args[1]} | {"monochrome or not 4:2:0"}
    assert RULES.keys() <= tried


def test_a_device_takes_what_its_driver_says(proven: ClipDataset) -> None:
    clips = _clips(proven)
    caps = driver(("h264", 1, 8), ("hevc", 1, 8))
    assert gpu_obstacle(clips["h264_default.mp4"], caps=caps) is None
    assert str(gpu_obstacle(clips["hevc_main10.mov"], caps=caps)).startswith(
        "driver: this device has no decoder for hevc"
    )
    none = driver(reason="no NVIDIA video driver")
    assert gpu_obstacle(clips["h264_default.mp4"], caps=none) == "driver: no NVIDIA video driver"


def test_exact_colour_is_bt601_of_8_bits(proven: ClipDataset) -> None:
    clips = _clips(proven)
    obstacles = {name: gpu_obstacle(clip, colour="exact") for name, clip in clips.items()}
    assert obstacles == {
        "h264_default.mp4": None,
        "hevc_open_gop.mp4": None,
        "hevc_main10.mov": "colour: colours of more than 8 bits",
        "h264_bt709.mp4": "colour: colours that DALI clips",
    }
    assert colour_obstacle(clips["h264_bt709.mp4"].medium) is None


def test_vp9_passes_by_its_packets(vp9: ClipDataset) -> None:
    small = _clips(vp9)
    assert gpu_obstacle(small["vp9_noalt.webm"]) == "size: 160x120"
    clips = {name: _medium(clip, width=160, height=128) for name, clip in small.items()}
    assert {clip.medium.profile for clip in clips.values()} <= set(PROVEN_PROFILES["vp9"])
    found = {name: gpu_obstacle(clip, encoded_clip(vp9, clip)) for name, clip in clips.items()}
    assert found == VP9
    assert gpu_obstacle(clips["vp9_noalt.webm"]) == "hidden frames: not known without its packets"
    assert (
        gpu_obstacle(_medium(clips["vp9_noalt.webm"], color_range="full"), encoded_clip(vp9, clips["vp9_noalt.webm"]))
        is not None
    )
    assert (
        gpu_obstacle(_medium(clips["vp9_noalt.webm"], color_matrix=1), encoded_clip(vp9, clips["vp9_noalt.webm"]))
        is not None
    )
    movie = gpu_movie(clips["vp9_noalt.webm"], encoded_clip(vp9, clips["vp9_noalt.webm"]))
    assert movie is not None
    assert movie.correction == pytest.approx(np.eye(3, 4), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("vp9.mp4", True),
        ("vp9_altref.webm", True),
        ("vp9_noalt.webm", False),
        ("vp9_p2_10bit.webm", False),
        ("vp9_size_change.webm", False),
    ],
)
def test_hidden_frames_of_the_corpus_are_found(corpus: Path, name: str, hidden: bool) -> None:
    packets = read_packets(corpus / name).data
    spans = [split_superframe(packet) for packet in packets]
    heads = [packet[start:end] for packet, its in zip(packets, spans, strict=True) for start, end in its]
    encoded = encoded_of(packets)
    assert has_hidden_frames(encoded) == hidden == (not FrameHeaders(heads).shown.all())


@pytest.mark.parametrize(
    ("packet", "hidden"),
    [
        (b"\x82\x49\x83\x42\x00", False),  # a shown key frame of profile 0
        (b"\x86\x00\x00", False),  # a shown frame that refers to others
        (b"\x84\x00\x00", True),  # a hidden frame
        (b"\x88\x00", True),  # an earlier frame that is shown again
        (b"\x92\x49\x83\x42\x00", False),  # profile 2
        (b"\xb2\x49\x83\x42\x00", True),  # profile 3
        (b"\x02\x49\x83\x42\x00", True),  # not a frame
        (b"\x86\x00\xc9\x01\x00\x01\x00\xc9", True),  # a superframe
    ],
)
def test_the_first_and_the_last_byte_tell_what_a_packet_is(packet: bytes, hidden: bool) -> None:
    for packets in ([packet], [b"\x82\0", packet], [packet, b"\x86\0"]):
        encoded = encoded_of(packets)
        assert has_hidden_frames(encoded) == hidden
    empty = encoded_of([packet, b""])
    assert has_hidden_frames(empty)
