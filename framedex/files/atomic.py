"""Writes small files so that each is either wholly there or not at all: under another name first, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

ASIDE = ".writing-"  # a name that no reader looks at


def write_aside(path: Path, content: bytes) -> None:
    """Write a small file so that it is either wholly there or not at all."""
    aside = path.with_name(ASIDE + path.name)
    with open(aside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_json_aside(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file so that it is either wholly there or not at all."""
    write_aside(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed run left aside in a folder."""
    if folder.is_dir():
        for path in folder.glob(f"{ASIDE}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
