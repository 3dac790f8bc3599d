"""Sizes of the product: modules, importers, and lines of code, imports, docstrings and comments.

    python -m tests.support.code_size                     # as it is
    python -m tests.support.code_size --since 796b775     # beside an earlier commit: which lines went, which moved

Lines of code are lines with code in them: without docstrings, comments, blank lines and imports. A line that went is in
none of the product's modules any more; a line that moved is in a module of another path.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("framedex", "indexer", "sharder", "loader", "auditor")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a module.

    Attributes:
        code: Its lines of code, without indentation.
        imports: Number of lines that import.
        docstrings: Number of lines of docstrings.
        comments: Number of comments.
    """

    code: list[str]
    imports: int
    docstrings: int
    comments: int


def lines_of(node: ast.stmt) -> range:
    """Return the numbers of a statement's lines."""
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def size_of(text: str) -> Size:
    """Return the size of a module by its text."""
    imports: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(lines_of(node))
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstrings.update(lines_of(node.body[0]))
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    filled = {line for one in tokens if one.type not in LAYOUT for line in range(one.start[0], one.end[0] + 1)}
    lines = text.splitlines()
    return Size(
        code=[lines[number - 1].strip() for number in sorted(filled - imports - docstrings)],
        imports=len(imports),
        docstrings=len(docstrings),
        comments=sum(one.type == tokenize.COMMENT for one in tokens),
    )


def texts_of(commit: str | None) -> dict[str, str]:
    """Return the text of each module that is not empty by its path, of a commit or, if None, of the working tree."""
    if commit is None:
        paths = [path for stage in STAGES for path in (ROOT / stage).rglob("*.py")]  # rglob does not follow links
        found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    else:
        made = subprocess.run(["git", "-C", str(ROOT), "archive", commit, *STAGES], check=True, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar:
            files = {one.name: tar.extractfile(one) for one in tar if one.name.endswith(".py")}
            found = {name: file.read().decode() for name, file in files.items() if file is not None}
    return {path: text for path, text in found.items() if text.strip()}


def importers_of(texts: dict[str, str]) -> Counter[str]:
    """Return by how many other modules each module is imported."""
    names = {name_of(path): path for path in texts}
    found: Counter[str] = Counter()
    for path, text in texts.items():
        seen = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                seen.update(names.get(f"{node.module}.{one.name}", names.get(str(node.module))) for one in node.names)
            elif isinstance(node, ast.Import):
                seen.update(names.get(one.name) for one in node.names)
        found.update(seen - {None, path})
    return found


def name_of(path: str) -> str:
    """Return the dotted name of a module by its path."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("framedex") else f"framedex.{name}"


def summary(texts: dict[str, str]) -> str:
    """Return the sizes of the product in a line."""
    sizes = [size_of(text) for text in texts.values()]
    single = [path for path, count in importers_of(texts).items() if count == 1 and not path.endswith("cli.py")]
    return (
        f"{len(texts)} modules, {len(single)} of one importer; {sum(len(one.code) for one in sizes):,} lines of code, "
        f"{sum(one.imports for one in sizes):,} of imports, {sum(one.docstrings for one in sizes):,} of docstrings; "
        f"{sum(one.comments for one in sizes):,} comments"
    )


def code_by_path(texts: dict[str, str]) -> dict[str, Counter[str]]:
    """Return how often each line of code stands in each module."""
    return {path: Counter(size_of(text).code) for path, text in texts.items()}


def main() -> None:
    """Print the sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="an earlier commit to compare with")
    since = parser.parse_args().since
    now = texts_of(None)
    print("now:  ", summary(now))
    if since is not None:
        before = texts_of(since)
        print("before:", summary(before))
        old, new = code_by_path(before), code_by_path(now)
        every_old = sum(old.values(), Counter[str]())
        every_new = sum(new.values(), Counter[str]())
        stayed = sum(sum((old[path] & new[path]).values()) for path in old.keys() & new.keys())
        kept = sum((every_old & every_new).values())
        gone = sum((every_old - every_new).values())
        came = sum((every_new - every_old).values())
        print(f"{kept - stayed:,} lines of code moved to a module of another path, {gone:,} went, {came:,} are new")


if __name__ == "__main__":
    main()
