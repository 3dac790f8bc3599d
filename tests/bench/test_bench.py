"""framedex bench: costs are counted from the recipes, and the frames of other loaders are compared with ours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from benchmarks import loader as seed_benchmark
from benchmarks.make_video import encode
from framedex import ClipDataset
from framedex.bench import compare, machine_load, measure, peer, peers
from tests.support.datasets import run, shard_clips
from tests.support.media import full_decode

CLIPS = ([0, 7, 14, 21], [3, 4, 5, 6], [40, 41, 42, 49])


@pytest.fixture(scope="module")
def dataset(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "h264_default.mp4").symlink_to(medium("h264_default.mp4"))
    run("index", folder / "h264_default.mp4", "--out", folder / "INDEX")
    clips = [{"uri": "h264_default.mp4", "frames": frames} for frames in CLIPS]
    clips.append({"uri": "h264_default.mp4", "frames": [0, -1]})
    return shard_clips(folder / "INDEX", folder / "DATASET", clips)


def small(pictures: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return compare.thumbnails(compare.enlarged(np.stack(pictures)))


def test_cost_is_what_the_recipes_say(dataset: Path) -> None:
    clips = [ClipDataset(dataset).clip(number) for number in range(4)]
    cost = measure.recipe_cost(clips)
    assert (cost.clips, cost.frames, cost.wanted_frames) == (4, 13, 13)
    assert cost.bytes == sum(int(clip.recipe.packet_size.sum()) for clip in clips)
    assert cost.decoded_frames == sum(len(clip.recipe.packet_rank) for clip in clips) >= 13


def test_an_epoch_visits_every_clip_once_in_another_order_each_time() -> None:
    order = measure.EpochOrder(np.array([2, 3, 5, 7, 11, 13, 17, 19, 23]), seed=4)
    first, second = list(order), list(order)
    assert sorted(first) == sorted(second) == order.numbers.tolist()
    assert first != second


def test_a_padded_clip_is_not_asked_of_others(dataset: Path) -> None:
    clips = ClipDataset(dataset)
    asked = measure.peer_clips({number: clips.clip(number) for number in range(4)})
    assert [clip.frames for clip in asked] == [tuple(frames) for frames in CLIPS]


def test_floats_and_planes_are_the_same_pictures() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), np.uint8)
    assert np.array_equal(measure.as_pictures(pictures.transpose(0, 3, 1, 2).astype(np.float32) / 255), pictures)


def test_the_next_frame_is_another_picture_and_another_matrix_or_scaler_is_not(medium: Callable[[str], Path]) -> None:
    frames = list(full_decode(medium("h264_default.mp4")))
    scaler = VideoReformatter()

    def scaled(interpolation: Interpolation, matrix: str) -> NDArray[np.uint8]:
        return small(
            [
                scaler.reformat(
                    frame, 128, 112, "rgb24", interpolation=interpolation, src_colorspace=matrix
                ).to_ndarray()
                for frame in frames
            ]
        )

    ours, theirs = scaled(Interpolation.BILINEAR, "itu601"), scaled(Interpolation.BICUBIC, "itu709")
    assert compare.differences(ours, theirs).max() < compare.DIFFERENT
    assert compare.differences(ours[:-1], theirs[1:]).min() > compare.DIFFERENT


def test_a_frame_number_in_small_digits_tells_frames_apart() -> None:
    """Imitate the seed benchmark's video, which shows only a number on a plain background, in 1 % of the picture."""
    plain = np.full((40, 224, 224, 3), (20, 30, 240), np.uint8)
    for number, pixels in enumerate(plain):
        for bit in range(6):
            pixels[100:120, 80 + 10 * bit : 88 + 10 * bit] = 235 if number >> bit & 1 else 16
    assert compare.differences(compare.thumbnails(plain[:-1]), compare.thumbnails(plain[1:])).min() > compare.DIFFERENT


@pytest.mark.usefixtures("torchcodec")
def test_torchcodec_gives_the_frames_of_the_index_and_others_are_found_out(dataset: Path) -> None:
    clips = ClipDataset(dataset)
    asked = measure.peer_clips({number: clips.clip(number) for number in range(4)})
    ours = {clip.number: compare.thumbnails(compare.enlarged(clips[clip.number]["frames"])) for clip in asked}
    options = peer.PeerOptions(batch_size=2, workers=0)
    right = compare.run_peer("torchcodec", asked, options, limit_seconds=120, ours=ours)
    assert right.reason is None
    assert (right.clips, right.compared, right.different) == (3, 12, 0)
    shifted = [replace(clip, frames=tuple(number - 1 for number in clip.frames)) for clip in asked[1:]]
    wrong = compare.run_peer("torchcodec", shifted, options, limit_seconds=120, ours=ours)
    assert (wrong.clips, wrong.compared, wrong.different) == (2, 8, 8)


