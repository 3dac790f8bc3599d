"""The findings of an audit for the browser: all checks run once, in a thread, while the page is already open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from framedex.auditor.findings.findings import Audit
from framedex.auditor.run import run
from framedex.errors import FramedexError, printable
from framedex.storage.places import Place

LOG = logging.getLogger(__name__)

State = Literal["running", "done", "failed"]


class Findings:
    """What the checks of an audit found. `start` begins to run them.

    Args:
        place: The index or dataset.
        link: Returns the column of a finding's rows that names clips or media; None if none does.
    """

    def __init__(self, place: Place, link: Callable[[Sequence[str]], str | None]) -> None:
        self._place, self._link = place, link
        self._state: State = "running"
        self._found: Audit | None = None
        self._message: str | None = None

    def start(self) -> None:
        """Run the checks in a thread that does not keep the process alive."""
        threading.Thread(target=self._run, name="audit", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = run(self._place)
            self._state = "done"
        except FramedexError as error:
            self._message, self._state = error.text(), "failed"
        except Exception as error:  # a bug must not be hidden behind a page that waits forever
            LOG.exception("the audit failed")
            self._message, self._state = f"{type(error).__name__}: {error}", "failed"

    def as_json(self) -> dict[str, Any]:
        """Return how far the checks are, and what they found."""
        found = self._found
        return {
            "state": self._state,
            "message": None if self._message is None else printable(self._message, lines=True),
            "passed": 0 if found is None else len(found.passed),
            "findings": [
                {
                    "name": finding.check.name,
                    "title": finding.check.title,
                    "severity": finding.check.severity,
                    "count": finding.count,
                    "means": finding.check.means,
                    "remedy": finding.check.remedy,
                    "names_items": self._link(list(finding.examples[0])) is not None,
                }
                for finding in (() if found is None else found.findings)
            ],
        }
