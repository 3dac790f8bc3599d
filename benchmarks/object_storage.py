"""Load clips from slow object storage and from a disk, and measure how busy each keeps a CPU decoder.

Starts a real S3 server (Ceph's gateway, from Debian's packages ceph-mon, ceph-osd and radosgw) and a proxy that adds a
delay to every response. Both share the machine with the decoder. VIDEO is any video; for the quoted figures it was

    ffmpeg -f lavfi -i testsrc2=s=1280x720:d=300:r=30 -vf noise=alls=8:allf=t -c:v libx264 -preset veryfast \
-b:v 5M -g 60 VIDEO

Clips are 16 consecutive frames at random places, scaled to 224×224. Each configuration loads all clips once to warm up
and then several times; configurations take turns. Busy: CPU time of the loader's workers divided by that of as many
cores. As a peer, PyAV seeks in the object itself, through obstore's buffered reader, for a few clips.

usage: python -m benchmarks.object_storage VIDEO --folder FOLDER [--delay 0.03] [--clips 128] [--in-flight 16]
                                           [--runs 3]
"""

from __future__ import annotations

import argparse
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
import numpy as np

from benchmarks.environment import environment
from framedex import ClipDataset, ClipLoader, DiskCache
from framedex.storage.objects import upload
from tests.support import rgw

FRAMES, BATCH, SIZE = 16, 16, (224, 224)
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PEER_CLIPS = 8


def framedex(*arguments: object) -> None:
    """Run a framedex command.

    Raises:
        CalledProcessError: the command failed.
    """
    command = [sys.executable, "-c", "from framedex.cli import main; main()", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU time that some processes have used so far."""
    total = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_A_SECOND


def epoch(loader: ClipLoader) -> tuple[float, float]:
    """Load all clips; return (seconds, CPU seconds of the workers)."""
    before, begun = cpu_seconds(loader._batches.process_ids), time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begun, cpu_seconds(loader._batches.process_ids) - before


class _Bytes:
    """An adapter of obstore's reader that returns bytes, as PyAV requires."""

    def __init__(self, reader: Any) -> None:
        self._reader, self.seek, self.tell = reader, reader.seek, reader.tell

    def read(self, size: int) -> bytes:
        return bytes(self._reader.read(size))


def seek_in_object(uri: str, clips: list[list[int]], rate: float) -> float:
    """Decode a few clips by seeking in the object; return the seconds."""
    import obstore
    from obstore.store import from_url

    store, _, key = uri.removeprefix("s3://").partition("/")
    begun = time.perf_counter()
    for frames in clips:
        reader = _Bytes(obstore.open_reader(from_url(f"s3://{store}"), key))
        with av.open(reader, mode="r") as container:
            stream = container.streams.video[0]
            assert stream.time_base is not None
            container.seek(int(frames[0] / rate / stream.time_base), stream=stream)
            left = FRAMES
            for frame in container.decode(stream):
                if frame.time is not None and round(frame.time * rate) >= frames[0]:
                    frame.to_ndarray(format="rgb24")
                    left -= 1
                if not left:
                    break
    return time.perf_counter() - begun


def prepare(video: Path, folder: Path, bucket: str, clips: int) -> list[list[int]]:
    """Write the video, an index and datasets, here and in the bucket; return the frames of each clip."""
    framedex("index", video, "--root", video.parent, "--out", folder / "INDEX")
    with av.open(str(video)) as container:
        count = container.streams.video[0].frames
    starts = np.random.default_rng(0).integers(0, count - FRAMES, clips).tolist()
    wanted = [{"uri": video.name, "frames": list(range(start, start + FRAMES))} for start in starts]
    (folder / "clips.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in wanted), encoding="utf-8")
    framedex("shard", folder / "INDEX", "--clips", folder / "clips.jsonl", "--out", folder / "DATASET")
    upload(video, f"{bucket}/videos/{video.name}")
    framedex("index", f"{bucket}/videos/{video.name}", "--out", f"{bucket}/INDEX")
    framedex("shard", f"{bucket}/INDEX", "--clips", folder / "clips.jsonl", "--out", f"{bucket}/DATASET")
    return [clip["frames"] for clip in wanted]


def measure(options: argparse.Namespace, bucket: str) -> dict[str, Any]:
    """Return the rows of all configurations."""
    clips = prepare(options.video, options.folder, bucket, options.clips)
    cache = DiskCache(options.folder / "cache")
    command = [
        sys.executable,
        "-m",
        "tests.support.proxy",
        os.environ["AWS_ENDPOINT_URL"],
        "--delay",
        str(options.delay),
    ]
    proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert proxy.stdout is not None
    os.environ["AWS_ENDPOINT_URL"] = proxy.stdout.readline().strip()
    uri, cores = f"{bucket}/videos/{options.video.name}", os.cpu_count() or 1
    many = options.in_flight
    ways: dict[str, tuple[Callable[[], ClipDataset], int]] = {
        "on a disk": (lambda: ClipDataset(options.folder / "DATASET", size=SIZE), cores),
        "in a bucket, a worker a core": (lambda: ClipDataset(f"{bucket}/DATASET", size=SIZE), cores),
        f"in a bucket, {many} workers": (lambda: ClipDataset(f"{bucket}/DATASET", size=SIZE), many),
        f"in a bucket, {many} workers, cached": (
            lambda: ClipDataset(f"{bucket}/DATASET", size=SIZE, cache=cache),
            many,
        ),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(options.runs):
        for name, (open_dataset, workers) in ways.items():
            loader = ClipLoader(open_dataset(), batch_size=BATCH, num_workers=workers, output="numpy", prefetch=2)
            if turn == 0 or workers != cores:
                epoch(loader)  # starts the processes and fills the caches of manifests
            found[name].append(epoch(loader))
            loader.close()
            print(turn, name, found[name][-1], file=sys.stderr, flush=True)
    rows = []
    for name, (_, workers) in ways.items():
        seconds = [one for one, _ in found[name]]
        busy = [cpu / (cores * one) for one, cpu in found[name]]
        rows.append({"way": name, "workers": workers, "seconds": seconds, "busy": busy})
    taken = seek_in_object(uri, clips[:PEER_CLIPS], 30)
    proxy.kill()
    for row in rows:
        row |= {"median_seconds": statistics.median(row["seconds"]), "median_busy": statistics.median(row["busy"])}
    return {"ways": rows, "peer": {"clips": PEER_CLIPS, "seconds": taken}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path, metavar="VIDEO")
    parser.add_argument("--folder", type=Path, required=True, help="where everything is made")
    parser.add_argument("--delay", type=float, default=0.03, metavar="SECONDS", help="added to every answer")
    parser.add_argument("--clips", type=int, default=128)
    parser.add_argument("--in-flight", type=int, default=16, help="workers, and so clips that are fetched at a time")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    with rgw.running(options.folder) as server:
        os.environ.update(server.environment())
        rgw.create_bucket(server, "benchmark")
        result = measure(options, "s3://benchmark")
    setup = {"clips": options.clips, "frames_a_clip": FRAMES, "batch_size": BATCH, "delay_seconds": options.delay}
    print(json.dumps({"environment": environment("obstore"), "setup": setup} | result, indent=2))


if __name__ == "__main__":
    main()
