"""The cost of removing 1 % of a dataset's media, as a share of the cost of making the dataset: time, and bytes written.

A dataset has clips of 16 consecutive frames of copies of a video (`--media`), by reference and packed into tars. Either
media that follow one another are removed, or media at random places. Each command runs in a process of its own. On a
disk, or on a real S3 server (Ceph's gateway) with `--ceph`.

The fields of a row:
- `made_seconds`, `made_bytes`: the time of `framedex shard`, and the size of the dataset.
- `removed_seconds`, `removed_bytes`: the time of `framedex shard --remove`, and the size of its new files. Medians over
  `--turns`, each of which removes other media from the same dataset.
- `empty_seconds`: the time of a `framedex shard --remove` that finds no medium, most of which is the start of Python.
- `seconds_share`, `bytes_share`: the same as shares. The time of the empty command is subtracted from both times.
- `tars`, `tars_anew`: the number of tars, and of those that were written anew.

usage: python -m benchmarks.living FOLDER --video VIDEO --out RESULTS [--media 1000] [--ceph]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.environment import environment
from benchmarks.row_file import Row, RowFile
from framedex.storage.objects import listing

# By way: the distance of the windows in frames, and options. There are many clips by reference, since a part has 4,096.
WAYS: dict[str, tuple[int, list[str]]] = {"by reference": (1, []), "packed": (16, ["--pack", "clips", "--shard-size"])}
POLICY = "{{policy: windows, frames: 16, stride: 1, step: {}, last: drop}}"
PLACES = ("following one another", "at random")


def framedex(*arguments: object) -> float:
    """Run a framedex command and return its seconds. Raises CalledProcessError if it fails."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "framedex", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def files(dataset: str) -> dict[str, int]:
    """Return the size in bytes of each file of a dataset."""
    if "://" in dataset:
        return {uri.removeprefix(f"{dataset}/"): facts.size_bytes for uri, facts in listing(dataset)}
    paths = [path for path in Path(dataset).rglob("*") if path.is_file()]
    return {str(path.relative_to(dataset)): path.stat().st_size for path in paths}


def measure(home: Path, base: str, way: str, where: str, options: argparse.Namespace) -> Row:
    """Return the row of one way of making a dataset, and one choice of media."""
    count = options.media
    if not (home / "INDEX").exists():
        (home / "videos").mkdir(parents=True)
        for number in range(count):
            (home / "videos" / f"{number:06d}.mp4").symlink_to(options.video.resolve())
        framedex("index", home / "videos", "--follow-symlinks", "--out", home / "INDEX")
    dataset = f"{base}/{way}-{where}".replace(" ", "_")
    step, pack = WAYS[way]
    tars = [*pack, options.shard_size] if pack else []
    shard = ["shard", home / "INDEX", "--policy", POLICY.format(step), "--out", dataset, *tars]
    row: Row = {"made_seconds": framedex(*shard)}
    made = files(dataset)
    row["made_bytes"] = sum(made.values())
    row["empty_seconds"] = statistics.median(framedex("shard", dataset, "--remove", "none") for _ in range(3))
    left, chance = list(range(count)), np.random.default_rng(1)
    seconds, written, anew = [], [], []
    for _ in range(options.turns):
        some = count // 100
        first = int(chance.integers(len(left) - some))
        taken = left[first : first + some] if where == PLACES[0] else chance.choice(left, some, replace=False).tolist()
        left = sorted({*left} - {*taken})
        (home / "list.txt").write_text("".join(f"{number:06d}.mp4\n" for number in taken))
        before = files(dataset)
        seconds.append(framedex("shard", dataset, "--remove", f"@{home / 'list.txt'}"))
        new = {name: size for name, size in files(dataset).items() if name not in before or name == "dataset.json"}
        written.append(sum(new.values()))
        anew.append(sum(name.endswith(".tar") for name in new))
    row |= {"removed_seconds": statistics.median(seconds), "removed_bytes": statistics.median(written)}
    made_seconds, removed_seconds = (row[name] - row["empty_seconds"] for name in ("made_seconds", "removed_seconds"))
    row |= {"seconds_share": removed_seconds / made_seconds, "bytes_share": row["removed_bytes"] / row["made_bytes"]}
    row |= {"tars": sum(name.endswith(".tar") for name in made), "tars_anew": statistics.median(anew)}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


@contextlib.contextmanager
def served(folder: Path, *, ceph: bool) -> Iterator[str]:
    """Provide the folder or uri in which datasets are made."""
    if not ceph:
        (folder / "datasets").mkdir()
        yield str(folder / "datasets")
        return
    from tests.support import rgw

    (folder / "ceph").mkdir()
    with rgw.running(folder / "ceph") as server:
        os.environ.update(server.environment())
        rgw.create_bucket(server, "benchmark")
        yield "s3://benchmark/datasets"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder, which is deleted at the end")
    parser.add_argument("--video", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--media", type=int, default=1000)
    parser.add_argument(
        "--shard-size", default="16MB", help="so that a dataset of some GB has as many tars as large ones"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ceph", action="store_true")
    options = parser.parse_args()
    os.environ["FRAMEDEX_ALLOW_REMOTE"] = "1"
    setup = {"media": options.media, "shard_size": options.shard_size, "turns": options.turns}
    rows = RowFile(options.out, environment("pyarrow"), setup)
    options.folder.mkdir(parents=True)
    try:
        with served(options.folder, ceph=options.ceph) as base:
            for way in WAYS:
                for where in PLACES:
                    key = {"store": "Ceph" if options.ceph else "disk", "way": way, "media": where}
                    if not rows.has(**key):
                        rows.add(key | measure(options.folder, base, way, where, options))
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
