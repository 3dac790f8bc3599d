"""The examples on a GPU, run as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.sessions import BLOCK, GPU_PAGES, draw_videos, with_output
from framedex import Index
from tests.contract.test_decoders import DEVICES
from tests.loader.batches.test_loader_examples import lines_of
from tests.loader.batches.test_train import check_killed_run
from tests.support.datasets import shard_clips

GPU = [device for device in DEVICES if device != "cpu"]


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen clips of the same frame size: eight of a stream for NVDEC and eight of a stream for the CPU."""
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number, 3 * number, 2]}
        for number in range(8)
        for name in ("h264_default.mp4", "h264_high10.mkv")
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("examples") / "D", clips)


@pytest.mark.parametrize("device", GPU)
@pytest.mark.parametrize("arguments", [(), ("--numpy",)])
def test_frames_go_to_the_cpu_and_back(stored: Path, device: str, arguments: tuple[str, ...]) -> None:
    command = ("examples/gpu_cpu_gpu.py", stored, "--device", device, "--batches", "2", "--size", "64", "80")
    lines = lines_of(*command, *arguments)
    assert len(lines) == 2
    for line in lines:
        assert "(4, 3, 64, 80, 3) on cuda:0" in line
        assert 3 <= int(line.split("%")[0].split()[-1]) <= 27


@pytest.mark.parametrize("device", GPU)
def test_a_data_loader_s_workers_share_one_pipeline(stored: Path, device: str) -> None:
    command = (
        "examples/dali_proxy.py",
        stored,
        "--size",
        "64",
        "80",
        "--workers",
        "2",
        "--batch-size",
        "4",
        "--epochs",
        "2",
    )
    lines = lines_of(*command)
    assert [line.split(" in ")[0] for line in lines] == ["epoch 0: 16 clips", "epoch 1: 16 clips"]
    assert all(line.endswith("(4, 3, 64, 80, 3) on cuda:0") for line in lines), device


@pytest.mark.parametrize("device", GPU)
def test_a_killed_training_goes_on_with_the_very_next_clip(tmp_path: Path, device: str) -> None:
    check_killed_run(tmp_path, device)


@pytest.mark.parametrize("name", GPU_PAGES)
@pytest.mark.parametrize("device", GPU)
def test_what_pages_show_is_what_happens_on_a_gpu(name: str, device: str, tmp_path: Path) -> None:
    """Run every terminal session and every Python block of the page."""
    draw_videos(tmp_path)
    page = (Path(__file__).resolve().parents[2] / name).read_text(encoding="utf-8")
    assert len(BLOCK.findall(page)) >= 3, device
    assert with_output(page, tmp_path) == page, "run `python -m docs.sessions --gpu` on a machine with a GPU"
