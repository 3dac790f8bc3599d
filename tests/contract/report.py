"""The report page of the last contract run on a GPU: the device, the versions, and every test's outcome."""

from __future__ import annotations

import collections
import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.environment import environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a test.

    Attributes:
        outcome: passed, failed or skipped.
        seconds: the duration, including the test's fixtures.
    """

    outcome: str
    seconds: float


def device() -> str:
    """Return the GPUs and their drivers as nvidia-smi names them, or "no NVIDIA GPU"."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"
    return "; ".join(dict.fromkeys(line.replace(", ", ", driver ") for line in found))


def page(outcomes: Mapping[str, Outcome]) -> str:
    """Return the page as Markdown.

    Args:
        outcomes: the outcome of each test by its name.
    """
    versions = environment("torch", "nvidia-dali-cuda120", "pytest")["versions"]
    assert isinstance(versions, dict)
    counts = collections.Counter(outcome.outcome for outcome in outcomes.values())
    facts = {
        "date": datetime.date.today().isoformat(),
        "device": device(),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "outcome": ", ".join(f"{count} {name}" for name, count in sorted(counts.items())),
    }
    lines = ["<!-- Written by `make test-gpu`. -->", "", "# The contract's last run on a GPU", ""]
    lines += ["| what | found |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items())]
    lines += ["", "| test | outcome | seconds |", "| --- | --- | --- |"]
    for name, found in outcomes.items():
        shown = name.removeprefix("tests/contract/").replace("|", "\\|")
        lines.append(f"| `{shown}` | {found.outcome} | {found.seconds:.1f} |")
    return "\n".join(lines) + "\n"
