"""How many rounds the long tests go: a few in `make test`, all of them in CI and with TESTS_DEPTH=full."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")

# What is repeated: rounds in `make test`, rounds with TESTS_DEPTH=full. None: all that there are.
ROUNDS: dict[str, tuple[int, int | None]] = {
    "kills of an index run": (5, 50),
    "kills of a packing run": (3, 12),
    "kills of a change of an index or a dataset": (3, 8),
    "moments at which such a change is killed": (6, 12),
    "recipes that a killed run packs": (20, None),
    "hostile values of each cell": (1, None),
    "hostile values of each key": (3, None),
    "mutants of each kind": (4, 40),
    "media that were wrong once, of each kind": (1, None),
    "pages whose commands are run, from README.md on": (1, 4),
    "parts of the endurance test": (1, None),
    "batches of a part of the endurance test": (8, 20),
    "start methods": (1, None),
    "kills on a cluster": (1, None),
    "ways to index all hazards": (1, None),
    "media of the corpus that are encoded": (40, None),
    "examples of a property": (25, 100),
    "rows of a table whose cells are changed": (2, None),
    "flipped bytes of a footer": (40, 120),
    "kills of a training run": (1, 2),
    # Of tests whose cases take a second or more each.
    "many long cases": (10, None),
    "few long cases": (2, None),
    "cases of many seconds": (1, None),
}
DEPTH = os.environ.get("TESTS_DEPTH", "quick")
if DEPTH not in ("quick", "full"):
    raise ValueError(f"TESTS_DEPTH is {DEPTH!r}; allowed are 'quick' and 'full'")


def rounds(what: str) -> int:
    """Return how often something that has a number is repeated."""
    quick, full = ROUNDS[what]
    assert full is not None, f"{what} have no number: use `drawn`"
    return full if DEPTH == "full" else quick


# The usual number of examples of a property. Tests that need more multiply it.
EXAMPLES = rounds("examples of a property")


def drawn(what: str, items: Iterable[Item], *, seed: int) -> list[Item]:
    """Return all items at full depth, else some of them, in their order."""
    found, (quick, full) = list(items), ROUNDS[what]
    most = full if DEPTH == "full" else quick
    if most is None or len(found) <= most:
        return found
    chosen = np.random.default_rng(seed).choice(len(found), most, replace=False)
    return [found[number] for number in sorted(chosen.tolist())]
