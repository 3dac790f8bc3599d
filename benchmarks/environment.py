"""The environment of a benchmark run, for its JSON output."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys

import framedex


def environment(*libraries: str) -> dict[str, object]:
    """Return the command, the machine, and the versions of the libraries that were used."""
    versions = {"framedex": framedex.__version__}
    versions |= {name: _version(name) for name in ("av", "numpy", "pyarrow", *libraries)}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    return {
        "command": " ".join(["python", *_program(), *sys.argv[1:]]),
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _program() -> list[str]:
    """Return how Python was told what to run: "-m" and a module's name, or a file."""
    spec = sys.modules["__main__"].__spec__
    return [sys.argv[0]] if spec is None else ["-m", spec.name]


def _version(distribution: str) -> str:
    """Return a distribution's version. DALI's is read from its module, as DALI may be unpacked without its metadata."""
    try:
        if distribution.startswith("nvidia-dali"):
            return str(importlib.import_module("nvidia.dali").__version__)
        return importlib.metadata.version(distribution)
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return "not installed"
