"""Fixtures: an index and a dataset of synthetic videos, and Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.audit_data import write_index
from tests.support import chromium
from tests.support.datasets import run
from tests.support.outcomes import NO_CHROMIUM, skip_but_in_ci


@pytest.fixture(scope="package")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of synthetic videos, INDEX, and a dataset with labels and splits made from it, DS."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_index(folder / "INDEX", 120, seconds=12)
    policy = folder / "policy.yaml"
    policy.write_text(
        "policy: windows\nframes: 8\nfps: 4\nstep_seconds: 2\nshort: pad\nsplit: {shares: {train: 8, val: 2}}\n"
    )
    run("shard", folder / "INDEX", "--policy", policy, "--out", folder / "DS")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    """Yield Chromium. Skip the test if it is missing; in CI, fail."""
    if not chromium.is_installed():
        skip_but_in_ci(NO_CHROMIUM)
    with chromium.browser() as running:
        yield running
