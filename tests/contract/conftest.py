"""The contract on a GPU. FRAMEDEX_REQUIRE_GPU=1 makes skipped tests fail; FRAMEDEX_GPU_REPORT names a page to write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.report import Outcome, page

OUTCOMES: dict[str, Outcome] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if os.environ.get("FRAMEDEX_REQUIRE_GPU") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where a GPU is required: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Store the worst outcome of each test's phases, and their total duration."""
    before = OUTCOMES.get(report.nodeid, Outcome(outcome="passed", seconds=0.0))
    outcome = before.outcome if report.passed else report.outcome
    OUTCOMES[report.nodeid] = Outcome(outcome=outcome, seconds=before.seconds + report.duration)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("FRAMEDEX_GPU_REPORT")
    if path and OUTCOMES and not hasattr(session.config, "workerinput"):
        Path(path).write_text(page(OUTCOMES), encoding="utf-8")
