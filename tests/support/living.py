"""Indexes and datasets that change: a listing with captions, a search of all bytes, and kills at every moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.datasets import run

COUNT = 24
NAME, CAPTION = "secret{:02d}", "caption of {:02d}"

# At the n-th time that a file is renamed or deleted, the process is killed before it happens.
DRIVER = """
import os, runpy, signal, sys
from pathlib import Path
left = [int(sys.argv.pop(1))]
def killing(call):
    def killed_or_called(*arguments, **options):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call(*arguments, **options)
    return killed_or_called
os.replace, Path.unlink = killing(os.replace), killing(Path.unlink)
runpy.run_module("framedex", run_name="__main__", alter_sys=True)
"""


def write_listing(place: Path, numbers: Sequence[int], name: str = "listing.csv") -> Path:
    lines = [f"videos/{NAME.format(number)}.mp4,{CAPTION.format(number)}" for number in numbers]
    (place / name).write_text("\n".join(["uri,caption", *lines]) + "\n")
    return place / name


def index(place: Path, *sources: object, code: int = 0, **options: object) -> dict[str, Any]:
    """Index sources, by default the listing, into INDEX; return the report, or the output if it fails."""
    words = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
    ]
    said = run("index", *(sources or [place / "listing.csv"]), "--out", place / "INDEX", *words, "--json", code=code)
    return dict(json.loads(said.output)) if code == 0 else {"output": said.output}


def files_with(place: Path, text: str) -> list[str]:
    """Return the names of the files that contain a text, in whatever way a Parquet file stores it."""
    found = []
    for path in sorted(place.rglob("*")):
        if not path.is_file():
            continue
        words = [path.read_bytes()]
        if path.suffix == ".parquet":
            words.append(str(pq.read_table(path).to_pylist()).encode())
        if any(text.encode() in one for one in words) or text in path.name:
            found.append(path.name)
    return found
