"""Phrases that several commands print."""

from __future__ import annotations


def internal_errors(count: int) -> str:
    """Return how many internal errors a run met, and what to do about them."""
    errors = "1 internal error" if count == 1 else f"{count} internal errors"
    them = "it" if count == 1 else "them"
    return f"{errors} of framedex (a bug: please report {them} with what framedex -v prints)"
