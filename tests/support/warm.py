"""Worker processes that are forked from a server, which has imported framedex: the import takes most of a small run."""

from __future__ import annotations

import os
from multiprocessing import context, forkserver

import pytest

from tests.support.depth import DEPTH

PRELOADED = (
    "framedex.auditor.tables.query_process",
    "framedex.indexer.runs.build",
    "framedex.loader.verification.verify",
    "framedex.sharder.build",
)
PATCH = pytest.MonkeyPatch()


class WarmProcess(context.ForkServerProcess):
    """A process with the environment of the process that starts it, not that of the server."""

    def start(self) -> None:
        self._variables = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._variables)
        super().run()


class WarmContext(context.ForkServerContext):
    """Starts processes that do not run the caller's script."""

    Process = WarmProcess  # type: ignore[assignment]


def start_workers_warm() -> None:
    """Let framedex's workers of this process start from a server, unless all rounds are wanted (TESTS_DEPTH=full)."""
    if DEPTH == "quick":
        forkserver.set_forkserver_preload(list(PRELOADED))
        PATCH.setattr("framedex.execution.spawning._ContextWithoutMain", WarmContext)


def start_workers_cold() -> None:
    """Let framedex's workers of this process start as those of users do."""
    PATCH.undo()
