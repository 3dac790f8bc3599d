"""A pytest plugin for coverage runs: it records which test, or which shared fixture, executes each line.

The name of a test is the coverage context of the lines that it executes. A fixture that several tests share is executed
once, within the first of them; its lines get the context `fixture:NAME`, and `FIXTURES_FILE` stores which tests use it.
Processes that a test starts get the test's name from PYTEST_CURRENT_TEST. `SECONDS_FILE` gets how long each test takes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FIXTURES_FILE = "FRAMEDEX_FIXTURES_OF_TESTS"  # the environment variables that name the files to write
SECONDS_FILE = "FRAMEDEX_SECONDS_OF_TESTS"

_outer: list[str] = []  # contexts to return to, innermost last


def _enter(context: str) -> None:
    running = coverage.Coverage.current()
    assert running is not None, "run under `coverage run`"
    _outer.append(context)
    running.switch_context(context)


def _leave() -> None:
    running = coverage.Coverage.current()
    assert running is not None
    _outer.pop()
    running.switch_context(_outer[-1] if _outer else "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _enter(item.nodeid)
    begun = time.monotonic()
    try:
        return (yield)
    finally:
        _leave()
        with open(os.environ[SECONDS_FILE], "a", encoding="utf-8") as file:  # of all workers of pytest-xdist
            file.write(json.dumps([item.nodeid, round(time.monotonic() - begun, 3)]) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    _enter(f"fixture:{fixturedef.baseid}::{fixturedef.argname}")
    try:
        return (yield)
    finally:
        _leave()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write {test: [fixture contexts]} of all tests. All workers of pytest-xdist write the same."""
    path = os.environ.get(FIXTURES_FILE)
    if not path:
        return
    found = {}
    for item in session.items:
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
        shared = [each for group in definitions.values() for each in group if each.scope != "function"]
        found[item.nodeid] = sorted({f"fixture:{each.baseid}::{each.argname}" for each in shared})
    aside = Path(f"{path}-{os.getpid()}")
    aside.write_text(json.dumps(found), encoding="utf-8")
    aside.rename(path)
