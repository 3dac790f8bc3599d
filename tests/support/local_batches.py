"""Let ClipLoader make its batches in this process although it has workers, for tests that look into it."""

from __future__ import annotations

import sys

import pytest

from framedex import ClipLoader


def make_batches_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make loaders of this test without a process that feeds."""
    module = sys.modules[ClipLoader.__module__]
    monkeypatch.setattr(module, "FedBatches", vars(module)["BatchQueue"])
