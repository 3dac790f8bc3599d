"""No name, label or message written by others can control a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framedex.core.printing import TerminalBytes
from framedex.errors import FramedexError, printable
from tests.support.datasets import run, write_clips
from tests.support.outcomes import NO_TERMINAL, skip_but_in_ci
from tests.support.running import environment

TITLE = "\x1b]0;owned\x07"  # sets a terminal's title
HOSTILE = f"{TITLE}\x9b31m\u202e\nerror: forged"  # and changes colours, reverses what follows, begins a line
HARMFUL = [
    *map(chr, (*range(10), *range(11, 32), *range(127, 160))),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
]


def harmless(text: str) -> str:
    """Return `text` after checking that nothing in it controls a terminal and that no line is forged."""
    found = [character for character in HARMFUL if character in text]
    assert not found, (found, text)
    assert not any(line.startswith("error: forged") for line in text.splitlines()), text
    return text


def ran(*arguments: object, code: int = 0) -> str:
    """Return what `framedex ARGUMENTS` prints to stdout and stderr; check that it shows hostile text as escapes."""
    result = run(*arguments, code=code)
    assert "]0;owned" in result.output, result.output
    return harmless(result.output)


@pytest.fixture(scope="module")
def made(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with videos, an index and a dataset in which every freely chosen name is hostile."""
    top = tmp_path_factory.mktemp("hostile") / f"top{TITLE}"
    videos = top / "videos"
    videos.mkdir(parents=True)
    shutil.copy(medium("h264_single.mp4"), videos / f"good {HOSTILE}.mp4")
    shutil.copy(medium("h264_default.mp4"), videos / f"stale {HOSTILE}.mp4")
    (videos / f"broken {HOSTILE}.mp4").write_bytes(b"nothing")
    run("index", videos, "--out", top / "INDEX", "--max-failures", 1)
    clips = [
        {"uri": f"{kind} {HOSTILE}.mp4", "frames": [0], "clip_id": f"{kind} {HOSTILE}", f"label {HOSTILE}": HOSTILE}
        for kind in ("good", "stale")
    ]
    run("shard", top / "INDEX", "--clips", write_clips(top / "clips.jsonl", clips), "--out", top / "D")
    return top


@pytest.fixture
def stale(made: Path, tmp_path: Path) -> Path:
    """Return a copy of `made` in which one video has changed since."""
    top = Path(shutil.copytree(made, tmp_path / f"top{TITLE}"))
    header = top / "D" / "dataset.json"
    content = json.loads(header.read_text())
    header.write_text(json.dumps(content | {"root": str(top / "videos")}))
    path = top / "videos" / f"stale {HOSTILE}.mp4"
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    return top


def test_index_prints_names_as_escapes(made: Path, tmp_path: Path) -> None:
    ask = ("index", made / "videos", "--out", tmp_path / f"INDEX {HOSTILE}")
    ran(*ask, "--dry-run")
    ran(*ask, "--dry-run", "--json")
    assert "failed: broken \\x1b]0;owned" in ran(*ask, code=3)
    assert json.loads(ran(*ask, "--json", code=3))["problems"][0]["uri"] == f"broken {HOSTILE}.mp4"


def test_index_prints_what_is_gone_as_escapes(made: Path, tmp_path: Path) -> None:
    videos, out = Path(shutil.copytree(made / "videos", tmp_path / "videos")), tmp_path / "INDEX"
    run("index", videos, "--out", out, "--max-failures", 1)
    (videos / f"good {HOSTILE}.mp4").unlink()
    assert "gone: good \\x1b" in ran("index", videos, "--out", out, "--dry-run")


def test_shard_prints_names_as_escapes(made: Path, tmp_path: Path) -> None:
    uris = (f"unknown {HOSTILE}", f"good {HOSTILE}.mp4")
    clips = write_clips(tmp_path / "clips.jsonl", [{"uri": uri, "frames": [0]} for uri in uris])
    ask = ("shard", made / "INDEX", "--clips", clips, "--max-failures", 9, "--overwrite", "--out", tmp_path / HOSTILE)
    assert "failed: unknown \\x1b]0;owned" in ran(*ask)
    assert json.loads(ran(*ask, "--json"))["failures"][0]["uri"] == f"unknown {HOSTILE}"


def test_verify_prints_names_as_escapes(stale: Path) -> None:
    assert "stale: stale \\x1b]0;owned" in ran("verify", stale / "D", code=3)
    rows = [json.loads(line) for line in ran("verify", stale / "D", "--json", code=3).splitlines()]
    assert {row["clip_id"] for row in rows} == {f"good {HOSTILE}", f"stale {HOSTILE}"}


