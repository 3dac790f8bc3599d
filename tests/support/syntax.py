"""The syntax trees of the project's modules."""

from __future__ import annotations

import ast
from pathlib import Path

TRIES = 5


def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file.

    Parsing counts its depth for the whole process in CPython 3.11 (python/cpython#106905), so that another thread that parses
    meanwhile, such as that of a test server, makes it a SystemError; then it is done again.
    """
    source = path.read_text(encoding="utf-8")
    for left in reversed(range(TRIES)):
        try:
            return ast.parse(source)
        except SystemError:
            if not left:
                raise
    raise AssertionError("unreachable")
