"""Fixtures: an index and a dataset of synthetic videos."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.audit_data import write_index
from tests.support.datasets import run


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
