"""The cost of appending or removing 1 % of a dataset's media, as a share of the cost of making it: time, bytes written.

A dataset has clips of 16 consecutive frames of copies of a video (`--media`), by reference and packed into tars. Either
media that follow one another are removed, or media at random places. Each command runs in a process of its own. On a
disk, or on a real S3 server (Ceph's gateway) with `--ceph`.

The fields of a row:
- `made_seconds`, `made_bytes`, `tars`: the time of `framedex shard`, the size of the dataset, the number of its tars.
- `seconds`, `bytes`: the time of `framedex shard --append` or `--remove`, and the size of its new files. For removing,
  medians over `--turns`, each of which removes other media from the same dataset.
- `empty_seconds`: the time of a `framedex shard --remove` that finds no medium, most of which is the start of Python.
- `seconds_share`, `bytes_share`: the same as shares. The time of the empty command is subtracted from both times.
- `tars_written`: the number of new tars.

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


def made_index(home: Path, name: str, media: int, video: Path) -> Path:
    """Return the index of copies of a video. It is made first."""
    if not (home / name).exists():
        (home / "videos").mkdir(parents=True, exist_ok=True)
        paths = [home / "videos" / f"{number:06d}.mp4" for number in range(media)]
        for path in paths:
            if not path.is_symlink():
                path.symlink_to(video.resolve())
        (home / f"{name}.txt").write_text("".join(f"videos/{path.name}\n" for path in paths))
        framedex("index", f"@{home / name}.txt", "--follow-symlinks", "--out", home / name)
    return home / name


def measure(home: Path, base: str, way: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of one way of making a dataset: of appending, and of removing by each choice of media."""
    count, some = options.media, options.media // 100
    step, pack = WAYS[way]
    dataset = f"{base}/{way}".replace(" ", "_")
    plan = ["--policy", POLICY.format(step), "--out", dataset, *pack, *([options.shard_size] if pack else [])]
    few, all_ = (made_index(home, f"INDEX{media}", media, options.video) for media in (count - some, count))
    made_seconds = framedex("shard", few, *plan)
    made = files(dataset)
    empty = statistics.median(framedex("shard", dataset, "--remove", "none") for _ in range(3))
    facts: Row = {"made_seconds": made_seconds, "made_bytes": sum(made.values()), "empty_seconds": empty}
    facts["tars"] = sum(name.endswith(".tar") for name in made)

    def row(change: str, seconds: list[float], written: list[int], anew: list[int]) -> Row:
        found = facts | {"change": change, "seconds": statistics.median(seconds), "bytes": statistics.median(written)}
        found["seconds_share"] = (found["seconds"] - empty) / (made_seconds - empty)
        found |= {"bytes_share": found["bytes"] / facts["made_bytes"], "tars_written": statistics.median(anew)}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}

    def changed(*command: object) -> tuple[float, int, int]:
        """Run a command, and return its seconds, the bytes of its new files, and the number of new tars."""
        before = files(dataset)
        seconds = framedex("shard", *command)
        new = {name: size for name, size in files(dataset).items() if name not in before or name == "dataset.json"}
        return seconds, sum(new.values()), sum(name.endswith(".tar") for name in new)

    seconds, written, anew = changed(all_, *plan, "--append")
    yield row("append", [seconds], [written], [anew])
    left, chance = list(range(count)), np.random.default_rng(1)
    for where in PLACES:
        found = []
        for _ in range(options.turns):
            first = int(chance.integers(len(left) - some))
            neighbours = where == PLACES[0]
            taken = left[first : first + some] if neighbours else chance.choice(left, some, replace=False).tolist()
            left = sorted({*left} - {*taken})
            (home / "list.txt").write_text("".join(f"videos/{number:06d}.mp4\n" for number in taken))
            found.append(changed(dataset, "--remove", f"@{home / 'list.txt'}"))
        times, sizes, tars = map(list, zip(*found, strict=True))
        yield row(f"remove, {where}", times, sizes, tars)


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
                key = {"store": "Ceph" if options.ceph else "disk", "way": way}
                if not rows.has(**key):
                    for row in measure(options.folder, base, way, options):
                        rows.add(key | row)
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
