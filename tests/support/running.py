"""Running this checkout's code in separate processes, and functions in processes of the pool."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from framedex.execution.engine import Calls, Outcome, run_local

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the checkout first on PYTHONPATH and the variables in `more`."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)} | more


def outcomes(
    function: Callable[[Any], Any], items: Sequence[Any], *, workers: int = 1, timeout_seconds: float = 60, **how: Any
) -> list[Outcome[Any, Any]]:
    """Call a function for each item in worker processes of the local pool; return what became of each.

    Args:
        how: further options of the pool, and `passes` of the calls.
    """
    passes = {"passes": how.pop("passes")} if "passes" in how else {}
    calls: Calls[Any, Any] = Calls(function=function, items=items, timeout_seconds=timeout_seconds, **passes)
    return list(run_local(calls, workers=workers, **how))


def allow_interrupts() -> None:
    """Let a new process (`preexec_fn`) be interrupted, even if the suite runs in the background and ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
