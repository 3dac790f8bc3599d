"""Rows of `videos` and `frames`, and what they say of media that cannot be used."""

from __future__ import annotations

from typing import Any

from framedex.errors import MediaError
from framedex.indexer.schema import FAILED, REFUSED

Row = dict[str, Any]


def problem_columns(error: MediaError) -> Row:
    """Return the `videos` columns that say why a medium cannot be used."""
    return {
        "status": REFUSED if error.refused else FAILED,
        "error_kind": error.kind,
        "error_message": error.what,
        "error_traceback": error.traceback,
    }


def no_frames() -> Row:
    """Return the `frames` columns of a medium that is not usable."""
    return {"pts": [], "offset": None, "size": [], "flags": []}
