"""Parse filters, which are conditions on the columns of a row, in the syntax of one Python expression.

A filter is converted to a pyarrow expression. It is never evaluated as Python code.

filter  := and, or, not, comparisons (which may be chained), parentheses, True, False, or a boolean column
comparison := value (== | != | < | <= | > | >=) value
            | value [not] in [literal, …]        | value is [not] None
value   := column | literal | value (+ | - | * | /) value | -value
column  := a name, or column("any name at all")
literal := a number, a text in quotes, True, False
"""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.words import did_you_mean
from framedex.errors import PolicyError

# Limits that no reasonable filter reaches. Larger filters could exceed the recursion limits of Python or of pyarrow.
MAX_CHARACTERS, MAX_DEPTH, MAX_PARTS = 10_000, 50, 3_000
GRAMMAR = (
    'columns, numbers, texts, True, False, == != < <= > >=, in [...], is None, + - * /, and, or, not, column("a name")'
)
NO_MATCH = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ", re.DOTALL)
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add_checked,
    ast.Sub: pc.subtract_checked,
    ast.Mult: pc.multiply_checked,
    ast.Div: lambda above, below: pc.divide(_float(above), _float(below)),
}


def parse_filter(text: str) -> pc.Expression:
    """Convert the text of a filter to a pyarrow expression.

    As in SQL, a comparison with an empty cell has the value null, which is neither true nor false. Null propagates
    through the expressions that contain the comparison. `matches` treats null as False.

    Raises:
        PolicyError: The text is not a valid filter. The error states the position in the text.
    """
    if len(text) > MAX_CHARACTERS:
        raise PolicyError("a filter is too long", found=f"{len(text):,} characters", allowed=f"{MAX_CHARACTERS:,}")
    line = re.sub(r"\s", " ", text).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser may warn about the text, for example about "\\d"
            tree = ast.parse(line, mode="eval")
        parts = sum(1 for _ in ast.walk(tree))
    except SyntaxError as error:
        raise PolicyError(
            f"a filter cannot be parsed: {error.msg}",
            where=f"filter, character {error.offset or len(line) + 1}",
            found=line[:80],
            allowed=GRAMMAR,
            remedy='if the name of a column is not a Python identifier, write column("class")',
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise PolicyError("a filter cannot be parsed", where="filter", found=error, allowed=GRAMMAR) from error
    if parts > MAX_PARTS:
        raise PolicyError("a filter has too many parts", where="filter", found=parts, allowed=MAX_PARTS)
    try:
        return _Reader(line).truth(tree.body, 0)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PolicyError("a filter cannot be converted to an expression", where="filter", found=error) from error


def matches(table: pa.Table, expression: pc.Expression, where: str) -> NDArray[np.bool_]:
    """Return bool [rows]: whether the expression is true for each row of a table. Null counts as false.

    Args:
        table: The rows.
        expression: The expression of `parse_filter`.
        where: The location of the filter, for errors.

    Raises:
        PolicyError: The table lacks a column, the types of columns do not allow the expression, or the values of the
            expression are not booleans.
    """
    import pyarrow.dataset  # imported here, because this also imports pandas if pandas is installed

    try:
        found = pyarrow.dataset.dataset(table).to_table(columns={"matches": expression})["matches"]
    except (pa.ArrowException, TypeError) as error:
        if match := NO_MATCH.search(str(error)):
            raise no_column("table", match[1], table.column_names, where=where) from error
        raise PolicyError("a filter does not fit the columns' types", where=where, found=error) from error
    if found.type != pa.bool_():
        raise PolicyError(
            "a filter must be true or false for each row", where=where, found=f"values of type {found.type}"
        )
    return np.asarray(pc.fill_null(found, False).to_numpy(), np.bool_)


def columns_in(text: str) -> list[str]:
    """Return the names of the columns that a valid filter uses, in the order of their first use."""
    tree = ast.parse(re.sub(r"\s", " ", text).strip(), mode="eval")
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Constant(value=str(name))]):
                found.append((node.col_offset, name))
            case ast.Name(id=name) if name != "column":  # `column` is the function in column("a name")
                found.append((node.col_offset, name))
    return list(dict.fromkeys(name for _, name in sorted(found)))


def _float(value: Any) -> Any:
    return value.cast(pa.float64(), safe=False)


