"""Run examples/gpu_cpu_gpu.py on the CPU, and read and decode in forked workers, as examples/dali_proxy.py requires."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from framedex import Index
from tests.support.datasets import shard_clips
from tests.support.running import ROOT, environment


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of sixteen clips of one size: eight of a stream for NVDEC and eight of one for the CPU."""
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number, 3 * number, 2]}
        for number in range(8)
        for name in ("h264_default.mp4", "h264_high10.mkv")
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("examples") / "D", clips)


def lines_of(*command: object) -> list[str]:
    """Run Python with these arguments; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("arguments", [(), ("--numpy",)])
def test_frames_are_erased_on_the_cpu_in_the_middle(stored: Path, arguments: tuple[str, ...]) -> None:
    command = ("examples/gpu_cpu_gpu.py", stored, "--device", "cpu", "--batches", "2", "--size", "64", "80")
    lines = lines_of(*command, *arguments)
    assert len(lines) == 2
    for line in lines:
        assert "(4, 3, 64, 80, 3) on cpu" in line
        assert 3 <= int(line.split("%")[0].split()[-1]) <= 27


FORKED = """
import sys
import torch
from framedex import ClipDataset, ClipSampler
import framedex.loader.dali.pipelines  # as a server's process has it
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.dali.proxy import NO_MOVIE

def proxy(**inputs):  # holds what cannot be pickled, as DALI's does
    return {name: torch.from_numpy(value) for name, value in inputs.items()}

class Proxy:
    def __init__(self):
        self.call = lambda **inputs: proxy(**inputs)
    def __call__(self, **inputs):
        return self.call(**inputs)

if __name__ == "__main__":
    dataset = ClipDataset(sys.argv[1], size=(64, 80))
    dataset[0]  # Arrow and libav have run here before workers are forked
    dataset.clip(5)
    proxied = dataset.with_proxy(Proxy())
    proxied._fetch = \
Fetcher(dataset, FetchOptions(pixels=[dataset.pixels], nvjpeg=False))  # as with a driver that supports all
    loader = torch.utils.data.DataLoader(
        proxied, batch_size=4, num_workers=2, sampler=ClipSampler(dataset),
        multiprocessing_context="fork", collate_fn=list,
    )
    for _ in range(2):
        for batch in loader:
            for item in batch:
                sent = item["frames"]
                movie = bool(sent["on_gpu"])
                assert movie == (len(sent["movie"]) > len(NO_MOVIE["movie"])), item["clip_id"]
                assert movie or tuple(sent["frames"].shape) == (3, 64, 80, 3)
                print(item["clip_id"], movie)
"""


def test_forked_workers_read_check_and_decode(stored: Path, tmp_path: Path) -> None:
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    lines = lines_of(script, stored)
    assert len(lines) == 2 * 16
    for line in lines:
        assert line.split() == [line.split()[0], str(line.startswith("h264_default"))]


FORKED_THREADS = """
import sys
import torch
from framedex import ClipDataset

dataset = ClipDataset(sys.argv[1], size=(64, 80), threads=2)
here = [dataset[number]["frames"].sum() for number in range(len(dataset))]  \
# with threads, which a fork does not take along
loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
print(here == [item["frames"].sum() for item in loader])
"""


def test_a_forked_worker_decodes_what_its_parent_has_decoded(stored: Path, tmp_path: Path) -> None:
    script = tmp_path / "forked_threads.py"
    script.write_text(FORKED_THREADS)
    assert lines_of(script, stored) == ["True"]
