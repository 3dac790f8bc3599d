"""Failures on a terminal: the first ones, then how many of each kind there are, and where the rest is."""

from __future__ import annotations

from collections import Counter

from framedex.core.printing import echo
from framedex.core.tallies import counted, few

SHOWN = 10


class FailureList:
    """Prints the first failures of a run as they are added. `end` prints the counts if there were more."""

    def __init__(self) -> None:
        self._kinds = Counter[str]()

    def add(self, kind: str, line: str) -> None:
        """Count a failure, and print its line if it is one of the first.

        Args:
            kind: The kind of the failure, such as `not_media`.
            line: The whole line, with its reason.
        """
        if self._kinds.total() < SHOWN:
            echo(line)
        self._kinds[kind] += 1

    def end(self, where: str) -> None:
        """Print what was not printed, if anything.

        Args:
            where: How to see all failures: a command or a file, after "all of them: ".
        """
        left = self._kinds.total() - SHOWN
        if left > 0:
            echo(f"… and {counted(left, 'more', 'more')}. By kind: {few(self._kinds)}. All of them: {where}")
