"""The command line: its help is useful, and its output on stdout and stderr is predictable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framedex import __version__
from tests.support.datasets import COMMANDS, run


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_exit_codes(command: str) -> None:
    output = run(command, "--help").output
    assert "Example:" in output
    assert f"framedex {command}" in output
    assert "Exit codes: 0" in output


def test_help_of_the_group_lists_every_command_without_importing_any() -> None:
    script = (
        "import sys; from framedex.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'av', 'pyarrow', 'torch', 'numpy'} & sys.modules.keys()"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    for command in COMMANDS:
        assert command in output


def test_indexing_never_loads_torch_or_dali(medium: Callable[[str], Path], tmp_path: Path) -> None:
    script = (
        "import sys; from framedex.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'nvidia.dali'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", script, "index", str(medium("h264_single.mp4")), "--out", str(tmp_path / "INDEX")]
    subprocess.run(command, check=True)


def test_version() -> None:
    assert run("--version").output.strip() == f"framedex, version {__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("index",),
        ("index", "a.mp4"),
        ("index", "a.mp4", "--out", "x", "--workers", "0"),
        ("shard", ".", "--out", "x"),
        ("shard", ".", "--out", "x", "--policy", "a", "--clips", "b"),
        ("shard", "nowhere", "--out", "x", "--policy", "a"),
        ("verify",),
        ("verify", "."  , "--sample", "0"),
        ("fly",),
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    run(*arguments, code=2)


def test_an_error_goes_to_stderr_and_exits_with_1(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from framedex.cli import main; main()", "verify", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "remedy:" in result.stderr


def test_json_is_all_that_stdout_holds_and_there_is_no_bar_off_a_terminal(
    medium: Callable[[str], Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from framedex.cli import main; main()"]
    arguments = ["index", str(medium("h264_vfr.mp4")), "--out", str(tmp_path / "INDEX"), "--json"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["ok"] == 1
    assert result.stderr == ""


@pytest.mark.parametrize("package", ["pyarrow", "av", "numpy", "duckdb"])
def test_a_missing_package_is_named_and_is_not_a_bug(package: str, medium: Callable[[str], Path]) -> None:
    script = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from framedex.cli import main\n"
        "audits = sys.argv[1] == 'duckdb'\n"
        "main(['audit', sys.argv[2], '--sql', 'SELECT 1'] if audits else ['index', sys.argv[2], '--out', 'x'])"
    )
    folder = str(medium("h264_single.mp4").parent if package == "duckdb" else medium("h264_single.mp4"))
    found = subprocess.run([sys.executable, "-c", script, package, folder], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert package in found.stderr
    assert "is not installed" in found.stderr
    assert "pip install" in found.stderr
    assert "bug" not in found.stderr
    assert "Traceback" not in found.stderr
