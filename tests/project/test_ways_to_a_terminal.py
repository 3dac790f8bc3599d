"""All output to a terminal passes through framedex/core/printing.py."""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from framedex import ClipDataset, Index
from framedex.core.printing import TerminalBytes, stdout_bytes
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.syntax import tree_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("framedex", "indexer", "sharder", "loader", "auditor", "benchmarks/bench")
WAYS = {
    "print",
    "click.echo",
    "click.secho",
    "sys.stdout",
    "sys.stderr",
    "warnings.warn",
    "warnings.warn_explicit",
    "logging.StreamHandler",
}
# The only modules that use one of these ways, and why.
OTHERS = {
    "framedex/core/printing.py": "is the way",
    "framedex/cli.py": "gives the log its PrintableFormatter",
    "framedex/options.py": "sends what Ray prints to standard error",
    "benchmarks/bench/cli.py": "asks whether standard error is a terminal",
    "benchmarks/bench/compare.py": "empties the buffer of a process whose output is kept in a file",
    "auditor/findings.py": "asks whether standard output is a terminal",
}
HOSTILE = "\x1b]0;owned\x07"


def test_nothing_is_written_to_a_terminal_past_one_module() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in some((path for top in FOLDERS for path in (ROOT / top).rglob("*.py")), 200):
        for node in ast.walk(tree_of(path)):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            if name in WAYS:
                found[path.relative_to(ROOT).as_posix()].add(name)
    assert set(found) == set(OTHERS)


def test_one_function_makes_text_printable() -> None:
    defined = [
        path.relative_to(ROOT).as_posix()
        for path in some((path for top in FOLDERS for path in (ROOT / top).rglob("*.py")), 200)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef) and node.name == "printable"
    ]
    assert defined == ["framedex/errors.py"]


def test_bytes_of_an_answer_pass_a_filter_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdout", file)
        assert stdout_bytes() is file.buffer
        monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
        assert isinstance(stdout_bytes(), TerminalBytes)


def test_a_warning_of_lost_bits_shows_names_as_escapes(index: Index, tmp_path: Path) -> None:
    dataset = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_single.mp4", "frames": [0]}])
    medium = replace(ClipDataset(dataset).clip(0).medium, uri=f"a{HOSTILE}.mp4", pixel_format="yuv420p10le")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ClipDataset(dataset)._clips._warn_of_lost_bits(medium)
    assert "\\x1b]0;owned\\x07" in str(said[0].message)
    assert "\x1b" not in str(said[0].message)


@pytest.mark.filterwarnings("always:.*more than 8 bits")
def test_a_command_says_a_warning_in_its_own_words(index: Index, tmp_path: Path) -> None:
    dataset = shard_clips(index.path, tmp_path / "D", [{"uri": "h264_high10.mkv", "frames": [0]}])
    output = run("inspect", dataset, "--sample", 1, "--out", tmp_path / "sheet.html").output
    assert f"warning: {dataset}: the samples of h264_high10.mkv have more than 8 bits" in output
    assert "UserWarning" not in output
    assert ".py:" not in output
