"""What a benchmark ran on, for the JSON it prints."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

import framedex


def environment(*libraries: str) -> dict[str, object]:
    """Return the command, the machine, and the versions of the libraries that took part."""
    versions = {"framedex": framedex.__version__}
    for name in ("av", "numpy", "pyarrow", *libraries):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    return {
        "command": " ".join(
            ["python -m", f"benchmarks.{os.path.basename(sys.argv[0]).removesuffix('.py')}", *sys.argv[1:]]
        ),
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }
