"""Indexes and datasets that change: a listing with captions, a search of all bytes, and kills at every moment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.datasets import run
from tests.support.running import environment

COUNT = 24
NAME, CAPTION = "secret{:02d}", "caption of {:02d}"

# Imports framedex once. Each line of its input has a command, the seconds after which to kill it, and the number of the
# renaming or deletion before which to kill it, or null. Each command runs in a fork. Its exit code, the seconds that it
# ran, and the number of its renamings and deletions are written.
FORKS = """
import json, os, runpy, shutil, signal, sys, time
from pathlib import Path
main = runpy.run_module("framedex")["main"]
def run(arguments, moment, told):
    done = [0]
    def killing(call):
        def killed_or_called(*arguments, **options):
            if done[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            return call(*arguments, **options)
        return killed_or_called
    os.replace, os.rename, Path.unlink = map(killing, (os.replace, os.rename, Path.unlink))
    shutil.rmtree = killing(shutil.rmtree)
    try:
        main(arguments)
    except SystemExit as end:
        os.write(told, str(done[0]).encode())
        os._exit(end.code or 0)
for line in sys.stdin:
    arguments, seconds, moment = json.loads(line)
    begun = time.perf_counter()
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        run(arguments, moment, told)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(told)
    count = os.read(heard, 20)
    os.close(heard)
    print(json.dumps([code, time.perf_counter() - begun, int(count or -1)]), flush=True)
"""


class Forks:
    """A process that runs framedex commands in a folder, each in a fork, and kills them on request."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            cwd=folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        # Of the last command: how long it ran, and how many renamings and deletions it had, or -1 if it was killed.
        self.seconds, self.moments = 0.0, -1

    def run(self, *arguments: str, kill_after: float | None = None, kill_before: int | None = None) -> int:
        """Run a command, and return its exit code.

        Args:
            kill_after: the seconds after which to kill it.
            kill_before: the number, from 0 on, of the renaming or deletion of a file before which to kill it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, kill_after, kill_before]) + "\n")
        self._process.stdin.flush()
        code, self.seconds, self.moments = json.loads(self._process.stdout.readline())
        return int(code)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def copy_videos(place: Path, medium: Callable[[str], Path]) -> None:
    """Fill the folder `videos` with videos of several kinds."""
    (place / "videos").mkdir()
    kinds = ("h264_open_gop.mp4", "h264_single.mp4", "h264_audio.mp4")
    for number in range(COUNT):
        shutil.copy(medium(kinds[number % len(kinds)]), place / "videos" / f"{NAME.format(number)}.mp4")


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
