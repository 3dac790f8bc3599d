"""Index runs that are killed at any moment: readers never see partial data, and a rerun completes the index."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framedex import Index
from framedex.errors import FormatError
from tests.support.depth import rounds
from tests.support.running import environment

Medium = Callable[[str], Path]
Row = dict[str, Any]

MEDIA, KILLS = 120, rounds("kills of an index run")
# Six media per part, so that a run of one second writes many parts.
DRIVER = """
import runpy
from framedex.indexer.parts import part_pairs
part_pairs.FILES_A_PART = 6
if __name__ == "__main__":
    runpy.run_module("framedex", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def videos(tmp_path: Path, medium: Medium) -> Path:
    """A folder of many small media; every tenth is cut in half."""
    folder = tmp_path / "videos"
    folder.mkdir()
    names = ["h264_single.mp4", "h264_all_intra.mp4", "h264_vfr.mkv", "hevc_closed.mp4", "h264_audio.mkv"]
    for number in range(MEDIA):
        source = medium(names[number % len(names)])
        content = source.read_bytes()
        whole = number % 10 != 9
        (folder / f"{number:03d}{source.suffix}").write_bytes(content if whole else content[: len(content) // 2])
    return folder


def start(videos: Path, out: Path) -> subprocess.Popen[bytes]:
    driver = out.parent / "driver.py"
    driver.write_text(DRIVER)
    command = [sys.executable, str(driver), "index", str(videos), "--out", str(out), "--workers", "2"]
    command += ["--max-failures", str(MEDIA)]
    return subprocess.Popen(command, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL)


def content(out: Path) -> dict[str, tuple[Row, list[list[int]]]]:
    """Return everything that an index records of each medium, by uri, without the values that differ between runs."""
    index = Index(out)
    found = {}
    for row in index.videos.to_pylist():
        packets = index.packets(row["media_id"])
        columns = [
            packets.pts.tolist(),
            None if packets.offset is None else packets.offset.tolist(),
            packets.size.tolist(),
            packets.flags.tolist(),
        ]
        assert row["packet_count"] is None or row["packet_count"] == len(packets.pts)
        assert (row["status"] == "ok") == bool(len(packets.pts))
        found[row["uri"]] = ({key: row[key] for key in row if key not in ("probed_by", "mtime_ns")}, columns)
    return found


@contextlib.contextmanager
def reading(out: Path, pause: threading.Lock) -> Iterator[list[Exception | int]]:
    """Read the whole index repeatedly in a thread; yield a list of the errors and of the numbers of media seen."""
    seen: list[Exception | int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                with pause:
                    seen.append(len(content(out)))
            except Exception as error:
                if not (isinstance(error, FormatError) and error.found == "no index.json"):
                    seen.append(error)
            time.sleep(0.02)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()


def survivors(out: Path) -> list[int]:
    """Return the ids of the processes that the tests of this index's folder started, and of their children."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            environment = (entry / "environ").read_bytes()
            if entry.name.isdigit() and f"FRAMEDEX_TEST={out.parent}".encode() in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def parts_of(out: Path) -> int:
    """Return how many parts of an index are finished."""
    return len(list((out / "videos").glob("part-*"))) if out.exists() else 0


@pytest.mark.slow
def test_readers_and_reruns_survive_many_kills(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEDEX_TEST", str(tmp_path))
    undisturbed = tmp_path / "undisturbed"
    assert start(videos, undisturbed).wait() == 0
    truth = content(undisturbed)
    assert len(truth) == MEDIA
    assert len(list((undisturbed / "videos").iterdir())) == MEDIA // 6

    chance = random.Random(50)
    out = tmp_path / "INDEX"
    midway = 0
    pause = threading.Lock()
    with reading(out, pause) as seen:
        for number in range(KILLS):
            process = start(videos, out)
            if number % 4 == 3:  # while it starts
                time.sleep(chance.uniform(0, 1.0))
            else:  # while it writes
                wanted = parts_of(out) + chance.randrange(1, 6)
                while process.poll() is None and parts_of(out) < wanted:
                    time.sleep(0.002)
                time.sleep(chance.uniform(0, 0.03))
            with contextlib.suppress(ProcessLookupError):  # it may have finished
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done = len(content(out)) if (out / "index.json").exists() else 0
            midway += 0 < done < MEDIA
            if done == MEDIA or chance.random() < 0.2:
                with pause:  # the test removes the index itself; readers need not survive that
                    shutil.rmtree(out, ignore_errors=True)
    assert not [problem for problem in seen if isinstance(problem, Exception)]
    assert len(set(seen)) > 5, "the reader saw the index grow"
    assert midway >= max(3, KILLS // 3), "kills hit indexes that were half done"
    assert start(videos, out).wait() == 0
    assert content(out) == truth
    assert not list(out.rglob(".writing-*"))


@pytest.mark.slow
def test_workers_of_a_killed_run_go_away(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEDEX_TEST", str(tmp_path))
    out = tmp_path / "INDEX"
    process = start(videos, out)
    end = time.monotonic() + 90
    while len(survivors(out)) < 3:  # the run and its two workers, or multiprocessing's helper process
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()  # only the main process, as the kernel does when memory is short
    process.wait()
    while survivors(out):
        assert time.monotonic() < end
        time.sleep(0.05)
