"""`framedex inspect --serve` prints its address, answers, and ends cleanly at Ctrl-C, even in the middle of a query."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from framedex import Index
from tests.loader.contact_sheets.test_inspect import clips_of_two_videos
from tests.support.datasets import run, shard_clips
from tests.support.running import allow_interrupts, environment

ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range < 0"


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shard_clips(index.path, tmp_path_factory.mktemp("served") / "D", clips_of_two_videos())


@pytest.fixture
def process(dataset: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A running command."""
    command = [sys.executable, "-m", "framedex", "inspect", str(dataset), "--serve", "--no-open"]
    without_screen = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY"), "")
    with subprocess.Popen(
        command,
        env=environment(TMPDIR=str(tmp_path), **without_screen),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=allow_interrupts,
    ) as running:
        yield running
        running.kill()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/[\w-]{43}/", line)
    assert found, line + (process.stderr.read() if process.stderr else "")
    assert f"ssh -L {found[1]}:127.0.0.1:{found[1]} " in process.stdout.readline()
    return found[0]


def test_ctrl_c_ends_it_and_leaves_nothing(process: subprocess.Popen[str], tmp_path: Path) -> None:
    url = address_of(process)
    with urllib.request.urlopen(f"{url}subject", timeout=60) as answer:
        assert json.loads(answer.read())["total"] == 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "\nended\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_query_that_runs(process: subprocess.Popen[str]) -> None:
    url = address_of(process)
    body = json.dumps({"sql": ENDLESS}).encode()
    request = urllib.request.Request(f"{url}sql", data=body, method="POST")

    def ask() -> None:
        with contextlib.suppress(OSError):  # the connection ends with the server
            urllib.request.urlopen(request, timeout=60).close()

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    asking.join()
    assert (process.returncode, errors) == (0, "\nended\n")


def test_what_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    assert "neither an index nor a dataset" in run("inspect", tmp_path, "--serve", "--no-open", code=1).output


def test_sheets_do_not_load_the_browser(dataset: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None; from framedex.cli import main; "
        f"main(['inspect', {str(dataset)!r}, '--sample', '1', '--out', {str(tmp_path / 's.html')!r}])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), stdout=subprocess.DEVNULL)
    assert os.path.getsize(tmp_path / "s.html") > 1000
