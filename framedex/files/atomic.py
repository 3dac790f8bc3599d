"""Writes small files completely or not at all: under another name first, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

ASIDE = ".writing-"  # a prefix that readers ignore


def write_aside(path: Path, content: bytes) -> None:
    """Write a small file, completely or not at all."""
    aside = path.with_name(ASIDE + path.name)
    aside.unlink(missing_ok=True)
    with open(aside, "xb") as file:  # never through a link
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_json_aside(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file, completely or not at all."""
    write_aside(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def remove_unfinished(folder: Path) -> None:
    """Delete the unfinished files that a killed run left in a folder."""
    if folder.is_dir():
        for path in folder.glob(f"{ASIDE}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