class _Reader:
    """Converts the syntax tree of a filter to a pyarrow expression. Nodes of types that are not listed are refused."""

    def __init__(self, line: str) -> None:
        self._line = line

    def truth(self, node: ast.expr, depth: int) -> Any:
        """Convert a node that is a condition to a boolean expression."""
        self._check_depth(node, depth)
        match node:
            case ast.BoolOp(op=op, values=values):
                return self._joined([self.truth(value, depth + 1) for value in values], isinstance(op, ast.And))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.truth(operand, depth + 1)
            case ast.Compare():
                operands = [node.left, *node.comparators]
                pairs = zip(operands, node.ops, operands[1:], strict=False)
                comparisons = [self._comparison(left, op, right, depth + 1) for left, op, right in pairs]
                return self._joined(comparisons, True)
            case ast.Constant(value=bool(value)):
                return pc.scalar(value)
            case ast.Name() | ast.Call():
                return self._column(node)
        raise self._refused("a filter cannot contain this here", node)

    def _joined(self, terms: list[Any], all_of_them: bool) -> Any:
        """Join terms by `and` or `or` as a balanced tree, because a chain of many terms would be nested too deeply.

        Args:
            terms: The expressions of the terms.
            all_of_them: Whether to join by `and` instead of `or`.
        """
        if len(terms) == 1:
            return terms[0]
        half = len(terms) // 2
        left, right = self._joined(terms[:half], all_of_them), self._joined(terms[half:], all_of_them)
        return left & right if all_of_them else left | right

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr, depth: int) -> Any:
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("`is` can only compare with None; use == for other values", right)
            value = self._value(left, depth)
            return value.is_null() if isinstance(op, ast.Is) else value.is_valid()
        if isinstance(op, ast.In | ast.NotIn):
            value = self._value(left, depth)
            known = pc.if_else(value.is_valid(), value.isin(self._literals(right)), pa.scalar(None, pa.bool_()))
            return known if isinstance(op, ast.In) else ~known
        return COMPARISONS[type(op)](self._value(left, depth), self._value(right, depth))

    def _literals(self, node: ast.expr) -> pa.Array:
        if not isinstance(node, ast.List | ast.Tuple | ast.Set) or not node.elts:
            raise self._refused('`in` needs a list such as ["cat", "dog"]', node)
        values = [self._literal(element) for element in node.elts]
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError) as error:
            raise self._refused("the values of a list must be of one type", node) from error

    def _value(self, node: ast.expr, depth: int) -> Any:
        """Convert a node that is a value: a column, a literal, or arithmetic with values."""
        self._check_depth(node, depth)
        match node:
            case ast.Name() | ast.Call():
                return self._column(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                return ARITHMETIC[type(op)](self._value(left, depth + 1), self._value(right, depth + 1))
            case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
                return pc.negate_checked(self._value(operand, depth + 1))
        return pc.scalar(self._literal(node))

    def _literal(self, node: ast.expr) -> bool | int | float | str:
        match node:
            case ast.Constant(value=int(value) | float(value) | str(value)):  # bool is a subclass of int
                return self._storable(value, node)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value) | float(value))) if not isinstance(
                value, bool
            ):
                return self._storable(-value, node)
            case ast.Constant(value=None):
                raise self._refused("compare with None by `is None` or `is not None`", node)
        raise self._refused("a filter cannot contain this here", node)

    def _storable(self, value: bool | int | float | str, node: ast.expr) -> bool | int | float | str:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise self._refused("a number does not fit in 64 bits", node)
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise self._refused("a text contains a lone surrogate", node) from error
        return value

    def _column(self, node: ast.Name | ast.Call) -> Any:
        match node:
            case ast.Name(id=name):
                return pc.field(name)
            case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]) if name:
                return pc.field(str(self._storable(name, node)))
        raise self._refused('the only call that a filter can contain is column("a name")', node)

    def _check_depth(self, node: ast.expr, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._refused(f"a filter has more than {MAX_DEPTH} levels of nesting", node)

    def _refused(self, what: str, node: ast.expr) -> PolicyError:
        before = self._line.encode("utf-8", "surrogatepass")[: node.col_offset].decode("utf-8", "replace")
        found = ast.get_source_segment(self._line, node) or self._line
        return PolicyError(what, where=f"filter, character {len(before) + 1}", found=found[:80], allowed=GRAMMAR)


def no_column(of: str, name: str, names: Iterable[str], *, where: str | None = None, none: str = "") -> PolicyError:
    """Return the error for a column that does not exist.

    Args:
        of: The word for the thing that lacks the column, such as "listing".
        name: The name of the missing column.
        names: The names of the columns that exist.
        where: The location of the parameter that contains the missing name.
        none: The text that is shown instead of the existing columns if none exist.
    """
    known = list(names)
    allowed, remedy = ", ".join(known) or none, did_you_mean(name, known)
    return PolicyError(f"the {of} has no such column", where=where, found=repr(name), allowed=allowed, remedy=remedy)
