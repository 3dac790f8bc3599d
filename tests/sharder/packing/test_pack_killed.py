"""Packing that is killed at any moment or fails on a full disk: a rerun gives the same bytes as an undisturbed run."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framedex import Index
from framedex.sharder.writing.whole import Tables
from tests.support.datasets import content, run
from tests.support.depth import drawn, rounds
from tests.support.media import Recipe, encode
from tests.support.running import environment

KILLS = rounds("kills of a packing run")
PROGRESS = "D.unfinished/progress.jsonl"
DRIVER = """
import os, runpy, signal

def kill_at_progress():
    flush = os.fsync
    def flush_and_die(descriptor):
        flush(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("progress.jsonl"):
            os.killpg(0, signal.SIGKILL)
    os.fsync = flush_and_die

if __name__ == "__main__":
    if "KILL_AT_PROGRESS" in os.environ:
        kill_at_progress()
    runpy.run_module("framedex", run_name="__main__", alter_sys=True)
"""
PACKS = {
    "clips": ["--pack", "clips", "--shard-size", "150KB"],
    "images": ["--pack", "images", "--image-format", "png", "--short-side", "64", "--shard-size", "150KB"],
    "needed": ["--pack", "needed", "--shard-size", "50KB"],
    "encoded": ["--pack", "clips", "--encode", "h264", "--short-side", "64", "--shard-size", "50KB"],
}


def command(index: Path, out: Path, *arguments: object) -> list[str]:
    """Return a command line that shards all of an index into short clips.

    With KILL_AT_PROGRESS in its environment, the command kills itself once it has written a line of progress.
    """
    driver, policy = out.parent / "driver.py", out.parent / "policy.yaml"
    driver.write_text(DRIVER)
    policy.write_text("policy: stride\nstride: 2\nframes: 4\n")
    words = [sys.executable, driver, "shard", index, "--policy", policy, "--out", out, *arguments]
    return [str(word) for word in words]


def start(words: list[str], variables: dict[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env={**environment(), **(variables or {})},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def whole(words: list[str]) -> None:
    process = start(words)
    output, _ = process.communicate()
    assert process.returncode == 0, output


@pytest.fixture(scope="module")
def mixed_index(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index over recipes, and over transport streams."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "videos").mkdir()
    for path in drawn("recipes that a killed run packs", sorted(Path(index.root).iterdir()), seed=7):
        (folder / "videos" / path.name).symlink_to(path)
    (folder / "streams").mkdir()
    for number in range(3):
        encode(Recipe(name=f"{number}.ts", options={"g": "12"}), folder / "streams" / f"{number}.ts")
    run("index", folder / "videos", folder / "streams", "--out", folder / "INDEX", "--follow-symlinks")
    return folder / "INDEX"


@pytest.fixture(scope="module")
def undisturbed(mixed_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the dataset of a run that nothing disturbs."""

    @functools.cache
    def packed(pack: str) -> Path:
        out = tmp_path_factory.mktemp(pack) / "UNDISTURBED"
        run(*command(mixed_index, out, *PACKS[pack])[2:])
        return out

    return packed


@pytest.mark.slow
@pytest.mark.parametrize("pack", drawn("cases of many seconds", PACKS, seed=1))
def test_a_killed_run_is_completed_to_the_same_bytes(
    mixed_index: Path, undisturbed: Callable[[str], Path], tmp_path: Path, pack: str
) -> None:
    expected = content(undisturbed(pack))
    assert sum(name.endswith(".tar") for name in expected) > 2
    chance = random.Random(pack)
    out = tmp_path / "D"
    words = command(mixed_index, out, *PACKS[pack], "--workers", "2")
    progress = tmp_path / PROGRESS
    first = start(words, {"KILL_AT_PROGRESS": "1"})
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    assert size_of(progress) > 0, "the first run was killed half done"
    for _ in range(KILLS):
        before = size_of(progress)
        process = start(words)
        while process.poll() is None and size_of(progress) <= before and chance.random() < 0.99:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05))
        with contextlib.suppress(ProcessLookupError):  # it may have finished
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if out.exists():
            break
    if not out.exists():
        whole(words)
    assert content(out) == expected
    assert not (tmp_path / "D.unfinished").exists()


