"""Measure random access on one core: clips of 16 frames at 1 fps from random places of a video, one after the other.

Every contender opens the video again for each clip, as a dataset of many videos requires, and returns the same frames
as uint8 RGB at full size. framedex has indexed and sharded before; its cost includes opening and checking the file.
Contenders take turns, so that noise of the machine affects all of them. Prints JSON.

The whole ClipLoader is also measured beside the bare decode of the planned packets: only PyAV, with packets already in
memory, producing the same RGB, in this process and in two worker processes each.

usage: python -m benchmarks.random_access VIDEO... [--clips 12] [--frames 16] [--fps 1] [--contenders a,b] [--turns 3]
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import environment

Frames = NDArray[np.uint8]
SAME_PICTURE = 6.0  # mean absolute difference between two conversions of one picture stays below


def read_torchcodec(mode: str) -> Callable[[str, list[int], list[float]], Frames]:
    from torchcodec.decoders import VideoDecoder

    def read(path: str, frames: list[int], seconds: list[float]) -> Frames:
        decoder = VideoDecoder(path, seek_mode=mode, num_ffmpeg_threads=1, dimension_order="NHWC")
        return decoder.get_frames_at(frames).data.numpy()

    return read


def read_decord(path: str, frames: list[int], seconds: list[float]) -> Frames:
    import decord

    return decord.VideoReader(path, num_threads=1).get_batch(frames).asnumpy()


def read_opencv(path: str, frames: list[int], seconds: list[float]) -> Frames:
    import cv2

    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    pictures = []
    for frame in frames:
        capture.set(cv2.CAP_PROP_POS_FRAMES, frame)
        pictures.append(cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB))
    capture.release()
    return np.stack(pictures)


def read_pyav(path: str, frames: list[int], seconds: list[float]) -> Frames:
    """Seek to the keyframe before each requested time and decode up to it."""
    pictures = []
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        half = 0.5 / float(stream.average_rate or 1)
        for second in seconds:
            container.seek(int(second / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if frame.time >= second - half:
                    pictures.append(frame.to_ndarray(format="rgb24"))
                    break
    return np.stack(pictures)


CONTENDERS: dict[str, Callable[[], Callable[[str, list[int], list[float]], Frames]]] = {
    "torchcodec_exact": lambda: read_torchcodec("exact"),
    "torchcodec_approximate": lambda: read_torchcodec("approximate"),
    "decord": lambda: read_decord,
    "opencv": lambda: read_opencv,
    "pyav_seek": lambda: read_pyav,
}


def make_dataset(video: Path, folder: Path, clips: int, frames: int, fps: float, seed: int) -> tuple[Path, float]:
    """Index the video and shard clips at random places; return the dataset and the seconds that both took."""
    started = time.perf_counter()
    run = [sys.executable, "-c", "from framedex.cli import main; main()"]
    subprocess.run([*run, "index", str(video), "--out", str(folder / "index")], check=True, stdout=subprocess.DEVNULL)
    with av.open(str(video)) as container:
        length = float(container.streams.video[0].duration * container.streams.video[0].time_base)
    starts = np.random.default_rng(seed).uniform(0, length - frames / fps, clips)
    lines = [
        json.dumps({"uri": video.name, "seconds": [round(start + k / fps, 4) for k in range(frames)]})
        for start in starts
    ]
    (folder / "clips.jsonl").write_text("\n".join(lines))
    command = ["shard", str(folder / "index"), "--clips", str(folder / "clips.jsonl"), "--out", str(folder / "dataset")]
    subprocess.run([*run, *command], check=True, stdout=subprocess.DEVNULL)
    return folder / "dataset", time.perf_counter() - started


def bare_decode(dataset: str, number: int) -> float:
    """Return the seconds that PyAV takes to turn a clip's planned packets, already in memory, into RGB."""
    from framedex import ClipDataset
    from framedex.indexer.containers import DECODERS

    clips = OPENED.setdefault(dataset, ClipDataset(dataset))
    clip = clips.clip(number)
    encoded = clips.sources.read(clip)
    wanted = set(clip.recipe.position.tolist())
    edges = [*clip.recipe.run_first.tolist(), len(clip.recipe.packet_rank)]
    packets = []
    for place, rank in enumerate(clip.recipe.packet_rank.tolist()):
        packets.append(
            av.Packet(encoded.payload[encoded.packet_first[place] : encoded.packet_first[place + 1]].tobytes())
        )
        packets[-1].pts = rank
    started = time.perf_counter()
    pictures = []
    for first, last in itertools.pairwise(edges):
        decoder = av.CodecContext.create(DECODERS.get(clip.medium.codec, clip.medium.codec), "r")
        decoder.extradata, decoder.thread_count = clip.medium.extradata, 1
        for packet in [*packets[first:last], None]:
            pictures += [frame.to_ndarray(format="rgb24") for frame in decoder.decode(packet) if frame.pts in wanted]
    assert len(pictures) == len(wanted)
    return time.perf_counter() - started