def test_a_peer_past_its_limit_is_stopped_and_says_so(dataset: Path) -> None:
    asked = measure.peer_clips({0: ClipDataset(dataset).clip(0)})
    result = compare.run_peer(
        "torchcodec", asked, peer.PeerOptions(batch_size=1, workers=1), limit_seconds=0.05, ours={}
    )
    assert (result.seconds, result.stopped_after, result.reason) == (None, 0.05, "past 0.05 s")


def test_a_peer_that_cannot_run_says_why(dataset: Path) -> None:
    asked = measure.peer_clips({0: ClipDataset(dataset).clip(0)})
    result = compare.run_peer(
        "DALI decoders.video", asked, peer.PeerOptions(batch_size=1, workers=1), limit_seconds=60, ours={}
    )
    assert result.seconds is None
    assert "GPU" in (result.reason or "") or "not installed" in (result.reason or "")


@pytest.mark.usefixtures("torchcodec")
def test_a_file_that_is_gone_is_the_peers_failure_alone(tmp_path: Path) -> None:
    asked = [peer.PeerClip(number=0, path=str(tmp_path / "gone.mp4"), frames=(0,), seconds=(0.0,))]
    result = compare.run_peer("torchcodec", asked, peer.PeerOptions(batch_size=1, workers=0), limit_seconds=60, ours={})
    assert result.seconds is None
    assert result.reason


def test_cpu_load_counts_a_busy_core() -> None:
    with machine_load.LoadSampler() as sampler:
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            pass
    assert sampler.load.cpu_cores is not None
    assert sampler.load.cpu_cores > 0.5
    assert sampler.load.nvdec_percent is None


def test_the_command_prints_rates_costs_and_where_time_goes(dataset: Path) -> None:
    output = run("bench", dataset, "--workers", 0, "--batch-size", 2).output
    assert output.startswith("4 clips of 13 frames in 2 batches\n")
    for name in ("clips a second", "frames a second", "decoded frames", "bytes read", "CPU", "NVDEC", "time went into"):
        assert f"\n  {name}" in output


@pytest.mark.usefixtures("torchcodec")
def test_json_has_every_figure_and_the_peers(dataset: Path) -> None:
    arguments = ("--workers", 0, "--size", "96x112", "--peer", "torchcodec", "--peer", "PyNvVideoCodec", "--json")
    found = json.loads(run("bench", dataset, *arguments).output)
    assert found["cost"]["clips"] == 4
    assert found["clips_a_second"] == pytest.approx(4 / found["seconds"][0])
    assert sum(found["decoded"].values()) == 4
    torchcodec, nvidia = found["peers"]
    assert (torchcodec["clips"], torchcodec["compared"], torchcodec["different"]) == (3, 12, 0)
    assert torchcodec["framedex_is_faster_by"] > 0
    assert nvidia["clips_a_second"] is None
    assert nvidia["reason"]


@pytest.mark.parametrize("arguments", [("--size", "224"), ("--epochs", "0"), ("--peer", "nobody")])
def test_wrong_arguments_exit_with_2(dataset: Path, arguments: tuple[str, str]) -> None:
    run("bench", dataset, *arguments, code=2)


def test_every_peer_is_known_by_its_name() -> None:
    assert set(peers.PEERS) == {
        "DALI decoders.video",
        "DALI readers.video",
        "PyNvVideoCodec",
        "OpenCV",
        "decord",
        "SPDL",
        "torchcodec, approximate",
        "torchcodec",
    }
    assert compare.PeerResult(name="OpenCV").seconds is None


@pytest.mark.slow
def test_the_seed_benchmark_adds_rows_and_records_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "minute.mp4"
    encode(source, width=192, height=144, fps=60, count=3600)
    out = tmp_path / "loader.json"
    command = ["loader", str(source), "--folder", str(tmp_path / "work"), "--out", str(out), "--device", "cpu"]
    command += ["--seconds", "60", "--only", "images_256px,pynvvideocodec", "--clips", "3", "--check", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--epochs", "1"])
    seed_benchmark.main()
    rows = {(row["way"], row["video_seconds"]): row for row in json.loads(out.read_text())["results"]}
    ours, other = rows["images_256px", 60], rows["pynvvideocodec", 60]
    assert (len(ours["seconds"]), ours["compared"], ours["different"]) == (1, 32, 0)
    assert other["median_seconds"] is None
    assert other["reason"]
    written = out.read_bytes()
    seed_benchmark.main()
    assert out.read_bytes() == written
