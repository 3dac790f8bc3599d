"""Loops that cannot pass on nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def some(items: Iterable[Item], least: int = 1) -> list[Item]:
    """Return the items, of which there must be so many at least. Raises AssertionError."""
    found = list(items)
    assert len(found) >= least, f"{len(found)} items to look at, not {least}"
    return found
