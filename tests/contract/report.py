"""The last run of the contract on a GPU as a page: the device, the versions, and every test's outcome."""

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
    """What became of a test: passed, failed or skipped, in how many seconds, its fixtures included."""

    outcome: str
    seconds: float


def device() -> str:
    """Return the GPU and its driver as nvidia-smi names them, or that there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"
    return "; ".join(dict.fromkeys(line.replace(", ", ", driver ") for line in found))


def page(outcomes: Mapping[str, Outcome]) -> str:
    """Return the page. outcomes: by the test's name."""
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
