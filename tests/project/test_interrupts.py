"""An interrupt (Ctrl-C) ends a command with 130; it says what is kept, and the same command goes on from there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framedex import Index
from framedex.core.interrupts import terminated_as_interrupted
from tests.support.datasets import content, run, shard_clips
from tests.support.depth import drawn
from tests.support.running import allow_interrupts, environment

SECONDS = 120.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interrupted(arguments: list[object], ready: Callable[[int], bool], number: int = signal.SIGINT) -> str:
    """Run a command, send a signal to its whole group once `ready` (of its process id) holds, and return its stderr.

    A terminal sends SIGINT to the group, too, and a scheduler of jobs SIGTERM. No process of the group is left.
    """
    command = [sys.executable, "-m", "framedex", *map(str, arguments)]
    with subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=allow_interrupts,
    ) as process:
        deadline = time.monotonic() + SECONDS
        while not ready(process.pid):
            assert process.poll() is None, f"it ended before: {process.communicate()}"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, errors
    deadline = time.monotonic() + 10
    while (left := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left
    return errors


def members(group: int) -> list[str]:
    """Return the command lines of the processes of a group that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == group and (folder / "cmdline").read_bytes():
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
    return found


def is_open(group: int, name: str) -> bool:
    """Return whether a worker, a process of a group but its first one, has a file open whose name begins so."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == group != int(folder.name):
                paths = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
                if any(os.path.basename(path).startswith(name) for path in paths):
                    return True
    return False


@pytest.mark.parametrize("number", drawn("cases of many seconds", SIGNALS, seed=1))
def test_index_keeps_what_it_probed_and_goes_on(number: int, all_media: Path, tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    for place in range(10):
        shutil.copy(all_media / "h264_default.mp4", media / f"a{place}.mp4")
    for place in range(60):
        shutil.copy(all_media / "h264_default.mp4", media / f"late{place}.mp4")
    arguments = ["index", media, "--out", tmp_path / "I", "--workers", 1, "--verify"]
    said = interrupted(arguments, lambda process: is_open(process, "late"), number)
    kept = len(Index(tmp_path / "I"))
    assert 0 < kept < 70, said
    what = f"{kept} media in {tmp_path / 'I'} are kept; run the same command again to index the others"
    assert said.strip() == f"interrupted: {what}"
    again = run(*arguments).output
    assert f"{70 - kept} files new, 0 changed, 0 gone, {kept} unchanged" in again
    assert len(Index(tmp_path / "I")) == 70


def test_an_index_that_has_nothing_yet_says_so(all_media: Path, tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    for number in range(60):
        shutil.copy(all_media / "h264_default.mp4", media / f"{number}.mp4")
    out = tmp_path / "I"
    said = interrupted(["index", media, "--out", out], lambda _: (out / ".lock").exists())
    assert said.startswith("interrupted: ")
    assert "the same command" in said


@pytest.mark.parametrize("number", drawn("cases of many seconds", SIGNALS, seed=2))
def test_shard_keeps_its_checkpoints_and_goes_on(number: int, index: Index, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 16\nstride: 1\nstep: 4\nlast: drop\nshort: skip\n")
    out = tmp_path / "D"
    arguments = ["shard", index.path, "--policy", policy, "--pack", "images", "--shard-size", "1MB", "--workers", 1]
    progress = tmp_path / "D.unfinished" / "progress.jsonl"
    said = interrupted([*arguments, "--out", out], lambda _: progress.exists() and progress.stat().st_size > 0, number)
    found = re.fullmatch(
        rf"interrupted: ([\d,]+) clips in {tmp_path / 'D.unfinished'} are kept; run the same command again to continue",
        said.strip(),
    )
    assert found, said
    assert not out.exists()
    assert f"{found[1]} clips taken up from an unfinished run" in run(*arguments, "--out", out).output
    run(*arguments, "--out", tmp_path / "WHOLE")
    assert content(out) == content(tmp_path / "WHOLE")


def test_verify_says_how_far_it_came(index: Index, tmp_path: Path) -> None:
    names = ("default.mp4", "vfr.mkv")
    clips = [{"uri": f"h264_{name}", "frames": [number]} for name in names for number in range(40)] * 20
    dataset = shard_clips(index.path, tmp_path / "D", clips)
    said = interrupted(["verify", dataset], lambda process: is_open(process, "h264_default"))
    assert re.fullmatch(r"interrupted: \d+ clips? checked, 0 of them wrong; another run begins anew", said.strip()), (
        said
    )


def interrupted_in_a_callback() -> None:
    class Target:
        pass

    target = Target()
    reference = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))
    del target
    assert reference() is None
    time.sleep(SECONDS)


@pytest.fixture
def listening() -> Iterator[None]:
    """Let SIGINT interrupt this process: shells start processes in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_a_callback_drops_comes_again(listening: None) -> None:
    with terminated_as_interrupted(), pytest.raises(KeyboardInterrupt):
        interrupted_in_a_callback()


INTERRUPTED_IN_A_STRING = """
import click
from framedex import cli

@click.command()
def index():
    exec("import signal; signal.raise_signal(signal.SIGINT)")

cli.COMMANDS["index"] = "__main__", ""
cli.main()
"""


def test_an_interrupt_of_code_in_a_string_ends_python_m_with_130(tmp_path: Path) -> None:
    (tmp_path / "interrupted_in_a_string.py").write_text(INTERRUPTED_IN_A_STRING)
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted_in_a_string", "index"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=allow_interrupts,
    )
    assert (ended.returncode, ended.stderr.partition(":")[0]) == (130, "interrupted"), ended
