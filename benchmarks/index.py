"""Index one MP4: framedex at both depths against other ways to read packets, in one run.

There are two videos, made on the spot: (a) 180 000 packets of low bit rate, (b) 1 GB of high bit rate. Each contender
does everything it needs to know every packet's time. framedex writes no index: its probe is a worker's job for one
file.

usage: python -m benchmarks.index FOLDER [--rounds 5]   prints JSON; needs ffprobe on PATH, and torchcodec to include it
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av

from benchmarks.environment import environment
from benchmarks.make_video import pictures, repeat
from framedex.indexer.probing.probe import Depth, ProbeTask, probe_medium

LOW_PACKETS, HIGH_BYTES = 180_000, 1_000_000_000
FFPROBE = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_packets"]


def encode(path: Path, *, width: int, height: int, count: int, options: dict[str, str]) -> None:
    """Write `count` pictures at 60 fps."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=60, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures(width, height, count):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))


def make_videos(folder: Path) -> dict[str, Path]:
    """Return the two videos; make them if they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    low, high, part = folder / "low.mp4", folder / "high.mp4", folder / "part.mp4"
    if not low.exists():
        encode(part, width=320, height=180, count=3600, options={"preset": "veryfast", "crf": "38"})
        repeat(part, low, LOW_PACKETS // 3600)
    if not high.exists():
        encode(part, width=1920, height=1080, count=120, options={"preset": "ultrafast", "qp": "12"})
        repeat(part, high, -(-HIGH_BYTES // part.stat().st_size))
    part.unlink(missing_ok=True)
    return {"low bit rate": low, "high bit rate": high}


def framedex_at(depth: Depth) -> Callable[[Path], int]:
    def probe(path: Path) -> int:
        (medium,) = probe_medium(ProbeTask(path=str(path), depth=depth))
        assert medium.timeline is not None, medium.problem
        return medium.timeline.packet_count

    return probe


def ffprobe(path: Path) -> None:
    """Run ffprobe and discard its output: reading it would take longer than writing it."""
    subprocess.run([*FFPROBE, str(path)], stdout=subprocess.DEVNULL, check=True)


def pyav(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for packet in container.demux(video=0) if packet.size)


def torchcodec(path: Path) -> int:
    from torchcodec.decoders import VideoDecoder

    return len(VideoDecoder(str(path), seek_mode="exact"))


def contenders() -> dict[str, Callable[[Path], int | None]]:
    """Return by name the contenders that can run here."""
    found: dict[str, Callable[[Path], int | None]] = {
        "framedex, tables": framedex_at("tables"),
        "framedex, packets": framedex_at("packets"),
        "ffprobe -show_packets": ffprobe,
        "PyAV, demuxing": pyav,
    }
    if importlib.util.find_spec("torchcodec"):
        found["torchcodec, exact scan"] = torchcodec
    return found


def evict(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def measure(path: Path, rounds: int, *, cold: bool) -> dict[str, Any]:
    """Return the median seconds of each contender, and how many packets each found.

    Each runs several times in a row, as in a batch job. The first time warms up imports and the page cache and is not
    timed.
    """
    seconds: dict[str, list[float]] = {}
    packets: dict[str, int | None] = {}
    for name, run in contenders().items():
        for turn in range(rounds + 1):
            if cold:
                evict(path)
            begin = time.perf_counter()
            packets[name] = run(path)
            if turn:
                seconds.setdefault(name, []).append(time.perf_counter() - begin)
    return {"seconds": {name: statistics.median(times) for name, times in seconds.items()}, "packets": packets}


def bytes_read(path: Path, depth: Depth) -> int:
    """Return how many bytes a probe reads, as counted by the kernel (rchar of /proc/self/io)."""

    def count() -> int:
        with open("/proc/self/io", encoding="ascii") as file:
            return int(file.readline().split()[1])

    before = count()
    framedex_at(depth)(path)
    return count() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    results = []
    for name, path in make_videos(options.folder).items():
        row: dict[str, Any] = {"video": name, "size_bytes": path.stat().st_size}
        for state, cold in (("warm", False), ("cold", True)):
            row[state] = measure(path, options.rounds if not cold else 3, cold=cold)
            seconds = row[state]["seconds"]
            reference = seconds["ffprobe -show_packets"]
            row[state]["times_as_fast_as_ffprobe"] = {other: reference / value for other, value in seconds.items()}
            print(f"{name}, {state}: {seconds}", file=sys.stderr)
        row["bytes_read"] = {depth: bytes_read(path, depth) for depth in ("tables", "packets")}
        results.append(row)
    found = environment("torchcodec", "torch")
    found["ffprobe"] = subprocess.run(["ffprobe", "-version"], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )[0]
    print(json.dumps({"environment": found, "results": results}, indent=2))


if __name__ == "__main__":
    main()
