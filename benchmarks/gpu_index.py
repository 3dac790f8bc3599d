"""Time how long it takes to reach a frame of a long video: DALI's own index against framedex's, on one machine.

Two MP4s are made in a scratch folder: one with many packets at a low bit rate, one with many bytes at a high bit rate.
On each, these are timed:

- `fn.decoders.video`, given the whole file in memory and asked for its first and its last frame, with `build_index` on
  and off: seconds of one run of a pipeline that has run before. DALI builds its index again for every sample.
- `fn.readers.video` and `fn.experimental.readers.video`: seconds to build a pipeline, and until the requested frame is
  available. It is the first frame, or the last by a file list with frame numbers.
- `probe_medium` in one process, by sample tables and by packets: once per video, however many clips are taken.
- a clip of the last frame through ClipLoader on NVDEC, with a warm pipeline and the video indexed and sharded before.

`away` is the mean absolute difference of a last frame from framedex's, decoded on the CPU. Conversions of the same
picture differ by a few levels, different pictures by more. Files are in the page cache. Results are medians of
`--repeat` rounds, in which all contenders take turns; contenders in `--once` run only in the first round. Prints JSON.

usage: python -m benchmarks.gpu_index [--repeat 3] [--packets 180000] [--megabytes 1000] [--once name,name]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from benchmarks.environment import environment
from benchmarks.exactness import written
from benchmarks.make_video import pictures, repeat
from framedex import ClipDataset, ClipLoader
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth, ProbeTask, probe_medium
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.sharder.build import build_from_requests
from framedex.sharder.selection.explicit_clips import ExplicitClip

Frames = NDArray[np.uint8]
Timed = Callable[[], dict[str, float]]
PERIOD = 3600  # pictures of the low-bit-rate video before it repeats
HIGH_PERIOD = 120


def encode(path: Path, width: int, height: int, count: int, options: dict[str, str]) -> Path:
    """Write `count` pictures at 60 fps with x264."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=60, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures(width, height, count):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    return path


