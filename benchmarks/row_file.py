"""A JSON file of a benchmark's rows, to which rows are added as they are measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class RowFile:
    """The rows that were measured, in this call and in earlier ones.

    Args:
        path: the file. It may exist.
        environment: the command, the machine and the versions.
        setup: what all rows have in common.

    Raises:
        SystemExit: the file has rows of another setup.
    """

    def __init__(self, path: Path, environment: Row, setup: Row) -> None:
        self._path = path
        self._content: Row = {"environment": environment, "setup": json.loads(json.dumps(setup)), "rows": []}
        if path.exists():
            earlier = json.loads(path.read_text(encoding="utf-8"))
            if earlier["setup"] != self._content["setup"]:
                raise SystemExit(f"{path} has rows of another setup: {earlier['setup']}. Name another file.")
            self._content = earlier

    def has(self, **key: object) -> bool:
        """Return whether there is a row with these values."""
        wanted = json.loads(json.dumps(key))
        return any(all(row.get(name) == value for name, value in wanted.items()) for row in self._content["rows"])

    def add(self, row: Row) -> None:
        """Add a row, print it, and write the file."""
        text = json.dumps(row)
        self._content["rows"].append(json.loads(text))
        print(text, flush=True)
        aside = self._path.with_suffix(".part")
        aside.write_text(json.dumps(self._content, indent=1) + "\n", encoding="utf-8")
        aside.rename(self._path)
