"""A check that a loop in a test has something to loop over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def some(items: Iterable[Item], least: int = 1) -> list[Item]:
    """Return the items after checking that there are enough.

    Args:
        least: the lowest allowed number of items.

    Raises:
        AssertionError: there are fewer items.
    """
    found = list(items)
    assert len(found) >= least, f"{len(found)} items to look at, not {least}"
    return found
