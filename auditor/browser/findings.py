"""The findings of an audit for the browser: all checks run once, in another process, while the page is already open."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import orjson

from framedex.errors import printable
from framedex.execution.spawning import python_environment
from framedex.storage.places import Place

State = Literal["running", "done", "failed"]

KEPT = ("title", "severity", "count", "means", "remedy")  # of a finding


class Findings:
    """What `framedex audit` finds. `start` begins to run it.

    A process of its own can be ended at any time, and leaves its memory and its processor to the page afterwards.

    Args:
        place: The index or dataset.
        link: Returns the column of a finding's rows that names clips or media; None if none does.
    """

    def __init__(self, place: Place, link: Callable[[Sequence[str]], str | None]) -> None:
        self._place, self._link = place, link
        self._state: State = "running"
        self._found: dict[str, Any] = {"findings": [], "passed": []}
        self._message: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._wait, name="audit", daemon=True)

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "framedex", "audit", "--json", "--", str(self._place)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=python_environment(),
            start_new_session=True,  # Ctrl-C is for the page
        )
        self._thread.start()

    def close(self) -> None:
        """End the process if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._thread.join()

    def _wait(self) -> None:
        assert self._process is not None  # `start` made it
        out, err = self._process.communicate()
        if self._process.returncode == 0:
            self._found = orjson.loads(out)
            self._state = "done"
        else:
            self._message = err.decode("utf-8", "replace").strip() or f"exit status {self._process.returncode}"
            self._state = "failed"

    def as_json(self) -> dict[str, Any]:
        """Return how far the checks are, and what they found."""
        return {
            "state": self._state,
            "message": None if self._message is None else printable(self._message, lines=True),
            "passed": len(self._found["passed"]),
            "findings": [
                {
                    "name": finding["check"],
                    **{name: finding[name] for name in KEPT},
                    "names_items": self._link(list(finding["examples"][0])) is not None,
                }
                for finding in self._found["findings"]
            ],
        }
