"""The syntax trees of the project's modules."""

from __future__ import annotations

import ast
from pathlib import Path

TRIES = 5


def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return parsed(path.read_text(encoding="utf-8"))


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source text.

    In CPython 3.11, the parser counts its depth for the whole process (python/cpython#106905). If another thread, such
    as that of a test server, parses at the same time, this raises SystemError. Parsing is then repeated.
    """
    for left in reversed(range(TRIES)):
        try:
            return ast.parse(source)
        except SystemError:
            if not left:
                raise
    raise AssertionError("unreachable")
