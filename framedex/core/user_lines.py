"""Warnings that name the line of the user's program, not one of framedex."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from framedex.errors import printable

PACKAGE = f"{Path(__file__).parents[1]}/"


def user_line() -> tuple[str, int]:
    """Return the file and the line outside of framedex that led to this call."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def warn_at(line: tuple[str, int], message: str) -> None:
    """Warn at a line that `user_line` returned, perhaps in another process."""
    warnings.warn_explicit(printable(message), UserWarning, *line)