def size_of(path: Path) -> int:
    """Return a file's size, or 0 if the file does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("pack", drawn("few long cases", PACKS, seed=1))
def test_workers_and_earlier_runs_do_not_show_in_the_bytes(
    mixed_index: Path, undisturbed: Callable[[str], Path], tmp_path: Path, pack: str
) -> None:
    run(*command(mixed_index, tmp_path / "D", *PACKS[pack], "--workers", "3")[2:])
    assert content(tmp_path / "D") == content(undisturbed(pack))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path] | None]:
    """A function that mounts a tmpfs of a given size in bytes, or None if mounting fails."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True, capture_output=True)
        mounted.append(path)
        return path

    try:
        mount(4096)
    except (OSError, subprocess.CalledProcessError):
        yield None
    else:
        yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("pack", drawn("cases of many seconds", ["clips", "images", "encoded"], seed=2))
def test_a_full_disk_is_an_error_with_a_remedy_and_a_rerun_completes(
    mixed_index: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    pack: str,
    small_disk: Callable[[int], Path] | None,
) -> None:
    """Fill a small tmpfs. If none can be mounted, limit the size of files instead, which stops the first tar."""
    expected = content(undisturbed(pack))
    used = sum(path.stat().st_size for path in undisturbed(pack).rglob("*"))
    if small_disk is None:
        out = tmp_path / "D"
        words = command(mixed_index, out, *PACKS[pack])
        process = start(words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
        output, _ = process.communicate()
    else:
        disk = small_disk(used // 2)
        out = disk / "D"
        words = command(mixed_index, tmp_path / "D", *PACKS[pack])
        words[words.index("--out") + 1] = str(out)
        process = start(words)
        output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "cannot be written completely" in output
    assert "free disk space and run the same command again" in output
    assert not out.exists()
    if small_disk is not None:
        assert "0 clips are kept" not in output
        subprocess.run(["mount", "-o", f"remount,size={10 * used}", disk], check=True)
    whole(words)
    assert content(out) == expected


@pytest.mark.parametrize("place", ["tables", "line"])
def test_rows_that_find_no_room_beside_an_open_tar_are_written_once_it_is_gone(
    mixed_index: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    words = command(mixed_index, tmp_path / "D", *PACKS["clips"], "--workers", "1")[2:]
    shards = tmp_path / "D.unfinished/shards"
    refused: list[bool] = []

    def take_room() -> None:
        """Fail as on a full disk if the next tar is open. The first call waits up to 5 seconds for that tar."""
        end = time.monotonic() + 5
        while not refused and not any(shards.glob(".writing-*.tar")) and time.monotonic() < end:
            time.sleep(0.01)
        refused.append(any(shards.glob(".writing-*.tar")))
        if refused[-1]:
            raise OSError(errno.ENOSPC, "No space left on device")

    write, flush = Tables.write, os.fsync

    def write_tables(tables: Tables, *arguments: Any, **options: Any) -> list[bytes]:
        take_room()
        return write(tables, *arguments, **options)

    def flush_line(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("progress.jsonl"):
            take_room()
        flush(descriptor)

    if place == "tables":
        monkeypatch.setattr(Tables, "write", write_tables)
    else:
        monkeypatch.setattr(os, "fsync", flush_line)
    output = run(*words, code=1).output
    assert refused == [True, False]
    assert "cannot be written completely" in output
    assert "0 clips are kept" not in output
    assert len((tmp_path / PROGRESS).read_text().splitlines()) == 1
    assert [path.name for path in sorted(shards.iterdir())] == ["clips-000000.idx", "clips-000000.tar"]
    monkeypatch.undo()
    assert "taken up from an unfinished run" in run(*words).output
    assert content(tmp_path / "D") == content(undisturbed("clips"))
