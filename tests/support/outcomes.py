"""Outcomes of the test suite: which skips are allowed, and a JSON report."""

from __future__ import annotations

import collections
import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import av
import pytest

NO_GPU = "there is no NVIDIA GPU here"
A_GPU = "there is an NVIDIA driver here"
NO_CHROMIUM = "chromium is not on PATH: apt install chromium"
NO_COMPILER = "there is no C compiler: apt install gcc libc6-dev"
NO_CEPH = "Ceph is not installed: apt install ceph-mon ceph-osd radosgw"
NO_TERMINAL = "this machine gives no pseudo-terminal: mount devpts at /dev/pts"
NO_CORPUS = "the corpus of hazards is not beside the checkout"
NO_FFMPEG_LIBRARIES = "FFmpeg's libraries are not on this machine: make test lends those of PyAV"

ALLOWED = {NO_GPU, A_GPU, NO_CHROMIUM, NO_CEPH, NO_COMPILER, NO_TERMINAL}
# These are not allowed in CI or with FRAMEDEX_STRICT_SKIPS=1.
ALLOWED_ELSEWHERE = {NO_CORPUS, NO_FFMPEG_LIBRARIES}

LIBRARIES = ("av", "numpy", "pyarrow", "torch", "pillow", "click", "nvidia-dali-cuda120")


def skip_but_in_ci(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, which has everything that tests need except a GPU."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Outcomes:
    """A pytest plugin that fails a run with skips that are not allowed.

    If FRAMEDEX_SUITE_REPORT names a file, the plugin writes a JSON report there: the number of tests by outcome, the
    number of skips by reason, and versions.
    """

    def __init__(self, command: str) -> None:
        self._command, self._begun = command, time.monotonic()
        self._counts: collections.Counter[str] = collections.Counter()
        self._skips: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skips[report.longrepr[2].removeprefix("Skipped: ")] += 1
            self._counts["skipped"] += 1
        elif report.failed:
            self._counts["failed"] += 1
        elif report.when == "call":
            self._counts[report.outcome] += 1

    @property
    def not_allowed(self) -> list[str]:
        """The reasons of skips that are not allowed."""
        strict = os.environ.get("CI") or os.environ.get("FRAMEDEX_STRICT_SKIPS")
        allowed = ALLOWED if strict else ALLOWED | ALLOWED_ELSEWHERE
        return sorted(set(self._skips) - allowed)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.not_allowed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        path = os.environ.get("FRAMEDEX_SUITE_REPORT")
        if path:
            Path(path).write_text(json.dumps(self.report(), indent=2) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason in self.not_allowed:
            terminalreporter.write_line(f"NOT ALLOWED to skip (tests/support/outcomes.py): {reason}", red=True)

    def report(self) -> dict[str, object]:
        """Return the contents of the JSON report."""
        found = {}
        for name in LIBRARIES:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return {
            "command": self._command,
            "python": platform.python_version(),
            "ffmpeg": av.ffmpeg_version_info,
            "libraries": found,
            "system": platform.platform(),
            "tests": dict(sorted(self._counts.items())),
            "skips": dict(sorted(self._skips.items())),
            "seconds": round(time.monotonic() - self._begun),
        }
