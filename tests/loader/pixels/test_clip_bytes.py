"""A clip whose packets, audio and frames would take too much memory is refused before it is read."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import webdataset

import framedex
from framedex import ClipDataset, ClipLoader, ClipStream, decode_sample
from framedex.errors import DecodeError, FramedexError
from tests.support.datasets import shard_clips
from tests.support.media import Recipe, make
from tests.support.running import environment

WIDTH, HEIGHT, FRAMES = 176, 144, 10
POLICY = {"policy": "stride", "stride": 1, "frames": FRAMES}
PIXELS = WIDTH * HEIGHT * FRAMES * 3  # the bytes of all frames
NEED = PIXELS + 20_000  # with their packets


@pytest.fixture
def dataset(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """A packed dataset of one clip of 10 frames and one of 5."""
    framedex.index(medium("h264_default.mp4"), tmp_path / "I", workers=0, progress=False)
    clips = [{"uri": "h264_default.mp4", "frames": list(range(count))} for count in (FRAMES, 5)]
    return shard_clips(tmp_path / "I", tmp_path / "D", clips, "--pack", "clips")


def refused(error: pytest.ExceptionInfo[DecodeError]) -> None:
    """Check that an error names the clip, the need, the limit and the remedy."""
    said = str(error.value)
    assert "too much memory" in said
    assert f"10 frames of {WIDTH} × {HEIGHT}" in said
    assert "clip_bytes=" in said
    assert "size=" in said


def test_every_way_to_a_clip_has_the_limit(dataset: Path) -> None:
    tar = next((dataset / "shards").glob("*.tar"))
    first = next(iter(webdataset.WebDataset(str(tar), shardshuffle=False)))
    ways: list[Callable[[int], Any]] = [
        lambda most: ClipDataset(dataset, clip_bytes=most)[0],
        lambda most: ClipDataset.from_index(dataset.parent / "I", POLICY, clip_bytes=most)[0],
        lambda most: next(iter(ClipStream(dataset, clip_bytes=most))),
        lambda most: decode_sample(first, clip_bytes=most),
        lambda most: next(iter(ClipLoader(ClipDataset(dataset, clip_bytes=most), output="numpy"))),
    ]
    for way in ways:
        assert way(NEED)["frames"].shape[-4:] == (FRAMES, HEIGHT, WIDTH, 3)
        with pytest.raises(DecodeError) as caught:
            way(PIXELS)
        refused(caught)
    assert len(ways) == 5


def test_the_limit_is_about_frames_as_they_are_delivered(dataset: Path) -> None:
    assert ClipDataset(dataset, size=(72, 88), clip_bytes=PIXELS // 4 + 20_000)[0]["frames"].shape == (
        FRAMES,
        72,
        88,
        3,
    )
    with pytest.raises(DecodeError):
        ClipDataset(dataset, dtype="uint16", clip_bytes=NEED)[0]
    assert ClipDataset(dataset, dtype="uint16", clip_bytes=2 * PIXELS + 20_000)[0]["frames"].dtype == "uint16"
    loader = ClipLoader(ClipDataset(dataset, clip_bytes=PIXELS), size=(72, 88), output="numpy")
    assert len(list(loader)) == 2


def test_such_a_clip_is_replaced_or_skipped(dataset: Path) -> None:
    small = ClipDataset(dataset, clip_bytes=PIXELS, on_error="replace")
    assert small[0]["clip_id"] == small[1]["clip_id"]
    skipping = ClipStream(dataset, clip_bytes=PIXELS, on_error="skip")
    assert [len(item["frames"]) for item in skipping] == [5]
    assert [skip.kind for skip in skipping.skipped()] == ["undecodable"]


def test_packets_and_frames_are_counted_to_the_byte(dataset: Path) -> None:
    packets = int(ClipDataset(dataset).clip(0).recipe.packet_size.sum())
    assert len(ClipDataset(dataset, clip_bytes=PIXELS + packets)[0]["frames"]) == FRAMES
    with pytest.raises(DecodeError, match="GiB for its packets"):
        ClipDataset(dataset, clip_bytes=PIXELS + packets - 1)[0]
    assert "movie" in ClipDataset(dataset, decode="movie", clip_bytes=packets)[0]
    with pytest.raises(DecodeError, match="too much memory"):
        ClipDataset(dataset, decode="movie", clip_bytes=packets - 1)[0]


@pytest.mark.parametrize("packed", [[], ["--pack", "clips"]])
def test_audio_counts(packed: list[str], medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_audio.mp4"), tmp_path / "I", workers=0, progress=False)
    clips = [{"uri": "h264_audio.mp4", "frames": [0, 1, 2, 3]}]
    out = shard_clips(tmp_path / "I", tmp_path / "D", clips, "--audio", "--audio-seconds", "100", *packed)
    item = ClipDataset(out)[0]
    need = item["frames"].nbytes + item["audio"].nbytes
    assert item["audio"].nbytes > 1 << 23
    with pytest.raises(DecodeError, match="samples of"):
        ClipDataset(out, clip_bytes=need)[0]
    assert len(ClipDataset(out, clip_bytes=4 * need)[0]["frames"]) == 4


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1GB", True])
def test_the_limit_is_a_number_of_bytes(wrong: Any, dataset: Path) -> None:
    with pytest.raises(FramedexError, match="clip_bytes must be a number of bytes"):
        ClipDataset(dataset, clip_bytes=wrong)


def test_a_small_file_with_huge_frames_does_not_take_the_memory(tmp_path: Path) -> None:
    """Load frames that need 2.4 GB in a process that may take 1.5 GB, with a limit of 1 GB for a clip."""
    huge = make(Recipe(name="huge.mkv", codec="mjpeg", pix_fmt="yuvj420p", size=(4096, 4096), frames=1), tmp_path)
    framedex.index(huge, tmp_path / "I", workers=0, progress=False)
    shard_clips(tmp_path / "I", tmp_path / "D", [{"uri": "huge.mkv", "frames": [0] * 48}])
    script = (
        "import sys, framedex\n"
        "try: framedex.ClipDataset(sys.argv[1], clip_bytes=10**9)[0]\n"
        "except framedex.FramedexError as error: print(error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "D"],
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "48 frames of 4096 × 4096" in found.stdout
