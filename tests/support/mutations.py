"""Mutations: changes of one line each that tests should notice."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TURNED = {"==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in"}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPERATORS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of one line.

    Attributes:
        path: the module, relative to the project.
        function: the dotted name of the function within the module.
        kind: the kind of change, in words.
        line: the line as it is; `changed`: the line as it becomes.
        copy: which of the function's equal lines it is, from 0.
    """

    area: str
    path: str
    function: str
    kind: str
    line: str
    changed: str
    copy: int

    def apply(self, root: Path) -> None:
        """Change the line in a checkout. Raises SystemExit if the line is not there."""
        path = root / self.path
        source = path.read_text(encoding="utf-8")
        lines = source.split("\n")
        places = [at for at in _lines_of(ast.parse(source), self.function) if lines[at - 1] == self.line]
        if len(places) <= self.copy:
            sys.exit(
                f"{self.path}: {self.function} has no line {self.line.strip()!r}; take it out of the file of mutations"
            )
        lines[places[self.copy] - 1] = self.changed
        path.write_text("\n".join(lines), encoding="utf-8")


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield (dotted name, node) of each outermost function and method."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield prefix + child.name, child
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")

    yield from visit(tree, "")


def _lines_of(tree: ast.Module, function: str) -> range:
    for name, node in _functions(tree):
        if name == function:
            return range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    return range(0)


def _replaced(line: str, node: ast.expr, text: str) -> str:
    # Columns of the syntax tree count bytes.
    content = line.encode()
    return (content[: node.col_offset] + text.encode() + content[node.end_col_offset :]).decode()


def _changes(node: ast.expr, line: str, keys: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (kind, the line after the change) of what may be done to one expression.

    Args:
        keys: the other names of columns in the same function.
    """
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            sign = OPERATORS[type(operator)]
            for kind, table in (("condition turned", TURNED), ("bound moved", MOVED)):
                if sign in table:
                    yield kind, _replaced(line, node, f"{ast.unparse(left)} {table[sign]} {ast.unparse(right)}")
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield "and, or swapped", _replaced(line, node, "(" + word.join(f"({ast.unparse(v)})" for v in values) + ")")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition turned", _replaced(line, node, f"bool({ast.unparse(operand)})")
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=ast.Constant(value=int()) as right):
            sign = "-" if isinstance(operator, ast.Add) else "+"
            yield "sign changed", _replaced(line, node, f"({ast.unparse(left)} {sign} {ast.unparse(right)})")
        case ast.Constant(value=bool() as value):
            yield "flag turned", _replaced(line, node, str(not value))
        case ast.Constant(value=int() as value):
            yield "number moved by one", _replaced(line, node, str(value + 1))
        case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)) if set(keys) - {key}:
            other = min(set(keys) - {key})
            yield "column swapped", _replaced(line, node, f"{ast.unparse(value)}[{other!r}]")
        case ast.Call(func=function, args=[ast.Name() as first, ast.Name() as second], keywords=[]):
            swapped = f"{ast.unparse(function)}({second.id}, {first.id})"
            yield "arguments swapped", _replaced(line, node, swapped)


def mutations_of(path: str, area: str) -> Iterator[tuple[int, Mutation]]:
    """Yield (line number, mutation) of every change that can be made to the functions of a module."""
    source = (ROOT / path).read_text(encoding="utf-8")
    lines = source.split("\n")
    tree = ast.parse(source)
    for name, function in _functions(tree):
        keys = [
            node.slice.value
            for node in ast.walk(function)
            if isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ]
        silent = [node for node in ast.walk(function) if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert)]
        skipped = {id(inner) for node in silent for inner in ast.walk(node)}
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            if not isinstance(node, ast.expr) or id(node) in skipped or node.lineno != node.end_lineno:
                continue
            line = lines[node.lineno - 1]
            places = [at for at in _lines_of(tree, name) if lines[at - 1] == line]
            for kind, changed in _changes(node, line, keys):
                yield (
                    node.lineno,
                    Mutation(
                        area=area,
                        path=path,
                        function=name,
                        kind=kind,
                        line=line,
                        changed=changed,
                        copy=places.index(node.lineno),
                    ),
                )