def test_inspect_prints_names_as_escapes(stale: Path, tmp_path: Path) -> None:
    for suffix in (".html", ".png"):
        ran("inspect", stale / "D", "--sample", 2, "--out", tmp_path / f"{HOSTILE}{suffix}", code=3)


@pytest.mark.parametrize("what", ["INDEX", "D"])
def test_audit_prints_names_as_escapes(what: str, made: Path, tmp_path: Path) -> None:
    ran("audit", made / what, "--report", tmp_path / f"{HOSTILE}.html", "--no-pictures")
    ran("audit", made / what, "--sql", f"SELECT '{HOSTILE}' AS \"{HOSTILE}\"")
    assert json.loads(ran("audit", made / what, "--sql", f"SELECT '{HOSTILE}' AS a", "--format", "json")) == [
        {"a": HOSTILE}
    ]
    ran("audit", made / what, "--sql", f"SELECT '{HOSTILE}", code=1)
    ran("audit", made / what, "--ask", HOSTILE, code=1)
    ran("audit", made / what, "--duckdb", tmp_path / f"{HOSTILE}.duckdb")


def test_findings_print_names_as_escapes(made: Path) -> None:
    ran("audit", made / "INDEX", "--check", "failed")
    found = json.loads(ran("audit", made / "INDEX", "--check", "failed", "--json"))
    assert found["findings"][0]["examples"][0]["uri"] == f"broken {HOSTILE}.mp4"


def test_csv_is_exact_in_a_pipe_and_harmless_on_a_terminal(made: Path) -> None:
    ask = ["audit", str(made / "INDEX"), "--sql", f"SELECT '{TITLE}é' AS a", "--format", "csv"]
    command = [sys.executable, "-c", "from framedex.cli import main; main()", *ask]
    piped = subprocess.run(command, env=environment(), capture_output=True, check=True)
    assert piped.stdout.decode() == f'"a"\n"{TITLE}é"\n'
    try:
        ours, theirs = pty.openpty()
    except OSError:
        skip_but_in_ci(NO_TERMINAL)
    subprocess.run(command, env=environment(), stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert shown.split() == ['"a"', '"\\x1b]0;owned\\x07é"']


def test_a_character_in_two_pieces_arrives_whole_on_a_terminal(tmp_path: Path) -> None:
    with open(tmp_path / "shown", "wb") as file:
        terminal = TerminalBytes(file)
        assert [terminal.write(b"a\xc2"), terminal.write(b"\x9bb\xc3"), terminal.write(b"\xa9\n")] == [2, 3, 2]
        terminal.flush()
    assert (tmp_path / "shown").read_text() == "a\\x9bbé\n"


def test_bench_prints_and_logs_names_as_escapes(stale: Path) -> None:
    command = [sys.executable, "-c", "from framedex.cli import main; main()", "-v", "bench", str(stale / "D")]
    options = ["--batch-size", "1", "--warm-up", "0", "--workers", "0"]
    found = subprocess.run([*command, *options], env=environment(), capture_output=True, check=False, text=True)
    assert found.returncode == 3, found.stderr
    assert "WARNING framedex.loader: clip 1 cannot be loaded (stale)" in harmless(found.stderr)
    assert "\\x1b]0;owned" in found.stderr
    harmless(found.stdout)


@pytest.mark.parametrize("command", ["shard", "verify", "inspect", "audit", "bench"])
def test_errors_show_arguments_as_escapes(command: str, made: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "out.html"] if command == "inspect" else []
    ran(command, tmp_path / HOSTILE, *out, code=2)
    ran(
        command,
        made / "videos",
        *{"shard": ["--policy", made / HOSTILE, "--out", tmp_path / "D"]}.get(command, out),
        *(["--sample", 1] if command == "inspect" else []),
        code=1,
    )
    ran(command, f"--{TITLE}", code=2)


def test_errors_of_the_command_itself_show_arguments_as_escapes(tmp_path: Path) -> None:
    ran(TITLE, code=2)
    ran(f"--{TITLE}", code=2)
    ran("index", f"@{tmp_path / HOSTILE}", "--out", tmp_path / "INDEX", code=1)
    (tmp_path / TITLE).write_bytes(b"")
    ran("index", tmp_path, "--out", tmp_path / TITLE, code=2)


def test_errors_show_names_as_escapes_wherever_python_prints_them() -> None:
    error = FramedexError("what", where=HOSTILE, found=HOSTILE, allowed=TITLE, remedy=TITLE)
    assert error.where == HOSTILE
    assert str(error).splitlines()[0] == "\\x1b]0;owned\\x07\\x9b31m\\u202e\\nerror: forged: what"
    assert harmless(str(error)) == error.text()


def test_other_letters_stay_as_they_are() -> None:
    name = "Zoë 映画\u3000\xa0עברית 🎬 \\x1b.mp4"
    assert printable(name) == name
