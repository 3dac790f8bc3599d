"""The suite's check of skips: a skip for a reason that is not allowed fails the run, in one process and in several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.outcomes import NO_CORPUS, NO_GPU
from tests.support.running import environment

SUITE = """
import pytest
from tests.support.outcomes import Outcomes

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes("a command"))
"""
TESTS = """
import pytest

def test_that_passes():
    assert True

def test_that_skips():
    pytest.skip({reason!r})
"""


def outcome(folder: Path, reason: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a suite of one test that passes and one that skips."""
    (folder / "conftest.py").write_text(SUITE)
    (folder / "test_it.py").write_text(TESTS.format(reason=reason))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    clean = {"CI": "", "FRAMEDEX_STRICT_SKIPS": "", "FRAMEDEX_SUITE_REPORT": str(folder / "report.json")}
    return subprocess.run(
        command, cwd=folder, env=environment(**clean | variables), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_skip_that_nobody_allowed_fails_the_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert outcome(tmp_path, NO_GPU, *options).returncode == 0
    done = outcome(tmp_path, "it did not work here", *options)
    assert done.returncode == 1
    assert "NOT ALLOWED to skip (tests/support/outcomes.py): it did not work here" in done.stdout


@pytest.mark.parametrize("variable", ["CI", "FRAMEDEX_STRICT_SKIPS"])
def test_ci_allows_less(tmp_path: Path, variable: str) -> None:
    assert outcome(tmp_path, NO_CORPUS).returncode == 0
    assert outcome(tmp_path, NO_CORPUS, **{variable: "1"}).returncode == 1


def test_a_report_has_every_outcome_and_the_versions(tmp_path: Path) -> None:
    outcome(tmp_path, NO_GPU)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tests"] == {"passed": 1, "skipped": 1}
    assert report["skips"] == {NO_GPU: 1}
    assert report["command"] == "a command"
    assert {"av", "numpy", "pyarrow"} <= report["libraries"].keys()
