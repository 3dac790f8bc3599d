"""Hashes of all that framedex writes and prints for a few small media, which are stored in tests/data/guard.

They guard a change that is meant to keep behaviour: an equal hash for each column of each table, each member of each
tar, each value of what a command prints with `--json`, and each key of a clip's item.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from framedex import ClipDataset, decode_sample
from tests.support.datasets import run, write_clips
from tests.support.packed import samples
from tests.support.running import ROOT

MEDIA = ROOT / "tests" / "data" / "guard"
TIME = 1_700_000_000  # modification time of each file
LISTING = """uri,label,episode,camera,from_s,to_s,note
plain.mp4,walk,e,front,0,1,"a, b"
vfr.mkv,run,e,wrist,0.2,1.5,
old.avi,walk,f,front,,,c
"""
# name → arguments of `framedex index`
INDEXES = {
    "LISTED": ["list.csv", "--verify"],
    "FOUND": ["stills", "samples.tar", "slots.mp4", "--depth", "packets", "--image-fps", "5"],
    "TABLES": ["closed.mp4", "--depth", "tables"],
}
CLIPS = [
    {"clip_id": "one", "uri": "plain.mp4", "frames": [3, 30, -1, 3], "weight": 0.5, "tags": ["x", "y"]},
    {"clip_id": "two", "uri": "vfr.mkv", "seconds": [0.1, 0.5, 9], "weight": None, "tags": []},
    {"clip_id": "wrong", "uri": "old.avi", "frames": [99], "weight": 1.0, "tags": None},
]
WINDOWS = "{policy: windows, frames: 4, stride: 3, last: pad}"
VIEWS = "{policy: fps, fps: 5, frames: 3, last: pad, views: {group: episode, view: camera, clock: front, %s}}"
# name → index and arguments of `framedex shard`
DATASETS = {
    "WINDOWS": ["LISTED", "--policy", WINDOWS, "--labels", "label"],
    "RANGES": ["LISTED", "--policy", "{policy: uniform, frames: 3, range: {start: from_s, end: to_s}}"],
    "EXPLICIT": ["LISTED", "--clips", "clips.jsonl", "--outside", "pad", "--max-failures", "9"],
    "VIEWS": ["LISTED", "--policy", VIEWS % "missing: mask"],
    "ANCHORED": ["TABLES", "--policy", "{policy: keyframes, frames: 3}"],
    "PACKED": ["LISTED", "--policy", WINDOWS, "--pack", "clips", "--audio", "--audio-format", "wav"],
    "VIEWS_PACKED": [
        "LISTED",
        "--policy",
        VIEWS % "missing: skip",
        "--pack",
        "images",
        "--image-format",
        "png",
        "--short-side",
        "48",
    ],
    "NEEDED": ["FOUND", "--policy", "{policy: stride, stride: 2, frames: 2, last: pad}", "--pack", "needed"],
    "IMAGES": ["FOUND", "--policy", "{policy: fps, fps: 5, frames: 2}", "--pack", "images"],
}
OF_BYTES = ("shards.parquet", "fingerprint")
OF_HEADERS = ("root", "job", "build")  # keys that depend on the place of the media, and on bytes of JSON
COLUMNS = "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY ALL"


def guarded(scratch: Path) -> dict[str, str]:
    """Return the hashes by name. `scratch`: an empty folder, which the names and hashes do not depend on."""
    for source in MEDIA.iterdir():
        (shutil.copytree if source.is_dir() else shutil.copy)(source, scratch / source.name)
    with contextlib.chdir(scratch):
        Path("list.csv").write_text(LISTING, "utf-8")
        write_clips(Path("clips.jsonl"), CLIPS)
        for path in [*scratch.rglob("*")]:
            os.utime(path, (TIME, TIME))
        found = dict(_everything())
    return {name: _hash(value, scratch) for name, value in found.items()}


def _everything() -> Iterator[tuple[str, Any]]:
    for name, arguments in INDEXES.items():
        yield from _printed(f"index {name}", "index", *arguments, "--root", ".", "--out", name, "--workers", "0")
        yield from _read(name)
    for name, arguments in DATASETS.items():
        yield from _printed(f"shard {name}", "shard", *arguments, "--out", name, "--workers", "0")
        yield from _read(name)
        verdicts = run("verify", name, "--workers", "0", "--json").stdout.splitlines()
        yield f"verify {name}", [json.loads(line) for line in verdicts]
        dataset = ClipDataset(name)
        yield from _items(f"{name} items", [dataset[number] for number in range(len(dataset))])
        packed = samples(Path(name)) if list(Path(name).glob("shards/*.tar")) else ()
        yield from _items(f"{name} samples", [decode_sample(sample) for _, sample in packed])
    for name in (*INDEXES, *DATASETS):
        yield from _printed(f"audit {name}", "audit", name)
        yield f"views {name}", json.loads(run("audit", name, "--sql", COLUMNS, "--json").stdout)


def _printed(name: str, *arguments: str) -> Iterator[tuple[str, Any]]:
    """Yield the top-level values that a command prints."""
    for key, value in json.loads(run(*arguments, "--json").stdout).items():
        yield f"{name} {key}", value


def _read(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the content of an index or a dataset."""
    for path in sorted(path for path in Path(name).rglob("*") if path.is_file()):
        if path.suffix == ".parquet":
            table = pq.read_table(path, partitioning=None)
            yield f"{path} columns", table.schema.names
            for field in table.schema:
                if (path.name, field.name) == OF_BYTES:
                    continue
                yield f"{path} {field.name}", _column(field, table[field.name])
        elif path.suffix == ".tar":
            with tarfile.open(path) as tar:
                yield f"{path} members", tar.getnames()
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    yield f"{path} {member.name}", _member(member.name, file.read())
        elif path.suffix == ".json":
            content = json.loads(path.read_bytes())
            yield str(path), {key: value for key, value in content.items() if key not in OF_HEADERS}
        else:
            yield str(path), path.read_bytes()


def _member(name: str, content: bytes) -> object:
    """Return the content of a member. The order of keys in JSON is of no account, and neither is that of items."""
    if not name.endswith(".json"):
        return content
    found = json.loads(content)
    return found | {"framedex": json.loads(found["framedex"])} if "framedex" in found else found


def _column(field: pa.Field, values: pa.ChunkedArray) -> tuple[str, bool, list[Any]]:
    return str(field.type), field.nullable, values.to_pylist()


def _items(name: str, items: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the values of each key; of pixels types and shapes, since they may differ by the processor's rounding."""
    yield f"{name} keys", [sorted(item) for item in items]
    for key in dict.fromkeys(key for item in items for key in item):
        yield f"{name} {key}", [_shown(key, item.get(key)) for item in items]


def _shown(key: str, value: object) -> object:
    if not isinstance(value, np.ndarray):
        return repr(value)
    return str(value.dtype), value.shape, None if key == "frames" else value.tolist()


def _hash(value: object, scratch: Path) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value, default=repr, sort_keys=True).encode()
    return hashlib.blake2b(content.replace(str(scratch).encode(), b"SCRATCH"), digest_size=8).hexdigest()
