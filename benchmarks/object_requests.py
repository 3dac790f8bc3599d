"""Count the requests to object storage, and their bytes, for indexing a video and for loading clips of it. No timing.

Starts a real S3 server (Ceph's gateway). There are two kinds of clips: 16 consecutive frames at random places, and 16
frames one second apart. Each is loaded by reference, through a dataset in the bucket, in shuffled order.

usage: python -m benchmarks.object_requests VIDEO --folder FOLDER [--clips 64]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.environment import environment
from framedex import ClipDataset
from framedex.indexer.probing.probe import ProbeTask
from framedex.indexer.runs.existence import probe_media
from framedex.storage.objects import upload
from tests.support import proxy as proxies
from tests.support import rgw
from tests.support.proxy import Proxy

FRAMES = 16


def framedex(*arguments: object) -> None:
    """Run a framedex command.

    Raises:
        CalledProcessError: the command failed.
    """
    command = [sys.executable, "-c", "from framedex.cli import main; main()", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def asked(proxy: Proxy) -> dict[str, int]:
    """Return the requests since the last call."""
    found = {"requests": len(proxy.requests), "bytes": proxy.body_bytes}
    proxy.forget()
    return found


def load(proxy: Proxy, dataset: str, video: str) -> dict[str, Any]:
    """Return the requests per clip for loading all clips of a dataset."""
    clips = ClipDataset(dataset)
    opening = asked(proxy)
    for number in np.random.default_rng(0).permutation(len(clips)).tolist():
        clip = clips.clip(number)
        clips.sources.read(clip)
    wanted = [int(clips.clip(number).recipe.range_length.sum()) for number in range(len(clips))]
    ranges = proxy.count("GET", video)
    return {"opening": opening, "source_requests": ranges / len(clips), "wanted_bytes": float(np.mean(wanted))} | {
        name: value / len(clips) for name, value in asked(proxy).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path, metavar="VIDEO")
    parser.add_argument("--folder", type=Path, required=True, help="where everything is made")
    parser.add_argument("--clips", type=int, default=64)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    with av.open(str(options.video)) as container:
        stream = container.streams.video[0]
        count, rate = stream.frames, round(stream.average_rate or 1)
    result: dict[str, Any] = {"environment": environment("obstore"), "clips": options.clips}
    with rgw.running(options.folder) as server:
        os.environ.update(server.environment())
        rgw.create_bucket(server, "benchmark")
        uri = f"s3://benchmark/videos/{options.video.name}"
        upload(options.video, uri)
        with proxies.running(server.endpoint) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
            from framedex.storage import objects

            objects._store.cache_clear()
            (medium,) = probe_media(ProbeTask(path=uri))
            assert medium.identity is not None, medium.problem
            assert medium.timeline is not None, medium.problem
            facts = {"size_bytes": medium.identity.size_bytes, "depth": medium.timeline.depth}
            result["indexing"] = facts | asked(proxy)
            framedex("index", uri, "--out", "s3://benchmark/INDEX")
            for name, step in (("consecutive", 1), ("a second apart", rate)):
                starts = np.random.default_rng(0).integers(0, count - FRAMES * step, options.clips).tolist()
                wanted = [
                    {"uri": options.video.name, "frames": [start + step * n for n in range(FRAMES)]} for start in starts
                ]
                path = options.folder / f"{step}.jsonl"
                path.write_text("".join(json.dumps(clip) + "\n" for clip in wanted), encoding="utf-8")
                asked(proxy)
                framedex("shard", "s3://benchmark/INDEX", "--clips", path, "--out", f"s3://benchmark/D{step}")
                planning = {key: value / options.clips for key, value in asked(proxy).items()}
                loading = load(proxy, f"s3://benchmark/D{step}", options.video.name)
                result[name] = {"planning": planning, "loading": loading}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