OPENED: dict[str, Any] = {}  # datasets that this process has opened


def bare_pass(dataset: str, clips: int, pool: ProcessPoolExecutor | None) -> float:
    """Return the seconds that the bare decode of all clips takes, in a pool of processes or in this one."""
    if pool is None:
        return sum(bare_decode(dataset, number) for number in range(clips))
    started = time.perf_counter()
    list(pool.map(bare_decode, [dataset] * clips, range(clips)))
    return time.perf_counter() - started


def measure_whole(dataset: Path, clips: int, processes: int, turns: int) -> dict[str, float]:
    """Return median seconds of the whole ClipLoader and of the bare decode, and the median ratio; both take turns."""
    from framedex import ClipDataset, ClipLoader

    loader = ClipLoader(ClipDataset(dataset), batch_size=1, num_workers=processes)
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) if processes else None
    whole, bare = [], []
    for turn in range(turns + 1):  # the first one starts the processes
        started = time.perf_counter()
        delivered = sum(len(batch["frames"]) for batch in loader)
        whole.append(time.perf_counter() - started)
        assert delivered == clips
        bare.append(bare_pass(str(dataset), clips, pool))
        if turn == 0:
            whole, bare = [], []
    if pool is not None:
        pool.shutdown()
    found = {"clip_loader_seconds": statistics.median(whole), "bare_decode_seconds": statistics.median(bare)}
    return found | {"ratio": round(statistics.median(a / b for a, b in zip(whole, bare, strict=True)), 3)}


def measure_whole_loader(video: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return times of the whole ClipLoader and of the bare decode: on one core, and on two in two processes each."""
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as scratch:
        prepared, _ = make_dataset(video, Path(scratch), options.clips, options.frames, options.fps, options.seed)
        found = {"one process": measure_whole(prepared, options.clips, 0, options.turns)}
        os.sched_setaffinity(0, options.cores)
        if len(options.cores) > 1:
            found["two processes"] = measure_whole(prepared, options.clips, 2, options.turns)
        os.sched_setaffinity(0, cores)
    return found


def measure(video: Path, options: argparse.Namespace) -> dict[str, object]:
    """Time every contender on the same clips of one video."""
    from framedex import ClipDataset

    with tempfile.TemporaryDirectory() as scratch:
        prepared, seconds = make_dataset(video, Path(scratch), options.clips, options.frames, options.fps, options.seed)
        times: dict[str, list[float]] = {"framedex": []}
        exact: dict[str, int] = {}
        packets: list[int] = []
        readers = {name: CONTENDERS[name]() for name in options.contenders}
        for number in range(options.clips):
            dataset = ClipDataset(prepared)
            started = time.perf_counter()
            item = dataset[number]
            times["framedex"].append(time.perf_counter() - started)
            packets.append(len(dataset.clip(number).recipe.packet_size))
            frames, at = item["frame_index"].tolist(), item["seconds"].tolist()
            for name, read in readers.items():
                started = time.perf_counter()
                found = read(str(video), frames, at)
                times.setdefault(name, []).append(time.perf_counter() - started)
                away = np.abs(found.astype(np.int16) - item["frames"].astype(np.int16)).mean(axis=(1, 2, 3))
                exact[name] = exact.get(name, 0) + int((away < SAME_PICTURE).sum())
    medians = {name: statistics.median(values) for name, values in times.items()}
    others = {name: median for name, median in medians.items() if name != "framedex"}
    return {
        "video": video.name,
        "bytes": video.stat().st_size,
        "index_and_shard_seconds": round(seconds, 3),
        "milliseconds_a_clip": {name: round(1000 * median, 1) for name, median in medians.items()},
        "framedex_packets_a_clip": round(statistics.mean(packets), 1),
        "framedex_milliseconds_a_packet": round(1000 * statistics.median(np.array(times["framedex"]) / packets), 4),
        "same_frames_share": {name: round(count / options.clips / options.frames, 4) for name, count in exact.items()},
        "speedup_over": {name: round(median / medians["framedex"], 2) for name, median in others.items()},
        "speedup_over_best": round(min(others.values()) / medians["framedex"], 2) if others else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--fps", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=3, help="of the whole ClipLoader and the bare decode; 0: none")
    parser.add_argument("--whole-only", action="store_true", help="no contenders, the whole ClipLoader alone")
    parser.add_argument("--contenders", type=lambda text: text.split(","), default=list(CONTENDERS))
    options = parser.parse_args()
    options.cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(options.cores)})
    from framedex.sharder.decoding import rgb

    rgb.COMPILED_FROM = 0  # as in a long run
    results = []
    for video in options.videos:
        contended = {} if options.whole_only else measure(video, options)
        whole = measure_whole_loader(video, options) if options.turns else None
        results.append(contended | ({"video": video.name, "whole_loader": whole} if whole else {}))
    libraries = ("torchcodec", "torch", "decord", "opencv-python-headless")
    print(json.dumps({"environment": environment(*libraries), "results": results}, indent=2))


if __name__ == "__main__":
    main()
