"""How much faster `framedex shard` plans with several processes: a million clips by reference, in the same bytes.

The index is synthetic, of full depth, and on disk. Each run plans clips of 16 frames in a row and writes the manifest.
What was expected: nearly twice as fast with two processes on two cores, because the process that writes has little
to do.

usage: python -m benchmarks.plan_workers FOLDER [--media 4500] [--frames 3600] [--workers 1 2]   prints JSON
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.index_rows import write_index
from framedex.indexer.parts.index import Index
from framedex.sharder.build import DEFAULTS, build_from_policy
from framedex.sharder.policies.reading import make_policy

POLICY = {"policy": "windows", "frames": 16, "last": "drop"}


def digest_of(folder: Path) -> str:
    """Return a digest of the names and the content of all files of a folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--media", type=int, default=4500)
    parser.add_argument("--frames", type=int, default=3600)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    index = options.folder / f"INDEX-{options.media}-{options.frames}"
    if not index.exists():
        write_index(index, options.media, options.frames)
    rows = []
    for workers in options.workers:
        out = options.folder / "DATASET"
        shutil.rmtree(out, ignore_errors=True)
        began = time.perf_counter()
        report = build_from_policy(
            Index(index), out, make_policy(POLICY, where="benchmark"), replace(DEFAULTS, workers=workers)
        )
        seconds = time.perf_counter() - began
        rows.append(
            {
                "workers": workers,
                "clips": report.clips,
                "seconds": round(seconds, 1),
                "clips_a_minute": round(60 * report.clips / seconds),
                "digest": digest_of(out),
            }
        )
        shutil.rmtree(out)
    print(json.dumps({"environment": environment(), "policy": POLICY, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
