"""The limit on how deeply users' columns may be nested. Libraries read them recursively and crash at some depth."""

from __future__ import annotations

import re

import pyarrow as pa

from framedex.errors import FramedexError

# Levels. Parquet's reader accepts 100 levels of a schema, and a list takes up to three of them. orjson stops at 254
# levels, and pyarrow's JSON reader overflows its stack at a greater depth.
MOST_NESTED = 32
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def json_depth(text: str) -> int:
    """Return the nesting depth of a JSON text. An object or list of plain values has depth 1.

    The result is an upper bound if it is at most MOST_NESTED. For a text that is not JSON, the result has no meaning.
    """
    depth = deepest = 0
    if text.count("[") + text.count("{") <= MOST_NESTED:  # cannot be too deep
        return text.count("[") + text.count("{")
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def type_depth(kind: pa.DataType) -> int:
    """Return the nesting depth of an Arrow type: 0 for plain values."""
    depth, kinds = 0, [kind]
    while kinds := [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]:
        depth += 1
    return depth


def check_depth(levels: int, where: str, error: type[FramedexError]) -> None:
    """Raise an error of this type if the columns at a place have too many levels."""
    if levels > MOST_NESTED:
        raise error(
            "a user column is nested too deeply",
            where=where,
            found=f"{levels} levels",
            allowed=f"up to {MOST_NESTED}",
            remedy="store it as a text, or as columns of its own",
        )
