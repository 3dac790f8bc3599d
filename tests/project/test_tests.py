"""Each test asserts something. (Data drawn by hypothesis may sometimes be empty.)"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.counted import some
from tests.support.syntax import tree_of

TESTS = Path(__file__).resolve().parents[1]
MAX_INTERNAL = 286  # lines that import internal modules; they may only fall, unless modules are split or added
INTERNAL = re.compile(r"^\s*(?:from|import) framedex\.(?!errors\b)", re.MULTILINE)


def assertions(node: ast.AST, loops: tuple[ast.For, ...] = ()) -> Iterator[tuple[ast.For, ...]]:
    """Yield for each assertion in a function the loops that contain it."""
    for child in ast.iter_child_nodes(node):
        expects = isinstance(child, ast.With) and any("raises" in ast.unparse(item) for item in child.items)
        if isinstance(child, ast.Assert) or expects:
            yield loops
        yield from assertions(child, (*loops, child) if isinstance(child, ast.For) else loops)


def is_counted(loop: ast.For) -> bool:
    """Return whether a loop cannot be empty: it is over a display, a constant, a range, or `some(…)`."""
    items: ast.AST = loop.iter
    while isinstance(items, ast.Call) and ast.unparse(items.func) in ("enumerate", "zip", "reversed", "sorted"):
        items = items.args[0]
    if isinstance(items, ast.Tuple | ast.List | ast.Dict | ast.Set):
        return bool(ast.unparse(items).strip("()[]{}"))
    if isinstance(items, ast.Call) and ast.unparse(items.func) in ("range", "some"):
        return True
    root = items
    while isinstance(root, ast.Call | ast.Attribute):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Name) and root.id.isupper()


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    """Yield the tests of a file, except those with arguments drawn by hypothesis."""
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        if not any("given" in ast.unparse(decorator) for decorator in node.decorator_list):
            yield node


def test_every_test_asserts_outside_of_loops_or_in_loops_that_are_counted() -> None:
    tests = 0
    for path in some(TESTS.rglob("test_*.py"), 80):
        for function in functions(path):
            found = list(assertions(function))
            counted = [loops for loops in found if all(map(is_counted, loops))]
            assert counted or not found, f"{path.name}: {function.name} may pass on nothing"
            tests += 1
    assert tests > 1000


def test_few_lines_import_internal_modules() -> None:
    found = sum(len(INTERNAL.findall(path.read_text(encoding="utf-8"))) for path in some(TESTS.rglob("*.py"), 100))
    remedy = "import `framedex` or run the command where the claim is public"
    assert found <= MAX_INTERNAL, f"{found} lines import internal modules, {MAX_INTERNAL} are allowed: {remedy}"
    assert found == MAX_INTERNAL, f"lower MAX_INTERNAL to {found}"
