"""Running this checkout's code in separate processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the checkout first on PYTHONPATH and the variables in `more`."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)} | more


def allow_interrupts() -> None:
    """Let a new process (`preexec_fn`) be interrupted, even if the suite runs in the background and ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