def make_videos(folder: Path, packets: int, megabytes: int) -> dict[str, Path]:
    """Return a video with many packets, one with many bytes, and a short one for warming up."""
    short = encode(folder / "short.mp4", 320, 180, PERIOD, {"crf": "38", "preset": "veryfast"})
    low = folder / "low_bit_rate.mp4"
    repeat(short, low, packets // PERIOD)
    period = encode(folder / "period.mp4", 1920, 1080, HIGH_PERIOD, {"qp": "12", "preset": "ultrafast"})
    high = folder / "high_bit_rate.mp4"
    repeat(period, high, -(-megabytes * 1_000_000 // period.stat().st_size))
    return {"low_bit_rate": low, "high_bit_rate": high, "short": short}


def dali_decoder(build_index: bool) -> Any:
    """Return a pipeline that decodes requested frames of a whole file."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=4, device_id=0, prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        movie = fn.external_source(name="movie", dtype=types.UINT8, ndim=1, no_copy=True)
        wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
        return fn.decoders.video(movie, device="mixed", frames=wanted, build_index=build_index)

    built = pipeline()
    built.build()
    return built


def away_from(output: Any, truth: Frames | None) -> dict[str, float]:
    """Return the mean absolute difference of a pipeline's one frame from the true one, if that is known."""
    (found,) = from_dlpack(output[0]).cpu().numpy().reshape(-1, *output.shape()[0][-3:])
    return {} if truth is None else {"away": float(np.abs(found.astype(np.int16) - truth).mean())}


def time_decoder(pipeline: Any, content: Any, frame: int, truth: Frames | None = None) -> dict[str, float]:
    """Return the seconds of one run for one frame."""
    started = time.perf_counter()
    pipeline.feed_input("movie", [content])
    pipeline.feed_input("wanted", [np.array([frame], np.int32)])
    (output,) = pipeline.run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return {"seconds": seconds} | away_from(output, truth)


def time_reader(
    path: Path, experimental: bool, frame: int | None = None, truth: Frames | None = None
) -> dict[str, float]:
    """Return the seconds until a reader of one file is built, and until a frame is available.

    Args:
        frame: the number of the frame; None for the first one.
    """
    from nvidia.dali import fn, pipeline_def

    how: dict[str, Any] = {"filenames": [str(path)]}
    if frame is not None:
        listing = path.with_suffix(".txt")
        listing.write_text(f"{path} 0 {frame} {frame + 1}\n")
        how = {"file_list": str(listing)}
        how |= {"file_list_format": "frames", "file_list_include_end": False} if experimental else {}
        how |= {} if experimental else {"file_list_frame_num": True}

    @pipeline_def(batch_size=1, num_threads=4, device_id=0, prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        reader = fn.experimental.readers.video if experimental else fn.readers.video
        read = reader(device="gpu", sequence_length=1, stride=1, prefetch_queue_depth=1, **how)
        return read if frame is None else read[0]

    started = time.perf_counter()
    built = pipeline()
    built.build()
    build = time.perf_counter() - started
    (output,) = built.run()
    torch.cuda.synchronize()
    return {"build": build, "seconds": time.perf_counter() - started} | away_from(output, truth)


def time_probe(path: Path, depth: Depth) -> dict[str, float]:
    """Return the seconds of probing a file in this process."""
    started = time.perf_counter()
    (medium,) = probe_medium(ProbeTask(path=str(path), depth=depth))
    seconds = time.perf_counter() - started
    assert medium.timeline is not None, medium.problem
    assert medium.timeline.depth == depth
    return {"seconds": seconds}


def make_clip(path: Path, folder: Path) -> tuple[Path, int, dict[str, float]]:
    """Index a video and shard a clip of its last frame; return the dataset, the number of frames, and the seconds."""
    started = time.perf_counter()
    build_index(IndexOptions(sources=[str(path)], out=folder / "INDEX", workers=1))
    indexed = time.perf_counter()
    index = Index(folder / "INDEX")
    (row,) = index.videos.to_pylist()
    count = int(row["frame_count"])
    request = ExplicitClip(line=1, clip_id="last", uri=row["uri"], frames=[count - 1])
    build_from_requests(index, folder / "DATASET", written([request], folder / "clips.jsonl"), choose="nearest")
    spent = {"index": round(indexed - started, 3), "shard": round(time.perf_counter() - indexed, 3)}
    return folder / "DATASET", count, spent


def time_clip(loader: ClipLoader, truth: Frames | None = None) -> dict[str, float]:
    """Return the seconds of one pass over a dataset of one clip."""
    started = time.perf_counter()
    (batch,) = list(loader)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    found = batch["frames"][0, 0].cpu().numpy().astype(np.int16)
    return {"seconds": seconds} | ({} if truth is None else {"away": float(np.abs(found - truth).mean())})


def contenders(path: Path, warm_up: Path, clips: ClipDataset, count: int) -> dict[str, Timed]:
    """Return the contenders for a video. Each has run once on the short video."""
    loader = ClipLoader(clips, device="gpu")
    last, truth = count - 1, clips[0]["frames"][0]
    content, short = np.fromfile(path, np.uint8), np.fromfile(warm_up, np.uint8)
    with_index, without = dali_decoder(True), dali_decoder(False)
    for pipeline in (with_index, without):
        time_decoder(pipeline, short, 0)
    for experimental in (False, True):
        time_reader(warm_up, experimental)
    time_probe(warm_up, "packets")
    time_clip(loader)
    return {
        "dali_decoder_index_first_frame": lambda: time_decoder(with_index, content, 0),
        "dali_decoder_index_last_frame": lambda: time_decoder(with_index, content, last, truth),
        "dali_decoder_no_index_first_frame": lambda: time_decoder(without, content, 0),
        "dali_decoder_no_index_last_frame": lambda: time_decoder(without, content, last, truth),
        "dali_reader_first_frame": lambda: time_reader(path, False),
        "dali_reader_last_frame": lambda: time_reader(path, False, last, truth),
        "dali_experimental_reader_first_frame": lambda: time_reader(path, True),
        "dali_experimental_reader_last_frame": lambda: time_reader(path, True, last, truth),
        "framedex_probe_tables": lambda: time_probe(path, "tables"),
        "framedex_probe_packets": lambda: time_probe(path, "packets"),
        "framedex_clip_last_frame": lambda: time_clip(loader, truth),
    }


def measure(path: Path, warm_up: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time every contender on one video."""
    with tempfile.TemporaryDirectory() as scratch:
        dataset, count, spent = make_clip(path, Path(scratch))
        ways = contenders(path, warm_up, ClipDataset(dataset), count)
        taken: dict[str, list[dict[str, float]]] = {}
        failed: dict[str, str] = {}
        for turn in range(options.repeat):
            for name, way in ways.items():
                if (turn and name in options.once) or name in failed:
                    continue
                try:
                    taken.setdefault(name, []).append(way())
                except RuntimeError as error:
                    failed[name] = str(error)[:400]
                print(path.name, name, taken.get(name, [])[-1:], failed.get(name, ""), file=sys.stderr, flush=True)
    return {
        "video": path.name,
        "bytes": path.stat().st_size,
        "packets": count,
        "median_seconds": {
            name: {key: round(statistics.median(one[key] for one in turns), 4) for key in turns[0]}
            for name, turns in taken.items()
            if turns
        },
        "all_seconds": {name: [round(one["seconds"], 4) for one in turns] for name, turns in taken.items()},
        "failed": failed,
        "framedex_command_seconds": spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--packets", type=int, default=180_000)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--once", type=lambda text: text.split(","), default=[], help="names of what is timed once")
    options = parser.parse_args()
    facts = environment("nvidia-dali-cuda120", "torch") | {"gpu": torch.cuda.get_device_name(0)}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        videos = make_videos(Path(scratch), options.packets, options.megabytes)
        results = [measure(videos[name], videos["short"], options) for name in ("low_bit_rate", "high_bit_rate")]
    print(json.dumps({"environment": facts, "results": results}, indent=2))


if __name__ == "__main__":
    main()
